"""Moving boundary nodes lowers the words and keeps the balance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import GRIDS, graphs, partitions, random_graph

from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, improve_border, measure, min_words
from gnnkit.partition.contiguous import Contiguous


@given(graphs(), st.data(), st.sampled_from([1.0, 1.1, 1.5]))
def test_the_total_of_words_never_rises_and_balance_stays_within_the_bound(
    graph: Graph, data: st.DataObject, bound: float
) -> None:
    before = data.draw(partitions(graph))
    before = Partition(before.node_rank, None, before.grid)
    after = min_words(graph, before, bound)
    quality, former = measure(graph, after), measure(graph, before)
    moved = np.count_nonzero(after.node_rank != before.node_rank)
    assert quality.words.sum() <= former.words.sum() - (moved > 0)
    for name in ("nodes", "edges"):
        assert quality.balance()[name] <= max(bound, former.balance()[name])
    np.testing.assert_array_equal(min_words(graph, before, bound).node_rank, after.node_rank)


@pytest.mark.parametrize("grid", [grid for grid in GRIDS if grid.num_cells == 4 and grid.world_size <= 8], ids=str)
def test_communities_are_found_again_where_a_part_of_each_was_misplaced(grid: Grid) -> None:
    rng = np.random.default_rng(0)
    block = np.repeat(np.arange(4), 50)
    src = rng.integers(0, 200, 4000)
    dst = np.where(rng.random(4000) < 0.97, block[src] * 50 + rng.integers(0, 50, 4000), rng.integers(0, 200, 4000))
    graph = Graph.from_edges(src, dst, 200)
    planted = Contiguous().assign(graph, grid)
    misplaced = planted.node_rank.copy()
    misplaced[::5] = rng.permutation(misplaced[::5])
    before = measure(graph, Partition(misplaced, None, grid))
    after = measure(graph, min_words(graph, before.partition))
    best = measure(graph, planted)
    print(f"{grid}: words {before.words.sum():.0f} -> {after.words.sum():.0f}, planted {best.words.sum():.0f}")
    assert after.words.sum() - best.words.sum() < 0.5 * (before.words.sum() - best.words.sum())


def test_border_is_none_or_min_words() -> None:
    graph = random_graph(200, 400)
    partition = Contiguous().assign(graph, Grid(4, 1, 1))
    assert improve_border(graph, partition, None) is partition
    assert improve_border(graph, partition, "none") is partition
    improved = improve_border(graph, partition, "min_words")
    assert measure(graph, improved).words.sum() < measure(graph, partition).words.sum()
    with pytest.raises(ValueError, match=r"partition\.border=max_words must be one of none, min_words"):
        improve_border(graph, partition, "max_words")
    vertex_cut = Partition(partition.node_rank, np.zeros(400, np.int32), partition.grid)
    with pytest.raises(ValueError, match=r"partition\.border=min_words needs a partitioner of nodes"):
        improve_border(graph, vertex_cut, "min_words")
