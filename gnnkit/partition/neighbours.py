"""Which cells exchange rows, computed in one pass over the edges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import Partition
from gnnkit.partition.traffic import Traffic


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """The edges between regions, and the rows required by cells."""

    count: int  # number of edges between two regions
    boundary: npt.NDArray[np.bool_]  # [num_nodes] whether a node has such an edge
    links: npt.NDArray[np.bool_]  # [world_size, world_size] whether two ranks share such an edge, in either direction
    cell_edges: Ids  # [num_cells] int64 edges of each cell
    traffic: Traffic
    copies: int  # number of pairs of a node and a cell that owns it or holds one of its edges

    @classmethod
    def of(cls, graph: Graph, partition: Partition, threads: int = 1) -> Crossing:
        """Reads all edges once.

        Raises `UserError` if graph and partition do not match.

        Args:
            threads: Number of threads that read edges.
        """
        partition.check(graph)
        grid = partition.grid
        owner, held_by = np.ascontiguousarray(partition.node_rank, np.int32), partition.edge_cell
        cells = None if held_by is None else np.ascontiguousarray(held_by, np.int32)
        plane = (grid.rows, grid.cols, grid.slices)
        count, boundary, links, cell_edges, gather_rows, reduce_rows, copies = _core.csc_crossing(
            graph.csc.indptr, graph.csc.indices, owner, plane, cells, threads
        )
        links = links.reshape(grid.world_size, grid.world_size)
        square = (grid.num_cells, grid.num_cells)
        num_owned = np.bincount(owner, minlength=grid.world_size)
        traffic = Traffic(grid, num_owned, gather_rows.reshape(square), reduce_rows.reshape(square))
        return cls(count, boundary, links | links.T, cell_edges, traffic, copies)

    @property
    def neighbours(self) -> list[list[int]]:
        """Each rank's neighbours, the ranks that share edges with it, ascending."""
        return [np.flatnonzero(row).tolist() for row in self.links]
