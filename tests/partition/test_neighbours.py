"""Neighbours of a rank are the owners of nodes that share an edge with its nodes."""

from __future__ import annotations

import numpy as np
import pytest

import gnnkit.partition.neighbours as counting
from gnnkit.graph import Graph
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.neighbours import crossings, neighbours
from tests.graphs import random_graph


def on_path(*edges: tuple[int, int], ranks: int) -> list[list[int]]:
    """Neighbours where rank r owns node r, and the last ranks own nothing."""
    src, dst = np.array(edges, np.int64).reshape(-1, 2).T
    graph = Graph.from_edges(src, dst, 4)
    return neighbours(crossings(graph, Partition(np.arange(4, dtype=np.int32), None, Grid(ranks, 1, 1))))


def test_an_edge_joins_its_ranks_both_ways_and_a_loop_joins_none() -> None:
    assert on_path((0, 1), (2, 1), (3, 3), ranks=5) == [[1], [0, 2], [1], [], []]
    assert on_path(ranks=4) == [[], [], [], []]


@pytest.mark.parametrize("grid", [Grid(4, 1, 1), Grid(2, 2, 2), Grid(1, 1, 1)], ids=str)
@pytest.mark.parametrize("chunk", [1, 7, 1000])
def test_neighbours_are_symmetric_and_do_not_depend_on_chunks(
    grid: Grid, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = random_graph(30)
    owner = np.random.default_rng(2).integers(0, grid.world_size, 30).astype(np.int32)
    targets = np.repeat(np.arange(30), np.diff(graph.csc.indptr))
    pairs = {(owner[a], owner[b]) for a, b in zip(graph.csc.indices, targets, strict=True)}
    monkeypatch.setattr(counting, "_CHUNK", chunk)
    counts = crossings(graph, Partition(owner, None, grid))
    for a in range(grid.world_size):
        for b in range(grid.world_size):
            assert counts[a, b] == np.count_nonzero((owner[targets] == a) & (owner[graph.csc.indices] == b))
    found = neighbours(counts)
    assert found == [
        [b for b in range(grid.world_size) if b != a and {(a, b), (b, a)} & pairs] for a in range(grid.world_size)
    ]
