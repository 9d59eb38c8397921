"""An epoch of the relational GCN beside PyG, and a layer beside a sum without types.

    uv run python benchmarks/relations.py --data aifb.npz mutag.npz
    uv run python benchmarks/relations.py --nodes 1e5 --edges 1e6 --relations 50

Data have `src`, `dst`, `relation` [num_edges], `num_nodes`, `labels` [num_nodes], -1
for none, and `train`, ids. A graph is also drawn, with relations of Zipf's law. The
model has 2 layers of 16 columns, learned input rows of 16, inverse relations, a weight
for each relation and Adam. All contenders are in this process and go by turns, and the
fastest epoch of each counts. The ratio is to gnnkit. Memory is kept as ranks keep it.

The second table is about one layer of `--width` columns, forward and backward, without
inverse relations: the sum over all edges alike, the products of the pairs (node,
relation), and the layer. The ratio is of the layer to the sum and the products.
"""

from __future__ import annotations

from gnnkit.launch.lean import keep_freed_memory

keep_freed_memory()  # before torch, as ranks do

# ruff: noqa: E402
import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.graph import Graph, Split
from gnnkit.model.rgcn import RGCN
from gnnkit.partition import Grid, Partition
from gnnkit.partition.shard import cut

HIDDEN, MILLISECONDS = 16, 1e3
MOST_GIGABYTES = 8
Step = Callable[[], object]


def read(path: Path) -> Graph:
    """Reads a graph with relations."""
    with np.load(path, allow_pickle=False) as file:
        split = np.zeros(int(file["num_nodes"]), np.int8)
        split[file["train"]] = Split.TRAIN
        labels = file["labels"].astype(np.int64)
        return Graph.from_edges(
            file["src"], file["dst"], len(split), labels=labels, split=split, edge_types=file["relation"]
        )


def drawn(nodes: int, edges: int, relations: int) -> Graph:
    """Draws a graph whose relations have unequally many edges."""
    rng = np.random.default_rng(0)
    shares = 1 / np.arange(1, relations + 1)
    return Graph.from_edges(
        *rng.integers(0, nodes, (2, edges)),
        nodes,
        labels=rng.integers(0, HIDDEN, nodes),
        split=np.full(nodes, Split.TRAIN, np.int8),
        edge_types=rng.choice(relations, edges, p=shares / shares.sum()),
        edge_type_names=[str(number) for number in range(relations)],
    )


def epoch(graph: Graph, forward: Callable[[Tensor], Tensor], model: nn.Module) -> Step:
    """Makes an epoch of training, with learned rows."""
    rows = nn.Parameter(torch.randn(graph.num_nodes, HIDDEN) / 4)
    train = torch.from_numpy(np.flatnonzero(graph.split == Split.TRAIN))
    labels = torch.from_numpy(graph.labels)[train].long()
    optimizer = torch.optim.Adam([rows, *model.parameters()], lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward(rows)[train], labels).backward()
        optimizer.step()

    return step


def ours(graph: Graph, engine: Engine) -> Step:
    model = RGCN(HIDDEN, graph.num_classes, graph.num_relations)
    return epoch(graph, lambda rows: model(rows, ShardAdjacency.layers(engine, 2, 0)), model)


def theirs(graph: Graph, name: str) -> Step:
    """Makes PyG's epoch. Reverse edges are edges of relations of their own."""
    from torch_geometric import nn as pyg

    src, dst = graph.csc.indices, np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    types = np.asarray(graph.edge_types, np.int64)
    ends = torch.from_numpy(np.stack([np.append(src, dst), np.append(dst, src)]).astype(np.int64))
    relation = torch.from_numpy(np.append(types, types + graph.num_relations))
    make = getattr(pyg, name)
    layers = nn.ModuleList(make(HIDDEN, k, 2 * graph.num_relations) for k in (HIDDEN, graph.num_classes))
    return epoch(graph, lambda rows: layers[1](layers[0](rows, ends, relation).relu(), ends, relation), layers)


class Products(Function):
    """Multiplies the rows of each relation by its weight, with nothing around."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
        ctx.save_for_backward(z, weights)
        ctx.sizes = sizes
        return Products.each(z, weights, sizes)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        z, weights = ctx.saved_tensors
        of_weights = torch.empty_like(weights)
        for out, rows, gradient in zip(of_weights, z.split(ctx.sizes), grad.split(ctx.sizes), strict=True):
            torch.mm(rows.t(), gradient, out=out)
        return Products.each(grad, weights.transpose(1, 2), ctx.sizes), of_weights, None

    @staticmethod
    def each(z: Tensor, weights: Tensor, sizes: list[int]) -> Tensor:
        result = z.new_empty(len(z), weights.shape[2])
        for rows, weight, out in zip(z.split(sizes), weights, result.split(sizes), strict=True):
            torch.mm(rows, weight, out=out)
        return result


def both_ways(forward: Callable[[], Tensor]) -> Step:
    """Makes a forward and a backward pass."""
    return lambda: forward().sum().backward()  # type: ignore[no-untyped-call]


def layer(graph: Graph, engine: Engine, width: int) -> dict[str, Step]:
    """Makes the layer and its parts."""
    x = torch.randn(graph.num_nodes, width, requires_grad=True)
    weights = torch.randn(graph.num_relations, width, width, requires_grad=True)
    pairs = engine.typed.pairs(inverse=False)
    means = torch.randn(len(pairs), width, requires_grad=True)
    (adjacency,) = ShardAdjacency.layers(engine, 1, 0)
    return {
        "sum": both_ways(lambda: engine.sum(x, 0)),
        "products": both_ways(lambda: Products.apply(means, weights, pairs.sizes)),
        "layer": both_ways(lambda: adjacency.aggregate_relations(x, lambda z, p, _: p.sum_products(z, weights))),
    }


def by_turns(steps: Mapping[str, Step], rounds: int) -> dict[str, float]:
    """Returns the seconds of the fastest step of each, on one thread of the processor.

    Other work on the machine would decide between the steps otherwise.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(steps, float("inf"))
    for step in steps.values():
        step()
    for _ in range(rounds):
        for name, step in steps.items():
            start = clock()
            step()
            best[name] = min(best[name], clock() - start)
    return best


def measure(name: str, graph: Graph, options: argparse.Namespace, comm: Communicator) -> None:
    """Prints the epochs on a graph, and the parts of a layer."""
    torch.set_num_threads(options.threads)
    shard = cut(graph, Partition(np.zeros(graph.num_nodes, np.int32), None, Grid(1, 1, 1)), 0)
    engine = Engine(shard, comm, torch.float32)
    print(f"{name}: {graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {graph.num_relations} relations", flush=True)
    peers = {part: theirs(graph, part) for part in ("FastRGCNConv", "RGCNConv") if options.peers}
    gigabytes = 2 * graph.num_edges * HIDDEN**2 * 4 / 1e9  # a weight for each edge
    if peers and gigabytes > MOST_GIGABYTES:
        del peers["FastRGCNConv"]
        print(f"  FastRGCNConv needs {gigabytes:.0f} GB for the weights of edges alone", flush=True)
    best = by_turns({"gnnkit": ours(graph, engine), **peers}, options.rounds)
    for part, seconds in best.items():
        print(f"  {part:14} {MILLISECONDS * seconds:10.1f} ms an epoch {seconds / best['gnnkit']:8.2f}x", flush=True)
    parts = by_turns(layer(graph, engine, options.width), options.rounds)
    text = "  ".join(f"{part} {MILLISECONDS * seconds:.1f} ms" for part, seconds in parts.items())
    print(f"  {text}  layer / (sum + products) {parts['layer'] / (parts['sum'] + parts['products']):.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, nargs="*", default=[], help="npz files with relations")
    parser.add_argument("--nodes", type=float, default=1e5, help="of the drawn graph. 0: none is drawn")
    parser.add_argument("--edges", type=float, default=1e6)
    parser.add_argument("--relations", type=int, default=50)
    parser.add_argument("--width", type=int, default=64, help="columns of the layer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--no-peers", dest="peers", action="store_false", help="only gnnkit")
    options = parser.parse_args()
    graphs = {path.stem: read(path) for path in options.data}
    if options.nodes:
        graphs["drawn"] = drawn(int(options.nodes), int(options.edges), options.relations)
    for name, graph in graphs.items():
        Threads.run(lambda comm, name=name, graph=graph: measure(name, graph, options, comm), 1, timeout=3600)


if __name__ == "__main__":
    main()
