"""Convolutions of PyG as they are: by PyG alone, in gnnkit, and gnnkit's own models.

Two layers train on the whole graph in one process. The three take turns of one epoch
(forward, backward, Adam) in one run, and figures are medians over the rounds.

- seconds: CPU time of an epoch. It is that of one thread, because threads that wait on
  a shared machine also take CPU time. `--threads` sets another number
- MiB: peak memory above that before the first epoch, of a process of its own
- rows: functions of the last forward pass that computed a row per edge, by layer

RGCN and HGT read edges of `--relations` drawn types.

    uv run python benchmarks/pyg_convolutions.py --data path/to/amazon_photo.npz
    uv run python benchmarks/pyg_convolutions.py --nodes 50000 --edges 1000000
    uv run python benchmarks/pyg_convolutions.py --models GCN GAT --memory
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from gnnkit_formats.npz import Npz
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.data import HeteroData

from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.graph import Graph
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.hgt import HGT
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.unchanged import EdgeIndexModel, adapted
from gnnkit.partition.shard import uncut

HIDDEN, HEADS = 64, 4
Step = Callable[[], object]


class Facts(NamedTuple):
    """What models read of a graph besides its widths."""

    degrees: Tensor  # [largest in-degree + 1] number of nodes
    relations: int


Maker = Callable[[int, int, Facts], nn.Module]


class Two(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


class Relational(Two):
    """Two layers that read edge types."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_type: Tensor) -> Tensor:  # type: ignore[override]
        return self.conv2(self.conv1(x, edge_index, edge_type).relu(), edge_index, edge_type)


class Transformer(nn.Module):
    """Two layers over edges by relation, after a projection, as in PyG's example."""

    def __init__(self, inputs: int, classes: int, relations: int) -> None:
        super().__init__()
        self.project, self.out = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, classes)
        types = (["node"], [("node", str(relation), "node") for relation in range(relations)])
        self.convs = nn.ModuleList(pyg.HGTConv(HIDDEN, HIDDEN, types, HEADS) for _ in range(2))

    def forward(self, x_dict: dict, edge_index_dict: dict) -> Tensor:
        x_dict = {"node": F.gelu(self.project(x_dict["node"]))}
        for conv in self.convs:
            x_dict = conv(x_dict, edge_index_dict)
        return self.out(x_dict["node"])


class Summed(nn.Module):
    """Sums by hand, without a layer of PyG."""

    def __init__(self, inputs: int, classes: int) -> None:
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(inputs, HIDDEN), nn.Linear(HIDDEN, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        source, destination = edge_index
        for lin in (self.lin1, self.lin2):
            h = lin(x.relu())
            x = torch.zeros_like(h).index_add_(0, destination, h[source]) + h
        return x


def mlp(a: int, b: int) -> nn.Module:
    return nn.Sequential(nn.Linear(a, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, b))


def of(make: Callable[[int, int], nn.Module]) -> Maker:
    return lambda a, b, _: Two(make(a, HIDDEN), make(HIDDEN, b))


def heads(kind: type, **keys: object) -> Maker:
    def make(a: int, b: int, _: Facts) -> nn.Module:
        first = kind(a, HIDDEN // HEADS, heads=HEADS, **keys)
        return Two(first, kind(HIDDEN, b, heads=1, **keys))

    return make


def pna(a: int, b: int, facts: Facts) -> nn.Module:
    options = (["mean", "max", "std"], ["identity", "amplification"], facts.degrees)
    return Two(pyg.PNAConv(a, HIDDEN, *options), pyg.PNAConv(HIDDEN, b, *options))


def rgcn(a: int, b: int, facts: Facts) -> nn.Module:
    return Relational(pyg.RGCNConv(a, HIDDEN, facts.relations), pyg.RGCNConv(HIDDEN, b, facts.relations))


def own_rgcn(a: int, b: int, facts: Facts) -> nn.Module:
    return RGCN(a, b, facts.relations, HIDDEN, inverse=False)


def own_hgt(a: int, b: int, facts: Facts) -> nn.Module:
    return HGT(a, b, facts.relations, 1, HIDDEN // HEADS, HEADS, dropout=0.0, inverse=False, norm="none")


MODELS: dict[str, Maker] = {
    "GCN": of(pyg.GCNConv),
    "SAGE": of(pyg.SAGEConv),
    "SAGE max": of(lambda a, b: pyg.SAGEConv(a, b, aggr="max")),
    "GIN": of(lambda a, b: pyg.GINConv(mlp(a, b))),
    "GraphConv": of(pyg.GraphConv),
    "GAT": heads(pyg.GATConv),
    "GAT dropout": heads(pyg.GATConv, dropout=0.5),
    "GATv2": heads(pyg.GATv2Conv),
    "Transformer": heads(pyg.TransformerConv),
    "RGCN": rgcn,
    "PNA": pna,
    "HGT": lambda a, b, facts: Transformer(a, b, facts.relations),
    "by hand": lambda a, b, _: Summed(a, b),
}
TYPED = ("RGCN", "HGT")
OURS: dict[str, Maker] = {
    "GCN": lambda a, b, _: GCN(a, b, HIDDEN, dropout=0.0),
    "SAGE": lambda a, b, _: GraphSAGE(a, b, HIDDEN, dropout=0.0),
    "SAGE max": lambda a, b, _: GraphSAGE(a, b, HIDDEN, dropout=0.0, aggregator="max"),
    "GIN": lambda a, b, _: GIN(a, b, HIDDEN, dropout=0.0),
    "GAT": lambda a, b, _: GAT(a, b, HIDDEN // HEADS, HEADS, dropout=0.0),
    "GAT dropout": lambda a, b, _: GAT(a, b, HIDDEN // HEADS, HEADS, dropout=0.5),
    "RGCN": own_rgcn,
    "HGT": own_hgt,
}


def drawn(nodes: int, edges: int, width: int, classes: int = 5) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = (rng.integers(0, nodes, edges) for _ in range(2))
    x = rng.standard_normal((nodes, width), dtype=np.float32)
    return Graph.from_edges(src, dst, nodes, features=x, labels=rng.integers(0, classes, nodes))


def typed(graph: Graph, relations: int) -> Graph:
    """Draws a relation for each edge."""
    data, edges = HeteroData(), edges_of(graph)
    data["node"].x = torch.from_numpy(np.asarray(graph.whole_features, np.float32))
    data["node"].y = torch.from_numpy(graph.labels)
    types = torch.from_numpy(np.random.default_rng(1).integers(0, relations, edges.shape[1]))
    for relation in range(relations):
        data["node", str(relation), "node"].edge_index = edges[:, types == relation]
    return Graph.of(data)


def edges_of(graph: Graph) -> Tensor:
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    return torch.from_numpy(np.stack([graph.csc.indices.astype(np.int64), dst]))


def arguments_of(name: str, graph: Graph, x: Tensor) -> tuple[object, ...]:
    """Returns the arguments of a model of PyG."""
    edges = edges_of(graph)
    if name not in TYPED:
        return x, edges
    types = torch.from_numpy(np.asarray(graph.edge_types, np.int64))
    if name == "RGCN":
        return x, edges, types
    relations = range(graph.num_relations)
    return {"node": x}, {("node", str(relation), "node"): edges[:, types == relation] for relation in relations}


def loop(model: nn.Module, forward: Callable[[], Tensor], y: Tensor) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    has_label = y >= 0

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward()[has_label], y[has_label]).backward()
        optimizer.step()

    return step


def steps(name: str, graph: Graph, kinds: list[str]) -> dict[str, tuple[nn.Module, Step]]:
    """Returns the model and an epoch of each kind: plain, gnnkit, ours."""
    x, y = torch.from_numpy(np.asarray(graph.whole_features, np.float32)), torch.from_numpy(graph.labels)
    facts = Facts(torch.bincount(torch.from_numpy(np.diff(graph.csc.indptr))), graph.num_relations)
    inputs, classes = x.shape[1], int(y.max()) + 1
    epochs: dict[str, tuple[nn.Module, Step]] = {}
    for kind in kinds:
        torch.manual_seed(0)
        if kind == "plain":
            model, arguments = MODELS[name](inputs, classes, facts), arguments_of(name, graph, x)
            epochs[kind] = (model, loop(model, lambda model=model, arguments=arguments: model(*arguments), y))
            continue
        if kind == "ours" and name not in OURS:
            continue
        model = (OURS if kind == "ours" else MODELS)[name](inputs, classes, facts)
        model = model if kind == "ours" else adapted(model)
        if isinstance(model, HeteroModel):
            model.fit_types(graph.schema, inputs, 0)
        shard = uncut(graph)
        shard = shard.with_self_loops() if getattr(model, "self_loops", False) else shard
        engine = Engine(shard, Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0), torch.float32)
        engine.fix(x)
        layers = ShardAdjacency.layers(engine, model.num_layers, 0)
        epochs[kind] = (model, loop(model, lambda model=model, layers=layers: model(x, layers), y))
    return epochs


def seconds(name: str, graph: Graph, rounds: int) -> dict[str, float]:
    epochs = steps(name, graph, ["plain", "gnnkit", "ours"])
    times: dict[str, list[float]] = {kind: [] for kind in epochs}
    for number in range(rounds + 1):
        for kind, (_, step) in epochs.items():
            begin = time.process_time()
            step()
            if number:
                times[kind].append(time.process_time() - begin)
    model = epochs["gnnkit"][0]
    assert isinstance(model, EdgeIndexModel)
    print(" " * 12, "rows:", dict(model.fallbacks) or "none")
    return {kind: statistics.median(values) for kind, values in times.items()}


def peak(name: str, graph: Graph, kind: str) -> float:
    """Returns the MiB of two epochs above those before, in this process."""
    epochs = steps(name, graph, [kind])
    if kind not in epochs:
        return float("nan")
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    for _ in range(2):
        epochs[kind][1]()
    return (status("VmHWM") - before) / 1024


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz file. Default: a drawn graph")
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=64, help="columns of a drawn graph's features")
    parser.add_argument("--relations", type=int, default=4)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    graph = Npz(options.data).load() if options.data else drawn(options.nodes, options.edges, options.width)
    if options.peak:
        name, kind = options.peak
        print(peak(name, typed(graph, options.relations) if name in TYPED else graph, kind))
        return
    print(f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {torch.get_num_threads()} threads")
    print(f"{'':12} {'plain':>10} {'gnnkit':>10} {'ours':>10} CPU seconds an epoch; MiB")
    for name in options.models:
        medians = seconds(name, typed(graph, options.relations) if name in TYPED else graph, options.rounds)
        line = " ".join(f"{medians.get(kind, float('nan')):10.4f}" for kind in ("plain", "gnnkit", "ours"))
        print(f"{name:12} {line}; {memory(name, options) if options.memory else ''}", flush=True)


def memory(name: str, options: argparse.Namespace) -> str:
    keys = ("data", "nodes", "edges", "width", "relations", "threads")
    pairs = [(f"--{key}", str(getattr(options, key))) for key in keys if getattr(options, key) is not None]
    command = [sys.executable, __file__, *(word for pair in pairs for word in pair), "--peak", name]
    runs = [subprocess.run([*command, kind], check=True, capture_output=True) for kind in ("plain", "gnnkit", "ours")]
    return " ".join(f"{float(run.stdout):8.0f}" for run in runs)


if __name__ == "__main__":
    main()
