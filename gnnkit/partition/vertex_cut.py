"""Vertex-cuts: partitioners that give each edge a cell."""

from __future__ import annotations

import numpy as np

from gnnkit import _core
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.grid import Grid
from gnnkit.ranges import real


class StreamedEdges(Partitioner):
    """Gives each edge a cell in the order of the graph, and each node an owner.

    No cell holds more edges than the bound. Owners of nodes are cells with edges of the
    node, and are bounded alike. Edges do not follow their nodes, so rows travel before
    the sums and partial sums afterwards, as on a 2d grid.
    """

    balance_weight: float | None = None  # None: the rule of two phases

    def __init__(self, imbalance: float = 0.1) -> None:
        """Checks the option.

        Args:
            imbalance: Share from 0.001 to 1 by which a cell may exceed the mean of
                edges, and of nodes.
        """
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)

    def assign(self, graph: Graph, grid: Grid) -> Partition:
        csc, bound = graph.csc, 1 + self.imbalance
        node_cell, edge_cell = _core.stream_edges(csc.indptr, csc.indices, grid.num_cells, bound, self.balance_weight)
        return Partition(_in_turn(node_cell, grid), edge_cell, grid)


def _in_turn(node_cell: Ids, grid: Grid) -> Ids:  # [num_nodes] int32
    """Deals the nodes of each cell out to the ranks of the cell."""
    if grid.slices == 1:
        return node_cell
    order = np.argsort(node_cell, kind="stable")
    start = np.searchsorted(node_cell[order], np.arange(grid.num_cells))
    turn = np.empty(len(node_cell), np.int64)
    turn[order] = np.arange(len(node_cell)) - start[node_cell[order]]
    return (node_cell.astype(np.int64) * grid.slices + turn % grid.slices).astype(np.int32)
