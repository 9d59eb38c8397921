"""Blocks with some of their edges: every column follows."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import Block

BLOCK = Block(
    indptr=np.array([0, 2, 3]),
    indices=np.array([2, 3, 0]),
    src_nodes=np.array([7, 5, 9, 1]),
    edge_ids=np.array([40, 41, 50]),
    relation=np.array([1, 0, 1], np.int16),
)


def test_columns_of_edges_are_those_that_are_there() -> None:
    assert list(BLOCK.edge_columns) == ["edge_ids", "relation"]


def test_all_columns_follow_the_edges() -> None:
    last = BLOCK.with_edges(np.array([0, 1, 2]), np.array([1, 2]))
    assert last.indices.tolist() == [3, 0]
    assert last.src_nodes is BLOCK.src_nodes
    assert {name: column.tolist() for name, column in last.edge_columns.items()} == {
        "edge_ids": [41, 50],
        "relation": [0, 1],
    }
    first = BLOCK.with_edges(BLOCK.indptr[:2], slice(0, 2))
    assert (first.num_dst, first.edge_columns["relation"].tolist()) == (1, [1, 0])
