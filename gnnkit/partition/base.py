"""The interface of partitioners, their result, and the graphs that they read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, Split
from gnnkit.graph.types import offsets_of
from gnnkit.partition.grid import Grid
from gnnkit.utils.checks import array


@dataclass(frozen=True, slots=True, eq=False)
class Partition:
    """Each node's owner, and the grid cell that holds each edge.

    The constructor checks the ranges.

    This is what a partitioner returns, and from which `cut` makes each rank's shard.
    Node partitioners leave `edge_cell` None; vertex-cuts set it.

    Examples:
        >>> import numpy
        >>> from gnnkit.partition import Grid, Partition
        >>> Partition(numpy.array([0, 0, 1], numpy.int32), None, Grid(2, 1, 1)).layout
        '2 x 1 x 1 grid'
    """

    node_rank: Ids  # [num_nodes] int32 owner, 0..world_size-1. Its cell is node_rank // slices
    edge_cell: Ids | None  # [num_edges] int32. None: (row of the destination's cell, column of the source's cell)
    grid: Grid
    columns: tuple[int, ...] = ()  # number of ranks per column, if `edge_cell` uses columns of unequal height

    def __post_init__(self) -> None:
        _check_range("node_rank", self.node_rank, self.grid.world_size, "workers")
        if self.edge_cell is not None:
            _check_range("edge_cell", self.edge_cell, self.grid.num_cells, "cells")

    @property
    def node_cell(self) -> Ids:  # [num_nodes] int32
        """The cell that owns each node, [num_nodes] int32.

        The nodes are owned by the cell's slice ranks.
        """
        return (self.node_rank // self.grid.slices).astype(np.int32, copy=False)

    @property
    def layout(self) -> str:
        """The grid's shape for messages, such as `2 x 2 x 1 grid`."""
        if not self.columns:
            return f"{self.grid} grid"
        return f"grid with {len(self.columns)} columns of {', '.join(map(str, self.columns))} workers"

    def position(self, rank: int) -> tuple[int, int, int]:
        """Returns row, column and slice of a rank.

        Unlike `Grid.position`, it also holds for columns of unequal height.
        """
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
        """Returns the cell that holds each edge.

        Raises `UserError` if graph and partition do not match.
        """
        self.check(graph)
        if self.edge_cell is not None:
            return self.edge_cell
        row, col = self.node_cell % self.grid.rows, self.node_cell // self.grid.rows
        return (col * self.grid.rows)[graph.csc.indices] + np.repeat(row, np.diff(graph.csc.indptr))


class Partitioner(ABC):
    """Assigns nodes to ranks and edges to cells, deterministically.

    Derive from it for a vertex-cut, which places single edges. A partitioner that only
    assigns nodes derives from `NodePartitioner`. The constructor's arguments are the
    keys of the section `partition`. The leader calls `assign` once, on the complete
    graph, and the result must depend on the graph, the grid and these keys only.
    """

    reads_edges: ClassVar[bool] = True  # False: needs only the number of nodes, so suits graphs larger than memory
    reads_grid: ClassVar[bool] = True  # False: owners depend on the number of ranks only, not on the grid's shape
    auto_seconds: ClassVar[float | None] = None  # per million edges. None: partition=auto does not consider it
    streams: ClassVar[bool] = False  # True: reads a mapped graph's edges once, in order

    def stream_bytes(self, num_nodes: int) -> int:
        """Returns the bytes that a streaming `assign` needs beyond the graph.

        `job=import` compares them with the free memory before it reads the edges. Only
        called if `streams` is true.

        Args:
            num_nodes: Number of nodes of the graph.
        """
        return 32 * num_nodes

    @abstractmethod
    def assign(self, graph: Graph, grid: Grid) -> Partition:
        """Assigns every node to one owner and every edge to one cell.

        Ranks may be left empty. Raises `UserError` if the grid does not suit the graph,
        with the key to change.

        Args:
            graph: The complete graph. Its features may have width 0.
            grid: The ranks, as set by `partition.grid`.
        """


class NodePartitioner(Partitioner):
    """A partitioner that assigns nodes only. Each edge's cell follows from the grid.

    Most partitioners are of this kind. Implement `assign_nodes`, and the same
    assignment then works on every grid, because a grid only decides which rank of a row
    and a column aggregates an edge.

    Examples:
        >>> import numpy
        >>> from gnnkit.partition import NodePartitioner
        >>> from gnnkit.testing import check_partitioner
        >>> class Stripes(NodePartitioner):
        ...     '''Deals out nodes in turn.'''
        ...     def assign_nodes(self, graph, num_parts):
        ...         return numpy.arange(graph.num_nodes) % num_parts
        >>> check_partitioner(Stripes())
    """

    reads_grid = False

    @abstractmethod
    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes] int32, 0..num_parts-1
        """Chooses each node's owner.

        Balance what a rank's time depends on, usually the training nodes and the
        in-edges. Values out of range raise `UserError` with the position.

        Args:
            graph: The complete graph.
            num_parts: Number of ranks. Some may be left without nodes.

        Returns:
            [num_nodes] integers in 0..num_parts-1.
        """

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


def _check_length(name: str, values: Ids, length: int) -> None:
    if len(values) != length:
        raise UserError(f"partition: {name} has {len(values)} entries, expected {length}")


def hash_ids(num_ids: int, *, key: int) -> npt.NDArray[np.uint64]:  # [num_ids]
    """Hashes 0..num_ids-1 under `key` with splitmix64, the same on every platform."""
    golden = np.uint64(0x9E3779B97F4A7C15)
    start = mix(np.array([key % 2**64], np.uint64) + golden)
    return mix(start + golden * np.arange(1, num_ids + 1, dtype=np.uint64))


def mix(z: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Applies splitmix64's finaliser, like the native core's `rng::mix`."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


Balance = Literal["nodes", "edges", "train"]


def undirected(csc: CSC) -> tuple[CSC, Ids]:
    """Returns the simple undirected graph, and its edge weights [num_edges].

    Each edge is stored in both directions. Its weight counts the edges of `csc` between
    the two nodes. `CSC.from_edges` checks every id, because the libraries read outside
    their arrays if an id is out of range or a direction is missing. The result is
    symmetric, without self-loops and parallel edges.
    """
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    apart = csc.indices != dst
    src, dst = csc.indices[apart], dst[apart]
    symmetric = CSC.from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), csc.num_nodes)
    rows = np.repeat(np.arange(symmetric.num_nodes), np.diff(symmetric.indptr))
    first = np.ones(symmetric.num_edges, bool)  # from_edges sorts each row, so copies of an edge are adjacent
    first[1:] = (np.diff(rows) != 0) | (np.diff(symmetric.indices) != 0)
    starts = np.flatnonzero(first)
    weight: Ids = np.diff(starts, append=symmetric.num_edges)
    indptr = offsets_of(np.bincount(rows[starts], minlength=symmetric.num_nodes))
    return CSC(indptr, symmetric.indices[starts]), weight


def node_weights(graph: Graph, balance: Balance) -> Ids:  # [num_nodes] at least 1
    """Returns node weights, whose sums partitioners balance over the parts.

    Args:
        graph: The graph.
        balance: "nodes" weighs all nodes alike, "edges" by in-edges. Otherwise the
            training nodes together weigh as much as all nodes.
    """
    if balance == "nodes":
        return np.ones(graph.num_nodes, np.int64)
    if balance == "edges":
        return 1 + np.diff(graph.csc.indptr)
    train = graph.split == Split.TRAIN
    weight: Ids = 1 + train * (graph.num_nodes // max(int(np.count_nonzero(train)), 1))
    return weight
