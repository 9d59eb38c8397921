"""Shards are exactly what graph and partition say, in every layout."""

import numpy as np
import pytest
from hypothesis import given, settings
from partition_cases import cases, destinations, make_graph

from gnnkit.graph import CSC, Graph
from gnnkit.partition import Grid, Partition, Shard, cut, cut_all
from gnnkit.partition.shard import _ARRAYS, _SCALARS


def held_edges(shard: Shard) -> list[tuple[int, int, int]]:
    """(edge id, source, destination) in global ids, in the order of the shard."""
    into = np.repeat(shard.targets, np.diff(shard.csc.indptr))
    return list(zip(shard.edge_ids.tolist(), shard.sources[shard.csc.indices].tolist(), into.tolist(), strict=True))


def assert_equal(a: Shard, b: Shard) -> None:
    assert [getattr(a, name) for name in (*_SCALARS, "grid")] == [getattr(b, name) for name in (*_SCALARS, "grid")]
    for name in _ARRAYS:
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
    for name in ("indptr", "indices", "weight", "num_sources"):
        np.testing.assert_array_equal(getattr(a.csc, name), getattr(b.csc, name))


@pytest.mark.slow
@given(cases())
def test_every_edge_is_held_once_per_slice_by_the_cell_that_the_partition_says(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    edges = list(zip(range(graph.num_edges), graph.csc.indices.tolist(), destinations(graph).tolist(), strict=True))
    cells = partition.cells_of_edges(graph)
    for shard in cut_all(graph, partition):
        assert sorted(held_edges(shard)) == [edge for edge in edges if cells[edge[0]] == shard.cell]


@pytest.mark.slow
@given(cases())
def test_grids_hold_an_edge_at_the_row_of_its_destination_and_the_column_of_its_source(
    case: tuple[Graph, Partition],
) -> None:
    graph, partition = case
    grid = partition.grid
    cells = Partition(partition.node_rank, None, grid).cells_of_edges(graph)
    of_node = partition.node_rank // grid.slices
    assert (cells % grid.rows == of_node[destinations(graph)] % grid.rows).all()
    assert (cells // grid.rows == of_node[graph.csc.indices] // grid.rows).all()


@pytest.mark.slow
@given(cases())
def test_every_node_is_owned_once_with_its_rows(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    shards = list(cut_all(graph, partition))
    assert sorted(np.concatenate([shard.owned for shard in shards])) == list(range(graph.num_nodes))
    in_degree = np.bincount(destinations(graph), graph.csc.weight, graph.num_nodes)
    out_degree = np.bincount(graph.csc.indices, graph.csc.weight, graph.num_nodes)
    for shard in shards:
        np.testing.assert_array_equal(shard.owned, np.flatnonzero(partition.node_rank == shard.rank))
        same_cell = shards[shard.cell * shard.grid.slices : (shard.cell + 1) * shard.grid.slices]
        np.testing.assert_array_equal(shard.cell_nodes, np.concatenate([other.owned for other in same_cell]))
        np.testing.assert_array_equal(shard.in_degree, in_degree[shard.cell_nodes])
        np.testing.assert_array_equal(shard.out_degree, out_degree[shard.cell_nodes])
        loops = graph.csc.indices[graph.csc.indices == destinations(graph)]
        np.testing.assert_array_equal(shard.looped, np.isin(shard.cell_nodes, loops))
        for name in ("features", "labels", "split"):
            np.testing.assert_array_equal(getattr(shard, name), getattr(graph, name)[shard.owned])
        assert shard.num_classes == graph.labels.max(initial=-1) + 1


@pytest.mark.slow
@given(cases())
def test_halo_and_partial_sums_are_distinct_and_ordered_by_cell_and_id(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    for shard in cut_all(graph, partition):
        edges, own = held_edges(shard), set(shard.cell_nodes.tolist())
        of_node = (partition.node_rank // partition.grid.slices).tolist()
        for nodes, cell, column in ((shard.halo, shard.halo_cell, 1), (shard.partial, shard.partial_cell, 2)):
            reference = sorted((of_node[node], node) for node in {edge[column] for edge in edges} - own)
            assert list(zip(cell.tolist(), nodes.tolist(), strict=True)) == reference


@pytest.mark.slow
@given(cases())
def test_in_edges_stand_in_ascending_order_with_their_weights_and_features(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    for shard in cut_all(graph, partition):
        for start, stop in zip(shard.csc.indptr[:-1], shard.csc.indptr[1:], strict=True):
            assert (np.diff(shard.edge_ids[start:stop]) > 0).all()
        if graph.edge_features is not None:
            np.testing.assert_array_equal(shard.csc.weight, graph.csc.weight[shard.edge_ids])
            np.testing.assert_array_equal(shard.edge_features, graph.edge_features[shard.edge_ids])


@pytest.mark.slow
@settings(max_examples=30)
@given(cases())
def test_one_rank_cut_alone_is_the_same_shard(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    for rank, shard in enumerate(cut_all(graph, partition)):
        assert_equal(shard, cut(graph, partition, rank))


@pytest.mark.slow
@settings(max_examples=30)
@given(cases())
def test_self_loops_are_added_once_where_missing_as_if_the_graph_had_them(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    into = destinations(graph)
    missing = np.setdiff1d(np.arange(graph.num_nodes), into[graph.csc.indices == into])
    looped = _graph_with_loops(graph, missing)
    grown = Partition(partition.node_rank, None, partition.grid)  # edge positions differ with the loops inside
    for shard, reference in zip(cut_all(graph, grown), cut_all(looped, grown), strict=True):
        actual = shard.with_self_loops()
        for name in ("halo", "halo_cell", "partial", "partial_cell", "in_degree", "out_degree", "edge_features"):
            if getattr(reference, name) is not None:
                np.testing.assert_allclose(getattr(actual, name), getattr(reference, name))
        for name in ("indptr", "indices", "weight", "num_sources"):
            np.testing.assert_array_equal(getattr(actual.csc, name), getattr(reference.csc, name))
        added = actual.edge_ids[actual.edge_ids >= graph.num_edges] - graph.num_edges
        assert sorted(added) == sorted(np.intersect1d(missing, shard.cell_nodes))
        assert_equal(actual, actual.with_self_loops())


def _graph_with_loops(graph: Graph, missing: np.ndarray) -> Graph:
    """PyG's add_remaining_self_loops: "mean" for edge features and 1 for weights."""
    into = destinations(graph)
    ends = np.concatenate([into, missing])
    order = np.argsort(ends, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(ends, minlength=graph.num_nodes))])
    weight, features = None, None
    if graph.edge_features is not None:
        rows = [graph.edge_features[into == node] for node in missing]
        mean = [row.mean(0) if len(row) else np.zeros(2) for row in rows]
        features = np.concatenate([graph.edge_features, np.reshape(mean, (-1, 2))])[order]
        weight = np.concatenate([graph.csc.weight, np.ones(len(missing))])[order]
    csc = CSC(indptr, np.concatenate([graph.csc.indices, missing])[order], weight)
    return Graph(csc, graph.features, graph.labels, graph.split, features)


@pytest.mark.slow
@settings(max_examples=30)
@given(cases())
def test_self_loops_of_a_vertex_cut_need_no_further_rows(case: tuple[Graph, Partition]) -> None:
    graph, partition = case
    for shard in cut_all(graph, partition):
        loop_shard = shard.with_self_loops()
        assert [edge for edge in held_edges(loop_shard) if edge[0] < graph.num_edges] == held_edges(shard)
        added = {edge[1] for edge in held_edges(loop_shard) if edge[0] >= graph.num_edges}
        assert added == set(shard.cell_nodes[~shard.looped].tolist())
        np.testing.assert_array_equal(loop_shard.halo, shard.halo)
        np.testing.assert_array_equal(loop_shard.partial, shard.partial)


@pytest.mark.slow
@pytest.mark.parametrize("rich", [False, True])
def test_a_shard_comes_back_from_disk_memory_mapped(rich: bool, tmp_path) -> None:
    graph = make_graph([0, 1, 2, 2, 5], [1, 2, 0, 0, 5], 6, rich=rich)
    partition = Partition(np.array([0, 1, 2, 3, 0, 0], np.int32), None, Grid(1, 2, 4))
    for shard in cut_all(graph, partition):
        shard.save(tmp_path / str(shard.rank))
        loaded_shard = Shard.load(tmp_path / str(shard.rank))
        assert_equal(shard, loaded_shard)
        assert isinstance(loaded_shard.features.base, np.memmap)
        assert not loaded_shard.features.flags.writeable
        assert_equal(shard.with_self_loops(), loaded_shard.with_self_loops())


def test_a_partition_that_cannot_be_names_the_value() -> None:
    graph = make_graph([0], [1], 2)
    with pytest.raises(ValueError, match=r"node_rank\[1\] = 4 is out of range for 4 workers"):
        Partition(np.array([0, 4]), None, Grid(4, 1, 1))
    with pytest.raises(ValueError, match=r"edge_cell\[0\] = -1 is out of range for 4 cells"):
        Partition(np.array([0, 3]), np.array([-1]), Grid(4, 1, 1))
    with pytest.raises(ValueError, match="must be one-dimensional integers, got float64"):
        Partition(np.array([0.0, 1.0]), None, Grid(4, 1, 1))
    with pytest.raises(ValueError, match="node_rank has 3 entries, expected 2"):
        cut(graph, Partition(np.zeros(3, np.int32), None, Grid(1, 1, 1)), 0)
    with pytest.raises(ValueError, match="edge_cell has 2 entries, expected 1"):
        next(cut_all(graph, Partition(np.zeros(2, np.int32), np.zeros(2, np.int32), Grid(1, 1, 1))))
