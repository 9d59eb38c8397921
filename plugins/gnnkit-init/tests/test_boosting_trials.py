"""Gradient boosting is a trial like any other, and is written if it is the best."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from gnnkit_init import baselines, trials
from gnnkit_init.trials import COLUMNS, CONFIGURATIONS, LABELS, MEANS, NO_EDGES, Trial, Trials
from gnnkit_plan import init

from gnnkit.__main__ import main
from gnnkit.graph import Graph
from gnnkit.task.node_classification import NodeClassification
from tests.cases import few
from tests.graphs import random_graph


def scored(best: float, alone: float, columns: float, means: float, test: float | None = None) -> Trials:
    tried = (
        Trial({"model": "sage"}, best, 1.0, best, 1, 1.0),
        Trial({"model": "gcn"}, alone, 1.0, alone, 1, 1.0, baseline=NO_EDGES),
        Trial(
            {**CONFIGURATIONS["boosting"], "model.neighbours": False}, columns, 1.0, columns, 1, 1.0, baseline=COLUMNS
        ),
        Trial(CONFIGURATIONS["boosting"], means, 1.0, means if test is None else test, 1, 1.0, baseline=MEANS),
    )
    return Trials(NodeClassification(), "val_accuracy", tried, 4)


def test_the_best_by_validation_is_written_and_named_in_the_last_line() -> None:
    network = scored(0.9, 0.7, 0.6, 0.8)
    assert network.best is network.tried[0]
    assert network.lines()[-1] == (
        "the graph helps: val_accuracy 0.9 with edges, 0.7 without, "
        "0.8 by gradient boosting on columns and neighbours' means"
    )
    alone = scored(0.9, 0.7, 0.92, 0.9)
    assert alone.best is alone.tried[2]
    assert alone.best_network is alone.tried[0]
    assert alone.lines()[-1].startswith(
        "the graph does not help: val_accuracy 0.9 with edges, 0.92 without by gradient boosting, 0.9 by"
    )
    means = scored(0.8, 0.6, 0.7, 0.9)
    assert means.best is means.tried[3]
    assert means.lines()[-1].startswith("the graph helps, but gradient boosting more than a graph model:")
    assert scored(0.8, 0.6, 0.7, 0.9, test=0.1).best == replace(means.tried[3], test=0.1)  # the test decides nothing
    choices = init._replace_model([init.KeyChoice("model", "sage")], means.best.keys, means.why_best(means.best))
    assert [(choice.key, choice.value) for choice in choices] == [("model", "boosting")]
    assert choices[0].why == "best of 4 trials: val_accuracy 0.9, test_accuracy 0.9"


def agreeing() -> Graph:
    """Returns a graph whose edges join nodes of one class."""
    graph = random_graph()
    return replace(graph, csc=Graph.from_edges(np.arange(40), np.arange(40), 40).csc, edge_features=None, split=np.full(40, 1, np.int8))  # fmt: skip


def test_labels_are_read_where_edges_join_nodes_of_a_class() -> None:
    reads = [[reads for _, reads in trials._baselines(graph, "val_accuracy")] for graph in (agreeing(), random_graph())]
    assert reads == [[NO_EDGES, COLUMNS, MEANS, LABELS], [NO_EDGES, COLUMNS, MEANS]]


def test_the_loss_of_boosting_suits_the_figure() -> None:
    def losses(figure: str, task: str) -> list[str | None]:
        baselines = trials._baselines(agreeing(), figure, task)
        return [keys.get("task.loss", keys.get("task.class_weights")) for keys, _ in baselines]

    assert losses("val_accuracy", "node_classification") == [None] * 4
    assert losses("val_macro_f1", "node_classification") == [None, *["balanced"] * 3]
    assert losses("val_mae", "regression") == [None, "absolute", "absolute"]


def test_what_keeps_boosting_from_a_trial_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, first = agreeing(), trials.CONFIGURATIONS["alone"]
    monkeypatch.setattr(baselines, "is_installed", lambda: False)
    assert trials._baselines(graph, "val_accuracy") == [(first, NO_EDGES)]
    assert capsys.readouterr().out == f"{baselines.MISSING}\n"
    monkeypatch.setattr(baselines, "is_installed", lambda: True)
    assert [reads for _, reads in trials._baselines(graph, "val_accuracy")] == [NO_EDGES, COLUMNS, MEANS, LABELS]
    monkeypatch.setattr(baselines, "_MOST_CELLS", 10)
    assert trials._baselines(graph, "val_accuracy") == [(first, NO_EDGES)]
    assert "the table has too many cells" in capsys.readouterr().out


def test_an_epoch_of_a_wide_table_is_not_estimated_by_its_columns() -> None:
    seconds = [
        baselines.epoch_seconds(replace(random_graph(), features=np.zeros((40, width), np.float32)))
        for width in (40, 300, 3000)
    ]
    assert seconds[0] < seconds[1] == seconds[2]


def test_boosting_is_known_where_its_package_is_installed() -> None:
    assert baselines.is_installed()


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
@pytest.mark.long("trains the trials of job=init, and the best again")
@few("kind", [pytest.param("classes", marks=pytest.mark.exhaustive), "numbers"], default=[])
def test_a_table_on_which_boosting_is_best_gets_boosting_with_the_figures_of_its_trial(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn")
    rng, n = np.random.default_rng(0), 600
    rows = rng.uniform(0, 6, (n, 3)).astype(np.float32)
    steps = np.floor(rows[:, 0]).astype(np.int64) % 2
    labels = steps if kind == "classes" else 100.0 * steps
    split = (1 + np.arange(n) % 5 // 2).astype(np.int8)
    graph = Graph.from_edges(*rng.integers(0, n, (2, n)), n, features=rows, labels=labels, split=split)
    graph.save(tmp_path / "graph")
    configurations = ({"model": "sage", "model.hidden": 4}, {"model": "gcn", "model.hidden": 4})
    monkeypatch.setitem(trials.LISTS, "table", configurations)
    monkeypatch.setattr(trials, "MAX_EPOCHS", 10)
    monkeypatch.setitem(trials.CONFIGURATIONS, "boosting", {"model": "boosting", "model.trees": 50})
    quick = ["cache=false", "threads=1"]
    assert main(["job=init", "dataset=saved", f"dataset.root={tmp_path}/graph", f"output={tmp_path}/new", *quick]) == 0
    out = capsys.readouterr().out
    assert "model=boosting  # best of" in out
    rows_of_trials = list(csv.DictReader((tmp_path / "new/trials.csv").open()))
    figure = "val_accuracy" if kind == "classes" else "val_mae"
    sign = 1 if kind == "classes" else -1
    best = max(rows_of_trials, key=lambda row: sign * float(row[figure] or -sign * 1e9))
    assert best["model"] == "boosting"
    written = yaml.safe_load((tmp_path / "new/experiment/mine.yaml").read_text())
    assert {"override /model": "boosting"} in written["defaults"]
    run = [*quick, "comm=threads", "report=false", "logger=none", f"output={tmp_path}/run"]
    assert main(["--config-dir", f"{tmp_path}/new", "+experiment=mine", *run]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    for name in (figure, figure.replace("val", "test")):
        assert result[name] == pytest.approx(float(best[name]))
