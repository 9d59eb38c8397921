"""Convolutions of PyG as they are: by PyG alone, in gnnkit, and gnnkit's own models.

Two layers train on the whole graph in one process. The three take turns of one epoch
(forward, backward, Adam) in one run, and figures are medians over the rounds.

- seconds: CPU time of an epoch, of all threads, which other load hardly changes
- MiB: peak memory above that before the first epoch, of a process of its own
- rows: functions of the last forward pass that computed a row per edge, by layer

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

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg

from gnnkit.comm.threads import Threads
from gnnkit.dataset.npz import Npz
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.graph import Graph
from gnnkit.model.adapt import adapted
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.partition.shard import uncut

HIDDEN, HEADS = 64, 4
Step = Callable[[], object]


class Two(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.conv1, self.conv2 = first, second

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.conv2(self.conv1(x, edge_index).relu(), edge_index)


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


def of(make: Callable[[int, int], nn.Module]) -> Callable[[int, int, Tensor], nn.Module]:
    return lambda a, b, _: Two(make(a, HIDDEN), make(HIDDEN, b))


def heads(kind: type, **keys: object) -> Callable[[int, int, Tensor], nn.Module]:
    def make(a: int, b: int, _: Tensor) -> nn.Module:
        first = kind(a, HIDDEN // HEADS, heads=HEADS, **keys)
        return Two(first, kind(HIDDEN, b, heads=1, **keys))

    return make


def pna(a: int, b: int, degrees: Tensor) -> nn.Module:
    options = (["mean", "max", "std"], ["identity", "amplification"], degrees)
    return Two(pyg.PNAConv(a, HIDDEN, *options), pyg.PNAConv(HIDDEN, b, *options))


MODELS: dict[str, Callable[[int, int, Tensor], nn.Module]] = {
    "GCN": of(pyg.GCNConv),
    "SAGE": of(pyg.SAGEConv),
    "SAGE max": of(lambda a, b: pyg.SAGEConv(a, b, aggr="max")),
    "GIN": of(lambda a, b: pyg.GINConv(mlp(a, b))),
    "GraphConv": of(pyg.GraphConv),
    "GAT": heads(pyg.GATConv),
    "GAT dropout": heads(pyg.GATConv, dropout=0.5),
    "GATv2": heads(pyg.GATv2Conv),
    "Transformer": heads(pyg.TransformerConv),
    "PNA": pna,
    "by hand": lambda a, b, _: Summed(a, b),
}
OURS: dict[str, Callable[[int, int], nn.Module]] = {
    "GCN": lambda a, b: GCN(a, b, HIDDEN, dropout=0.0),
    "SAGE": lambda a, b: GraphSAGE(a, b, HIDDEN, dropout=0.0),
    "SAGE max": lambda a, b: GraphSAGE(a, b, HIDDEN, dropout=0.0, aggregator="max"),
    "GIN": lambda a, b: GIN(a, b, HIDDEN, dropout=0.0),
    "GAT": lambda a, b: GAT(a, b, HIDDEN // HEADS, HEADS, dropout=0.0),
    "GAT dropout": lambda a, b: GAT(a, b, HIDDEN // HEADS, HEADS, dropout=0.5),
}


def drawn(nodes: int, edges: int, width: int = 256, classes: int = 5) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = (rng.integers(0, nodes, edges) for _ in range(2))
    x = rng.standard_normal((nodes, width), dtype=np.float32)
    return Graph.from_edges(src, dst, nodes, features=x, labels=rng.integers(0, classes, nodes))


def loop(model: nn.Module, forward: Callable[[], Tensor], y: Tensor) -> Step:
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    known = y >= 0

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(forward()[known], y[known]).backward()
        optimizer.step()

    return step


def steps(name: str, graph: Graph, kinds: list[str]) -> dict[str, tuple[nn.Module, Step]]:
    """Returns the model and an epoch of each kind: plain, gnnkit, ours."""
    x, y = torch.from_numpy(np.asarray(graph.whole_features, np.float32)), torch.from_numpy(graph.labels)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    edge_index = torch.from_numpy(np.stack([graph.csc.indices.astype(np.int64), dst]))
    inputs, classes, degrees = x.shape[1], int(y.max()) + 1, torch.bincount(torch.from_numpy(np.diff(graph.csc.indptr)))
    made: dict[str, tuple[nn.Module, Step]] = {}
    for kind in kinds:
        torch.manual_seed(0)
        if kind == "plain":
            model = MODELS[name](inputs, classes, degrees)
            made[kind] = (model, loop(model, lambda model=model: model(x, edge_index), y))
            continue
        if kind == "ours" and name not in OURS:
            continue
        model = OURS[name](inputs, classes) if kind == "ours" else adapted(MODELS[name](inputs, classes, degrees))
        shard = uncut(graph)
        shard = shard.with_self_loops() if getattr(model, "self_loops", False) else shard
        engine = Engine(shard, Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0), torch.float32)
        engine.fix(x)
        layers = [ShardAdjacency.layers(engine, model.num_layers, 0)]
        made[kind] = (model, loop(model, lambda model=model, layers=layers: model(x, layers[0]), y))
    return made


def seconds(name: str, graph: Graph, rounds: int) -> dict[str, float]:
    made = steps(name, graph, ["plain", "gnnkit", "ours"])
    times: dict[str, list[float]] = {kind: [] for kind in made}
    for number in range(rounds + 2):
        for kind, (_, step) in made.items():
            begin = time.process_time()
            step()
            if number >= 2:
                times[kind].append(time.process_time() - begin)
    model = made["gnnkit"][0]
    assert isinstance(model, EdgeIndexModel)
    print(" " * 12, "rows:", dict(model.fallbacks) or "none")
    return {kind: statistics.median(values) for kind, values in times.items()}


def peak(name: str, graph: Graph, kind: str) -> float:
    """Returns the MiB of three epochs above those before, in this process."""
    made = steps(name, graph, [kind])
    if kind not in made:
        return float("nan")
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    for _ in range(3):
        made[kind][1]()
    return (status("VmHWM") - before) / 1024


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz file. Default: a drawn graph")
    parser.add_argument("--nodes", type=int, default=50_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--memory", action="store_true", help="also measure peak memory")
    parser.add_argument("--peak", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    graph = Npz(options.data).load() if options.data else drawn(options.nodes, options.edges)
    if options.peak:
        print(peak(*options.peak[:1], graph, options.peak[1]))
        return
    print(f"{graph.num_nodes:,} nodes, {graph.num_edges:,} edges, {torch.get_num_threads()} threads")
    print(f"{'':12} {'plain':>10} {'gnnkit':>10} {'ours':>10} CPU seconds an epoch; MiB")
    for name in options.models:
        found = seconds(name, graph, options.rounds)
        line = " ".join(f"{found.get(kind, float('nan')):10.4f}" for kind in ("plain", "gnnkit", "ours"))
        print(f"{name:12} {line}; {memory(name, options) if options.memory else ''}", flush=True)


def memory(name: str, options: argparse.Namespace) -> str:
    graph = ["--data", options.data] if options.data else ["--nodes", str(options.nodes), "--edges", str(options.edges)]
    command = [sys.executable, __file__, *graph, "--models", name, "--peak", name]
    runs = [subprocess.run([*command, kind], check=True, capture_output=True) for kind in ("plain", "gnnkit", "ours")]
    return " ".join(f"{float(run.stdout):8.0f}" for run in runs)


if __name__ == "__main__":
    main()
