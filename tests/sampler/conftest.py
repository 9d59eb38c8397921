"""Graphs that samplers are tested on."""

from __future__ import annotations

import numpy as np
import pytest

from gnnkit.graph import CSC


def skewed(num_nodes: int, num_edges: int, salt: int = 0) -> CSC:
    """Makes a graph with in-degrees from zero to a large part of the nodes.

    Has self-loops, parallel edges and isolated nodes.
    """
    random = np.random.default_rng(salt)
    dst = (num_nodes * random.random(num_edges) ** 3).astype(np.int64)
    src = random.integers(0, num_nodes, num_edges)
    return CSC.from_edges(src, random.permutation(num_nodes)[dst], num_nodes)


@pytest.fixture(scope="session")
def graph() -> CSC:
    return skewed(2_000, 40_000)
