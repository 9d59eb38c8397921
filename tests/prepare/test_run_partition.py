"""What a page knows of a partition: counts of all nodes, and a sample."""

from __future__ import annotations

import numpy as np
import pytest

from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition
from gnnkit.prepare import run_partition


def graph_of(num_nodes: int) -> Graph:
    """A ring of the first half of the nodes. The others are alone."""
    half = np.arange(num_nodes // 2)
    return Graph.from_edges(half, np.roll(half, 1), num_nodes)


@pytest.mark.parametrize("ranks", [4, run_partition.MAX_RANKS + 1])
def test_edges_between_many_ranks_are_counted_without_a_matrix(ranks: int) -> None:
    graph = graph_of(600)
    found = run_partition.draw_picture(
        graph, Partition((np.arange(600) % ranks).astype(np.int32), None, Grid(ranks, 1, 1))
    )
    assert (found["counted_edges"], found["num_nodes"], sum(found["nodes"])) == (300, 600, 600)
    assert found["cut"] == 300  # neighbours in the ring have other owners
    assert ("edges" in found) is (ranks == 4)
    if ranks == 4:
        assert np.sum(found["edges"]) == 300


def test_a_sample_of_a_large_graph_has_nodes_without_edges_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_partition, "DRAWN_NODES", 50)
    found = run_partition.draw_picture(graph_of(600), Partition(np.zeros(600, np.int32), None, Grid(1, 1, 1)))["sample"]
    assert len(set(found["nodes"])) == 50
    assert not found["whole"]
    assert {node < 300 for node in found["nodes"]} == {True, False}
    assert found["edges"]  # found along edges
