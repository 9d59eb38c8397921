"""Partition -> Partition: moves nodes at the border of a region."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition

NAMES = ("none", "min_words")


def improve_border(graph: Graph, partition: Partition, border: str | None) -> Partition:
    """Applies `partition.border`.

    Args:
        graph: The graph.
        partition: The partition to improve.
        border: "none" or None leaves the partition. "min_words" calls the function.
    """
    if border is None or border == "none":
        return partition
    if border != "min_words":
        raise UserError(f"partition.border={border} must be one of {', '.join(NAMES)}")
    return min_words(graph, partition)


def min_words(graph: Graph, partition: Partition, max_imbalance: float = 1.1) -> Partition:
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
    if partition.edge_cell is not None:
        raise UserError("partition.border=min_words needs a partitioner of nodes: this one assigns edges by itself")
    grid, owners = partition.grid, partition.node_rank.astype(np.int32, copy=False)
    plane = (grid.rows, grid.cols, grid.slices)
    node_rank, _ = _core.min_words(graph.csc.indptr, graph.csc.indices, owners, plane, max_imbalance)
    return replace(partition, node_rank=node_rank)
