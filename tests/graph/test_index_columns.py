"""The index of a data frame is no feature, in nodes and in edges, by every reader."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.graph import Graph

Tables = tuple[pd.DataFrame, pd.DataFrame]
Reader = Callable[[Tables, Path], Graph]
EDGES = pd.DataFrame({"src": ["a", "b", "c"], "dst": ["b", "c", "a"], "km": [1.5, 2.5, 3.5]})
NODES = pd.DataFrame({"id": ["a", "b", "c"], "age": [30, 10, 20], "number": [0, 1, 2]})


def in_csv(tables: Tables, folder: Path) -> EdgeFolder:
    for name, frame in zip(("edges", "nodes"), tables, strict=True):
        frame.to_csv(folder / f"{name}.csv", index=False)
    return EdgeFolder(str(folder), symmetrize=False)


def in_parquet(tables: Tables, folder: Path) -> EdgeFolder:
    for name, frame in zip(("edges", "nodes"), tables, strict=True):
        frame.to_parquet(folder / f"{name}.parquet", index=False)
    return EdgeFolder(str(folder), symmetrize=False)


def imported(data: EdgeFolder, folder: Path) -> Graph:
    (work := folder / "work").mkdir()
    room, journal = Room(1 << 26, 1), Journal(folder / "work", "asked")
    return Graph.load(import_graph(in_pieces(data), work, room, journal, ProgressReporter(quiet=True)))


READERS: dict[str, Reader] = {
    "pandas": lambda tables, _: Graph.from_tables(*tables),
    "polars": lambda tables, _: Graph.from_tables(*(pl.DataFrame(each.to_dict("list")) for each in tables)),
    "pyarrow": lambda tables, _: Graph.from_tables(*map(pa.Table.from_pandas, tables)),
    "csv": lambda tables, folder: in_csv(tables, folder).load(),
    "parquet": lambda tables, folder: in_parquet(tables, folder).load(),
    "import csv": lambda tables, folder: imported(in_csv(tables, folder), folder),
    "import parquet": lambda tables, folder: imported(in_parquet(tables, folder), folder),
}


def read(reader: str, tables: Tables, folder: Path) -> tuple[Graph, list[str]]:
    """The graph, and the warnings about an index."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        graph = READERS[reader](tables, folder)
    return graph, [str(each.message) for each in caught if "data frame's index" in str(each.message)]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("", [0, 1, 2]),
        ("", [5, 3, 9]),
        ("Unnamed: 0", [5, 3, 9]),
        ("Unnamed: 0.1", [0, 1, 2]),
        ("__index_level_0__", ["p", "q", "r"]),
        ("index", [0, 1, 2]),
        ("level_0", [0, 1, 2]),
    ],
)
def test_an_index_is_left_out_of_nodes_and_of_edges(reader: str, name: str, values: list[Any], tmp_path: Path) -> None:
    edges, nodes = EDGES.copy(), NODES.copy()
    for place, frame in enumerate((edges, nodes)):
        frame.insert(place, name, values)
    graph, messages = read(reader, (edges, nodes), tmp_path)
    assert graph.feature_names == ("age", "number")
    assert graph.edge_feature_names == ("km",)
    assert len(messages) == 2
    assert all(f": {name!r} left out of the features, as a data frame's index: " in each for each in messages)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("name", "values"),
    [("index", [0, 1, 3]), ("level_0", [0.0, 0.5, 2]), ("Unnamed: 7", [0, 1, 2]), ("row", [0, 1, 2])],
)
def test_other_columns_stay(reader: str, name: str, values: list[Any], tmp_path: Path) -> None:
    graph, messages = read(reader, (EDGES.assign(**{name: values}), NODES.assign(**{name: values})), tmp_path)
    assert graph.feature_names == ("age", "number", name)
    assert graph.edge_feature_names == ("km", name)
    assert not messages


@pytest.mark.slow
def test_what_pandas_writes_as_an_index_of_parquet_is_left_out_but_for_the_id(tmp_path: Path) -> None:
    nodes = NODES.assign(name=["x", "y", "z"])
    for number, index in enumerate((["name"], ["id"], ["id", "name"])):
        (folder := tmp_path / str(number)).mkdir()
        EDGES.to_parquet(folder / "edges.parquet")
        nodes.set_index(index).to_parquet(folder / "nodes.parquet")
        with pytest.warns(UserWarning, match="name") if "name" in index else warnings.catch_warnings():
            for graph in (EdgeFolder(str(folder), symmetrize=False).load(), imported(EdgeFolder(str(folder)), folder)):
                left = () if "name" in index else ("name=x", "name=y", "name=z")
                assert graph.feature_names == ("age", "number", *left)
    with pytest.warns(UserWarning, match="nodes: 'name' left out of the features"):
        Graph.from_tables(EDGES, pa.parquet.read_table(tmp_path / "0/nodes.parquet"))


@pytest.mark.slow
def test_an_index_that_is_named_is_read(tmp_path: Path) -> None:
    edges, nodes = EDGES.assign(index=[0, 1, 2]), NODES.assign(index=[0, 1, 2])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = Graph.from_tables(edges, nodes, features=["index"], edge_features=["index"])
        np.testing.assert_array_equal(graph.features, [[0], [1], [2]])
        np.testing.assert_array_equal(graph.edge_features, [[2], [0], [1]])
        in_csv((edges, nodes), tmp_path)
        ignored = EdgeFolder(str(tmp_path), symmetrize=False, ignore=["index"])
        assert ignored.load().feature_names == ("age", "number")
        assert imported(ignored, tmp_path).feature_names == ("age", "number")


def test_an_index_is_one_in_all_relations_or_in_none(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    NODES.to_csv(tmp_path / "nodes.csv", index=False)
    for name, index in (("knows", [0, 1, 2]), ("pays", [0, 1, 5])):
        EDGES.assign(index=index).to_csv(tmp_path / f"edges/{name}.csv", index=False)
    assert EdgeFolder(str(tmp_path), symmetrize=False).load().edge_feature_names == ("km", "index")
    EDGES.assign(index=[0, 1, 2]).to_csv(tmp_path / "edges/pays.csv", index=False)
    with pytest.warns(UserWarning, match=r"knows.csv: 'index' left out of the features"):
        assert EdgeFolder(str(tmp_path), symmetrize=False).load().edge_feature_names == ("km",)
