"""Node assignment x process grid -> Partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from gnnkit.graph import Graph, Ids


@dataclass(frozen=True, slots=True)
class Grid:
    """Process grid: `rank = cell * slices + slice`; cell i of the plane stands at row `i % rows`, column `i // rows`.

    rows divides destinations, cols divides sources, slices divides feature columns.
    """

    rows: int
    cols: int
    slices: int

    @property
    def world_size(self) -> int:
        return self.rows * self.cols * self.slices

    @property
    def num_cells(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Who owns each node and which cell of the plane holds each edge."""

    node_rank: Ids  # [num_nodes] int32 owner, 0..world_size-1; its cell is node_rank // slices
    edge_cell: Ids | None  # [num_edges] int32; None: (row of the destination's cell, column of the source's cell)
    grid: Grid

    def cells_of_edges(self, graph: Graph) -> Ids:  # [num_edges] int32
        """The cell that holds each edge."""
        if self.edge_cell is not None:
            return self.edge_cell
        cell = self.node_rank // self.grid.slices
        row = np.repeat(cell % self.grid.rows, np.diff(graph.csc.indptr))
        return (cell // self.grid.rows)[graph.csc.indices] * self.grid.rows + row


class Partitioner(ABC):
    """Decides who owns which node, and who holds which edge. Equal arguments give equal results."""

    @abstractmethod
    def assign(self, graph: Graph, grid: Grid) -> Partition:
        """Every node gets one owner, every edge one cell; ranks may stay empty. Raises `ValueError` for what cannot be."""


class NodePartitioner(Partitioner):
    """A partitioner that assigns nodes only; edges follow from the grid."""

    @abstractmethod
    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes] int32, 0..num_parts-1
        """The owner of each node."""

    def assign(self, graph: Graph, grid: Grid) -> Partition:
        return Partition(self.assign_nodes(graph, grid.world_size).astype(np.int32, copy=False), None, grid)
