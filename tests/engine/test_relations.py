"""Edges by relation, with the mean's weight of each."""

from __future__ import annotations

import numpy as np

from gnnkit.engine.relations import shares
from gnnkit.engine.typed_edges import AddedRelations, EdgeList


def test_inverse_edges_follow_with_relations_of_their_own() -> None:
    none = np.zeros(0, np.int64)
    edges = EdgeList(np.array([2, 1, 0]), np.array([0, 0, 1]), np.array([0, 0, 1]), np.arange(3))
    edges = edges.add(AddedRelations(inverse=True), 2, none, (3, 3))
    assert edges.src.tolist() == [2, 1, 0, 0, 0, 1]
    assert edges.dst.tolist() == [0, 0, 1, 2, 1, 0]
    assert edges.types.tolist() == [0, 0, 1, 2, 2, 3]


def test_a_degree_of_0_counts_as_1() -> None:
    assert shares(np.array([1.0, 3.0, 2.0]), np.array([4.0, 4.0, 0.0])).tolist() == [0.25, 0.75, 2.0]
    assert shares(None, np.array([4.0, 0.0])).tolist() == [0.25, 1.0]
