"""Sampling by time beside sampling without, by turns in one process.

    uv run python benchmarks/temporal_sampling.py
    uv run python benchmarks/temporal_sampling.py --edges 1e6 --rounds 3

The graph is drawn: 12 edges per node, at any of a million times, and degrees with a
heavy tail. Batches have 1,024 seeds and are drawn by one thread. "one time" is a batch
whose seeds have the latest time, so that it has the same nodes and edges as one without
times. In "25 times" and "own times", seeds of different times share no rows, so batches
have more rows, of fewer visible edges. The window is a quarter of all times.

The table has medians over the rounds: CPU milliseconds per batch, thousands of edges
per batch, CPU nanoseconds per edge, and the ratio of these to the first line.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from gnnkit.graph import CSC, Ids, MiniBatch
from gnnkit.sampler import NeighborSampler

BATCH_SIZE, EDGES_PER_NODE, SPAN = 1024, 12, 10**6
Draw = Callable[[Ids, int], MiniBatch]


def draw_graph(num_edges: int) -> tuple[CSC, CSC]:
    """Draws a graph without times, and the same edges with times."""
    rng = np.random.default_rng(0)
    num_nodes = max(num_edges // EDGES_PER_NODE, 1)
    dst = np.sort((num_nodes * rng.random(num_edges) ** 2).astype(np.int64))
    src, since = rng.integers(0, num_nodes, num_edges, dtype=np.int32), rng.integers(0, SPAN, num_edges)
    since = since[np.lexsort((since, dst))]  # sorted within each node
    indptr = np.append(0, np.cumsum(np.bincount(dst, minlength=num_nodes)))
    return CSC(indptr, src), CSC(indptr, src, time=since)


def contenders(plain: CSC, time_graph: CSC, fanouts: list[int]) -> dict[str, Draw]:
    """Returns functions that draw a batch of seeds with a key, by name."""
    without = NeighborSampler(fanouts, threads=1)
    window = NeighborSampler(fanouts, time="window", window=SPAN // 4, threads=1)
    strict, last = (NeighborSampler(fanouts, time="strict", pick=pick, threads=1) for pick in ("uniform", "last"))
    spread = np.random.default_rng(1).integers(SPAN // 2, SPAN, BATCH_SIZE)

    def at(sampler: NeighborSampler, times: Ids) -> Draw:
        return lambda seeds, key: sampler.sample(time_graph, seeds, key=key, times=times)

    return {
        "without times": lambda seeds, key: without.sample(plain, seeds, key=key),
        "one time": at(strict, np.full(BATCH_SIZE, SPAN)),
        "25 times": at(strict, spread - spread % (SPAN // 50)),
        "own times": at(strict, spread),
        "own times, last": at(last, spread),
        "own times, window": at(window, spread),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--edges", type=float, default=12e6)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    plain, time_graph = draw_graph(int(options.edges))
    batches = np.random.default_rng(2).integers(0, plain.num_nodes, (options.rounds, 2 * BATCH_SIZE))
    for fanouts in ([15, 10, 5], [10, 10]):
        print(f"fanouts {fanouts}, {plain.num_edges:,} edges")
        draws = contenders(plain, time_graph, fanouts)
        cpu: dict[str, list[float]] = {name: [] for name in draws}
        edges: dict[str, list[int]] = {name: [] for name in draws}
        for key, row in enumerate(batches):
            seeds = np.unique(row)[:BATCH_SIZE]
            for name, draw in draws.items():
                begin = time.process_time()
                batch = draw(seeds, key)
                cpu[name].append(time.process_time() - begin)
                edges[name].append(len(batch.blocks[0].indices))
        costs = {
            name: statistics.median(1e9 * cpu[name][i] / edges[name][i] for i in range(len(batches))) for name in draws
        }
        for name, cost in costs.items():
            milliseconds, count = 1e3 * statistics.median(cpu[name]), statistics.median(edges[name]) / 1e3
            print(
                f"  {name:16} {milliseconds:8.2f} ms {count:8.0f} k {cost:7.1f} ns {cost / costs['without times']:6.2f}"
            )


if __name__ == "__main__":
    main()
