"""The edges between regions, and the workers whose nodes share edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """The edges that join nodes of two ranks."""

    count: int
    boundary: npt.NDArray[np.bool_]  # [num_nodes] has such an edge
    linked: npt.NDArray[np.bool_]  # [world_size, world_size] has such an edge, in any direction

    @classmethod
    def of(cls, graph: Graph, partition: Partition, threads: int = 1) -> Crossing:
        """Reads all edges once."""
        size = partition.grid.world_size
        owner = np.ascontiguousarray(partition.node_rank, np.int32)
        csc = graph.csc
        count, boundary, linked = _core.csc_crossing(csc.indptr, csc.indices, owner, size, threads)
        linked = linked.reshape(size, size)
        return cls(count, boundary, linked | linked.T)

    @property
    def neighbours(self) -> list[list[int]]:
        """The ranks that share edges with each rank, ascending, by rank."""
        return [np.flatnonzero(row).tolist() for row in self.linked]
