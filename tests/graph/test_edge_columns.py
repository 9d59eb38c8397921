"""Every column of edge values follows its rule wherever edges change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_formats.duplicates import JOIN, without_duplicates

from gnnkit.errors import UserError
from gnnkit.graph import CSC, EdgeColumns, Graph
from gnnkit.graph.edge_columns import CONTEXT, REVERSE, RULES, read_edge_split
from gnnkit.partition.degrees import AddedLoops
from gnnkit.partition.shard import Shard, uncut

SRC, DST = np.array([0, 0, 2, 0, 1]), np.array([1, 1, 1, 2, 1])


def graph(*, labelled: bool = True) -> Graph:
    """Parallel edges of two relations, and a self-loop."""
    features, types = np.arange(10.0).reshape(5, 2), [1, 0, 0, 1, 1]
    labels: Any = {"edge_labels": [0, 1, 2, -1, 1], "edge_split": ["train", "val", "", "", "test"]} if labelled else {}
    columns: Any = {
        "weight": np.arange(1.0, 6.0),
        "edge_features": features,
        "edge_types": types,
        "edge_time": range(5),
    }
    return Graph.from_edges(SRC, DST, 3, **columns, **labels)


def test_a_graph_and_a_shard_have_all_columns_that_their_rules_name() -> None:
    assert list(graph().edge_columns) == list(RULES)
    assert list(uncut(graph()).edge_columns) == [name for name, rule in RULES.items() if rule.cut]
    for owner in (Graph, Shard):
        lacking = EdgeColumns().fields_of(owner)
        assert set(lacking.values()) == {None}
        assert {rule.field for rule in RULES.values() if not rule.in_csc and (rule.cut or owner is Graph)} == set(
            lacking
        )


def test_columns_survive_a_folder(tmp_path: Path) -> None:
    graph().save(tmp_path / "graph")
    for again in (Graph.load(tmp_path / "graph"), Graph.trusted(tmp_path / "graph")):
        for name, values in graph().edge_columns.items():
            np.testing.assert_array_equal(again.edge_columns[name], values)


def test_a_reverse_edge_has_the_values_of_its_edge() -> None:
    full_graph = graph().symmetrize()
    ends = np.repeat(np.arange(3), np.diff(full_graph.csc.indptr))
    pairs = {(int(s), int(d)): i for i, (s, d) in enumerate(zip(full_graph.csc.indices, ends, strict=True))}
    for values in full_graph.edge_columns.without("label", "split").values():
        np.testing.assert_array_equal(values[pairs[1, 2]], values[pairs[2, 1]])
    assert full_graph.edge_labels is not None
    assert full_graph.edge_split is not None
    assert full_graph.edge_labels[[pairs[2, 1], pairs[1, 2]]].tolist() == [2, -1], "a reverse edge has no label"
    assert full_graph.edge_split[[pairs[2, 1], pairs[1, 2]]].tolist() == [0, REVERSE]


@pytest.mark.parametrize("how", ["sum", "mean", "first"])
def test_duplicates_merge_by_the_rule_of_each_column(how: str) -> None:
    merged = without_duplicates(graph(labelled=False), how, JOIN).edge_columns
    assert len(merged["relation"]) == 5, "edges of other relations are no duplicates"
    alike = Graph.from_edges(SRC, DST, 3, weight=np.arange(1.0, 6.0), edge_features=np.arange(10.0).reshape(5, 2))
    columns = without_duplicates(alike, how, JOIN).edge_columns
    np.testing.assert_array_equal(columns["position"], [0, 4, 2, 3])
    np.testing.assert_allclose(columns["weight"][0], {"sum": 3, "mean": 1.5, "first": 1}[how])
    np.testing.assert_allclose(columns["features"][0], {"sum": [2, 4], "mean": [1, 2], "first": [0, 1]}[how])


@pytest.mark.parametrize("how", ["sum", "mean"])
def test_edges_with_labels_are_not_merged(how: str) -> None:
    with pytest.raises(UserError, match=f"duplicates={how} would merge edges whose labels differ: use keep"):
        without_duplicates(graph(), how, JOIN)
    alike = Graph.from_edges([0, 0], [1, 1], 2, edge_labels=[1, 0], edge_split=["train", "val"])
    assert without_duplicates(alike, "first", JOIN).edge_labels.tolist() == [1]  # type: ignore[union-attr]


def test_a_loop_has_weight_1_mean_features_no_relation_and_is_always_visible() -> None:
    values = {"weight": np.full(2, 0.5), "features": np.ones((2, 1)), "relation": np.zeros(2, np.int16)}
    columns = EdgeColumns({**values, "time": np.array([5, 6])})
    loops = AddedLoops.to(np.array([1]), np.array([1, 1]))
    columns_with_loops = columns.with_loops(loops.insert, np.array([[8.0]]))
    assert list(columns_with_loops) == ["weight", "features", "time"]
    assert columns_with_loops["time"].tolist() == [5, 6, -(2**63)]
    assert columns_with_loops["weight"].tolist() == [0.5, 0.5, 1.0]
    assert columns_with_loops["features"].ravel().tolist() == [1, 1, 8]


def test_parts_are_joined_and_positions_are_recorded() -> None:
    columns = graph().edge_columns
    parts = [columns.take(slice(0, 2)), columns.take(np.arange(2, 5))]
    for name, values in EdgeColumns.concat(parts).items():
        np.testing.assert_array_equal(values, columns[name])
    order = np.array([3, 1])
    np.testing.assert_array_equal(columns.select(order)["position"], columns["position"][order])
    np.testing.assert_array_equal(columns.without("position").select(order)["position"], order)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"weight": [1.0]}, r"^weight has shape \[1\]"),
        ({"edge_features": np.ones((4, 1))}, r"^edge_features has shape \[4, 1\]"),
        ({"edge_types": [0.5] * 5}, "^edge_types"),
        ({"edge_positions": [-1] * 5}, "^edge_positions"),
        ({"edge_labels": [0, 1]}, "^edges: labels has 2 entries, expected 5"),
        ({"edge_split": ["train", "dev", "", "", ""]}, r"^edges: split\[1\] = 'dev' is none of train, val, test, none"),
    ],
)
def test_wrong_values_are_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        EdgeColumns.read(values, 5)


def test_other_weights_keep_the_edges() -> None:
    csc = CSC.from_edges(SRC, DST, 3, np.arange(5.0))
    assert csc.weighted(csc.weight) is csc
    assert csc.weighted(None).weight is None
    with pytest.raises(UserError, match=r"^weight has shape \[3\]"):
        csc.weighted(np.ones(3))


def test_marks_of_edges_are_kept_beside_their_split() -> None:
    split = np.array([REVERSE, 1, CONTEXT, 3], np.int8)
    np.testing.assert_array_equal(read_edge_split(split, 4), split)
    with pytest.raises(UserError, match="split"):
        read_edge_split(np.array([-3, 1], np.int8), 2)
