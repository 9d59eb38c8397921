"""Work moves from slow ranks to the others, on every layout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic
from gnnkit_rebalancing.shift import shifted, work_of
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit import plugins
from gnnkit.config.settings import Choice, PartitionSettings
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition
from gnnkit.partition.quality import measure
from gnnkit.partition.shard import cut_all
from gnnkit.prepare.run_partition import assign
from tests.cases import exhaustive
from tests.partition.partition_cases import graphs, partitions

LAYOUTS: dict[str, tuple[str, Any, str, int]] = {
    "1d": ("contiguous", "1d", "none", 4),
    "ldg": ("ldg", "1d", "none", 3),
    "2d": ("contiguous", "2d", "none", 6),
    "3d": ("balanced", "3d", "none", 8),
    "slices": ("hash", [1, 1, 3], "none", 3),
    "cover": ("contiguous", "1d", "cover", 4),
    "unequal columns": ("contiguous", "2d", "none", 7),
    "vertex-cut": ("hdrf", "1d", "none", 4),
}
SLOW = 1


def laid_out(graph: Graph, name: str) -> Partition:
    nodes, grid, border, workers = LAYOUTS[name]
    return assign(graph, PartitionSettings(Choice("partition", nodes, {}), grid, None, border), workers)


@pytest.fixture(scope="module", params=[exhaustive("sbm"), "rmat"])
def graph(request: pytest.FixtureRequest) -> Graph:
    loaded: Graph = Synthetic(kind=request.param, num_nodes=3000, num_edges=20_000, width=4).load()
    return loaded


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_seconds_come_out_even_and_words_stay(graph: Graph, name: str) -> None:
    before = laid_out(graph, name)
    speeds = np.ones(before.grid.world_size)
    speeds[SLOW] = 1 / 3
    after = shifted(graph, before, speeds)
    seconds = work_of(graph, after) / speeds
    even = work_of(graph, before).sum() / speeds.sum()
    assert (work_of(graph, before) / speeds).max() > 2 * even
    assert seconds.max() < 1.06 * even
    assert measure(graph, after).words.sum() < 1.15 * measure(graph, before).words.sum()
    again = shifted(graph, before, speeds)
    assert np.array_equal(after.node_rank, again.node_rank)
    assert work_of(graph, after).sum() == pytest.approx(work_of(graph, before).sum())  # every edge is held once


def test_even_speeds_move_next_to_nothing(graph: Graph) -> None:
    before = laid_out(graph, "1d")
    work = work_of(graph, before)
    after = shifted(graph, before, work / work.mean())
    assert np.array_equal(after.node_rank, before.node_rank)


@pytest.mark.slow
@settings(max_examples=30)
@given(graphs(), st.data())
def test_any_partition_keeps_its_edges_and_no_slow_rank_gets_slower(graph: Graph, data: st.DataObject) -> None:
    before = data.draw(partitions(graph))
    size = before.grid.world_size
    speeds = np.array(data.draw(st.lists(st.floats(0.1, 10), min_size=size, max_size=size)))
    after = shifted(graph, before, speeds)
    seconds, former = work_of(graph, after) / speeds, work_of(graph, before) / speeds
    assert (seconds**8).sum() <= (former**8).sum() * (1 + 1e-9)
    held = [shard.edge_ids for shard in cut_all(graph, after) if shard.slice == 0]
    assert np.array_equal(np.sort(np.concatenate([np.zeros(0, np.int64), *held])), np.arange(graph.num_edges))


@pytest.mark.exhaustive
@pytest.mark.slow
def test_every_installed_partitioner_of_nodes_is_shifted() -> None:
    graph = Synthetic(kind="sbm", num_nodes=400, num_edges=2000, width=4).load()
    for nodes in plugins.names("partition"):
        try:
            choice = PartitionSettings(Choice("partition", nodes, {}), "1d", None, "none")
            before = assign(graph, choice, 3)
        except (ValueError, TypeError):  # needs a file, or a layout of its own
            continue
        after = shifted(graph, before, [1, 0.3, 1])
        assert work_of(graph, after)[SLOW] < work_of(graph, before)[SLOW]
