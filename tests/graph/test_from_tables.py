"""Data frames: every library gives the same graph, and hostile columns are named."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import Graph

Frame = Callable[[dict[str, Any]], Any]
FRAMES = [pd.DataFrame, pl.DataFrame, pa.table]
NODES = {
    "id": ["x9", "007", "7"],
    "label": ["cat", None, "dog"],
    "split": ["train", None, "test"],
    "a": [1, 2, 3],
    "wide": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
}
EDGES = {"src": ["7", "x9"], "dst": ["007", "007"], "weight": [0.5, 2.0], "kind": [3, 4]}


@pytest.mark.parametrize("frame", FRAMES)
def test_tables_of_every_library_mean_the_same(frame: Frame) -> None:
    graph = Graph.from_tables(frame(EDGES), frame(NODES))
    assert graph.node_ids.tolist() == ["x9", "007", "7"]
    np.testing.assert_array_equal(graph.csc.indptr, [0, 0, 2, 2])
    np.testing.assert_array_equal(graph.csc.indices, [0, 2])
    np.testing.assert_array_equal(graph.csc.weight, [2, 0.5])
    np.testing.assert_array_equal(graph.edge_features, [[4], [3]])
    np.testing.assert_array_equal(graph.labels, [0, -1, 1])
    assert graph.class_names == ("cat", "dog")
    np.testing.assert_array_equal(graph.split, [1, 0, 3])
    np.testing.assert_array_equal(graph.features, [[1, 1, 2], [2, 3, 4], [3, 5, 6]])


@pytest.mark.parametrize("frame", FRAMES)
def test_columns_may_have_any_name_and_be_chosen(frame: Frame) -> None:
    nodes = frame({"who": [30, 10], "kind": [2, -1], "use": ["train", ""], "a": [1.0, 2.0], "note": ["p", "q"]})
    edges = frame({"from": [10], "to": [30], "w": [3.0], "note": ["r"]})
    column_names = {"src": "from", "dst": "to", "weight": "w", "id": "who", "label": "kind", "split": "use"}
    graph = Graph.from_pandas(edges, nodes, **column_names, features=["a"], edge_features=[])
    assert graph.node_ids.tolist() == [30, 10]
    np.testing.assert_array_equal(graph.labels, [2, -1])
    np.testing.assert_array_equal(graph.features, [[1], [2]])
    assert graph.edge_features is None
    rows = Graph.from_polars(edges, nodes, **column_names, features=np.eye(2), edge_features=[])
    np.testing.assert_array_equal(rows.features, np.eye(2))
    of_edges = Graph.from_tables(edges, nodes, **column_names)
    assert (of_edges.edge_feature_names, of_edges.edge_category_of) == (("note=r",), ("note",))
    full_graph = Graph.from_tables(edges, nodes, **column_names, edge_features=[])
    assert (full_graph.feature_names, full_graph.category_of) == (("a", "note=p", "note=q"), ("", "note", "note"))
    np.testing.assert_array_equal(full_graph.features, [[1, 1, 0], [2, 0, 1]])


@pytest.mark.parametrize("frame", FRAMES)
def test_uuids_are_ids(frame: Frame) -> None:
    names = [uuid.UUID(int=5), uuid.UUID(int=3)]
    graph = Graph.from_tables(frame({"src": names[:1], "dst": names[1:]}), frame({"id": names}))
    assert graph.node_ids.tolist() == list(map(str, names))
    np.testing.assert_array_equal(graph.csc.indices, [0])


@pytest.mark.parametrize("frame", FRAMES)
def test_edges_alone_make_a_graph(frame: Frame) -> None:
    assert Graph.from_tables(frame({"src": [0, 2], "dst": [1, 1]})).node_ids is None
    text_graph = Graph.from_tables(frame({"src": ["b", "c"], "dst": ["a", "b"]}))
    assert text_graph.node_ids.tolist() == ["a", "b", "c"]
    np.testing.assert_array_equal(text_graph.csc.indices, [1, 2])


def test_booleans_categories_and_whole_ids_of_frames() -> None:
    nodes = pd.DataFrame({"id": pd.Categorical(["u", "v"]), "label": [True, False]})
    graph = Graph.from_tables(pd.DataFrame({"src": ["u"], "dst": ["v"]}), nodes)
    assert graph.class_names == ("false", "true")
    assert graph.labels.tolist() == [1, 0]
    assert Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), pd.DataFrame({"id": [0, 1]})).node_ids is None


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ({"id": [1, 1]}, {}, "nodes, column 'id', row 1: 1 occurs a second time"),
        ({"id": ["a", None]}, {}, "nodes, column 'id', row 1: is empty"),
        ({"id": ["a", ""]}, {}, "nodes, column 'id', row 1: is empty"),
        ({"id": ["a", "b" * 5000]}, {}, "nodes, column 'id', row 1: 5000 characters are too long for an id"),
        ({"id": [1.5, 2.5]}, {}, "nodes, column 'id', row 0: 1.5 is no whole number"),
        ({"id": [datetime.date(2026, 1, 1)] * 2}, {}, "nodes, column 'id' holds .*, expected whole numbers, text"),
        (
            {"id": np.array([2**63, 1], np.uint64)},
            {},
            "nodes, column 'id', row 0: 9223372036854775808 exceeds 64-bit ids",
        ),
        ({"id": []}, {}, "nodes has no rows"),
        ({"name": ["a", "b"]}, {}, "nodes has no column 'id', only 'name'"),
        ({}, {"src": [2]}, "edges, column 'src', row 0: 2 is no id of a node"),
        ({}, {"src": [None]}, "edges, column 'src', row 0: is empty"),
        ({}, {"src": [[1]]}, "edges, column 'src' holds .*list.*, expected whole numbers, text or UUIDs"),
        ({"a": [1.0, float("inf")]}, {}, "nodes, column 'a', row 1: inf is not finite"),
        ({"a": [1.0, 1e39]}, {}, r"nodes, column 'a', row 1: 1e\+39 is too large for float32"),
        ({"a": ["1", "q"]}, {}, "nodes, column 'a' holds numbers, but 'q' .*: leave a cell without a number empty"),
        ({"a": [None, [1.0, float("inf")]]}, {}, "nodes, column 'a', row 1: inf is not finite"),
        ({"a": [[1.0], [2.0, 3.0]]}, {}, "nodes, column 'a', row 1: 2 numbers, expected 1 as in row 0"),
        ({"label": [[1], [2]]}, {}, "nodes, column 'label' holds .*list.*, expected numbers or text"),
        ({"split": ["train", "fit"]}, {}, "nodes, column 'split', row 1: 'fit' is none of train, val, test, none"),
        (
            {"kind": [0, 1], "split": ["train", "val"]},
            {},
            "nodes: column 'label' is missing, but 2 nodes are in a split: add it, set label=COLUMN for another column",
        ),
        ({}, {"weight": [float("-inf")]}, "edges, column 'weight', row 0: -inf is not finite"),
    ],
)
def test_hostile_columns_are_named_in_one_line(
    frame: Frame, nodes: dict[str, Any], edges: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Graph.from_tables(
            frame({"src": [1], "dst": [0]} | edges), frame(nodes if "name" in nodes else {"id": [0, 1]} | nodes)
        )
    assert "\n" not in str(caught.value)


def test_values_of_several_types_are_refused() -> None:
    mixed = pd.DataFrame({"id": [1, "a"]})
    with pytest.raises(UserError, match="nodes, column 'id' mixes int, str: give all values one type"):
        Graph.from_tables(pd.DataFrame({"src": [1], "dst": [1]}), mixed)
    for columns in (["src", "to"], ["from", "dst"]):
        with pytest.raises(UserError, match=f"edges has no column '(src|dst)', only '{columns[0]}', '{columns[1]}'"):
            Graph.from_tables(pd.DataFrame([[0, 1]], columns=columns))
    unlike = pl.DataFrame({"id": pl.Series([object(), object()], dtype=pl.Object)})
    with pytest.raises(UserError, match="nodes, column 'id' cannot be read"):
        Graph.from_tables(pl.DataFrame({"src": [1], "dst": [1]}), unlike)
    twice = pd.DataFrame(np.zeros((1, 2), int), columns=["src", "src"])
    with pytest.raises(UserError, match="edges has two columns 'src'"):
        Graph.from_tables(twice)
    with pytest.raises(UserError, match="edges has a column 0, names of columns must be text"):
        Graph.from_tables(pd.DataFrame(np.zeros((1, 2), int)))
    with pytest.raises(UserError, match=r"edges is a list, expected a table of pandas, polars or pyarrow"):
        Graph.from_tables([(0, 1)])
    with pytest.raises(UserError, match=r"features=.* are columns of a table of nodes: give nodes too"):
        Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), features=["a"])


@pytest.mark.parametrize("frame", FRAMES)
def test_large_whole_numbers_are_features(frame: Frame) -> None:
    nodes = frame({"id": [0, 1], "a": [2**62, -(2**63)]})
    np.testing.assert_array_equal(
        Graph.from_tables(frame({"src": [0], "dst": [1]}), nodes).features, [[2**62], [-(2**63)]]
    )


def test_a_column_of_an_extension_is_refused_by_its_type() -> None:
    cells = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((2, 2, 2)))
    nodes = pa.table({"id": [0, 1], "cells": cells})
    with pytest.raises(UserError, match=r"column 'cells' holds extension<.*>, expected numbers or text"):
        Graph.from_tables(pa.table({"src": [0], "dst": [1]}), nodes)


@pytest.mark.parametrize("bipartite", [None, True])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.int64()], ids=str)
def test_a_table_without_edges_makes_a_graph_without_nodes(kind: pa.DataType, bipartite: bool | None) -> None:
    edges = pa.table({name: pa.array([], kind) for name in ("src", "dst")})
    graph = Graph.from_tables(edges, bipartite=bipartite)
    assert (graph.num_nodes, graph.num_edges) == (0, 0)
