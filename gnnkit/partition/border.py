"""Partition -> Partition: what happens at the border of the regions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition

NAMES = ("none", "min_words", "cover", "min_words+cover")
MAX_IMBALANCE = 1.1  # largest over mean of the nodes of ranks, and of the edges of cells


def improve_border(graph: Graph, partition: Partition, border: str | None) -> Partition:
    """Applies `partition.border`.

    Args:
        graph: The graph.
        partition: The partition to improve.
        border: "none" or None leaves the partition. "min_words" and "cover" call the
            function, and "min_words+cover" calls both.
    """
    if border is not None and border not in NAMES:
        raise UserError(f"partition.border={border} must be one of {', '.join(NAMES)}")
    for name in (border or "none").split("+"):
        if name != "none":
            partition = (min_words if name == "min_words" else cover)(graph, partition)
    return partition


def min_words(graph: Graph, partition: Partition, max_imbalance: float = MAX_IMBALANCE) -> Partition:
    """Moves boundary nodes to the neighbouring region that lowers the words most.

    Repeats until no node moves. Words are `Traffic`'s for the partition's own grid,
    summed over ranks, and fall with every move. Raises `UserError` for vertex-cuts,
    whose edges do not follow their nodes.

    A greedy heuristic in linear passes over nodes in order of id: size-constrained
    label propagation (Meyerhenke, Sanders, Schulz, SEA 2014) with the exact gain in
    communication volume, as Mt-KaHyPar's (ALENEX 2021).

    Args:
        graph: The graph.
        partition: The partition to improve.
        max_imbalance: Bound on largest over mean of the ranks' nodes, and of the cells'
            edges. A partition above the bound gets no worse. Default: 1.1.
    """
    _check_nodes_only(partition, "min_words")
    grid, owners = partition.grid, partition.node_rank.astype(np.int32, copy=False)
    plane = (grid.rows, grid.cols, grid.slices)
    node_rank, _ = _core.min_words(graph.csc.indptr, graph.csc.indices, owners, plane, max_imbalance)
    return replace(partition, node_rank=node_rank)


def cover(graph: Graph, partition: Partition, max_imbalance: float = MAX_IMBALANCE) -> Partition:
    """Holds each edge between two regions at an end, so that the fewest rows travel.

    Either the row of the source goes to the owner of the destination, or a partial sum
    of the destination comes from the owner of the source. A row and a partial sum serve
    all edges of two regions. So the fewest words are a least vertex cover, and a
    largest matching gives one exactly (König's theorem). A hub's row goes to the owners
    of its leaves, and leaves send one partial sum to their hub. Edges that both would
    serve even out the work.

    Owners stay. Raises `UserError` for vertex-cuts and for grids of several columns.

    Args:
        graph: The graph.
        partition: A partition on a grid of one column.
        max_imbalance: Bound on largest over mean of the cells' edges. Cells above the
            bound hold in-edges of other cells' nodes no more, where this helps.
            Default: 1.1.
    """
    _check_nodes_only(partition, "cover")
    grid, cells = partition.grid, partition.node_cell.astype(np.int32, copy=False)
    if grid.cols != 1:
        raise UserError(f"partition.border=cover needs a grid of one column, such as partition.grid=1d, got {grid}")
    edge_cell = _core.cover_cells(graph.csc.indptr, graph.csc.indices, cells, grid.rows, max_imbalance)
    return replace(partition, edge_cell=edge_cell)


def _check_nodes_only(partition: Partition, border: str) -> None:
    if partition.edge_cell is not None:
        raise UserError(f"partition.border={border} needs a partitioner of nodes: this one assigns edges by itself")
