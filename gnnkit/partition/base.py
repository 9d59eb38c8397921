"""Node assignment x process grid -> Partition."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gnnkit.checks import array
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.partition.grid import Grid

_STREAM_BYTES = 32  # of memory for each node, where edges are read as a stream


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """The owner of each node and the cell of the plane that holds each edge.

    The constructor checks the ranges.
    """

    node_rank: Ids  # [num_nodes] int32 owner, 0..world_size-1. The cell is node_rank // slices
    edge_cell: Ids | None  # [num_edges] int32. None: (row of the destination's cell, column of the source's cell)
    grid: Grid
    columns: tuple[int, ...] = ()  # ranks of each column, where `edge_cell` follows columns of unequal height

    def __post_init__(self) -> None:
        _check_range("node_rank", self.node_rank, self.grid.world_size, "workers")
        if self.edge_cell is not None:
            _check_range("edge_cell", self.edge_cell, self.grid.num_cells, "cells")

    @property
    def node_cell(self) -> Ids:  # [num_nodes] int32
        """The cell whose ranks own each node."""
        return (self.node_rank // self.grid.slices).astype(np.int32, copy=False)

    @property
    def layout(self) -> str:
        """The shape of the grid for people, such as `2 x 2 x 1 grid`."""
        if not self.columns:
            return f"{self.grid} grid"
        return f"grid with {len(self.columns)} columns of {', '.join(map(str, self.columns))} workers"

    def position(self, rank: int) -> tuple[int, int, int]:
        """Returns row, column and slice of a rank."""
        if not self.columns:
            return self.grid.position(rank)
        col = int(np.searchsorted(np.cumsum(self.columns), rank, side="right"))
        return rank - sum(self.columns[:col]), col, 0

    def check(self, graph: Graph) -> None:
        """Raises `UserError` if graph and partition do not match."""
        _check_length("node_rank", self.node_rank, graph.num_nodes)
        if self.edge_cell is not None:
            _check_length("edge_cell", self.edge_cell, graph.num_edges)

    def cells_of_edges(self, graph: Graph) -> Ids:  # [num_edges] int32
        """Finds the cell that holds each edge.

        Raises `UserError` if graph and partition do not match.
        """
        self.check(graph)
        if self.edge_cell is not None:
            return self.edge_cell
        row, col = self.node_cell % self.grid.rows, self.node_cell // self.grid.rows
        return (col * self.grid.rows)[graph.csc.indices] + np.repeat(row, np.diff(graph.csc.indptr))


class Partitioner(ABC):
    """Chooses the owner of each node and the holder of each edge.

    Equal arguments give equal results.
    """

    reads_edges: ClassVar[bool] = True  # False: the number of nodes is enough, as for a graph that memory cannot hold
    reads_grid: ClassVar[bool] = True  # False: nodes have the same owners on all grids of as many ranks
    auto_seconds: ClassVar[float | None] = None  # to cut a million edges, for partition=auto. None: not compared there
    streams: ClassVar[bool] = False  # whether the edges of a mapped graph are read in order, and none are kept

    def stream_bytes(self, num_nodes: int) -> int:
        """Returns the memory that `assign` takes beside the graph, if it streams."""
        return _STREAM_BYTES * num_nodes

    @abstractmethod
    def assign(self, graph: Graph, grid: Grid) -> Partition:
        """Gives every node one owner and every edge one cell. Ranks may stay empty.

        Raises `UserError` for a graph and a grid that do not go together.

        Args:
            graph: to be cut.
            grid: of the ranks.
        """


class NodePartitioner(Partitioner):
    """A partitioner that assigns nodes only. Edges follow from the grid."""

    reads_grid = False

    @abstractmethod
    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes] int32, 0..num_parts-1
        """Chooses the owner of each node."""

    def assign(self, graph: Graph, grid: Grid) -> Partition:
        owners = array(f"partition: the owners of {type(self).__name__}", self.assign_nodes(graph, grid.world_size))
        _check_range("node_rank", owners, grid.world_size, "workers")  # the cast would wrap values out of range
        return Partition(owners.astype(np.int32, copy=False), None, grid)


def _check_range(name: str, values: Ids, bound: int, of: str) -> None:
    if values.ndim != 1 or not np.issubdtype(values.dtype, np.integer):
        raise UserError(
            f"partition: {name} must be one-dimensional integers, got {values.dtype} of shape {list(values.shape)}"
        )
    wrong = np.flatnonzero((values < 0) | (values >= bound))
    if len(wrong):
        raise UserError(f"partition: {name}[{wrong[0]}] = {values[wrong[0]]} is out of range for {bound} {of}")


def _check_length(name: str, values: Ids, expected: int) -> None:
    if len(values) != expected:
        raise UserError(f"partition: {name} has {len(values)} entries, expected {expected}")


def hash_ids(num_ids: int, *, key: int) -> npt.NDArray[np.uint64]:  # [num_ids]
    """Hashes 0..num_ids-1 under `key` with splitmix64, to the same bits everywhere."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = _mix(np.array([key % 2**64], np.uint64) + golden)
    return _mix(start + golden * np.arange(1, num_ids + 1, dtype=np.uint64))


def _mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Applies the finaliser of splitmix64, as `rng::mix` of the native core does."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
