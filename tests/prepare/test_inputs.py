"""What is said about a run's edges before training."""

from __future__ import annotations

import numpy as np
import pytest

from gnnkit.graph import Graph
from gnnkit.prepare.inputs import describe_repeated

SRC, DST = np.array([0, 0, 1, 2]), np.array([3, 4, 3, 4])
CHANGED = np.array([3, 4, 4, 4])


def typed_graph(second: tuple[np.ndarray, np.ndarray]) -> Graph:
    src, dst = (np.concatenate([a, b, [5, 3]]) for a, b in zip((SRC, DST), second, strict=True))
    types = np.array([0] * 4 + [1] * 4 + [2] * 2)
    return Graph.from_edges(src, dst, num_nodes=6, edge_types=types, edge_type_names=("buys", "rated_by", "other"))


@pytest.mark.parametrize(
    ("second", "lines"),
    [((DST, SRC), 1), ((DST[::-1], SRC[::-1]), 1), ((SRC, DST), 0), ((CHANGED, SRC), 0)],
    ids=["reverse", "in another order", "same direction", "one edge differs"],
)
def test_relations_that_repeat_each_other_are_named(second: tuple[np.ndarray, np.ndarray], lines: int) -> None:
    named = describe_repeated(typed_graph(second))
    assert len(named) == lines
    assert all("relations buys and rated_by have the same edges in reverse" in line for line in named)
    assert not describe_repeated(Graph.from_edges(SRC, DST, num_nodes=6))
