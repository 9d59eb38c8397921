"""CSC and Graph: short NumPy references, and every way in which arrays can be wrong."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import Data

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, SparseFeatures, Split

Edges = tuple[int, list[tuple[int, int]]]  # number of nodes, (source, destination)

# No nodes, no edges and an isolated node, a self-loop, parallel edges, a pair joined
# both ways with unequal numbers.
CORNERS: list[Edges] = [
    (0, []),
    (3, []),
    (2, [(1, 1)]),
    (3, [(0, 1), (0, 1), (0, 1), (1, 2)]),
    (2, [(0, 1), (0, 1), (1, 0)]),
]


def test_a_graph_says_in_a_line_how_large_it_is() -> None:
    graph = Graph.from_edges([0, 1], [1, 2], 3, features=np.zeros((3, 4)), labels=[0, 1, 1], split=[1, 1, 3])
    assert repr(graph) == "Graph(3 nodes, 2 edges, 4 features, 2 classes, 2 train, 0 val, 1 test)"


@st.composite
def edge_lists(draw: st.DrawFn) -> Edges:
    num_nodes = draw(st.integers(1, 12))
    ids = st.integers(0, num_nodes - 1)
    return num_nodes, draw(st.lists(st.tuples(ids, ids), max_size=60))


any_edges = st.one_of(st.sampled_from(CORNERS), edge_lists())


def columns(edges: list[tuple[int, int]], dtype: type = np.int64) -> tuple[Ids, Ids]:
    array = np.array(edges, dtype).reshape(-1, 2)
    return array[:, 0], array[:, 1]


def destinations(csc: CSC) -> Ids:
    return np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))


def reference(src: Ids, dst: Ids, num_nodes: int) -> tuple[Ids, Ids, Ids]:
    order = np.lexsort((src, dst))
    return np.concatenate([[0], np.bincount(dst, minlength=num_nodes).cumsum()]), src[order], order


def assert_same(left: CSC, right: CSC) -> None:
    for name in ("indptr", "indices", "weight"):
        np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
        if getattr(left, name) is not None:
            assert getattr(left, name).dtype == getattr(right, name).dtype
    assert left.num_sources == right.num_sources


def graph_of(num_nodes: int = 3, edges: list[tuple[int, int]] | None = None, **fields: Any) -> Graph:
    values = {"features": np.zeros((num_nodes, 2), np.float32), "labels": np.zeros(num_nodes, np.int64)} | fields
    return Graph.from_edges(*columns([(0, 1)] if edges is None else edges), num_nodes, **values)


def test_a_graph_read_without_features_has_rows_of_width_0(tmp_path: Path) -> None:
    csc, codes = CSC.from_edges([0, 1], [1, 2], 4), np.ones(4, np.int8)
    graph = Graph(csc, np.ones((4, 5), np.float32), np.zeros(4, np.int64), codes)
    graph.save(tmp_path)
    assert Graph.trusted(tmp_path, features=False).features.shape == (4, 0)
    assert Graph.trusted(tmp_path).features.shape == (4, 5)


@pytest.mark.slow
@given(any_edges, st.sampled_from([np.int32, np.int64]), st.sampled_from([1, 2, 3, None]))
def test_from_edges_equals_a_stable_sort(graph: Edges, dtype: type, threads: int | None) -> None:
    num_nodes, edges = graph
    src, dst = columns(edges, dtype)
    csc = CSC.from_edges(src, dst, num_nodes, np.arange(len(edges), dtype=np.float64), threads=threads)
    indptr, indices, order = reference(src, dst, num_nodes)
    np.testing.assert_array_equal(csc.indptr, indptr)
    np.testing.assert_array_equal(csc.indices, indices)
    np.testing.assert_array_equal(csc.weight, order)
    assert csc.indices.dtype == np.int32
    assert_same(CSC.from_edges(src, dst, num_nodes), CSC(csc.indptr, csc.indices))


@pytest.mark.slow
def test_large_edge_lists_give_the_same_bits_on_any_number_of_threads() -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 5000, 200_000), rng.integers(0, 5000, 200_000)
    weight = rng.random(200_000)
    graphs = [CSC.from_edges(src, dst, 5000, weight, threads=threads) for threads in (1, 2, 3)]
    _, indices, order = reference(src, dst, 5000)
    np.testing.assert_array_equal(graphs[0].indices, indices)
    np.testing.assert_array_equal(graphs[0].weight, weight[order])
    for threads, graph in zip((1, 2, 3), graphs, strict=True):
        assert_same(graph, graphs[0])
        assert_same(graph.transpose(threads=threads)[0], graphs[0].transpose(threads=1)[0])
        assert_same(graph.symmetrize(threads=threads)[0], graphs[0].symmetrize(threads=1)[0])


@pytest.mark.slow
@given(any_edges, st.sampled_from([np.int32, np.int64]), st.sampled_from([1, 2, 3]))
def test_transpose_turns_every_edge_around(graph: Edges, dtype: type, threads: int) -> None:
    num_nodes, edges = graph
    csc = CSC.from_edges(*columns(edges), num_nodes, np.arange(len(edges), dtype=np.float32))
    csc = CSC(csc.indptr, csc.indices.astype(dtype), csc.weight)
    transpose, positions = csc.transpose(threads=threads)
    np.testing.assert_array_equal(destinations(transpose), csc.indices[positions])
    np.testing.assert_array_equal(transpose.indices, destinations(csc)[positions])
    np.testing.assert_array_equal(transpose.weight, csc.weight[positions])
    assert sorted(positions) == list(range(csc.num_edges))
    assert_same(CSC(csc.indptr, csc.indices.astype(np.int32), csc.weight), transpose.transpose(threads=threads)[0])


def test_transpose_of_a_rectangle_swaps_sources_and_destinations() -> None:
    transpose, _ = CSC(np.array([0, 2]), np.array([3, 0]), num_sources=5).transpose()
    assert (transpose.num_nodes, transpose.num_sources) == (5, 1)
    np.testing.assert_array_equal(transpose.indptr, [0, 1, 1, 1, 2, 2])


@pytest.mark.slow
@given(any_edges, st.sampled_from([1, 2, 3]))
def test_symmetrize_adds_exactly_the_missing_reverse_edges(graph: Edges, threads: int) -> None:
    num_nodes, edges = graph
    csc = CSC.from_edges(*columns(edges), num_nodes, np.arange(len(edges), dtype=np.float64))
    weight = sorted((u, v, w) for (u, v), w in zip(edges, range(len(edges)), strict=True))
    expected = weight + [(v, u, w) for u, v, w in weight if (v, u) not in edges]
    result, positions = csc.symmetrize(threads=threads)
    got = zip(result.indices, destinations(result), result.weight, strict=True)
    assert sorted(got) == sorted(expected)
    np.testing.assert_array_equal(result.weight, csc.weight[positions])
    assert_same(result.symmetrize()[0], result)


def test_symmetrize_reads_graphs_whose_sources_are_in_any_order() -> None:
    csc = CSC(np.array([0, 2, 3, 4]), np.array([2, 1, 0, 1]))  # 2 -> 0, 1 -> 0, 0 -> 1, 1 -> 2
    result, positions = csc.symmetrize()
    np.testing.assert_array_equal(result.indices, [1, 2, 0, 2, 0, 1])
    np.testing.assert_array_equal(positions, [1, 0, 2, 3, 0, 3])


@pytest.mark.slow
@given(any_edges)
def test_degrees_are_sums_of_weights(graph: Edges) -> None:
    num_nodes, edges = graph
    src, dst = columns(edges)
    weight = np.linspace(0.5, 2, len(edges), dtype=np.float32)
    for values, csc in [
        (weight, CSC.from_edges(src, dst, num_nodes, weight)),
        (np.ones(len(edges)), CSC.from_edges(src, dst, num_nodes)),
    ]:
        np.testing.assert_allclose(csc.in_degree(), np.bincount(dst, values, num_nodes), rtol=1e-12)
        np.testing.assert_allclose(csc.out_degree(), np.bincount(src, values, num_nodes), rtol=1e-12)
        assert csc.in_degree().dtype == csc.out_degree().dtype == np.float64


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], []), "indptr has 0 entries, expected 1"),
        (([1, 1], [0]), r"indptr\[0\] = 1, expected 0"),
        (([0, 2, 1, 2], [0, 1]), r"indptr\[2\] = 1 is below indptr\[1\] = 2"),
        (([0, 2**62], [0]), r"indices has 1 entries, expected 4611686018427387904"),
        (([0, -5], [0]), r"indptr\[1\] = -5 is below"),
        (([0, 1, 2], [0, 7]), r"indices\[1\] = 7 is out of range for 2 nodes"),
        (([0, 1, 2], [0, -1]), r"indices\[1\] = -1 is out of range"),
        (([0, 1], [0.5]), "indices has dtype float64, expected integers"),
        (([[0, 1]], [0]), "indptr has shape"),
        (([0, 1], [0], [np.nan]), r"weight\[0\] = nan is not finite"),
        (([0, 1], [0], [1.0, 2.0]), r"weight has shape \[2\], expected \[1\]"),
        (([0, 1], [0], ["a"]), "weight has dtype"),
        (([0, 1], [0], None, -3), "num_sources=-3 must be a whole number of at least -1"),
        (([0, 1], np.array([2**63], np.uint64)), r"indices\[0\] = 9223372036854775808 is out of range"),
    ],
)
def test_csc_names_what_is_wrong_and_where(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        CSC(*arguments)


@pytest.mark.parametrize(
    ("src", "dst", "num_nodes", "options", "message"),
    [
        ([0, 5], [1, 1], 3, {}, r"src\[1\] = 5 is out of range for 3 nodes"),
        ([0, 1], [1, -1], 3, {}, r"dst\[1\] = -1 is out of range"),
        ([0, 1], [1], 3, {}, "dst has 1 entries, expected 2"),
        ([], [], -1, {}, "num_nodes=-1 must be a whole number of at least 0"),
        ([], [], 2**62, {}, "num_nodes = 4611686018427387904 needs more memory"),
        ([0], [0], 1, {"threads": 0}, "threads=0 must be a whole number from 1 to 1024"),
        ([0], [0], 1, {"threads": 2**20}, "threads=1048576 must be a whole number from 1 to 1024"),
        ([0], [0], 1, {"num_sources": 1.5}, r"num_sources=1\.5 must be a whole number"),
        ([0], [0], 1, {"weight": [np.inf]}, r"weight\[0\] = inf is not finite"),
        ([0], [0], 1, {"weight": [1.0, 2.0]}, r"weight has shape \[2\], expected \[1\]"),
    ],
)
def test_from_edges_names_what_is_wrong_and_where(
    src: list[int], dst: list[int], num_nodes: int, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        CSC.from_edges(src, dst, num_nodes, **options)


def nan_at(shape: tuple[int, int], row: int, column: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    array = np.zeros(shape, np.float32)
    array[row, column] = np.nan
    return array


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"features": nan_at((3, 4), 1, 2)}, r"features\[1, 2\] = nan is not finite"),
        ({"features": np.zeros((2, 4))}, r"features has shape \[2, 4\], expected \[3, any\]"),
        ({"features": np.zeros(3)}, r"features has shape \[3\]"),
        ({"features": np.array([["a"]] * 3)}, "features has dtype"),
        ({"labels": [0, -2, 0], "one_class": True}, r"labels\[1\] = -2 is out of range -1\.\.65535"),
        ({"labels": [0, 10**9, 0], "one_class": True}, r"labels\[1\] = 1000000000 is out of range"),
        ({"labels": [0, 0, 2], "class_names": ["a", "b"]}, r"labels\[2\] = 2 is out of range -1\.\.1"),
        ({"labels": [0.0, np.inf, np.nan]}, r"labels\[1\] = inf is too large for float32"),
        ({"labels": [[0, 1], [1, 2], [0, 0]]}, r"labels\[1, 1\] = 2: labels of two dimensions are 0 or 1"),
        ({"labels": np.zeros((2, 2), bool)}, r"labels has dtype bool, shape \[2, 2\], expected 0 and 1 of shape \[3"),
        ({"labels": np.eye(3, dtype=bool), "class_names": ["a"]}, "labels has 3 columns, but there are 1 class names"),
        ({"labels": np.zeros((4, 2))}, r"labels has shape \[4, 2\], expected \[3\] or \[3, numbers\]"),
        (
            {"split": [1, 0, 0], "labels": [np.nan, 1.0, 2.0]},
            r"split\[0\] = 1 \(TRAIN\), but labels\[0\] = nan: no label; 1 such nodes: give each a label, or the split none",
        ),
        ({"split": [1, 0, 0], "labels": [-1, 0, 0], "node_ids": ["p", "q", "r"]}, r"no label of node p; 1 such nodes"),
        (
            {"split": [1, 2, 0], "labels": [-1, -1, -1]},
            "labels: no node has a label, but 2 are in a split: add labels, or remove split",
        ),
        ({"labels": [0, 0]}, "labels has 2 entries, expected 3"),
        ({"split": [0, 1, 4]}, r"split\[2\] = 4 is out of range 0\.\.3"),
        ({"split": [1, 2, 0], "labels": [0, -1, 0]}, r"split\[1\] = 2 \(VAL\), but labels\[1\] = -1"),
        ({"split": [0, 2, 0]}, "split has no train nodes: 0 NONE, 1 TRAIN, 2 VAL, 3 TEST"),
        ({"split": ["train", "valid", ""]}, r"split\[1\] = 'valid' is none of train, val, test, none"),
        ({"split": ["train"]}, r"split has shape \[1\], expected \[3\]"),
        ({"split": [True, False, False]}, "split is a mask"),
        ({"split": [0.0, 1.0, 2.0]}, "split has dtype float64, expected integers"),
        ({"features": np.array([[0, 1], [1e39, 0], [0, 0]])}, r"features\[1, 0\] = 1e\+39 is too large for float32"),
        ({"edge_features": np.array([[-1e39]])}, r"edge_features\[0, 0\] = -1e\+39 is too large for float32"),
        ({"weight": np.array([1e39])}, r"weight\[0\] = 1e\+39 is too large for float32"),
        ({"labels": np.array([0, 2**64 - 1, 0], np.uint64)}, "labels hold 0 and 18446744073709551615, and float64"),
        ({"edge_features": np.zeros((2, 1))}, r"edge_features has shape \[2, 1\], expected \[1, any\]"),
        ({"edge_features": nan_at((1, 3), 0, 2)}, r"edge_features\[0, 2\] = nan"),
        ({"coordinates": np.zeros((3, 4))}, "coordinates have 4 dimensions, expected 2 or 3"),
        ({"class_names": ["a", 1]}, r"class_names\[1\] = 1 is no text"),
        ({"node_types": [("a", 2), ("b", 2)]}, r"node_types have \[2, 2\] nodes, expected numbers that add up to 3"),
        ({"node_types": [("a", 4), ("b", -1)]}, r"node_types have \[4, -1\] nodes, expected numbers that add up to 3"),
        ({"missing": [[0, 1, 2]]}, r"missing has shape \[1, 3\] and dtype int64, expected \[any, 2\] integers"),
        ({"missing": [[0.0, 1.0]]}, r"missing has shape \[1, 2\] and dtype float64, expected \[any, 2\] integers"),
    ],
)
def test_graph_names_what_is_wrong_and_where(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph_of(**fields)


def test_edges_join_the_nodes_of_one_graph() -> None:
    wide = CSC(np.array([0, 1]), np.array([4]), num_sources=5)
    with pytest.raises(UserError, match="5 sources and 1 destinations cannot be symmetrized"):
        wide.symmetrize()
    with pytest.raises(UserError, match="a graph's edges join its own nodes, got 5 sources for 1 nodes"):
        Graph(wide, np.zeros((1, 2)), np.zeros(1, np.int64), np.zeros(1, np.int8))


def test_no_edges_and_no_features_make_no_nodes() -> None:
    graph = Graph.from_edges([], [])
    assert (graph.num_nodes, graph.num_edges, graph.features.shape) == (0, 0, (0, 0))


def test_empty_cells_are_read_by_nobody_who_fills_none() -> None:
    graph = graph_of(missing=[[1, 0], [2, 1]])
    with pytest.raises(UserError, match=r"features have 2 empty cells \(Graph\.missing\): fill these first"):
        graph.whole_features  # noqa: B018
    assert graph_of().whole_features.shape == (3, 2)


def test_a_bad_value_is_found_in_any_chunk_of_large_features() -> None:
    features = np.zeros((3000, 1000), np.float16)
    features[2999, 7] = np.inf
    with pytest.raises(ValueError, match=r"features\[2999, 7\] = inf"):
        graph_of(3000, features=features, labels=np.zeros(3000, int))


def test_arrays_of_the_right_type_are_not_copied() -> None:
    indptr, indices, weight = np.array([0, 1, 2]), np.array([1, 0], np.int32), np.ones(2, np.float32)
    csc = CSC(indptr, indices, weight)
    features, labels, split = np.zeros((2, 3), np.float16), np.zeros(2, np.int64), np.zeros(2, np.int8)
    graph = Graph(csc, features, labels, split)
    for value, name, array in [
        (csc, "indptr", indptr),
        (csc, "indices", indices),
        (csc, "weight", weight),
        (graph, "features", features),
        (graph, "labels", labels),
        (graph, "split", split),
    ]:
        assert np.shares_memory(getattr(value, name), array), name


def test_other_arrays_are_made_contiguous_and_native() -> None:
    strided = np.array([1, 9, 0, 9])[::2]
    csc = CSC(np.array([0, 1, 2], ">i4"), strided, np.array([1, 2], np.float16))
    assert csc.indptr.dtype == np.int64
    assert csc.indices.flags.c_contiguous
    assert csc.weight is not None
    assert csc.weight.dtype == np.float32
    assert_same(csc, CSC(np.array([0, 1, 2]), np.array([1, 0]), np.array([1, 2], np.float32)))


def test_edge_features_and_weights_follow_their_edges() -> None:
    edges = [(2, 1), (0, 1), (1, 0)]
    graph = graph_of(3, edges, weight=[20, 0, 10], edge_features=np.array([[2.0], [0.0], [1.0]]))
    assert graph.edge_features is not None
    np.testing.assert_array_equal(graph.edge_features[:, 0], graph.csc.indices)
    np.testing.assert_array_equal(graph.csc.weight, graph.csc.indices * 10)
    two_way_graph = graph.symmetrize()
    assert two_way_graph.edge_features is not None
    np.testing.assert_array_equal(two_way_graph.csc.indices, [1, 0, 2, 1])
    np.testing.assert_array_equal(two_way_graph.edge_features[:, 0], [1, 0, 2, 2])
    np.testing.assert_array_equal(two_way_graph.csc.weight, [10, 0, 20, 20])


def test_row_normalize_keeps_signs_and_rows_of_zeros() -> None:
    features = np.array([[1, -3], [0, 0], [2, 2]], np.float32)
    np.testing.assert_allclose(
        graph_of(features=features).row_normalize().features, [[0.25, -0.75], [0, 0], [0.5, 0.5]]
    )


@pytest.mark.parametrize("edges", [[], [(0, 1), (2, 1), (2, 2)]])
def test_a_saved_graph_loads_memory_mapped_and_equal(tmp_path: Path, edges: list[tuple[int, int]]) -> None:
    graph = graph_of(
        3,
        edges,
        features=np.arange(6).reshape(3, 2),
        labels=[0, 1, -1],
        split=[Split.TRAIN, Split.TEST, Split.NONE],
        weight=np.ones(len(edges)),
        edge_features=np.ones((len(edges), 2)),
        coordinates=np.zeros((3, 2)),
        class_names=["a", "b"],
    )
    graph = replace(graph, node_ids=np.array(["x", "y", "zz"]))
    graph.save(tmp_path / "graph")
    graph.save(tmp_path / "graph")  # replaces
    loaded_graph = Graph.load(tmp_path / "graph")
    assert_same(loaded_graph.csc, graph.csc)
    for name in ("features", "labels", "split", "edge_features", "coordinates", "edge_positions", "node_ids"):
        np.testing.assert_array_equal(getattr(loaded_graph, name), getattr(graph, name))
    assert loaded_graph.class_names == ("a", "b")
    assert isinstance(loaded_graph.features.base.base, np.memmap)
    assert [path.name for path in tmp_path.iterdir()] == ["graph"]


def test_a_folder_of_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all I have")
    with pytest.raises(ValueError, match="holds something else"):
        graph_of().save(tmp_path)
    assert (tmp_path / "thesis.tex").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.npy", None, "graph holds no labels"),
        ("meta.json", None, "meta.json: No such file"),
        ("meta.json", b"{", "meta.json is not JSON"),
        ("meta.json", b"[]", "meta.json holds no JSON object"),
        ("features.npy", b"", "features.npy is not a .npy array"),
        ("features.npy", b"PK\3\4 nothing", "features.npy is not a .npy array"),
    ],
)
def test_load_names_the_file_at_fault(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    graph_of().save(tmp_path / "graph")
    path = tmp_path / "graph" / name
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        Graph.load(tmp_path / "graph")


def test_a_header_that_promises_more_than_the_file_holds_is_refused_at_once(tmp_path: Path) -> None:
    graph_of().save(tmp_path / "graph")
    path = tmp_path / "graph" / "indices.npy"
    with path.open("wb") as file:
        header = {"descr": "<i8", "fortran_order": False, "shape": (2**60,)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(ValueError, match=r"indices.npy promises shape \(1152921504606846976,\) of int64"):
        Graph.load(tmp_path / "graph")


def test_arrays_of_objects_are_not_unpickled(tmp_path: Path) -> None:
    graph_of().save(tmp_path / "graph")
    np.save(tmp_path / "graph" / "labels.npy", np.array([print] * 3), allow_pickle=True)
    with pytest.raises(ValueError, match=r"labels.npy holds Python objects"):
        Graph.load(tmp_path / "graph")


def test_from_pyg_keeps_edges_attributes_and_masks() -> None:
    mask = torch.tensor([True, False, False])
    data = Data(
        edge_index=torch.tensor([[2, 0, 1], [1, 1, 0]]),
        x=torch.eye(3, requires_grad=True),
        y=torch.tensor([[0], [1], [-1]]),
        edge_attr=torch.tensor([2.0, 0.0, 1.0]),
        edge_weight=torch.tensor([20.0, 0.0, 10.0]),
        train_mask=mask,
        pos=torch.zeros(3, 3),
    )
    graph = Graph.from_pyg(data)
    np.testing.assert_array_equal(graph.csc.indptr, [0, 1, 3, 3])
    np.testing.assert_array_equal(graph.csc.indices, [1, 0, 2])
    np.testing.assert_array_equal(graph.csc.weight, [10, 0, 20])
    np.testing.assert_array_equal(graph.edge_features, [[1], [0], [2]])
    np.testing.assert_array_equal(graph.features, np.eye(3))
    np.testing.assert_array_equal(graph.labels, [0, 1, -1])
    np.testing.assert_array_equal(graph.split, [Split.TRAIN, 0, 0])
    assert graph.coordinates is not None


def data_with_masks(**masks: Any) -> Data:
    data = Data(edge_index=torch.zeros(2, 0, dtype=torch.long), x=torch.zeros(3, 1), y=torch.zeros(3).long())
    for name, mask in masks.items():
        data[name] = mask
    return data


def columns_of(nodes: list[int]) -> torch.Tensor:  # [3, len(nodes)] bool
    return torch.nn.functional.one_hot(torch.tensor(nodes), 3).T.bool()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(x=torch.zeros(3, 1)), "edge_index must have shape"),
        (
            data_with_masks(train_mask=torch.zeros(3, 10, dtype=torch.bool)),
            r"with one split per column: choose one with split=0\.\.9",
        ),
        (data_with_masks(train_mask=torch.tensor([True, False])), r"data.train_mask has shape \[2\], expected \[3\]"),
        (
            data_with_masks(train_mask=torch.ones(4).bool(), y=torch.zeros(4).long()),
            r"data\.x has 3 rows \(nodes\), and data\.y, data\.train_mask have 4: expected one row per node in each",
        ),
        (data_with_masks(val_mask=torch.tensor([0, 1, 0])), "data.val_mask names node 0 twice: masks must be bool"),
        (data_with_masks(test_idx=torch.tensor([1, 3])), r"data.test_idx\[1\] = 3 is out of range 0\.\.2"),
        (data_with_masks(train_mask=torch.tensor([0.0, 1.0, 0.0])), "data.train_mask has dtype float32"),
        (data_with_masks(train_mask=torch.tensor(True)), r"data.train_mask has shape \[\], expected \[3\]"),
        (data_with_masks(train_mask=torch.ones(3).bool(), val_mask=torch.ones(3).bool()), "node 0 is in more than one"),
        (data_with_masks(x=torch.zeros(3, 1).to_sparse()), "data.x cannot be read as an array: .*to_dense"),
        (data_with_masks(x=torch.zeros(3, 1).to_sparse_csr()), "data.x cannot be read as an array"),
        (data_with_masks(x=torch.quantize_per_tensor(torch.zeros(3, 1), 1.0, 0, torch.qint8)), "data.x cannot be read"),
    ],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta", "ignore:.*quantize_per_tensor")
def test_from_pyg_names_the_attribute_that_it_does_not_read(data: Data, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Graph.from_pyg(data)


def test_numbers_in_bfloat16_and_truth_values_as_labels_are_read() -> None:
    graph = Graph.from_pyg(
        data_with_masks(x=torch.tensor([[0.5], [1.0], [3.0]]).bfloat16(), y=torch.tensor([True, False, True]))
    )
    assert graph.features.dtype == np.float32
    assert graph.features.ravel().tolist() == [0.5, 1, 3]
    assert graph.labels.tolist() == [1, 0, 1]


def test_from_pyg_reads_one_of_several_splits() -> None:
    data = data_with_masks(
        train_mask=columns_of([0, 1, 2]), val_mask=columns_of([1, 2, 0]), test_mask=columns_of([2, 0, 1])
    )
    assert Graph.from_pyg(data, split=0).split.tolist() == [1, 2, 3]
    assert Graph.from_pyg(data, split=2).split.tolist() == [2, 3, 1]
    data.test_mask = torch.tensor([False, False, False])  # one test set for all splits
    assert Graph.from_pyg(data, split=1).split.tolist() == [0, 1, 2]
    with pytest.raises(UserError, match="split=3 must be a whole number from 0 to 2"):
        Graph.from_pyg(data, split=3)
    with pytest.raises(UserError, match="split=0, but the graph holds no masks of several splits"):
        Graph.from_pyg(data_with_masks(train_mask=torch.ones(3).bool()), split=0)


def test_from_pyg_reads_node_ids_and_old_masks() -> None:
    for data in (
        data_with_masks(train_mask=torch.tensor([2, 0]), val_mask=torch.tensor([1])),
        data_with_masks(train_idx=torch.tensor([2, 0]), val_idx=torch.tensor([1]), test_idx=torch.tensor([]).long()),
        data_with_masks(train_mask=torch.tensor([1, 0, 1]).byte(), val_mask=torch.tensor([0, 1, 0]).byte()),
    ):
        assert Graph.from_pyg(data).split.tolist() == [1, 2, 1]


def test_graphs_are_made_of_what_holds_a_graph_and_of_nothing_else() -> None:
    graph = graph_of()
    assert Graph.of(graph) is graph
    assert Graph.of(data_with_masks(train_mask=torch.tensor([0]))).split.tolist() == [1, 0, 0]
    for value in (graph.csc, None, 7, np.zeros(3)):
        with pytest.raises(UserError, match=f"expected a gnnkit Graph, .*, got {type(value).__name__}"):
            Graph.of(value)


def test_splits_are_names_members_or_codes_and_mean_the_same() -> None:
    expected = [1, 2, 3, 0, 0]
    for values in (
        ["train", "val", "test", "none", ""],
        [Split.TRAIN, Split.VAL, Split.TEST, Split.NONE, Split.NONE],
        np.array(expected, np.uint8),
        expected,
    ):
        assert Split.of(values, 5).tolist() == expected
        assert graph_of(5, split=values, labels=np.zeros(5, int)).split.dtype == np.int8
    assert Split.of(np.array([0, 2], np.int8), 2).tolist() == [0, 2]  # as of a graph that is only evaluated
    assert Split.of(["val", ""], 2).tolist() == [2, 0]
    assert Split.of([], 0).tolist() == []


def test_masks_without_axes_are_refused() -> None:
    with pytest.raises(UserError, match=r"train mask has dtype bool, shape \[\], expected bool, \[num_nodes\]"):
        Split.of_masks(np.array(True), np.array(False), np.array(False))


def test_ids_out_of_proportion_to_the_edges_need_the_number_of_nodes() -> None:
    with pytest.raises(UserError, match=r"dst\[1\] = 300000000 would make 300000001 nodes for 2 edges: .*num_nodes"):
        Graph.from_edges([0, 1], [1, 300_000_000])
    assert Graph.from_edges([0], [999_999]).num_nodes == 1_000_000
    assert Graph.from_edges([0], [1_000_000], 1_000_001).num_nodes == 1_000_001
    many = np.zeros(100_000, np.int64)
    assert Graph.from_edges(many, many + 1_599_999).num_nodes == 1_600_000


@pytest.mark.slow
@given(any_edges)
def test_a_graph_keeps_the_position_of_each_edge_in_the_users_list(graph: Edges) -> None:
    num_nodes, edges = graph
    src, dst = columns(edges)
    new_graph = Graph.from_edges(src, dst, num_nodes)
    assert new_graph.edge_positions is not None
    np.testing.assert_array_equal(src[new_graph.edge_positions], new_graph.csc.indices)
    np.testing.assert_array_equal(dst[new_graph.edge_positions], destinations(new_graph.csc))
    assert sorted(new_graph.edge_positions) == list(range(len(edges)))
    two_way_graph = new_graph.symmetrize()
    ends = np.sort(np.stack([two_way_graph.csc.indices, destinations(two_way_graph.csc)]), axis=0)
    np.testing.assert_array_equal(ends, np.sort(np.stack([src, dst])[:, two_way_graph.edge_positions], axis=0))
    assert (
        Graph(new_graph.csc, new_graph.features, new_graph.labels, new_graph.split).symmetrize().edge_positions is None
    )


@pytest.mark.parametrize("name", ["src", "weight", "features", "labels"])
@pytest.mark.parametrize("value", [None, 7, 2**70, [2**70], [[1], [2, 3]], [object()], [0.5], np.zeros((1, 1, 1))])
def test_what_is_no_array_names_the_argument(name: str, value: object) -> None:
    arguments: dict[str, Any] = {"src": [0], "dst": [0], "num_nodes": 1, name: value}
    if (value is None and name != "src") or (value == [0.5] and name in ("weight", "labels")):
        return  # left out, a weight and a number
    with pytest.raises(UserError, match=f"^{name} (has|cannot be read)"):
        Graph.from_edges(**arguments)


def test_integers_beyond_64_bits_are_named() -> None:
    with pytest.raises(
        UserError, match=r"src has dtype object, expected integers below 2\^63, got 1180591620717411303424"
    ):
        Graph.from_edges([2**70], [0])
    with pytest.raises(UserError, match=r"num_nodes=2\.5 must be a whole number"):
        Graph.from_edges([0], [0], 2.5)  # type: ignore[arg-type]


def test_a_pipe_in_a_saved_graph_is_refused_at_once(tmp_path: Path) -> None:
    graph_of().save(tmp_path / "graph")
    for name in ("features.npy", "meta.json"):
        (tmp_path / "graph" / name).unlink()
        os.mkfifo(tmp_path / "graph" / name)
        with pytest.raises(UserError, match=f"{name} is no regular file"):
            Graph.load(tmp_path / "graph")


def test_positions_of_edges_are_checked() -> None:
    graph = graph_of()
    with pytest.raises(UserError, match="edge_positions has 2 entries, expected 1"):
        replace(graph, edge_positions=np.array([0, 1]))
    with pytest.raises(UserError, match=r"edge_positions\[0\] = -1 is out of range"):
        replace(graph, edge_positions=np.array([-1], np.int32))


def bag(num_rows: int = 9, width: int = 6) -> np.ndarray[Any, Any]:
    """Rows with few numbers, some with none."""
    rng = np.random.default_rng(num_rows)
    dense = rng.standard_normal((num_rows, width)).astype(np.float32)
    dense[rng.random((num_rows, width)) < 0.7] = 0
    dense[::3] = 0
    return dense


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", [(9, 6), (0, 6), (9, 0), (1, 1), pytest.param((3000, 2000), marks=pytest.mark.exhaustive)]
)
def test_sparse_features_are_the_dense_ones(shape: tuple[int, int]) -> None:
    dense = bag(*shape)
    sparse = SparseFeatures.of(dense)
    assert (sparse.shape, len(sparse), sparse.dtype) == (shape, shape[0], dense.dtype)
    np.testing.assert_array_equal(sparse, dense)
    assert sparse.csr.num_edges == np.count_nonzero(dense)
    for rows in (
        slice(None),
        slice(2, 7, 2),
        np.arange(shape[0])[::-1],
        np.arange(shape[0]) % 2 == 0,
        np.zeros(0, int),
    ):
        np.testing.assert_array_equal(sparse[rows], dense[rows])


def test_sparse_features_sort_their_columns_and_refuse_two_numbers_for_one() -> None:
    indptr, columns = np.array([0, 0, 3, 5]), np.array([4, 0, 2, 1, 0])
    sparse = SparseFeatures(CSC(indptr, columns, np.arange(1.0, 6), num_sources=5))
    np.testing.assert_array_equal(sparse, [[0] * 5, [2, 0, 3, 0, 1], [5, 4, 0, 0, 0]])
    np.testing.assert_array_equal(sparse.csr.indices, [0, 2, 4, 0, 1])
    assert sparse.csr.indices.dtype == np.int32
    np.testing.assert_array_equal(SparseFeatures(CSC(indptr, columns, num_sources=5)).values, 1)
    with pytest.raises(UserError, match="features: row 1 has column 2 twice"):
        SparseFeatures(CSC(indptr, np.array([2, 0, 2, 1, 0]), num_sources=5))
    with pytest.raises(UserError, match=r"values\[4\] = 1e\+39 is too large for float32"):
        SparseFeatures(CSC(indptr, columns, np.array([1, 1, 1, 1e39, 1]), num_sources=5))
    with pytest.raises(UserError, match=r"\(3, 2147483648\) have more than 2147483647 columns"):
        SparseFeatures(CSC(indptr, columns, num_sources=2**31))


def test_a_graph_keeps_sparse_features(tmp_path: Path) -> None:
    dense, n = bag(), 9
    csc = CSC.from_edges([0, 1, 5], [1, 2, 6], n)
    labels, split = np.zeros(n, int), np.zeros(n, np.int8)
    graph = Graph(csc, SparseFeatures.of(dense), labels, split)
    graph.save(tmp_path / "graph")
    assert not (tmp_path / "graph/features.npy").exists()
    for each in (graph, Graph.load(tmp_path / "graph"), graph.symmetrize()):
        assert isinstance(each.features, SparseFeatures)
        np.testing.assert_array_equal(each.features, dense)
    normalized = Graph(csc, dense, labels, split).row_normalize().features
    np.testing.assert_allclose(graph.row_normalize().features, normalized, rtol=1e-6)
    new_graph = Graph.from_edges([0, 1], [1, 2], features=SparseFeatures.of(dense))
    assert (new_graph.num_nodes, type(new_graph.features)) == (n, SparseFeatures)
    with pytest.raises(UserError, match=r"features has shape \[9, 6\], expected \[10, any\]"):
        Graph.from_edges([0, 1], [1, 2], 10, features=SparseFeatures.of(dense))
    (tmp_path / "graph/feature_values.npy").unlink()
    with pytest.raises(UserError, match="holds no feature_values"):
        Graph.load(tmp_path / "graph")


@pytest.mark.slow
@given(any_edges, st.integers(0, 9))
def test_renumbered_nodes_keep_all_that_is_theirs(drawn: Edges, seed: int) -> None:
    num_nodes, edges = drawn
    own_rows = np.arange(num_nodes)
    graph = replace(
        Graph.from_edges(
            *columns(edges),
            num_nodes,
            features=own_rows[:, None],
            weight=1.0 + np.arange(len(edges)),
            coordinates=own_rows[:, None] * [1, 1],
        ),
        test_edges=np.reshape(edges, (-1, 2)),
        node_ids=own_rows * 10,
    )
    order = random.Random(seed).sample(range(num_nodes), num_nodes)
    moved = graph.renumber(np.array(order, np.int64))
    np.testing.assert_array_equal(moved.node_ids, np.array(order, np.int64) * 10)
    for name in ("features", "coordinates"):
        np.testing.assert_array_equal(getattr(moved, name)[:, 0], order)
    np.testing.assert_array_equal(moved.node_ids[moved.test_edges], graph.test_edges * 10)
    src, dst = moved.node_ids[moved.csc.indices], moved.node_ids[destinations(moved.csc)]
    for position, u, v, weight in zip(moved.edge_positions, src, dst, moved.csc.weight, strict=True):
        assert (u, v, weight) == (edges[position][0] * 10, edges[position][1] * 10, 1 + position)


def test_an_order_of_nodes_must_name_each_once() -> None:
    graph = graph_of(3)
    with pytest.raises(UserError, match="order does not contain node 1"):
        graph.renumber([0, 2, 2])
    with pytest.raises(UserError, match=r"order\[1\] = 3 is out of range"):
        graph.renumber([0, 3, 1])


@pytest.mark.parametrize("ids", [[1, 2], [[1], [2], [3]], [0.5, 1.5, 2.5]])
def test_ids_of_the_user_are_a_row_of_whole_numbers_or_text(ids: list[Any]) -> None:
    with pytest.raises(UserError, match=r"node_ids are .*, expected \[3\] whole numbers or text"):
        replace(graph_of(3), node_ids=np.array(ids))
