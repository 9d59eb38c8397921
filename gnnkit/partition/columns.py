"""Grids with columns of unequal height."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import Partition
from gnnkit.partition.border import MAX_IMBALANCE
from gnnkit.partition.grid import Grid
from gnnkit.partition.quality import Quality, measure


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
