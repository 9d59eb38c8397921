"""What all partitioners promise, and what each adds."""

from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from partition_cases import GRIDS, cliques, graphs, make_graph, random_graph

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.partition import Grid, NodePartitioner, Partitioner, cut_all, measure
from gnnkit.partition.by_id import Balanced, Contiguous, Hash, Random
from gnnkit.partition.streaming import Fennel, Ldg
from gnnkit.partition.tiles import Tiles, _places
from gnnkit.partition.vertex_cut import Hdrf, TwoPhase
from gnnkit.testing import check_partitioner
from tests.cases import exhaustive

PARTITIONERS: list[Partitioner] = [Balanced(), Contiguous(), Hash(), Random(), Random(seed=3), Tiles()]
PARTITIONERS += [Ldg(), Ldg("random"), Fennel("bfs", passes=3), Hdrf(), TwoPhase(imbalance=0.001)]


def with_coordinates(graph: Graph, dims: int, seed: int = 0) -> Graph:
    coordinates = np.random.default_rng(seed).normal(size=(graph.num_nodes, dims))
    return Graph(graph.csc, graph.features, graph.labels, graph.split, graph.edge_features, coordinates)


def lattice(*shape: int) -> Graph:
    """A grid graph with edges in both directions and its coordinates, node ids
    shuffled.
    """
    points = np.array(list(product(*map(range, shape))))
    ids = np.random.default_rng(0).permutation(len(points)).reshape(shape)
    pairs = [
        np.stack([np.take(ids, range(size - 1), axis).ravel(), np.take(ids, range(1, size), axis).ravel()])
        for axis, size in enumerate(shape)
    ]
    src, dst = np.concatenate(pairs, axis=1)
    coordinates = np.empty(points.shape)
    coordinates[ids.ravel()] = points
    return Graph.from_edges(np.r_[src, dst], np.r_[dst, src], len(points), coordinates=coordinates)


@pytest.mark.slow
@pytest.mark.parametrize(
    "partitioner",
    [exhaustive(each) if number in (4, 7) else each for number, each in enumerate(PARTITIONERS)],
    ids=lambda p: type(p).__name__,
)
@settings(max_examples=25)
@given(graph=graphs(), grid=st.sampled_from(GRIDS), dims=st.sampled_from([2, 3]))
def test_every_node_gets_one_owner_and_the_same_one_again(
    partitioner: Partitioner, graph: Graph, grid: Grid, dims: int
) -> None:
    graph = with_coordinates(graph, dims)
    partition = partitioner.assign(graph, grid)
    assert partition.node_rank.shape == (graph.num_nodes,)
    assert partition.node_rank.dtype == np.int32
    np.testing.assert_array_equal(partition.node_rank, partitioner.assign(graph, grid).node_rank)
    assert sum(shard.csc.num_edges for shard in cut_all(graph, partition)) == graph.num_edges * grid.slices


@pytest.mark.slow
@given(st.integers(0, 50), st.integers(1, 9))
def test_contiguous_and_random_give_the_first_parts_one_more(num_nodes: int, num_parts: int) -> None:
    graph = make_graph([], [], num_nodes)
    size, remainder = divmod(num_nodes, num_parts)
    for partitioner in (Contiguous(), Random()):
        counts = np.bincount(partitioner.assign_nodes(graph, num_parts), minlength=num_parts)
        assert counts.tolist() == [size + 1] * remainder + [size] * (num_parts - remainder)
    assert (np.diff(Contiguous().assign_nodes(graph, num_parts)) >= 0).all()


def test_another_seed_is_another_permutation() -> None:
    graph = make_graph([], [], 100)
    owners = [Random(seed).assign_nodes(graph, 4) for seed in (0, 1)]
    assert 50 < np.count_nonzero(owners[0] != owners[1]) < 100


def test_hash_does_not_depend_on_the_other_nodes_and_is_even() -> None:
    owners = Hash().assign_nodes(make_graph([], [], 8000), 8)
    np.testing.assert_array_equal(owners[:500], Hash().assign_nodes(make_graph([], [], 500), 8))
    counts = np.bincount(owners, minlength=8)
    assert ((counts - 1000) ** 2 / 1000).sum() < 24.3  # chi-square of 7 degrees of freedom, p = 0.001


@pytest.mark.slow
@given(graphs(), st.integers(1, 9))
def test_balanced_parts_differ_from_the_mean_by_at_most_the_largest_node(graph: Graph, num_parts: int) -> None:
    cost = np.diff(graph.csc.indptr) + 1
    owners = Balanced().assign_nodes(graph, num_parts)
    assert (np.diff(owners) >= 0).all()
    load = np.bincount(owners, cost, num_parts)
    assert (np.abs(load - cost.sum() / num_parts) <= cost.max(initial=0)).all()


def test_balanced_evens_out_the_edges_of_a_skewed_graph() -> None:
    rng = np.random.default_rng(0)
    graph = make_graph(rng.integers(0, 2000, 40000), (2000 * rng.random(40000) ** 3).astype(int), 2000)
    edges = {
        type(p): [s.csc.num_edges for s in cut_all(graph, p.assign(graph, Grid(8, 1, 1)))] for p in PARTITIONERS[:2]
    }
    assert max(edges[Contiguous]) > 3 * np.mean(edges[Contiguous])
    assert max(edges[Balanced]) < 1.1 * np.mean(edges[Balanced])


@pytest.mark.parametrize(
    ("shape", "faces"), [((16, 16), 4), ((7, 11), 4), ((3, 40), 4), ((8, 8, 8), 6), ((5, 3, 9), 6)]
)
@pytest.mark.parametrize("workers", [1, 2, 3, 4, 6, 7, 8, 12, 16, 27])
def test_tiles_of_a_lattice_exchange_with_their_face_neighbours_only(
    shape: tuple[int, ...], faces: int, workers: int
) -> None:
    graph = lattice(*shape)
    traffic = measure(graph, Tiles().assign(graph, Grid(workers, 1, 1))).traffic
    assert (traffic.gather_rows > 0).sum(axis=1).max() <= faces
    assert len(traffic.peers()) <= workers * faces


@pytest.mark.parametrize(
    ("shape", "workers", "size"), [((16, 16), 4, 64), ((16, 16), 8, 32), ((3, 40), 4, 30), ((8, 8, 8), 8, 64)]
)
def test_tiles_hold_equal_numbers_of_nodes_and_cut_the_least(shape: tuple[int, ...], workers: int, size: int) -> None:
    graph = lattice(*shape)
    owners = Tiles().assign_nodes(graph, workers)
    assert np.bincount(owners).tolist() == [size] * workers
    if shape == (3, 40):
        assert {len(np.unique(graph.coordinates[owners == part, 1])) for part in range(4)} == {10}


class TilesOfEdges(Tiles):
    """Tiles that ignore coordinates."""

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:
        return super().assign_nodes(replace(graph, coordinates=None), num_parts)


@pytest.mark.slow
def test_tiles_without_coordinates_satisfy_the_contract_of_partitioners() -> None:
    check_partitioner(TilesOfEdges())


@pytest.mark.parametrize("workers", [1, 2, 4, 7, 9])
@pytest.mark.parametrize("num_edges", [0, 30, 800])
def test_tiles_without_coordinates_are_balanced_and_repeatable(num_edges: int, workers: int) -> None:
    graph = random_graph(200, num_edges)
    owners = Tiles().assign_nodes(graph, workers)
    assert owners.dtype == np.int32
    assert np.bincount(owners, minlength=workers).max() <= max(1.1 * 200 / workers, -(-200 // workers))
    np.testing.assert_array_equal(owners, Tiles().assign_nodes(graph, workers))


@pytest.mark.parametrize("rows", [2, 3])
def test_communities_on_a_grid_exchange_with_their_face_neighbours_only(rows: int) -> None:
    """Communities have edges to those next to them, and no coordinates."""
    ids = np.arange(rows * rows).reshape(rows, rows)
    links = np.c_[np.r_[ids[1:].ravel(), ids[:, 1:].ravel()], np.r_[ids[:-1].ravel(), ids[:, :-1].ravel()]].tolist()
    graph = cliques(rows * rows, 20, links)
    row, col = np.divmod(np.arange(rows * rows), rows)
    distance = np.abs(row[:, None] - row) + np.abs(col[:, None] - col)
    words = measure(graph, Tiles().assign(graph, Grid(rows * rows, 1, 1))).traffic.gather_rows
    assert words.sum() == len(links)
    assert words[distance > 1].sum() == 0


def test_tiles_without_coordinates_move_fewer_words_than_ranges_and_nearly_as_few_as_tiles_of_a_lattice() -> None:
    graph = lattice(24, 24)
    tiles, others = [measure(graph, p.assign(graph, Grid(4, 1, 1))).words.sum() for p in (Tiles(), TilesOfEdges())]
    ranges = measure(graph, Contiguous().assign(graph, Grid(4, 1, 1))).words.sum()
    assert tiles <= others <= 1.5 * tiles < ranges / 5


@given(st.integers(0, 1000), st.sampled_from([(2, 2), (3, 3), (5, 1), (3, 2)]))
def test_places_are_a_permutation_that_shortens_distances(seed: int, shape: tuple[int, int]) -> None:
    num_parts = int(np.prod(shape))
    rows = np.random.default_rng(seed).integers(0, 100, (num_parts, num_parts))
    rows = np.triu(rows, 1) + np.triu(rows, 1).T
    position = np.indices(shape).reshape(2, -1)
    distance = np.abs(position[:, :, None] - position[:, None]).sum(axis=0)
    places = _places(rows, shape)
    assert sorted(places) == list(range(num_parts))
    cost = (rows * distance[np.ix_(places, places)]).sum()
    assert cost <= (rows * distance).sum()
    for first, second in combinations(range(num_parts), 2):
        permutation = places.copy()
        permutation[[first, second]] = permutation[[second, first]]
        assert cost <= (rows * distance[np.ix_(permutation, permutation)]).sum()


class Fixed(NodePartitioner):
    def __init__(self, owners: Any) -> None:
        self.owners = owners

    def assign_nodes(self, graph: Graph, num_parts: int) -> Any:
        return self.owners


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (np.array([0.0, 1.7, 0.0]), "must be one-dimensional integers, got float64"),
        (np.array([0, 2**32, 1]), r"node_rank\[1\] = 4294967296 is out of range for 2 workers"),
        (np.array([0, 1, None]), "must be one-dimensional integers, got object"),
        (np.array([True, False, True]), "must be one-dimensional integers, got bool"),
        (None, "must be one-dimensional integers, got object"),
        ([[0], [1, 1]], "the owners of Fixed cannot be read as an array"),
    ],
)
def test_owners_are_checked_before_they_are_cast(owners: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Fixed(owners).assign(make_graph([], [], 3), Grid(2, 1, 1))


def test_owners_may_be_integers_of_any_type() -> None:
    for owners in ([0, 1, 1], np.array([0, 1, 1], np.uint64), np.array([0, 1, 1], np.int8)):
        partition = Fixed(owners).assign(make_graph([], [], 3), Grid(2, 1, 1))
        assert (partition.node_rank.dtype, partition.node_rank.tolist()) == (np.int32, [0, 1, 1])
