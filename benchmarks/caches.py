"""Rows of other workers that each cache leaves to fetch, on an R-MAT graph.

    uv run python benchmarks/caches.py [--nodes N] [--edges M] [--rows R]

Ranks are threads, nodes are dealt out at random. `fetched` is the mean number of rows
that a worker fetches in an epoch, rows that fill a cache included. `of none` is the
ratio to no cache. `distinct` counts each remote row of an epoch once: no cache that
begins an epoch empty can fetch fewer.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from gnnkit_formats.synthetic import Synthetic
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine.remote.owned_rows import CACHES
from gnnkit.graph import Ids
from gnnkit.partition import Grid, Partition, Shard, cut_all
from gnnkit.sampler import NeighborSampler
from gnnkit.strategy import Worker
from gnnkit.strategy.fetched_batches import FetchedBatches
from gnnkit.strategy.individual_sample import IndividualSample


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=20_000)
    parser.add_argument("--edges", type=int, default=200_000)
    parser.add_argument("--rows", type=int, help="rows that a worker keeps, default a tenth of the nodes")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--fanouts", type=int, nargs="+", default=[10, 5])
    parser.add_argument("--epochs", type=int, default=2)
    return parser.parse_args()


def fetched(cache: str, shards: list[Shard], options: argparse.Namespace) -> tuple[float, float]:
    """Counts for one cache, as means over workers and epochs.

    Args:
        cache: One of `CACHES`.
        shards: The shard of every worker.
        options: The command line.

    Returns:
        The rows fetched, and the distinct rows that an epoch reads.
    """

    def work(comm: Communicator) -> tuple[float, float]:
        strategy = IndividualSample(
            options.batch_size,
            topology="partitioned",
            cache=cache,
            cache_rows=None if cache == "none" else options.rows,
        )
        worker = Worker(comm, shards[comm.rank], torch.float32, 0, None, NeighborSampler(options.fanouts))
        strategy.setup(worker, nn.Module())
        distinct = sum(remote_rows(strategy, worker, epoch) for epoch in range(options.epochs))
        strategy.close()
        assert isinstance(strategy.sampled, FetchedBatches)
        rows = strategy.tally.total("fetch") / strategy.sampled.rows.width
        return rows / options.epochs, distinct / options.epochs

    rows, distinct = np.mean(Threads.run(work, len(shards)), axis=0)
    return float(rows), float(distinct)


def remote_rows(strategy: IndividualSample, worker: Worker, epoch: int) -> int:
    """Counts the nodes of other workers that an epoch reads, each once."""
    read: list[Ids] = [np.empty(0, np.int64)]
    read += [batch.adjacencies[0].src_nodes.numpy() for batch in strategy.batches(epoch)]
    return len(np.setdiff1d(np.concatenate(read), worker.shard.owned))


def main() -> None:
    """Prints one line for each cache."""
    options = arguments()
    graph = Synthetic("rmat", options.nodes, options.edges, width=1).load()
    owner = np.random.default_rng(0).integers(0, options.workers, graph.num_nodes).astype(np.int32)
    shards = list(cut_all(graph, Partition(owner, None, Grid(options.workers, 1, 1))))
    print(f"{'cache':8} {'fetched':>10} {'of none':>8} {'distinct':>10}")
    first_rows = 0.0
    for cache in CACHES:
        rows, distinct = fetched(cache, shards, options)
        first_rows = first_rows or rows
        print(f"{cache:8} {rows:10,.0f} {rows / max(first_rows, 1):8.3f} {distinct:10,.0f}", flush=True)


if __name__ == "__main__":
    main()
