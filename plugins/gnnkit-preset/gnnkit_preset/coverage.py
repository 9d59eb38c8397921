"""A rotating split, with edge weights that make the mean gradient unbiased.

Each rank holds its own chunk of nodes and, in each rotation, one other chunk (Grappa,
arXiv 2602.01872). In R = P - 1 rotations, every rank meets every other chunk once. An
edge within a chunk is seen R times and an edge between chunks once, so the latter is
weighted by R.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from gnnkit.graph import Block, Floats, Ids, Split
from gnnkit.sampler import Sampler
from gnnkit.strategy import ExecutionStrategy, Relations
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.workload import Reader, StepInputs, WorkerShare, Workload
from gnnkit.utils.ranges import MAX_COUNT, whole

_PART_OF_RELATIONS = "weighs edges by coverage, not by relation"


class Coverage(PresetWorkload):
    """Each worker also holds one other worker's nodes, which rotate (Grappa).

    Choose this strategy with `partition=random` if labels depend on nodes of other
    workers. Weights keep the mean gradient unbiased over a full rotation.
    """

    def __init__(self, resplit_every: int = 1) -> None:
        """Checks the number of epochs between two rotations, at least 1."""
        self.resplit_every = whole("strategy.resplit_every", resplit_every, 1, MAX_COUNT)
        super().__init__()
        self.approximation = "strategy=coverage", "a step reads the nodes of two workers"
        abilities = [ability for ability in self.supports if not isinstance(ability, Relations)]
        self.supports = (*abilities, Relations(but=_PART_OF_RELATIONS))

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        return self if world_size <= 2 else None

    def workload(self, nodes: Ids) -> Workload:
        return Covered(self.reader, self.worker.owner, every=self.resplit_every)


class Covered(Workload):
    """The rank's own chunk and, in each rotation, one other, weighted by coverage."""

    def __init__(self, reader: Reader, owner: Ids, *, every: int) -> None:
        """Stores the chunks.

        Args:
            reader: This rank.
            owner: [num_nodes] rank of each node. A rank's nodes are its chunk.
            every: Number of epochs per rotation.
        """
        self._reader, self._owner, self._every, self._rotation = reader, owner, every, -1
        trains = reader.graph.split == Split.TRAIN
        self.num_train = int(np.count_nonzero(trains))
        self.num_own = int(np.count_nonzero(trains[owner == reader.worker.comm.rank]))

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        if epoch // self._every != self._rotation:
            self._rotation = epoch // self._every
            self._build(self._rotation)
        return replace(self._held.inputs(key), row_weights=self._coverage)

    def _build(self, rotation: int) -> None:
        worker, graph = self._reader.worker, self._reader.graph
        rank, num_ranks = worker.comm.rank, worker.comm.world_size
        peer = partner(rank, num_ranks, rotation)
        halo = None if peer == rank else np.flatnonzero(self._owner == peer)
        share = WorkerShare.of(graph, np.flatnonzero(self._owner == rank), halo)
        nodes = share.block.src_nodes
        degree = graph.csc.indptr[nodes + 1] - graph.csc.indptr[nodes]
        block, coverage = weigh(share.block, self._owner[nodes], degree, num_ranks - 1)
        self._held = self._reader.hold(replace(share, block=block))
        self._coverage = torch.tensor(coverage[: share.num_seeds], dtype=worker.dtype, device=worker.device)


def partner(rank: int, world_size: int, rotation: int) -> int:
    """Returns the rank whose chunk `rank` also holds, or `rank` if it is alone."""
    return (rank + 1 + rotation % (world_size - 1)) % world_size if world_size > 1 else rank


def weigh(block: Block, chunk: Ids, degree: Ids, num_rotations: int) -> tuple[Block, Floats]:
    """Weights a block's edges, and computes each row's coverage.

    An edge counts 1 within a chunk and R = `num_rotations` between chunks. A row's
    counts are normalised to add up to its degree. Its coverage is (seen edges inside +
    R * seen edges between) / degree, or 1 without in-edges. Over R rotations, a row's
    mean coverage is 1, and the mean of coverage times weighted sum is the sum over all
    in-edges.

    Args:
        block: Edges held in one rotation, with all nodes as destinations.
        chunk: [num_nodes] chunk of each node of the block.
        degree: [num_nodes] number of in-edges in the complete graph.
        num_rotations: R, until all chunks have met.

    Returns:
        The block with the counts as weights, and the coverage [num_nodes].
    """
    row = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    relative = np.where(chunk[block.indices] == chunk[row], 1.0, num_rotations)
    covered_degree = np.bincount(row, relative, block.num_dst)
    coverage = np.where(degree == 0, 1.0, covered_degree / np.maximum(degree, 1))
    scale = degree / np.where(covered_degree == 0, 1, covered_degree)
    return replace(block, weight=relative * scale[row]), coverage
