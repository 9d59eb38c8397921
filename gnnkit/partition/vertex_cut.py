"""Vertex-cuts: partitioners that assign edges to cells."""

from __future__ import annotations

import numpy as np

from gnnkit import _core
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import Partition, Partitioner
from gnnkit.partition.grid import Grid
from gnnkit.utils.ranges import real


class StreamedEdges(Partitioner):
    """Assigns each edge to a cell in the graph's order, and each node to an owner.

    No cell holds more edges than the bound. A node's owner is a cell with edges at the
    node, subject to the same bound. Edges do not follow from node owners, so rows are
    sent before aggregation and partial sums after it, as on a 2d grid.
    """

    balance_weight: float | None = None  # None: two-phase streaming

    def __init__(self, imbalance: float = 0.1) -> None:
        """Checks the option.

        Args:
            imbalance: Maximum excess of a cell over the mean, of edges and of nodes,
                from 0.001 to 1.
        """
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)

    def assign(self, graph: Graph, grid: Grid) -> Partition:
        csc, bound = graph.csc, 1 + self.imbalance
        node_cell, edge_cell = _core.stream_edges(csc.indptr, csc.indices, grid.num_cells, bound, self.balance_weight)
        return Partition(_in_turn(node_cell, grid), edge_cell, grid)


def _in_turn(node_cell: Ids, grid: Grid) -> Ids:  # [num_nodes] int32
    """Distributes each cell's nodes over its ranks."""
    if grid.slices == 1:
        return node_cell
    order = np.argsort(node_cell, kind="stable")
    start = np.searchsorted(node_cell[order], np.arange(grid.num_cells))
    turn = np.empty(len(node_cell), np.int64)
    turn[order] = np.arange(len(node_cell)) - start[node_cell[order]]
    return (node_cell.astype(np.int64) * grid.slices + turn % grid.slices).astype(np.int32)


class Hdrf(StreamedEdges):
    """High-degree replicated first (Petroni et al., CIKM 2015), a vertex-cut.

    Choose this partition if edges must be balanced to the percent on graphs with hubs.
    It uses the graph's degrees instead of partial degrees.
    """

    def __init__(self, imbalance: float = 0.1, balance_weight: float = 1.1) -> None:
        """Checks the options.

        Args:
            imbalance: Maximum excess of a cell over the mean, of edges and of nodes,
                from 0.001 to 1.
            balance_weight: Weight of balance against replication, lambda in the paper.
        """
        super().__init__(imbalance)
        self.balance_weight = real("partition.options.balance_weight", balance_weight, 0)


class TwoPhase(StreamedEdges):
    """2PS-L, two-phase streaming (Mayer, Orujzade & Jacobsen, ICDE 2022), a vertex-cut.

    Choose this partition over `hdrf` for many workers, or for graphs with communities.
    Nodes are clustered in one pass, and only two cells are compared per edge.
    """
