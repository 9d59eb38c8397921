"""Graphs for checks."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids, Split


def example_graphs() -> list[Graph]:
    """Returns small graphs that cover all corner cases.

    These are no nodes, no edges, one node, isolated nodes, self-loops, parallel edges,
    a hub, every split, and nodes without a label. All graphs have weights, edge
    features and coordinates.

    Use them to test code that reads graphs: a function that is right on all of them
    rarely fails on a user's.

    Examples:
        >>> from gnnkit.testing import example_graphs
        >>> [graph.num_nodes for graph in example_graphs()]
        [0, 1, 1, 7, 30, 24, 9]
    """
    rng = np.random.default_rng(0)
    hub = (np.r_[np.arange(30), np.zeros(30)], np.r_[np.zeros(30), np.arange(30)])
    random = rng.integers(0, 20, (2, 60))
    parallel = np.repeat(rng.integers(0, 9, (2, 8)), 3, axis=1)
    edges = [((), (), 0), ((), (), 1), ((0, 0), (0, 0), 1), ((), (), 7), (*hub, 30), (*random, 24), (*parallel, 9)]
    return [_example_graph(np.array(src, np.int64), np.array(dst, np.int64), n) for src, dst, n in edges]


WIDTH, EDGE_WIDTH, CLASSES, RELATIONS = 5, 2, 3, 3  # of `check_graph`


def check_graph(num_nodes: int = 30) -> Graph:
    """Returns a directed, weighted graph with edge features and types, and all splits.

    It includes isolated nodes, self-loops and parallel edges.
    """
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, num_nodes - 3, (2, 3 * num_nodes))
    labels = rng.integers(0, CLASSES, num_nodes)
    labels[:2] = -1
    return Graph.from_edges(
        np.r_[src, 4, 5, 5],
        np.r_[dst, 4, 6, 6],
        num_nodes,
        features=rng.normal(size=(num_nodes, WIDTH)),
        labels=labels,
        split=np.where(labels < 0, Split.NONE, 1 + np.arange(num_nodes) % 3),
        weight=rng.uniform(0.5, 2, len(src) + 3),
        edge_features=rng.normal(size=(len(src) + 3, EDGE_WIDTH)),
        edge_types=rng.integers(0, RELATIONS, len(src) + 3),
    )


def _example_graph(src: Ids, dst: Ids, num_nodes: int) -> Graph:
    rng = np.random.default_rng(num_nodes)
    labels = rng.integers(-1, 3, num_nodes)
    return Graph.from_edges(
        src,
        dst,
        num_nodes,
        features=rng.normal(size=(num_nodes, 4)),
        labels=labels,
        split=np.where(labels < 0, Split.NONE, rng.integers(0, len(Split), num_nodes)).astype(np.int8),
        weight=rng.uniform(0.5, 2, len(src)),
        edge_features=rng.normal(size=(len(src), 2)),
        coordinates=rng.normal(size=(num_nodes, 2)),
        edge_types=rng.integers(0, 4, len(src)),
    )


def cut_signal_graph(num_nodes: int = 800, num_parts: int = 4, num_classes: int = 4, seed: int = 0) -> Graph:
    """Returns a graph with labels that depend only on edges between parts.

    Parts are ranges of ids with equal counts, as with `partition=1d`. Every node has a
    random kind, which is visible in its features. A node's label is the kind of all its
    in-neighbours in other parts. Its in-neighbours in its own part are random.

    Args:
        num_parts: Number of parts, at least 2.
        num_classes: Number of kinds and labels.
    """
    rng, inside, across = np.random.default_rng(seed), 8, 6  # in-edges per node
    part, nodes = np.arange(num_nodes) * num_parts // num_nodes, np.arange(num_nodes)
    kind, labels = rng.integers(0, num_classes, (2, num_nodes))
    src = [
        np.concatenate(
            [
                rng.choice(nodes[part == part[node]], inside),
                rng.choice(nodes[(part != part[node]) & (kind == labels[node])], across),
            ]
        )
        for node in nodes
    ]
    return Graph.from_edges(
        np.concatenate(src),
        np.repeat(nodes, inside + across),
        num_nodes,
        features=np.eye(num_classes)[kind] + 0.3 * rng.normal(size=(num_nodes, num_classes)),
        labels=labels,
        split=rng.choice(np.array([Split.TRAIN, Split.VAL, Split.TEST], np.int8), num_nodes, p=[0.6, 0.1, 0.3]),
    )
