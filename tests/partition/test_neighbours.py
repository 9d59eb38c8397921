"""Neighbours of a rank are the owners of nodes that share an edge with its nodes."""

from __future__ import annotations

import numpy as np
import pytest

from gnnkit.graph import Graph
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.quality import Crossing
from tests.graphs import random_graph


def on_path(*edges: tuple[int, int], ranks: int) -> list[list[int]]:
    """Neighbours where rank r owns node r, and the last ranks own nothing."""
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    graph = Graph.from_edges(src, dst, 4)
    return Crossing.of(graph, Partition(np.arange(4, dtype=np.int32), None, Grid(ranks, 1, 1))).neighbours


def test_an_edge_joins_its_ranks_both_ways_and_a_loop_joins_none() -> None:
    assert on_path((0, 1), (2, 1), (3, 3), ranks=5) == [[1], [0, 2], [1], [], []]
    assert on_path(ranks=4) == [[], [], [], []]


@pytest.mark.parametrize("grid", [Grid(4, 1, 1), Grid(2, 2, 2), Grid(1, 1, 1)], ids=str)
def test_crossing_edges_join_owners_in_both_directions(grid: Grid) -> None:
    graph = random_graph(30)
    owner = np.random.default_rng(2).integers(0, grid.world_size, 30).astype(np.int32)
    targets = np.repeat(np.arange(30), np.diff(graph.csc.indptr))
    edges = list(zip(graph.csc.indices.tolist(), targets.tolist(), strict=True))
    crossing = [(a, b) for a, b in edges if owner[a] != owner[b]]
    pairs = {(owner[a], owner[b]) for a, b in crossing}
    actual = Crossing.of(graph, Partition(owner, None, grid))
    assert actual.count == len(crossing)
    assert set(np.flatnonzero(actual.boundary)) == {node for edge in crossing for node in edge}
    assert actual.neighbours == [
        [b for b in range(grid.world_size) if {(a, b), (b, a)} & pairs] for a in range(grid.world_size)
    ]
