"""Improvements of a partition: its border, and columns of unequal height."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.quality import Quality, measure

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


def fewest_words(graph: Graph, partition: Partition, numbers: Sequence[int]) -> Partition:
    """Selects the columns that minimise the words of the busiest rank.

    Both directions count. Returns the partition itself if no columns are better.
    Columns with less balanced edges than both `MAX_IMBALANCE` and the partition are
    skipped.

    Args:
        partition: A partition without `edge_cell`.
        numbers: Numbers of columns to try.
    """
    baseline = measure(graph, partition)
    candidates = (measure(graph, in_columns(graph, partition, number)) for number in numbers)
    bound = max(MAX_IMBALANCE, baseline.balance()["edges"])
    even = [baseline, *(candidate for candidate in candidates if candidate.balance()["edges"] <= bound)]
    return min(even, key=_busiest).partition


def in_columns(graph: Graph, partition: Partition, number: int) -> Partition:
    """Holds each edge in its source's column, with `number` columns of ranks.

    The first P mod `number` columns have one rank more. Each column distributes all
    destinations over its ranks: owned nodes to their owner, others by equal numbers of
    edges. A row is sent to the column's other ranks, and each other column sends one
    partial sum, as on a regular grid. The number of peers is similar, because only few
    owners' nodes are split.

    Args:
        partition: The owners. Current edge holders are ignored.
        number: Number of columns, from 1 to P.
    """
    ranks = partition.node_rank
    columns = np.array_split(np.arange(partition.grid.world_size, dtype=np.int32), number)
    heights = [len(column) for column in columns]
    node_column = np.repeat(np.arange(number, dtype=np.min_scalar_type(number)), heights)[ranks]
    edge_column = node_column[graph.csc.indices]
    destinations = np.repeat(np.arange(graph.num_nodes, dtype=graph.csc.indices.dtype), np.diff(graph.csc.indptr))
    by_rank = np.argsort(ranks, kind="stable")
    edge_cell = np.empty(graph.num_edges, np.int32)
    for index, column in enumerate(columns):
        column_edges = np.flatnonzero(edge_column == index)
        work = np.bincount(destinations[column_edges], minlength=graph.num_nodes)
        holder = ranks.astype(np.int32)  # of each node's in-edges
        other_nodes = by_rank[node_column[by_rank] != index]
        rank_work = np.bincount(ranks, weights=work, minlength=partition.grid.world_size)[column].astype(np.int64)
        holder[other_nodes] = column[_distribute(work[other_nodes], rank_work)]
        edge_cell[column_edges] = holder[destinations[column_edges]]
    grid = Grid(partition.grid.world_size, 1, 1)
    return replace(partition, edge_cell=edge_cell, grid=grid, columns=tuple(heights))


def _busiest(quality: Quality) -> int:
    """Returns the busiest rank's words in a forward and a backward pass.

    A short column gathers few rows but many gradients, so both directions count.
    """
    traffic, width = quality.traffic, quality.partition.grid.slices
    return int((traffic.words(width).total + traffic.transposed().words(width).total).max())


def _distribute(work: Ids, loads: Ids) -> Ids:  # [num_items]
    """Distributes items in ranges that even out the loads.

    Args:
        work: [num_items] work of each item.
        loads: [num_ranks] previous loads.
    """
    room = np.maximum(_level(loads, int(work.sum())) - loads, 0)
    middle = np.cumsum(work) - work / 2
    return np.minimum(np.searchsorted(np.cumsum(room), middle), len(loads) - 1)


def _level(loads: Ids, work: int) -> float:
    """Returns the level that `work` reaches when poured over `loads`."""
    ascending = np.sort(loads)
    levels = (work + np.cumsum(ascending)) / np.arange(1, len(loads) + 1)  # over the k lowest loads
    return float(levels.min())
