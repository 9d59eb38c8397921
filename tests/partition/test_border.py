"""Moving boundary nodes lowers the words and keeps the balance."""

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_cases import GRIDS, destinations, graphs, partitions, random_graph

from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, cover, improve_border, measure, min_words
from gnnkit.partition.by_id import Contiguous
from gnnkit.partition.streaming import Ldg


@pytest.mark.slow
@settings(max_examples=30)
@given(graphs(), st.data(), st.sampled_from([1.0, 1.1, 1.5]))
def test_the_total_of_words_never_rises_and_balance_stays_within_the_bound(
    graph: Graph, data: st.DataObject, bound: float
) -> None:
    before = data.draw(partitions(graph))
    before = Partition(before.node_rank, None, before.grid)
    after = min_words(graph, before, bound)
    quality, quality_before = measure(graph, after), measure(graph, before)
    num_moved = np.count_nonzero(after.node_rank != before.node_rank)
    assert quality.words.sum() <= quality_before.words.sum() - (num_moved > 0)
    for name in ("nodes", "edges"):
        assert quality.balance()[name] <= max(bound, quality_before.balance()[name])
    np.testing.assert_array_equal(min_words(graph, before, bound).node_rank, after.node_rank)


@pytest.mark.parametrize("grid", [grid for grid in GRIDS if grid.num_cells == 4 and grid.world_size <= 8], ids=str)
def test_communities_are_found_again_where_a_part_of_each_was_misplaced(grid: Grid) -> None:
    rng = np.random.default_rng(0)
    block = np.repeat(np.arange(4), 50)
    src = rng.integers(0, 200, 4000)
    dst = np.where(rng.random(4000) < 0.97, block[src] * 50 + rng.integers(0, 50, 4000), rng.integers(0, 200, 4000))
    graph = Graph.from_edges(src, dst, 200)
    planted = Contiguous().assign(graph, grid)
    owners = planted.node_rank.copy()
    owners[::5] = rng.permutation(owners[::5])
    before = measure(graph, Partition(owners, None, grid))
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
    with pytest.raises(ValueError, match=r"partition\.border=max_words must be one of none, min_words, cover"):
        improve_border(graph, partition, "max_words")
    vertex_cut = Partition(partition.node_rank, np.zeros(400, np.int32), partition.grid)
    with pytest.raises(ValueError, match=r"partition\.border=min_words needs a partitioner of nodes"):
        improve_border(graph, vertex_cut, "min_words")


@pytest.mark.slow
@given(graphs(), st.data(), st.sampled_from([1.0, 1.5]))
def test_a_cover_holds_edges_at_an_end_and_words_never_rise(graph: Graph, data: st.DataObject, bound: float) -> None:
    example = data.draw(partitions(graph))
    grid = Grid(example.grid.num_cells, 1, example.grid.slices)
    before = Partition(example.node_rank, None, grid)
    after = cover(graph, before, bound)
    cells = after.cells_of_edges(graph)
    at_source = before.node_cell[graph.csc.indices] == cells
    assert (at_source | (before.node_cell[destinations(graph)] == cells)).all()
    np.testing.assert_array_equal(after.node_rank, before.node_rank)
    assert measure(graph, after).words.sum() <= measure(graph, before).words.sum()


@pytest.mark.exhaustive
def test_a_cover_of_a_skewed_graph_moves_far_fewer_rows_with_even_edges() -> None:
    graph = Synthetic("rmat", 20_000, 200_000, 4, 1).load()
    words = {}
    for border in ("none", "min_words", "cover", "min_words+cover"):
        partition = improve_border(graph, Ldg("random").assign(graph, Grid(4, 1, 1)), border)
        quality = measure(graph, partition)
        words[border] = quality.words.sum() / (3 * graph.num_nodes)
        assert quality.balance()["edges"] <= 1.1
    assert words["min_words+cover"] < words["cover"] < 0.75 * words["min_words"] < 0.75 * words["none"]


def test_cells_above_the_bound_give_edges_back() -> None:
    """A star whose leaves all belong to one cell would hold all edges there."""
    leaves = np.arange(1, 41)
    graph = Graph.from_edges(np.r_[0 * leaves, leaves], np.r_[leaves, 0 * leaves], 41)
    partition = Partition((np.arange(41) > 0).astype(np.int32), None, Grid(2, 1, 1))
    edge_ids = [np.bincount(cover(graph, partition, bound).cells_of_edges(graph)).tolist() for bound in (2.0, 1.1)]
    assert edge_ids == [[0, 80], [40, 40]]


def test_a_cover_needs_owners_of_nodes_and_one_column() -> None:
    graph = random_graph(20, 40)
    with pytest.raises(ValueError, match=r"partition\.border=cover needs a grid of one column, .* got 2 x 2 x 1"):
        cover(graph, Contiguous().assign(graph, Grid(2, 2, 1)))
    vertex_cut = Partition(np.zeros(20, np.int32), np.zeros(40, np.int32), Grid(2, 1, 1))
    with pytest.raises(ValueError, match=r"partition\.border=cover needs a partitioner of nodes"):
        cover(graph, vertex_cut)
