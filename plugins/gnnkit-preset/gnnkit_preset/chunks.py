"""Chunks of the nodes, redistributed so that all ranks need the same time."""

from __future__ import annotations

import numpy as np
import torch

from gnnkit.graph import CSC, Floats, Ids
from gnnkit.strategy import Worker

_LEAST = 1e-9  # share of the longest time that a move must save, more than rounding


class Chunks:
    """All ranks' chunks, with their costs and owners."""

    def __init__(self, worker: Worker, per_rank: int) -> None:
        """Cuts the chunks. Collective."""
        assert worker.graph is not None
        num_ranks = worker.comm.world_size
        self._comm, self._chunk = worker.comm, cut_chunks(worker.owner, num_ranks, per_rank)
        self._costs = chunk_costs(worker.graph.csc, self._chunk, num_ranks * per_rank)
        self.ranks: Ids = np.repeat(np.arange(num_ranks), per_rank)  # [num_chunks] rank of each chunk

    def moved(self, seconds_compute: float) -> Ids:  # [num_chunks]
        """Returns ranks of chunks that even out the measured time. Collective."""
        seconds = self._comm.all_gather(seconds_compute, torch.float64)
        return reassign(self.ranks, self._costs, seconds.cpu().numpy())

    def nodes(self) -> Ids:
        """Returns the nodes of this rank's chunks, ascending."""
        return np.flatnonzero(self.ranks[self._chunk] == self._comm.rank)


def cut_chunks(owner: Ids, num_ranks: int, per_rank: int) -> Ids:  # [num_nodes]
    """Cuts the nodes of each rank into ranges of ids with equal counts.

    Chunk c belongs to rank c // per_rank at first.

    Args:
        owner: [num_nodes] rank of each node.
        num_ranks: Number of ranks.
        per_rank: Chunks of a rank.
    """
    chunk = np.empty(len(owner), np.int32)
    for rank in range(num_ranks):
        nodes = np.flatnonzero(owner == rank)
        chunk[nodes] = rank * per_rank + np.arange(len(nodes)) * per_rank // max(len(nodes), 1)
    return chunk


def chunk_costs(csc: CSC, chunk: Ids, num_chunks: int) -> Floats:  # [num_chunks]
    """Counts the in-edges and the nodes of each chunk.

    Args:
        csc: The edges of the graph.
        chunk: [num_nodes] chunk of each node.
        num_chunks: Number of chunks.
    """
    return np.bincount(chunk, np.diff(csc.indptr) + 1.0, num_chunks).astype(np.float64)


def reassign(chunk_rank: Ids, costs: Floats, seconds: Floats) -> Ids:  # [num_chunks]
    """Moves chunks from slow ranks to fast ones until no move evens out more.

    Seconds grow faster than the cost of a rank's chunks, because a larger share keeps
    more of its edges. The square root of each rank's time per cost therefore damps the
    correction: full corrections would oscillate. Most chunks stay, because neighbouring
    chunks share edges. A rank without seconds gets the median of the others. The result
    depends on the arguments only.

    Args:
        chunk_rank: [num_chunks] rank of each chunk.
        costs: [num_chunks] cost of each chunk.
        seconds: [num_ranks] seconds that each rank computed.
    """
    rank_costs = np.bincount(chunk_rank, costs, len(seconds)).astype(np.float64)
    ranks, pace = chunk_rank.copy(), _pace(rank_costs, seconds)
    while True:
        times = pace * np.bincount(ranks, costs, len(pace))
        slowest = int(times.argmax())
        chunks = np.flatnonzero((ranks == slowest) & (costs > 0))
        source_times = times[slowest] - pace[slowest] * costs[chunks]  # [num_chunks of the slowest]
        target_times = times[:, None] + pace[:, None] * costs[chunks]  # [num_ranks, num_chunks of the slowest]
        after = np.maximum(target_times, source_times)
        after[slowest] = np.inf
        if not after.size or after.min() >= times[slowest] * (1 - _LEAST):
            return ranks
        taker, place = np.unravel_index(int(after.argmin()), after.shape)
        ranks[chunks[place]] = taker


def _pace(costs: Floats, seconds: Floats) -> Floats:  # [num_ranks]
    """Returns the root of each rank's seconds for a unit of its cost."""
    is_timed = (costs > 0) & (seconds > 0)
    if not is_timed.any():
        return np.ones(len(seconds))
    pace = np.sqrt(np.where(is_timed, seconds, 0)) / np.where(is_timed, costs, 1)
    return np.where(is_timed, pace, np.median(pace[is_timed]))
