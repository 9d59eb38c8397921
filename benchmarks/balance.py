"""Balance of the work of 8 workers, and of the sources that a sampler picks.

Runs on the R-MAT of `peers.py`. With --samplers compares the samplers on Python's
standard library instead, or on the graph of an .npz file.

    uv run python benchmarks/balance.py [--folder FOLDER]
    uv run python benchmarks/balance.py --samplers [--npz FILE]

Counts the edges of sampled batches of 1,024 seeds a worker, fanouts [15, 10, 5].
`step` is the busiest worker's edges over the mean worker's, as a mean over the steps.
Workers that wait for one another at every step lose as much. `worst` is the worst step.
`epoch` compares sums over the epoch. `plain` deals shuffled seeds out in turn. A second
table shows the Gini coefficient of the sources, and how often the most picked source is
drawn, by `alpha` of the weighted sampler.

The table of the samplers has batches of about 1,024 seeds, all nodes, and one hop with
a fanout of 10. Counts are of nodes with a neighbour. `worker` is the busiest of 8
workers' edges over the mean worker's, in batches of 128 each. `most` is how often the
most picked source is drawn. `distinct` is the share of a node's draws without
repetitions. `cosine` compares the features of a node and of its draws.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gnnkit_formats.npz import Npz
from peers import write_graph

from gnnkit.dataset.pystdlib import PyStdlib
from gnnkit.graph import CSC, Floats, Graph, Ids
from gnnkit.partition.quality import max_over_mean
from gnnkit.partition.streaming import Ldg
from gnnkit.sampler import (
    BalancedSampler,
    ClusterSampler,
    FullSampler,
    LaborSampler,
    MetropolisHastingsSampler,
    NeighborSampler,
    Sampler,
    WeightedSampler,
)
from gnnkit.sampler.batching import BatchSchedule

NUM_WORKERS, BATCH_SIZE, NUM_STEPS = 8, 1024, 16
NUM_CLUSTERS = 64


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """One hop of all nodes."""

    row: Ids  # [num_draws] node that draws
    sources: Ids  # [num_draws]
    counts: list[Ids]  # of each batch [num_seeds] draws of each seed


def batches(sampler: Sampler, graph: CSC) -> list[Ids]:
    """Divides all nodes at random, or whole groups of nodes into as many batches."""
    num_batches = graph.num_nodes // BATCH_SIZE
    seeds = np.random.default_rng(1).permutation(graph.num_nodes)
    groups = sampler.groups(graph, seeds)
    if groups is None:
        return np.array_split(seeds, num_batches)
    return [seeds[groups % num_batches == batch] for batch in range(num_batches)]


def draw_all(sampler: Sampler, graph: CSC) -> Draws:
    """Draws for all nodes, batch by batch."""
    seeds = batches(sampler, graph)
    hops = [sampler.draw(graph, nodes, 0, key=key) for key, nodes in enumerate(seeds)]
    counts = [np.diff(hop.indptr) for hop in hops]
    row = np.repeat(np.concatenate(seeds), np.concatenate(counts))
    return Draws(row, np.concatenate([hop.sources for hop in hops]), counts)


def busiest(counts: Ids) -> float:
    """Compares the workers of a batch."""
    return max_over_mean(np.array([part.sum() for part in np.array_split(counts, NUM_WORKERS)]))


def cosine(draws: Draws, unit: Floats) -> float:
    """Compares rows of length 1, as a mean over the nodes that drew."""
    parts = zip(np.array_split(draws.row, 64), np.array_split(draws.sources, 64), strict=True)
    products = np.concatenate([(unit[nodes] * unit[sources]).sum(axis=1) for nodes, sources in parts])
    counts = np.bincount(draws.row, minlength=len(unit))
    return float((np.bincount(draws.row, products, len(unit))[counts > 0] / counts[counts > 0]).mean())


def samplers(graph: Graph, features: Floats) -> dict[str, Sampler]:
    """Makes one of each kind, at the defaults but for the fanout."""
    similar = MetropolisHastingsSampler([10], target="similarity")
    return {
        "neighbor": NeighborSampler([10]),
        "neighbor fill=true": NeighborSampler([10], fill=True),
        "neighbor replace=true": NeighborSampler([10], replace=True),
        "balanced": BalancedSampler([10]),
        "labor": LaborSampler([10]),
        "weighted alpha=1": WeightedSampler([10], alpha=1.0),
        "metropolis_hastings": MetropolisHastingsSampler([10]),
        "metropolis_hastings target=similarity": similar.with_features(features),
        "cluster": ClusterSampler(Ldg().assign_nodes(graph, NUM_CLUSTERS), num_hops=1),
        "full": FullSampler(1),
    }


def cells(draws: Draws, graph: CSC, unit: Floats) -> dict[str, str]:
    """Measures by column."""
    num_nodes = graph.num_nodes
    counts = np.bincount(draws.row, minlength=num_nodes)[np.diff(graph.indptr) > 0]
    sums = np.array([batch.sum() for batch in draws.counts])
    sources = np.bincount(draws.sources, minlength=num_nodes)
    return {
        "per node": f"{counts.mean():.1f} +- {counts.std():.1f}",
        "range": f"{counts.min()} to {counts.max()}",
        "per batch": f"{sums.mean():.0f} +- {sums.std():.0f}",
        "worker": f"{np.mean([busiest(batch) for batch in draws.counts]):.2f}",
        "Gini": f"{gini(sources):.2f}",
        "most": f"{sources.max()}",
        "distinct": f"{len(np.unique(draws.row * np.int64(num_nodes) + draws.sources)) / len(draws.row):.2f}",
        "cosine": f"{cosine(draws, unit):.3f}",
    }


def compare(graph: Graph) -> None:
    """Prints a row for each sampler."""
    features = np.asarray(graph.features, np.float32)
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-30)
    for name, sampler in samplers(graph, features).items():
        cells_by_column = cells(draw_all(sampler, graph.csc), graph.csc, unit)
        if name == "neighbor":
            print(f"{'':38}", *(f"{column:>12}" for column in cells_by_column))
        print(f"{name:38}", *(f"{cell:>12}" for cell in cells_by_column.values()), flush=True)


def edges_drawn(graph: CSC, seeds: np.ndarray, window: int | None) -> np.ndarray:  # [num_steps, num_workers]
    """Counted, for batches balanced over `window` steps; None: plain."""
    sampler = NeighborSampler([15, 10, 5])
    costs = None if window is None else sampler.costs(graph, seeds)
    batching = "plain" if window is None else "balanced"
    epoch = BatchSchedule(seeds, BATCH_SIZE, NUM_WORKERS, batching, window or 1).epoch(1, costs)

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
        edge_counts = edges_drawn(graph, seeds, window)
        steps = [max_over_mean(step) for step in edge_counts]
        print(
            f"{name:22} {np.mean(steps):7.4f} {max(steps):7.4f} {max_over_mean(edge_counts.sum(axis=0)):7.4f}",
            flush=True,
        )
    print(f"\n{'sources of one hop':22} {'Gini':>7} {'most':>7}")
    unit_graph = CSC(graph.indptr, graph.indices, np.ones(graph.num_edges, np.float32))
    for alpha in (0.0, 0.5, 1.0):
        sources = WeightedSampler([15], alpha=alpha).draw(unit_graph, seeds[: 16 * BATCH_SIZE], 0, key=1).sources
        counts = np.bincount(sources, minlength=graph.num_sources)
        print(f"{f'weighted, alpha={alpha:g}':22} {gini(counts):7.4f} {counts.max():7}", flush=True)


def on_r_mat(folder: Path) -> None:
    write_graph(folder, "products")
    graph = CSC(np.load(folder / "indptr.npy"), np.load(folder / "indices.npy"))
    seeds = np.random.default_rng(1).permutation(graph.num_nodes)[: NUM_WORKERS * BATCH_SIZE * NUM_STEPS]
    report(graph, seeds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="where `peers.py --folder` keeps its graphs")
    parser.add_argument("--samplers", action="store_true", help="compare the samplers on a real graph")
    parser.add_argument("--npz", type=Path, help="this graph instead of Python's standard library")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        if options.samplers:
            compare((Npz(str(options.npz)) if options.npz else PyStdlib()).load())
        else:
            on_r_mat((options.folder or Path(temporary)) / "products")


if __name__ == "__main__":
    main()
