"""Columns that distinguish no nodes, or alone determine the label, are found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from gnnkit_init import baselines, trials
from gnnkit_init.trials import NO_EDGES, Trial, Trials
from gnnkit_plan.feature_checks import describe_leaks, has_few_rows
from gnnkit_plan.init import _fill

from gnnkit.graph import Graph, SparseFeatures, Split
from gnnkit.task import NodeTask
from gnnkit.task.multilabel import Multilabel
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression
from tests.graphs import random_graph


def plain(features: Any, labels: Any, **fields: Any) -> Graph:
    nodes = np.arange(len(features))
    split = np.ones(len(features), np.int8)
    return Graph.from_edges(
        nodes, np.roll(nodes, 1), features=features.astype(np.float32), labels=labels, split=split, **fields
    )


@pytest.mark.parametrize("sparse", [False, True])
def test_columns_that_alone_determine_the_label_are_named(sparse: bool) -> None:
    labels = np.arange(300) % 3
    rng = np.random.default_rng(0)
    table = np.column_stack([rng.random(300) < 0.5, 5 - labels, np.where(labels == 1, 2, 0), rng.normal(size=300)])
    graph = plain(table, labels, feature_names=("a", "game", "b", "c"))
    if sparse:
        graph = replace(graph, features=SparseFeatures.of(graph.features))
    line = "column game alone determines the label: unless it is known when you predict, use dataset.ignore=[game]"
    assert describe_leaks(graph) == line
    assert describe_leaks(graph, ["old"]).endswith("use dataset.ignore=[old,game]")
    assert describe_leaks(replace(graph, feature_names=None)).startswith("column 1 alone determines the label")
    two = replace(graph, labels=(labels == 1).astype(np.int64))
    assert describe_leaks(two) == (
        "each of the columns game, b alone determines the label: unless they are known when you predict, "
        "use dataset.ignore=[game,b]"
    )
    assert not describe_leaks(replace(graph, labels=np.where(np.arange(300) == 7, 0, labels)))
    assert not describe_leaks(replace(graph, split=np.where(np.arange(300) < 20, 1, 3).astype(np.int8)))
    assert not describe_leaks(replace(graph, labels=labels.astype(np.float64)))


def test_a_text_column_that_determines_the_label_is_named_once() -> None:
    labels = np.arange(300) % 3
    names, texts = ("x", "team=a", "team=b", "team=c"), ("", "team", "team", "team")
    graph = plain(np.column_stack([np.arange(300), np.eye(3)[labels]]), labels, feature_names=names, category_of=texts)
    assert describe_leaks(graph).startswith("column team alone determines the label")


@pytest.mark.parametrize("end", ["source", "destination"])
@pytest.mark.parametrize("text", [False, True])
def test_a_column_of_edges_that_determines_an_ends_label_is_named(end: str, text: bool) -> None:
    rng = np.random.default_rng(0)
    labels, ends = np.arange(300) % 3, rng.integers(0, 300, (2, 4000))
    hand = labels[ends[int(end == "destination")]]
    hand[7] = 0  # 99.9 % are enough
    others = [rng.integers(0, 3, 4000), rng.random(4000)]
    columns, names, texts = np.column_stack([*others, hand]), ["a", "b", "hand"], None
    if text:
        columns, names = np.column_stack([*others, np.eye(3)[hand]]), ["a", "b", "hand=l", "hand=r", "hand=u"]
        texts = ["", "", "hand", "hand", "hand"]
    graph = Graph.from_edges(
        *ends,
        300,
        features=rng.random((300, 2)),
        labels=labels,
        split=np.ones(300, np.int8),
        edge_features=columns.astype(np.float32),
        edge_feature_names=names,
        edge_category_of=texts,
    )
    assert describe_leaks(graph, ["old"]) == (
        f"column hand alone determines the label of an edge's {end}: unless it is known when you predict, use "
        "dataset.ignore=[old,hand]"
    )
    assert not describe_leaks(replace(graph, edge_features=columns[:, ::-1][:, : len(names)] * 0))


def test_learned_rows_come_first_where_few_feature_rows_are_distinct() -> None:
    kinds, labels = np.eye(4)[np.arange(500) % 4], np.arange(500) % 3
    graph = plain(kinds, labels)
    assert has_few_rows(graph.features)
    assert not has_few_rows(np.random.default_rng(0).normal(size=(500, 4)))
    plain_default, first = trials.candidates(graph, "features")[:2]
    assert (plain_default, first["inputs"]) == ({"model": "gcn"}, "learned")
    typed = replace(graph, edge_types=np.arange(500) % 2, edge_type_names=("a", "b"))
    planned = trials.candidates(typed, "features")
    assert [(each["model"], each["inputs"], each["types"]) for each in planned[:2]] == [
        ("rgcn", "learned", "read"), ("sage", "learned", "ignore")]  # fmt: skip
    proper = trials.candidates(replace(typed, features=np.arange(2000, dtype=np.float32).reshape(500, 4)), "features")
    learned = [each["model"] for each in proper if trials.learns(each)]
    assert (learned, proper[0]["model"]) == (["rgcn", "sage"], "rgat")
    assert next(keys["model.aggregator"] for keys, _ in trials._baselines(typed, "val_accuracy")) == "none"


def test_regression_is_tried_first_without_dropout_and_with_the_loss_that_selects() -> None:
    planned = trials.candidates(random_graph(), "features", "regression")
    assert planned[0] == {"model": "gcn"}, "the plain default"
    names = ("model", "model.dropout", "task.loss", "task.scale")
    assert [tuple(keys.get(name) for name in names) for keys in planned[1:5]] == [
        ("gcn", 0, "absolute", None), ("gcn", 0, "absolute", "log"), ("sage", 0, None, None), ("gcn", 0.5, None, None),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("task", "labels", "figure", "constant"),
    [(NodeClassification(), np.arange(40) % 4 // 3, "train_accuracy", 0.75),
     (NodeClassification(), np.arange(40) % 4 // 3, "train_roc_auc", 0.5),
     (Regression(), np.arange(40.0), "train_mae", 10),
     (Multilabel(), np.tile([True, False], (40, 1)), "train_micro_f1", 1)],
)  # fmt: skip
def test_a_constant_prediction_is_measured(task: NodeTask, labels: Any, figure: str, constant: float) -> None:
    assert baselines.measure_constant(plain(np.eye(40), labels), task, figure) == pytest.approx(constant)


def verdict(best: float, alone: float, **options: Any) -> str:
    tried = (
        Trial({"model": "sage"}, best, 1.0, None, 1, 1.0),
        Trial({"model": "sage"}, alone, 1.0, None, 1, 1.0, baseline=NO_EDGES),
    )
    return Trials(NodeClassification(), "val_accuracy", tried, 2, **options).lines()[-1]


def test_the_verdict_needs_a_gain_above_the_noise() -> None:
    assert verdict(0.9444, 0.9167, num_validated=36) == (
        "it is not clear whether the graph helps: val_accuracy 0.9444 with edges, 0.9167 without: "
        "the difference is within the noise of 36 validation rows, or the test disagrees"
    )
    assert verdict(0.9444, 0.9167, num_validated=3600).startswith("the graph helps")
    assert verdict(0.7, 0.9, num_validated=36).startswith("the graph does not help")


@pytest.mark.parametrize(("figure", "count"), [("val_accuracy", 39), ("val_average_precision", 4)])
def test_the_noise_of_a_ranking_is_that_of_the_rarest_class(figure: str, count: int) -> None:
    rows = plain(np.eye(40), (np.arange(40) < 4).astype(np.int64)).evolve(
        split=np.where(np.arange(40) < 39, Split.VAL, Split.TRAIN)
    )
    assert trials._num_validated(rows, figure) == count


def test_models_no_better_than_a_constant_prediction_are_told() -> None:
    line = "no model is clearly better than a constant prediction: val_accuracy 0.3473, and 0.2956 with"
    assert verdict(0.3473, 0.2, constant=0.2956).startswith(line)
    assert verdict(0.9, 0.2, constant=0.2956).startswith("the graph helps")


def test_an_empty_text_cell_counts_once() -> None:
    names, texts = ("x", "team=a", "team=b"), ("", "team", "team")
    graph = plain(np.ones((40, 3)), np.arange(40) % 2, feature_names=names, category_of=texts)
    missing = np.array([[0, 0], [1, 1], [1, 2], [2, 1], [2, 2]])
    assert _fill(graph, missing)[1].startswith("3 cells of 2 columns are empty")
