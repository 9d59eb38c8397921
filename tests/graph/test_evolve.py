"""`Graph.evolve` gives the graph or the error of the constructor, which checks all."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, SparseFeatures
from gnnkit.graph.schema import FeatureTable, Relation

N, M = 6, 10
NAN = float("nan")


def full_graph() -> Graph:
    """Returns a graph in which every field has a value."""
    rng = np.random.default_rng(0)
    return Graph.from_edges(
        rng.integers(0, N, M),
        rng.integers(0, N, M),
        N,
        features=rng.normal(size=(N, 2)),
        labels=np.arange(N) % 2,
        split=["train", "val", "test"] * 2,
        weight=rng.random(M),
        edge_features=rng.normal(size=(M, 2)),
        coordinates=rng.normal(size=(N, 2)),
        class_names=["cat", "dog"],
        node_ids=np.arange(N) + 7,
        feature_names=["a", "b"],
        category_of=["", "b"],
        edge_feature_names=["u", "v"],
        edge_category_of=["u", ""],
        edge_types=np.arange(M) % 2,
        edge_type_names=["user-likes-item", "item-knows-user"],
        node_types=(("user", 4), ("item", 2)),
        feature_tables=(FeatureTable("dense", 2), FeatureTable("dense", 2)),
        relations=(Relation("user", "likes", "item"), Relation("item", "knows", "user")),
        missing=[[0, 1]],
        edge_labels=np.arange(M) % 3,
        edge_split=["train"] * M,
        edge_class_names=["x", "y", "z"],
        edge_time=np.arange(M),
        node_time=np.arange(N),
        time_unit="s",
        column_forms=["dates: a"],
        val_negatives=[[1, 2]],
        test_negatives=[[1, 2]],
    ).evolve(val_edges=[[0, 1]], test_edges=[[1, 2]], time_borders=(3, 5))


def loops(count: int) -> CSC:
    return CSC.from_edges(np.arange(count) % N, np.arange(count) % N, N)


CHANGES: dict[str, list[Any]] = {
    "csc": [loops(M), loops(N), CSC.from_edges([0], [1], 2), CSC.from_edges([0], [1], N, num_sources=9)],
    "features": [np.ones((N, 2)), np.ones((N, 3)), np.ones((4, 2)), np.full((N, 2), NAN), SparseFeatures.of(np.eye(N))],
    "labels": [np.zeros(N, int), np.full(N, 5), np.ones(N), np.full(N, -1), np.ones((N, 2), bool), "no"],
    "split": [np.zeros(N, int), ["train"] * N, ["dev"] * N, [1, 2]],
    "edge_features": [None, np.ones((M, 2)), np.full((M, 2), np.inf), np.ones((M, 5)), np.ones((3, 2))],
    "coordinates": [None, np.ones((N, 3)), np.ones((N, 4)), np.full((N, 2), NAN)],
    "class_names": [None, ("a", "b"), ("a",), ("a", "a"), (1, 2)],
    "edge_positions": [None, np.arange(M)[::-1], np.arange(3), np.full(M, -1), np.ones(M)],
    "val_edges": [None, [[0, 5]], [[0, 6]], [[0, 1, 2]]],
    "test_edges": [None, [[0, 5]], [[0, 6]], [[0, 1, 2]]],
    "val_negatives": [None, [[0, 5, 3]], [[-1]], [1, 2]],
    "test_negatives": [None, [[0, 5, 3]], [[-1]], [1, 2]],
    "node_ids": [None, np.array(list("abcdef")), np.arange(3), np.ones(N)],
    "feature_names": [None, ("x", "y"), ("x",), ("x", "x")],
    "category_of": [None, ("", ""), ("",)],
    "edge_feature_names": [None, ("x", "y"), ("x",), ("x", "x")],
    "edge_category_of": [None, ("", ""), ("",)],
    "edge_types": [None, np.zeros(M, int), np.full(M, 2), np.zeros(3, int)],
    "edge_type_names": [None, ("a", "b"), ("a",), ("a", "a")],
    "node_types": [None, (("user", 6),), (("item", 2), ("user", 4)), (("user", 3), ("item", 2))],
    "feature_tables": [None, (FeatureTable("dense", 1), FeatureTable("dense", 1)), (FeatureTable("dense", 2),)],
    "relations": [None, (Relation("user", "likes", "item"),)],
    "missing": [None, [[5, 0]], [[5, 2]], [[6, 0]], [1]],
    "edge_labels": [None, np.zeros(M, int), np.full(M, 3), np.full(M, -1), np.ones(M), np.zeros(2, int)],
    "edge_split": [None, ["none"] * M, ["dev"] * M, [1]],
    "edge_class_names": [None, ("a", "b", "c"), ("a",), ("a", "a", "b")],
    "edge_time": [None, np.zeros(M, int), np.ones(M), np.zeros(3, int)],
    "node_time": [None, np.zeros(N, int), np.ones(N), np.zeros(3, int)],
    "time_unit": [None, "ns", "h"],
    "time_borders": [None, (1, 2), (5, 3), ("a", "b")],
    "column_forms": [None, ("dates: b",)],
}


def outcome(change: Any, name: str, value: Any) -> Any:
    """Returns the fields of the changed graph, or the error."""
    try:
        graph: Graph = change(**{name: value})
    except (UserError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return {item.name: getattr(graph, item.name) for item in fields(Graph)}


def check_equal(first: Any, second: Any) -> None:
    if isinstance(first, str) or isinstance(second, str):
        assert first == second
        return
    for name, value in first.items():
        second_value = second[name]
        if isinstance(value, CSC):
            parts = [
                (value.indptr, second_value.indptr),
                (value.indices, second_value.indices),
                (value.weight, second_value.weight),
            ]
        elif isinstance(value, SparseFeatures):
            parts = [(np.asarray(value), np.asarray(second_value))]
        else:
            parts = [(value, second_value)]
        for one, two in parts:
            assert type(one) is type(two), name
            assert getattr(one, "dtype", None) == getattr(two, "dtype", None), name
            np.testing.assert_array_equal(one, two, name)


def test_every_field_is_changed_in_this_test() -> None:
    assert CHANGES.keys() == {one.name for one in fields(Graph)}
    graph = full_graph()
    assert not [name for name in CHANGES if getattr(graph, name) is None]


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_field_is_checked_as_by_the_constructor(name: str) -> None:
    graph = full_graph()
    for value in CHANGES[name]:
        check_equal(
            outcome(lambda **new: replace(graph, **new), name, value),
            outcome(graph.evolve, name, value),
        )


def test_a_graph_stays_as_it_is_when_another_is_derived_from_it() -> None:
    graph = full_graph()
    before = pickle.dumps(graph.labels)
    assert graph.evolve(labels=np.zeros(N, int)).edge_time is graph.edge_time
    assert pickle.dumps(graph.labels) == before
    with pytest.raises(AttributeError, match="label"):
        graph.evolve(label=1)
    check_equal(outcome(graph.evolve, "missing", None), outcome(copy.copy(graph).evolve, "missing", None))


def test_rows_taken_from_a_graph_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = full_graph()
    monkeypatch.setattr("gnnkit.utils.checks.check_finite", lambda name, *rest, **keys: names.append(name))
    names: list[str] = []
    order = np.arange(N)[::-1]
    changed = [graph.renumber(order), graph.symmetrize(), graph.row_normalize(), graph.evolve(node_ids=None)]
    assert not {"features", "edge_features"}.intersection(names)
    assert [one.features.dtype for one in changed] == [graph.features.dtype] * 4
    graph.evolve(features=np.ones((N, 2)), edge_features=None, edge_feature_names=None, edge_category_of=None)
    assert names.count("features") == 1


def test_other_columns_of_a_graph_are_matched_with_its_types() -> None:
    graph = full_graph()
    tables = tuple(FeatureTable("dense", width=2, first=0) for _ in graph.node_types or ())
    graph = graph.evolve(feature_tables=tables)
    keys: dict[str, Any] = {"feature_names": None, "category_of": None}
    assert graph.feature_tables == tables
    rows = np.ones((N, 3), np.float32)
    wide = graph.derive(features=rows, **keys)
    check_equal({"t": wide.feature_tables}, {"t": replace(graph, features=rows, **keys).feature_tables})
    with pytest.raises(UserError, match="category_of has 2 names, expected 3"):
        graph.derive(features=rows)
