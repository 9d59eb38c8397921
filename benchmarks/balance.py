"""Balance of the work of 8 workers, and of the sources that a sampler picks.

Runs on the R-MAT of `peers.py`.

    uv run python benchmarks/balance.py [--folder FOLDER]

Counts the edges of sampled batches of 1,024 seeds a worker, fanouts [15, 10, 5].
`step` is the busiest worker's edges over the mean worker's, as a mean over the steps.
Workers that wait for one another at every step lose as much. `worst` is the worst step.
`epoch` compares sums over the epoch. `plain` deals shuffled seeds out in turn. A second
table shows the Gini coefficient of the sources, and how often the most picked source is
drawn, by `alpha` of the weighted sampler.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
from peers import write_graph

from gnnkit.graph import CSC
from gnnkit.partition.quality import max_over_mean
from gnnkit.sampler import NeighborSampler, WeightedSampler
from gnnkit.sampler.batching import plan_epoch

NUM_WORKERS, BATCH_SIZE, NUM_STEPS = 8, 1024, 16


def edges_drawn(graph: CSC, seeds: np.ndarray, window: int | None) -> np.ndarray:  # [num_steps, num_workers]
    """Counted, for batches balanced over `window` steps; None: plain."""
    sampler = NeighborSampler([15, 10, 5])
    costs = None if window is None else sampler.costs(graph, seeds)
    epoch = plan_epoch(seeds, BATCH_SIZE, world_size=NUM_WORKERS, key=1, costs=costs, window=window or 1)

    def drawn(step: int, rank: int) -> int:
        return len(sampler.sample(graph, seeds[epoch.batch(step, rank)], key=step).blocks[0].indices)

    return np.array([[drawn(step, rank) for rank in range(NUM_WORKERS)] for step in range(epoch.num_steps)])


def gini(counts: np.ndarray) -> float:
    """0: all alike; near 1: one has everything."""
    ranks = np.arange(1, len(counts) + 1)
    return float((2 * ranks - len(counts) - 1) @ np.sort(counts) / (len(counts) * counts.sum()))


def report(graph: CSC, seeds: np.ndarray) -> None:
    print(f"{'batching':22} {'step':>7} {'worst':>7} {'epoch':>7}")
    for name, window in {"plain": None, "balanced, window=1": 1, "balanced, window=8": 8}.items():
        drawn = edges_drawn(graph, seeds, window)
        steps = [max_over_mean(step) for step in drawn]
        print(f"{name:22} {np.mean(steps):7.4f} {max(steps):7.4f} {max_over_mean(drawn.sum(axis=0)):7.4f}", flush=True)
    print(f"\n{'sources of one hop':22} {'Gini':>7} {'most':>7}")
    weighted = CSC(graph.indptr, graph.indices, np.ones(graph.num_edges, np.float32))
    for alpha in (0.0, 0.5, 1.0):
        sources = WeightedSampler([15], alpha=alpha).draw(weighted, seeds[: 16 * BATCH_SIZE], 0, key=1).sources
        counts = np.bincount(sources, minlength=graph.num_sources)
        print(f"{f'weighted, alpha={alpha:g}':22} {gini(counts):7.4f} {counts.max():7}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where `peers.py --folder` keeps its graphs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.folder or Path(temporary)) / "products"
        write_graph(folder, "products")
        graph = CSC(np.load(folder / "indptr.npy"), np.load(folder / "indices.npy"))
    seeds = np.random.default_rng(1).permutation(graph.num_nodes)[: NUM_WORKERS * BATCH_SIZE * NUM_STEPS]
    report(graph, seeds)


if __name__ == "__main__":
    main()
