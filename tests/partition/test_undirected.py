"""The graph and the weights that multilevel partitioners read."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import CSC, Graph, Split
from gnnkit.partition import node_weights, undirected


def test_the_undirected_graph_is_simple_and_symmetric() -> None:
    csc = CSC.from_edges([0, 0, 0, 1, 2, 3], [1, 1, 0, 0, 3, 3], 4)
    simple, weight = undirected(csc)
    assert simple.indptr.tolist() == [0, 1, 2, 3, 4]
    assert simple.indices.tolist() == [1, 0, 3, 2]
    assert weight.tolist() == [3, 3, 1, 1]


def test_training_nodes_weigh_as_much_as_all_nodes() -> None:
    split = np.array([Split.TRAIN, Split.TRAIN, 0, 0, 0, 0], np.int8)
    graph = Graph.from_edges([0, 1, 2], [3, 3, 4], 6, labels=np.zeros(6, np.int64), split=split)
    assert node_weights(graph, "nodes").tolist() == [1] * 6
    assert node_weights(graph, "edges").tolist() == [1, 1, 1, 3, 2, 1]
    assert node_weights(graph, "train").tolist() == [4, 4, 1, 1, 1, 1]
