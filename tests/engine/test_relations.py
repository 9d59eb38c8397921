"""Edges by relation, with the mean's weight of each."""

from __future__ import annotations

import numpy as np

from gnnkit.engine.relations import RelationEdges
from gnnkit.graph import CSC


def test_relations_of_a_block_share_each_mean() -> None:
    csc = CSC(np.array([0, 2, 3]), np.array([2, 1, 0]), np.array([1.0, 3.0, 2.0]), num_sources=3)
    degrees = np.array([4.0, 4.0, 0.0]), np.array([1.0, 6.0, 2.0])
    edges = RelationEdges.of(csc, np.array([0, 0, 1]), degrees, num_relations=2, inverse=True)
    assert (edges.num_rows, edges.num_relations) == (3, 4)
    assert edges.src.tolist() == [2, 1, 0, 0, 0, 1]
    assert edges.dst.tolist() == [0, 0, 1, 2, 1, 0]
    assert edges.types.tolist() == [0, 0, 1, 2, 2, 3]
    assert edges.factor.tolist() == [0.25, 0.75, 2.0, 1.0, 0.5, 1.0], "a degree of 0 counts as 1"
