"""Cost of a batch and its loading from 1 million to 1 billion edges.

Prints a table. Draws a plot where matplotlib is installed.

    uv run python benchmarks/linear.py FOLDER [--edges 1e6 1e9] [--batches 30]
    uv run --with matplotlib python benchmarks/linear.py FOLDER  # FOLDER/linear.svg
    systemd-run --user --scope -p MemoryMax=2G \\
        uv run python benchmarks/linear.py FOLDER --edges 1e9 --batches 3

The graphs are random with 50 edges a node: destinations in order and sources by a hash,
so they are written piece by piece and need no memory. They stand in FOLDER as .npy (4
bytes an edge) and are mapped, so they may be larger than memory; each is deleted once
it is measured; the last command makes memory small instead. Times are of the fastest of
30 batches of 1,024 seeds, fanouts [15, 10, 5], one thread, after one batch that fills
the tables; `cold` is a first pass over the seeds, whose pages may come from the disk.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from gnnkit.graph import CSC
from gnnkit.sampler import NeighborSampler

DEGREE = 50
PIECE = 10_000_000  # edges made at once
BATCH_SIZE = 1024


@dataclass(frozen=True)
class Cost:
    num_edges: int
    num_nodes: int
    seconds_to_make: float
    cold: float  # ms a batch, mean
    warm: float  # ms a batch, least
    edges_per_batch: int
    nanoseconds: float  # warm, per edge drawn


def write(folder: Path, num_edges: int) -> None:
    """indptr.npy and indices.npy of a random graph."""
    num_nodes = num_edges // DEGREE
    np.save(folder / "indptr.npy", np.arange(num_nodes + 1, dtype=np.int64) * DEGREE)
    indices = np.lib.format.open_memmap(folder / "indices.npy", "w+", np.int32, (num_nodes * DEGREE,))
    random = np.random.default_rng(0)
    for first in range(0, len(indices), PIECE):
        piece = indices[first : first + PIECE]
        piece[:] = random.integers(0, num_nodes, len(piece), np.int32)
    indices.flush()


def measure(folder: Path, num_edges: int, num_batches: int) -> Cost:
    start = time.perf_counter()
    write(folder, num_edges)
    seconds = time.perf_counter() - start
    graph = CSC(np.load(folder / "indptr.npy", mmap_mode="r"), np.load(folder / "indices.npy", mmap_mode="r"))
    sampler, random = NeighborSampler([15, 10, 5], threads=1), np.random.default_rng(1)
    seeds = [random.choice(graph.num_nodes, BATCH_SIZE, replace=False) for _ in range(num_batches)]
    sampler.sample(graph, seeds[0], key=0)

    def milliseconds() -> list[float]:
        times = []
        for key, batch in enumerate(seeds):
            begin = time.perf_counter()
            sampler.sample(graph, batch, key=key)
            times.append(1e3 * (time.perf_counter() - begin))
        return times

    cold, warm = milliseconds(), milliseconds()
    num_draws = len(sampler.sample(graph, seeds[0], key=0).blocks[0].indices)
    least = min(warm)
    return Cost(num_edges, graph.num_nodes, seconds, float(np.mean(cold)), least, num_draws, least * 1e6 / num_draws)


def plot(costs: Sequence[Cost], file: Path) -> None:
    """Nanoseconds per edge drawn over edges of the graph."""
    from matplotlib import pyplot as plt

    plt.rcParams["svg.fonttype"] = "none"
    edges = [cost.num_edges for cost in costs]
    plt.semilogx(edges, [cost.nanoseconds for cost in costs], "o-", label="warm")
    plt.semilogx(edges, [1e6 * cost.cold / cost.edges_per_batch for cost in costs], "o--", label="cold")
    plt.xlabel("edges of the graph")
    plt.ylabel("ns per edge drawn: batches of 1,024 seeds, [15, 10, 5]")
    plt.ylim(bottom=0)
    plt.legend()
    plt.savefig(file, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--edges", type=float, nargs="+", default=[1e6, 1e7, 1e8, 1e9])
    parser.add_argument("--batches", type=int, default=30, help="timed twice for each graph")
    parser.add_argument("--keep", action="store_true", help="leave the last graph in FOLDER")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(
        f"{'edges':>13} {'nodes':>11} {'made s':>7} {'cold ms':>8} {'warm ms':>8} {'drawn':>7} {'ns/edge':>8}",
        flush=True,
    )
    costs = []
    for edges in options.edges:
        costs.append(measure(options.folder, int(edges), options.batches))
        print("{:13,} {:11,} {:7.1f} {:8.2f} {:8.2f} {:7} {:8.1f}".format(*astuple(costs[-1])), flush=True)
    print(
        f"resident at most {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20:.1f} GiB, mapped files included"
    )
    if not options.keep:
        for name in ("indptr.npy", "indices.npy"):
            (options.folder / name).unlink()
    try:
        plot(costs, options.folder / "linear.svg")
    except ImportError:
        print("no matplotlib: no plot")


if __name__ == "__main__":
    main()
