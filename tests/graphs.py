"""Graphs that several folders of tests share."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import CSC, Graph


def random_graph(num_nodes: int = 40, seed: int = 0) -> Graph:
    """Draws edges, features, three classes and three splits, four edges per node."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, num_nodes, (2, 4 * num_nodes))
    split = rng.choice(np.array([1, 2, 3], np.int8), num_nodes, p=[0.6, 0.2, 0.2])
    features = rng.standard_normal((num_nodes, 8)).astype(np.float32)
    return Graph(CSC.from_edges(src, dst, num_nodes), features, rng.integers(0, 3, num_nodes), split)
