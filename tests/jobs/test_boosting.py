"""Gradient boosting reads neighbours' means, and labels of training neighbours only."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.graph import Graph, Split
from gnnkit.jobs import boosting, trials
from gnnkit.jobs.trials import BOOSTING, COLUMNS, MEANS, NO_EDGES, Trial, Trials
from gnnkit.launch.group import RankError
from gnnkit.task import NodeTask
from gnnkit.task.multilabel import Multilabel
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression
from tests.graphs import random_graph


@pytest.mark.parametrize("kind", ["classes", "numbers", "sets"])
def test_means_are_those_of_other_nodes_and_of_training_labels(kind: str) -> None:
    """Self-loops, held-out labels and empty cells do not count."""
    graph = random_graph()
    labels: dict[str, Any] = {
        "classes": graph.labels,
        "numbers": np.linspace(0, 1, 40),
        "sets": np.eye(40, 3, dtype=bool),
    }
    loops = Graph.from_edges([*range(5), 0, 1, 1], [*range(5), 1, 2, 2], 40).csc
    graph = replace(graph, labels=labels[kind], csc=loops, edge_features=None, missing=np.array([[1, 0]]))
    table, rows = boosting.columns_and_means(graph), boosting.columns(graph)
    width = rows.shape[1]
    assert np.isnan(rows[1, 0])
    np.testing.assert_array_equal(table[:, :width], rows)
    encoded = (
        np.array(graph.labels, float).reshape(40, -1) if kind != "classes" else np.eye(graph.num_classes)[labels[kind]]
    )
    for target, sources in {0: [], 1: [0], 2: [1, 1], 3: []}.items():
        values = np.concatenate([rows, np.where((graph.split == Split.TRAIN)[:, None], encoded, np.nan)], 1)[sources]
        for column, cells in enumerate(values.T):
            known = cells[~np.isnan(cells)]
            expected = known.mean() if len(known) else np.nan
            np.testing.assert_allclose(table[target, width + column], expected, rtol=1e-6)


def test_no_held_out_label_and_no_own_label_changes_the_table() -> None:
    graph = random_graph()
    table = boosting.columns_and_means(graph)
    held_out = np.where(graph.split == Split.TRAIN, graph.labels, (graph.labels + 1) % graph.num_classes)
    np.testing.assert_array_equal(boosting.columns_and_means(replace(graph, labels=held_out)), table)
    node = int(np.flatnonzero(graph.split == Split.TRAIN)[0])
    changed = graph.labels.copy()
    changed[node] = (changed[node] + 1) % graph.num_classes
    np.testing.assert_array_equal(boosting.columns_and_means(replace(graph, labels=changed))[node], table[node])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("task", "figure", "least"),
    [(NodeClassification(), "val_accuracy", 0.9), (NodeClassification(), "val_average_precision", 0.9),
     (Multilabel(), "val_micro_f1", 0.9), (Multilabel(), "val_roc_auc", 0.9), (Regression(), "val_mae", 0.3)],
    ids=["accuracy", "precision", "sets", "areas", "numbers"],
)  # fmt: skip
def test_trees_learn_what_the_columns_determine(task: NodeTask, figure: str, least: float) -> None:
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(300, 2)).astype(np.float32)
    classes = (rows[:, 0] > (1.0 if "precision" in figure else 0)).astype(np.int64)
    labels: Any = {"val_mae": rows[:, 0].astype(float)}.get(figure, classes)
    labels = np.stack([classes, 1 - classes, np.ones(300)], 1).astype(bool) if isinstance(task, Multilabel) else labels
    split = 1 + (np.arange(300) % 3).astype(np.int8)
    graph = Graph.from_edges([0], [1], 300, features=rows, labels=labels, split=split)
    rows = np.column_stack([rows, np.where(split == Split.TRAIN, np.nan, 0)])  # empty in training
    best, work = boosting.boost(graph, task, figure, rows, 60.0, 0)
    assert (best.score < least) if figure == "val_mae" else (best.score > least)
    assert best.test is not None
    assert boosting.boost(graph, task, figure, rows, work, 0) == (best, work)
    fewest, _ = boosting.boost(graph, task, figure, rows, 0.0, 0)
    assert fewest.trees == 10  # work, not time, limits the trees


def test_the_last_line_names_the_winner() -> None:
    def verdict(best: float, alone: float, columns: float, means: float) -> str:
        graph_model, first = {"model": "sage"}, {"model": "gcn"}
        tried = (
            Trial(graph_model, best, 1.0, best, 1, 1.0),
            Trial(first, alone, 1.0, alone, 1, 1.0, baseline=NO_EDGES),
            Trial(BOOSTING, columns, None, columns, 1, 1.0, baseline=COLUMNS),
            Trial(BOOSTING, means, None, means, 1, 1.0, baseline=MEANS),
        )
        found = Trials(NodeClassification(), "val_accuracy", tried, 4)
        assert found.best is tried[0]
        return found.lines()[-1]

    assert verdict(0.9, 0.7, 0.6, 0.8) == (
        "the graph helps: val_accuracy 0.9 with edges, 0.7 without, "
        "0.8 by gradient boosting on columns and neighbours' means"
    )
    assert verdict(0.9, 0.7, 0.92, 0.9).startswith(
        "the graph does not help: val_accuracy 0.9 with edges, 0.92 without by gradient boosting, 0.9 by"
    )
    assert verdict(0.8, 0.6, 0.7, 0.9).startswith("the graph helps, but gradient boosting more than a graph model:")


def test_what_keeps_boosting_from_a_trial_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, first = random_graph(), trials._ALONE
    monkeypatch.setattr(boosting, "is_installed", lambda: False)
    assert trials._baselines(graph) == [(first, NO_EDGES)]
    assert capsys.readouterr().out == f"{boosting.MISSING}\n"
    monkeypatch.setattr(boosting, "is_installed", lambda: True)
    assert [reads for _, reads in trials._baselines(graph)] == [NO_EDGES, COLUMNS, MEANS]
    monkeypatch.setattr(boosting, "_MOST_CELLS", 10)
    assert trials._baselines(graph) == [(first, NO_EDGES)]
    assert "the table has too many cells" in capsys.readouterr().out


def test_labels_that_no_training_node_has_are_left_out() -> None:
    pytest.importorskip("sklearn")
    graph = random_graph()
    labels = np.random.default_rng(0).random((40, 2))
    labels[graph.split == Split.TRAIN, 1] = np.nan
    graph = replace(graph, labels=labels)
    best, _ = boosting.boost(graph, Regression(), "val_rmse", boosting.columns(graph), 10.0, 0)
    assert np.isfinite(best.score)


def test_a_baseline_that_fails_is_a_row_without_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RankError("boosting was ended by SIGKILL")

    monkeypatch.setattr(trials, "run_in_child", fail)
    settings = settle(compose(["job=init", "strategy=vertex_centric"]))
    trial = trials._try_boosting(settings, random_graph(), "val_accuracy", {}, 1.0, COLUMNS)
    assert (trial.score, trial.remark) == (None, "failed: boosting was ended by SIGKILL")
