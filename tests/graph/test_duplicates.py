"""Edges and nodes that occur several times, by the key `duplicates`."""

from __future__ import annotations

import warnings
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.errors import UserError
from gnnkit.graph import Graph

NODES = pd.DataFrame({"id": ["a", "b", "a", "c", "a"], "label": ["p", "q", "q", "p", "q"], "x": [1.0, 2, 3, 4, None]})
Edge = tuple[int, int, int]


def imported(folder: Path, **options: Any) -> Graph:
    (work := folder / "work").mkdir()
    pieces = in_pieces(EdgeFolder(str(folder), **options))
    return Graph.load(
        import_graph(pieces, work, Room(1 << 26, 1), Journal(work, "asked"), ProgressReporter(quiet=True))
    )


def joined(table: pd.DataFrame, how: str) -> list[tuple[Edge, int, float | None, list[float]]]:
    """Ends and type, position, weight and features of each edge, in plain Python."""
    rows: dict[Any, list[int]] = defaultdict(list)
    for number, edge in enumerate(zip(table["dst"], table["src"], table["type"], strict=True)):
        rows[(edge, number if how == "keep" else 0)].append(number)
    results = []
    for (edge, _), numbers in rows.items():
        choice = numbers if how in ("sum", "mean") else numbers[:1]
        total = len(numbers) if how == "mean" else 1
        weights = table.get("weight", pd.Series(np.ones(len(table))))
        weight = sum(weights[number] for number in choice) / total
        unweighted = "weight" not in table and how != "sum"
        features = [sum(table[name][number] for number in choice) / total for name in ("km", "age")]
        results.append((edge, numbers[0], None if unweighted else weight, features))
    return results


@pytest.mark.slow
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("how", ["keep", "first", "sum", "mean"])
def test_parallel_edges_are_joined_as_plain_python_joins_them(how: str, weighted: bool, tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    table = pd.DataFrame({name: rng.integers(0, 4, 60) for name in ("src", "dst", "type", "age")})
    table["km"] = rng.random(60)
    if weighted:
        table["weight"] = rng.random(60)
    table.to_csv(tmp_path / "edges.csv", index=False)
    options = {"symmetrize": False, "duplicates": how}
    graphs = [Graph.from_tables(table, duplicates=how), EdgeFolder(str(tmp_path), **options).load()]  # type: ignore[arg-type]
    for graph in (*graphs, imported(tmp_path, **options)):
        ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
        right = sorted(joined(table, how), key=lambda each: (each[0][:2], each[1]))
        assert list(zip(ends, graph.csc.indices, graph.edge_types, strict=True)) == [edge for edge, *_ in right]
        assert graph.edge_positions.tolist() == [position for _, position, *_ in right]
        assert (graph.csc.weight is None) == (right[0][2] is None)
        if graph.csc.weight is not None:
            np.testing.assert_allclose(graph.csc.weight, [weight for *_, weight, _ in right], rtol=1e-6)
        order = [graph.edge_feature_names.index(name) for name in ("km", "age")]
        np.testing.assert_allclose(graph.edge_features[:, order], [features for *_, features in right], rtol=1e-6)


def test_a_multigraph_stays_one_by_default() -> None:
    edges = pd.DataFrame({"src": [0, 0, 1], "dst": [1, 1, 0]})
    assert Graph.from_tables(edges).num_edges == 3
    assert Graph.from_tables(edges, duplicates="first").num_edges == 2
    np.testing.assert_array_equal(Graph.from_tables(edges, duplicates="sum").csc.weight, [1, 2])
    assert Graph.from_tables(edges, duplicates="mean").csc.weight is None
    assert Graph.from_tables(edges[:0], duplicates="sum").num_edges == 0


@pytest.mark.parametrize("how", ["refuse", "first", "sum", "mean"])
def test_edges_that_occur_once_stay_as_they_are(how: str) -> None:
    edges = pd.DataFrame({"src": [0, 1, 0], "dst": [1, 0, 1], "type": ["p", "p", "q"], "weight": [0.1, 0.2, 0.3]})
    plain, graph = Graph.from_tables(edges), Graph.from_tables(edges, duplicates=how)
    np.testing.assert_array_equal(graph.csc.weight, plain.csc.weight)
    np.testing.assert_array_equal(graph.edge_types, plain.edge_types)


def test_edges_that_occur_twice_are_refused_by_their_rows(tmp_path: Path) -> None:
    edges = pd.DataFrame({"src": [0, 1, 2, 1], "dst": [1, 0, 0, 0]})
    edges.to_csv(tmp_path / "edges.csv", index=False)
    message = "edges: rows 1 and 3 are the same edge: (dataset.)?duplicates=first, sum or mean keeps one of them"
    for read in (
        lambda: Graph.from_tables(edges, duplicates="refuse"),
        lambda: EdgeFolder(str(tmp_path), duplicates="refuse").load(),
        lambda: imported(tmp_path, duplicates="refuse"),
    ):
        with pytest.raises(UserError, match=message):
            read()
    with pytest.raises(UserError, match="duplicates=last"):
        Graph.from_tables(edges, duplicates="last")
    with pytest.raises(UserError, match=r"dataset\.duplicates=last"):
        EdgeFolder(str(tmp_path), duplicates="last")


def test_the_first_row_of_a_node_is_kept_on_demand(tmp_path: Path) -> None:
    edges = pd.DataFrame({"src": ["a", "c"], "dst": ["b", "a"]})
    NODES.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    options = {"symmetrize": False, "duplicates": "first"}
    for load in (
        lambda: Graph.from_tables(edges, NODES, duplicates="first"),
        lambda: EdgeFolder(str(tmp_path), **options).load(),  # type: ignore[arg-type]
    ):
        with pytest.warns(UserWarning, match=r"nodes.*: 2 of 5 rows repeat an id in 'id' and are left out"):
            graph = load()
        assert graph.node_ids.tolist() == ["a", "b", "c"]
        np.testing.assert_array_equal(graph.features, [[1], [2], [4]])
        np.testing.assert_array_equal(graph.labels, [0, 1, 0])
    bad = NODES.assign(split=["train", "train", "oops", "val", "val"])
    Graph.from_tables(edges, bad, duplicates="first")
    with pytest.raises(UserError, match="row 3: 'oops' is none of"):  # rows are those of the whole table
        Graph.from_tables(edges, bad.assign(split=["train", "train", "val", "oops", "val"]), duplicates="first")
    with (
        warnings.catch_warnings(),
        pytest.raises(UserError, match="row 2: 'a' occurs a second time, after row 0; remove"),
    ):
        imported(tmp_path, **options)


@pytest.mark.parametrize(
    ("how", "cure"),
    [
        ("keep", "duplicates=first keeps the first row"),
        ("refuse", "duplicates=first keeps the first row"),
        ("sum", "duplicates=first keeps the first row, and (dataset.)?duplicates=sum merges edges only"),
    ],
)
def test_nodes_of_one_id_are_refused_with_a_cure(how: str, cure: str, tmp_path: Path) -> None:
    edges = pd.DataFrame({"src": ["a"], "dst": ["b"]})
    NODES.to_csv(tmp_path / "nodes.csv", index=False)
    edges.to_csv(tmp_path / "edges.csv", index=False)
    for read in (
        lambda: Graph.from_tables(edges, NODES, duplicates=how),
        lambda: EdgeFolder(str(tmp_path), duplicates=how).load(),
    ):
        with pytest.raises(UserError, match=f"column 'id', row 2: 'a' occurs a second time, after row 0: .*{cure}"):
            read()
