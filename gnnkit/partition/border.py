"""Improvements of a partition's border."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition

NAMES = ("none", "min_words", "cover", "min_words+cover")
MAX_IMBALANCE = 1.1  # maximum over mean, of ranks' nodes and of cells' edges


def improve_border(graph: Graph, partition: Partition, border: str | None) -> Partition:
    """Applies `partition.border`.

    Args:
        partition: The partition to improve.
        border: "min_words" and "cover" call the respective function, and
            "min_words+cover" calls both. "none" or None returns the partition
            unchanged.
    """
    if border is not None and border not in NAMES:
        raise UserError(f"partition.border={border} must be one of {', '.join(NAMES)}")
    for name in (border or "none").split("+"):
        if name != "none":
            partition = (min_words if name == "min_words" else cover)(graph, partition)
    return partition


def min_words(graph: Graph, partition: Partition, max_imbalance: float = MAX_IMBALANCE) -> Partition:
    """Moves each boundary node to the neighbouring region that reduces words most.

    Repeats until no node moves. Words are those of `Traffic` for the partition's grid,
    summed over ranks, and decrease with every move. Raises `UserError` for vertex-cuts,
    with edges that do not follow from node owners.

    This greedy heuristic makes linear passes over nodes in order of ids. It is
    size-constrained label propagation (Meyerhenke, Sanders, Schulz, SEA 2014) with the
    exact gain in communication volume, as in Mt-KaHyPar (ALENEX 2021).

    Args:
        partition: The partition to improve.
        max_imbalance: Bound on maximum over mean of the ranks' nodes and the cells'
            edges. A partition that exceeds the bound does not get worse. Default: 1.1.
    """
    _check_nodes_only(partition, "min_words")
    grid, owners = partition.grid, partition.node_rank.astype(np.int32, copy=False)
    plane = (grid.rows, grid.cols, grid.slices)
    node_rank, _ = _core.min_words(graph.csc.indptr, graph.csc.indices, owners, plane, max_imbalance)
    return replace(partition, node_rank=node_rank)


def cover(graph: Graph, partition: Partition, max_imbalance: float = MAX_IMBALANCE) -> Partition:
    """Chooses the holder of each edge between regions so that the fewest rows are sent.

    Either the source's row is sent to the destination's owner, or a partial sum is sent
    from the source's owner to the destination's. A row or a partial sum serves all
    edges between two regions, so the minimum is a minimum vertex cover, which a maximum
    matching gives exactly (König's theorem). A hub's row is sent to its leaves' owners,
    and leaves send one partial sum to their hub. Edges covered by both balance the
    work.

    Node owners do not change. Raises `UserError` for vertex-cuts and for grids of
    several columns.

    Args:
        partition: A partition on a grid of one column.
        max_imbalance: Bound on maximum over mean of the cells' edges. A cell that
            exceeds the bound stops holding in-edges of other cells' nodes, if this
            helps. Default: 1.1.
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
