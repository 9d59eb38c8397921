"""Batches of `gnnkit.pyg.NeighborLoader` beside gnnkit's `Loader` and plain PyG.

    uv run python benchmarks/pyg_loader.py --nodes 5e5 --edges 1e7
    uv run python benchmarks/pyg_loader.py --typed

Graphs are drawn uniformly, with 100 float32 features and a label per node. `--typed`
has four node types and six relations, with the edges in equal shares. The seeds are
shuffled, and fanouts are [15, 10] in each relation. All contenders are in this process
and go by turns: each round makes the same number of batches with each, after a few that
are not counted. The table has the median over rounds. CPU time is of all threads of
this process and, with `num_workers`, of the worker processes as well. Plain PyG is
measured where it finds pyg-lib or torch-sparse. "PyG's class" is PyG's loader over the
sampler of `gnnkit.pyg`, which differs by the memory and the threads of `gnnkit.pyg`
only.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.typing
from torch_geometric.data import Data, HeteroData

from gnnkit.pyg import NeighborLoader, SubgraphSampler
from gnnkit.sampler import LoadedBatch, Loader

WIDTH = 100  # float32 features of a node
FANOUTS = [15, 10]
BATCH_SIZE = 1024
TYPES = ("paper", "author", "venue", "topic")
RELATIONS = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "by", "author"),
    ("venue", "shows", "paper"),
    ("topic", "of", "paper"),
    ("paper", "about", "topic"),
)
WARM_UP = 8  # batches before a round, more than threads have made ahead
MILLISECONDS = 1e3


@dataclass
class Contender:
    name: str
    loader: Iterable[Any]
    rates: list[float] = field(default_factory=list)  # batches per second of each round
    cpu: list[float] = field(default_factory=list)  # CPU seconds per batch of each round
    sizes: tuple[int, int] = (0, 0)  # nodes and edges of the last batch

    def measure(self, num_batches: int) -> None:
        """Makes one round of batches."""
        batches = chain.from_iterable(repeat(self.loader))
        for _ in range(WARM_UP):
            next(batches)
        begin, cpu = time.perf_counter(), cpu_seconds()
        for _ in range(num_batches):
            batch = next(batches)
        self.rates.append(num_batches / (time.perf_counter() - begin))
        self.sizes = (batch.num_nodes, batch.num_edges)
        del batches, batch  # ends the worker processes, which are then counted
        self.cpu.append((cpu_seconds() - cpu) / num_batches)


def cpu_seconds() -> float:
    """Returns the CPU time of this process and its ended children."""
    usage = [resource.getrusage(processes) for processes in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(process.ru_utime + process.ru_stime for process in usage)


def homogeneous(num_nodes: int, num_edges: int) -> Data:
    return Data(
        x=torch.rand(num_nodes, WIDTH),
        y=torch.randint(10, (num_nodes,)),
        edge_index=torch.randint(num_nodes, (2, num_edges)),
    )


def typed(num_nodes: int, num_edges: int) -> HeteroData:
    data = HeteroData()
    for name in TYPES:
        data[name].x = torch.rand(num_nodes // len(TYPES), WIDTH)
        data[name].y = torch.randint(10, (num_nodes // len(TYPES),))
    for relation in RELATIONS:
        data[relation].edge_index = torch.randint(num_nodes // len(TYPES), (2, num_edges // len(RELATIONS)))
    return data


def contenders(data: Data | HeteroData, num_workers: int) -> list[Contender]:
    """Makes the loaders of a graph, gnnkit's `Loader` first."""
    options: dict[str, Any] = {"num_neighbors": FANOUTS, "batch_size": BATCH_SIZE, "shuffle": True}
    if isinstance(data, HeteroData):
        options["input_nodes"] = TYPES[0]
    make: Callable[..., Any] = torch_geometric.loader.NeighborLoader
    sampler = SubgraphSampler(data, FANOUTS)
    drop_in = NeighborLoader(data, **options, neighbor_sampler=sampler)
    loaders = [
        Contender("gnnkit.pyg", drop_in),
        Contender("gnnkit.pyg, threads=1", NeighborLoader(data, **options, neighbor_sampler=sampler, threads=1)),
        Contender("gnnkit.pyg, threads=0", NeighborLoader(data, **options, neighbor_sampler=sampler, threads=0)),
        Contender("PyG's class over SubgraphSampler", make(data, **options, neighbor_sampler=sampler)),
    ]
    if num_workers:
        workers = NeighborLoader(data, **options, neighbor_sampler=sampler, num_workers=num_workers)
        loaders.append(Contender(f"gnnkit.pyg, num_workers={num_workers}", workers))
    if torch_geometric.typing.WITH_PYG_LIB or torch_geometric.typing.WITH_TORCH_SPARSE:
        loaders.append(Contender("PyG", make(data, **options)))
    seeds = TYPES[0] if isinstance(data, HeteroData) else None
    native_loader = Loader(data, FANOUTS, seeds, batch_size=BATCH_SIZE, transform=LoadedBatch.to_pyg)
    return [Contender("gnnkit's Loader, to_pyg", native_loader), *loaders]


def print_table(rows: list[Contender]) -> None:
    first = statistics.median(rows[0].rates)
    print(f"| | batches/s | to the first | CPU ms a batch | nodes | edges |\n|{'---|' * 6}")
    for contender in rows:
        rate, cpu = statistics.median(contender.rates), statistics.median(contender.cpu) * MILLISECONDS
        nodes, edges = contender.sizes
        print(f"| {contender.name} | {rate:.1f} | {rate / first:.2f} | {cpu:.1f} | {nodes:,} | {edges:,} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=float, default=5e5)
    parser.add_argument("--edges", type=float, default=1e7)
    parser.add_argument("--typed", action="store_true", help="a graph of four node types")
    parser.add_argument("--num-workers", type=int, default=0, help="measure worker processes too")
    parser.add_argument("--batches", type=int, default=40, help="batches of a round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="a small graph and one round")
    options = parser.parse_args()
    if options.quick:
        options.nodes, options.edges, options.batches, options.rounds = 2e4, 1e5, 6, 1
    torch.manual_seed(0)
    make = typed if options.typed else homogeneous
    rows = contenders(make(int(options.nodes), int(options.edges)), options.num_workers)
    for _ in range(options.rounds):
        for contender in rows:
            contender.measure(options.batches)
    print_table(rows)


if __name__ == "__main__":
    main()
