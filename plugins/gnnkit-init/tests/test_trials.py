"""Trials run in order while the time allows it, and the best one counts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from gnnkit_init import baselines, trials
from gnnkit_init.trials import Trial, Trials
from gnnkit_plan import init

from gnnkit import config, plugins
from gnnkit.__main__ import main
from gnnkit.config.settings import Settings, settle
from gnnkit.graph import Graph
from gnnkit.launch.processes import RankError
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.regression import Regression
from tests.graphs import random_graph

PLANNED = tuple({"model": name} for name in ("gcn", "sage", "gat", "gin"))


def asked(*overrides: str) -> Settings:
    return settle(config.compose(["dataset=saved", "dataset.root=x", "strategy=auto", "job=init", *overrides]))


def compared(settings: Settings, graph: Graph, task: str) -> Trials:
    """Runs the trials as job=init does."""
    graph = init._with_split(settings, graph)
    known = {"task": task}
    return trials.compare(settings, graph, known, figure=init._figure(init._rows(graph, known), task))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Puts scores in the place of training. A trial takes 30 s of work."""

    def make(*scores: Any) -> list[Any]:
        seen: list[Any] = []
        left = iter(scores)

        def tried(
            settings: Settings, graph: Any, figure: str, fixed: Any, keys: Any, work: float, reads: str, earlier: Any
        ) -> Trial:
            score = next(left)
            if isinstance(score, BaseException):
                raise score
            assert fixed["trainer.monitor"] == figure
            seen.append((graph, dict(keys), work))
            remark = "" if score is not None else "refused: no"
            return Trial(keys, score, 1 - (score or 0), 0.5, 10, 1000.0, remark, reads, work=30.0)

        monkeypatch.setattr(trials, "_try", tried)
        monkeypatch.setattr(baselines, "is_installed", lambda: False)
        return seen

    return make


def run(*overrides: str, graph: Any = "graph", **options: Any) -> Trials:
    return trials.run(asked(*overrides), graph, {"task": "node_classification", "inputs": "degree"}, PLANNED, **options)


@pytest.mark.slow
def test_trials_end_where_the_next_one_would_not_fit(fake: Callable[..., list[Any]]) -> None:
    seen = fake(0.5, 0.7, 0.6, 0.9)
    found = run("init.minutes=1.2")  # 72 s
    assert [keys["model"] for _, keys, _ in seen] == ["gcn", "sage"]
    assert [work for *_, work in seen] == [24, 24]  # a third at most
    assert found.best is not None
    assert found.best.keys == {"model": "sage"}
    assert found.lines()[-1] == "2 of 4 trials: init.minutes=1.2 allows no more"


@pytest.mark.slow
def test_an_interrupt_keeps_the_best_until_then(fake: Callable[..., list[Any]]) -> None:
    fake(0.5, 0.7, KeyboardInterrupt())
    found = run("init.minutes=60")
    assert (len(found.tried), found.best and found.best.score) == (2, 0.7)
    assert "interrupted" in found.lines()[-1]


@pytest.mark.slow
def test_a_refused_trial_is_told_and_never_best(fake: Callable[..., list[Any]], tmp_path: Path) -> None:
    fake(None, 0.2, 0.1, None)
    found = run("init.minutes=60")
    assert found.best is not None
    assert found.best.keys == {"model": "sage"}
    (tmp_path / "trials.csv").write_bytes(found.table)
    rows = list(csv.DictReader((tmp_path / "trials.csv").open()))
    assert [row["val_accuracy"] for row in rows] == ["", "0.2", "0.1", ""]
    assert rows[0]["remark"] == "refused: no"


def test_a_trial_whose_process_dies_is_a_row_without_a_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: Any, **keys: Any) -> None:
        raise RankError("rank 0 was ended by SIGKILL")

    monkeypatch.setattr(trials, "run_in_child", killed)
    trial = trials._try(asked(), random_graph(), "val_accuracy", {}, {"model": "gcn"}, 3.0, "", ())
    assert (trial.score, trial.remark) == (None, "failed: rank 0 was ended by SIGKILL")


@pytest.mark.parametrize(
    ("scores", "graphs", "best"),
    [
        ((0.5, 0.4, 0.7, 0.6, 0.3, 0.8), ["both", "one", *["both"] * 3, "one"], {"dataset.symmetrize": False}),
        ((0.4, 0.5, 0.7, 0.6, 0.3, 0.8), ["both", "one", *["one"] * 3, "both"], {}),
        ((0.4, 0.5, 0.9, 0.6, 0.3, 0.8), ["both", "one", *["one"] * 3, "both"], {"dataset.symmetrize": False}),
    ],
)
def test_the_first_and_the_best_are_tried_with_and_without_added_reverse_edges(
    fake: Callable[..., list[Any]], scores: tuple[float, ...], graphs: list[str], best: dict[str, bool]
) -> None:
    seen = fake(*scores)
    found = run("init.minutes=60", graph="both", symmetric=True, other=lambda: "one")
    assert [graph for graph, *_ in seen] == graphs
    assert found.best is not None
    assert found.best.keys == {"model": "sage", **best}


def test_the_direction_of_the_first_is_kept_if_it_stays_the_best(fake: Callable[..., list[Any]]) -> None:
    fake(0.4, 0.9, 0.7, 0.6, 0.3)
    found = run("init.minutes=60", graph="both", symmetric=True, other=lambda: "one")
    assert found.best is not None
    assert found.best.keys == {"model": "gcn", "dataset.symmetrize": False}
    assert len(found.tried) == found.num_planned == 5


def test_equal_scores_are_judged_by_the_loss_and_errors_by_the_least() -> None:
    one, two = (Trial({"model": name}, 0.8, loss, None, 1, 1.0) for name, loss in (("gcn", 0.5), ("sage", 0.4)))
    best = Trials(NodeClassification(), "val_accuracy", (one, two), 2).best
    assert best is two
    worse = replace(two, score=0.9)
    assert Trials(NodeClassification(), "val_accuracy", (one, worse), 2).best is worse
    assert Trials(Regression(), "val_mae", (one, worse), 2).best is one


@pytest.mark.slow
@pytest.mark.parametrize(
    ("labels", "figure"),
    [(np.arange(40) % 2, "val_accuracy"), (np.arange(40) % 8 == 0, "val_macro_f1"),
     (np.arange(40) % 10 == 0, "val_accuracy"), (np.arange(40.0), "val_mae"),
     (np.eye(40, 3), "val_micro_f1")],
)  # fmt: skip
def test_uneven_classes_are_judged_by_the_mean_over_classes(
    labels: Any, figure: str, fake: Callable[..., list[Any]]
) -> None:
    fake(*[0.5] * 20)
    task = {"val_mae": "regression", "val_micro_f1": "multilabel"}.get(figure, "node_classification")
    labels = labels if task == "regression" else labels.astype(np.int64)
    graph = replace(random_graph(), labels=labels, split=np.full(40, 2, np.int8))
    found = compared(asked(), graph, task)
    assert (found.figure, found.held_back) == (figure, figure.replace("val", "test"))
    assert ("macro_f1 of each trial, as classes are uneven" in found.lines()[0]) == (figure == "val_macro_f1")


@pytest.mark.parametrize(
    ("share", "figure"),
    [(0.05, "val_average_precision"), (0.2, "val_roc_auc"), (0.4, None), (0.95, "val_average_precision")],
)
def test_two_uneven_classes_are_judged_by_their_ranking(share: float, figure: str | None) -> None:
    labels = (np.arange(400) % 100 < 100 * share).astype(np.int64)
    graph = replace(random_graph(400), labels=labels, split=1 + (np.arange(400) // 100 % 3).astype(np.int8))
    assert init._figure(graph, "node_classification") == figure
    assert init._figure(graph, "multilabel") is None
    assert init._figure(replace(graph, split=np.ones(400, np.int8)), "node_classification") is None


@pytest.mark.slow
def test_balanced_weights_are_tried_and_a_trial_cut_short_is_told(fake: Callable[..., list[Any]]) -> None:
    labels = (np.arange(400) % 100 < 5).astype(np.int64)
    graph = replace(random_graph(400), labels=labels, split=1 + (np.arange(400) // 100 % 3).astype(np.int8))
    seen = fake(*np.linspace(0.9, 0.1, 20))
    found = compared(asked(), graph, "node_classification")
    assert found.figure == "val_average_precision"
    assert [keys.get("task.class_weights") for _, keys, _ in seen[:4]] == [None, None, "balanced", None]
    best = replace(found.tried[0], remark="ended by init.minutes")
    assert "ended by init.minutes before its last epoch" in replace(found, tried=(best,)).why_best(best)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("alone", "line"),
    [
        (0.4, "the graph helps: val_accuracy 0.7 with edges, 0.4 without"),
        (0.695, "it is not clear whether the graph helps: val_accuracy 0.7 with edges, 0.695 without"),
        (0.95, "the graph does not help: val_accuracy 0.7 with edges, 0.95 without"),
        (None, ""),
    ],
)
def test_a_model_without_edges_is_tried_second_and_written_where_it_is_best(
    alone: float | None, line: str, fake: Callable[..., list[Any]]
) -> None:
    seen = fake(0.5, alone, 0.7, *[0.1] * 20)
    found = trials.compare(asked(), random_graph(), {"task": "node_classification"})
    assert [keys.get("model.aggregator") for _, keys, _ in seen[:3]] == [None, "none", None]
    assert seen[0][1] == {"model": "gcn"}  # what is trained without job=init
    assert found.best is not None
    assert found.best.score == max(0.7, alone or 0)
    assert found.verdict.startswith(line)
    assert (found.lines()[-1] == found.verdict) == bool(line)


def test_words_are_scaled_by_rows_and_tables_never() -> None:
    wide = replace(random_graph(), features=np.ones((40, 100), np.float32))
    narrow, signed = random_graph(), replace(wide, features=-np.ones((40, 100), np.float32))
    scaled = [
        any("features.scale" in each for each in trials.candidates(g, "features")) for g in (wide, narrow, signed)
    ]
    assert scaled == [True, False, False]
    few = replace(wide, features=np.eye(40, 100, dtype=np.float32))
    assert "features.scale" not in trials.candidates(wide, "features")[1]
    assert trials.candidates(few, "features")[1]["features.scale"] == "row"
    assert not any("features.scale" in each for each in trials.candidates(wide, "learned"))
    typed = replace(narrow, edge_types=np.arange(narrow.num_edges) % 2, edge_type_names=("a", "b"))
    planned = trials.candidates(typed, "features")
    assert planned[0]["model"] == "rgat"
    assert {each["types"] for each in planned if each["model"] in ("rgat", "rgcn", "hgt")} == {"read"}
    assert {each["types"] for each in planned if each["model"] not in ("rgat", "rgcn", "hgt")} == {"ignore"}


@pytest.mark.slow
def test_learned_rows_are_tried_beside_columns_and_leave_these_unread() -> None:
    planned = trials.candidates(random_graph(), "features")
    (learned,) = (each for each in planned if trials.learns(each))
    assert planned.index(learned) == 6
    assert not any(map(trials.learns, trials.candidates(random_graph(), "learned")))
    fixed = {"task": "node_classification", "features.scale": "standard"}
    kinds = [trials._settings(asked(), fixed, each, 1).features.scale for each in (planned[0], learned)]
    assert kinds == ["standard", "auto"]
    written = {
        each.key: each
        for each in init._replace_model(
            [init.KeyChoice("features.scale", "standard", "uneven")], learned, "best of 3 trials"
        )
    }
    assert "features.scale" not in written
    assert "New nodes have none, and start from zeros" in written["inputs"].why


def test_labels_and_edge_features_are_tried_where_a_model_can_read_them() -> None:
    plain = replace(random_graph(), edge_features=None, edge_feature_names=None)

    def tries(key: str, value: Any, graph: Graph, inputs: str = "features", task: str = "node_classification") -> bool:
        return any(each.get(key) == value for each in trials.candidates(graph, inputs, task))

    assert tries("label_inputs", 0.5, plain)
    assert not tries("label_inputs", 0.5, plain, "learned")
    assert not tries("label_inputs", 0.5, plain, task="regression")
    for width in (64, 100):
        assert tries("label_inputs", 0.5, replace(plain, features=np.ones((40, width), np.float32)))
    assert not tries("model", "gine", plain)
    valued = replace(plain, edge_features=np.ones((plain.num_edges, 2), np.float32))
    assert tries("model", "gine", valued)
    (choice,) = (
        each
        for each in init._replace_model([], {"model": "sage", "label_inputs": 0.5}, "best of 3 trials")
        if each.key == "label_inputs"
    )
    assert "predictions need the labels of training nodes" in choice.why


@pytest.mark.parametrize("inputs", ["features", "learned"])
@pytest.mark.parametrize("task", ["edge_classification", "edge_regression"])
def test_labelled_edges_are_tried_with_small_learned_rows_after_the_plain_default(task: str, inputs: str) -> None:
    graph = random_graph()
    graph = replace(graph, labels=np.full(graph.num_nodes, -1), split=np.zeros(graph.num_nodes, np.int8))
    plain, ends, *rest = trials.candidates(graph, inputs, task)
    assert (plain["model"], ends) == ("gcn", trials.CONFIGURATIONS["ends"])
    assert not any("model.skip" in keys for keys in rest)  # the nodes have no labels that neighbours could tell
    losses = [(keys.get("task.loss"), keys.get("task.scale")) for keys in (plain, ends, *rest)]
    numbers = [("absolute", None), (None, None), ("absolute", "log")]
    assert losses[:3] == (numbers if task == "edge_regression" else [(None, None)] * 3)
    assert set(losses[3:]) == {(None, None)}
    assert len({str(sorted(keys.items())) for keys in (plain, ends, *rest)}) == len(losses)
    alone, ends_alone = trials._baselines(graph, "val_mae", task)
    assert alone == (trials.CONFIGURATIONS["alone"], trials.NO_EDGES)
    assert ends_alone == ({**ends, "model.aggregator": "none"}, trials.NO_EDGES)


@pytest.mark.parametrize("task", ["edge_classification", "edge_regression"])
def test_degrees_that_the_user_chose_are_the_inputs_of_all_trials_of_edges(task: str) -> None:
    compared_to = trials._baselines(random_graph(), "val_mae", task, "degree")
    planned = [*trials.candidates(random_graph(), "degree", task), *(keys for keys, _ in compared_to)]
    assert not any({"inputs", "embedding"} & keys.keys() for keys in planned)


def test_the_model_without_edges_has_the_loss_of_the_model_with_edges(fake: Callable[..., list[Any]]) -> None:
    seen = fake(5.0, 6.0, 4.0, *[9.0] * 20)
    graph = Graph.from_edges(range(40), np.roll(range(40), 1), 40, edge_labels=np.arange(40.0))
    compared(asked("init.minutes=60"), graph, "edge_regression")
    assert {**trials.CONFIGURATIONS["alone"], "task.loss": "absolute"} in [keys for _, keys, _ in seen]
    assert [keys.get("task.loss") for _, keys, _ in seen] == ["absolute"] * len(seen)


@pytest.mark.slow
@pytest.mark.usefixtures("one_core")
@pytest.mark.exhaustive
def test_models_of_labelled_edges_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, 20, (2, 300))
    graph = Graph.from_edges(src, dst, 20, features=rng.normal(size=(20, 2)), edge_labels=(src < 5).astype(int))
    monkeypatch.setitem(trials.LISTS, "table", ({"model": "sage", "model.hidden": 8},))
    monkeypatch.setattr(trials, "MAX_EPOCHS", 5)
    choices, tested = init.by_evidence(asked("init.minutes=1"), graph)
    assert tested is not None
    assert {choice.key: choice.value for choice in choices}["task"] == "edge_classification"
    assert "with edges" in tested.summary[-1]
    assert tested.table.count(b"without edges") == 2


def test_what_is_not_tried_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    def why(graph: Graph, *overrides: str) -> str:
        _, found = init.by_evidence(asked(*overrides), graph)
        assert found is None
        return capsys.readouterr().out

    graph = random_graph()
    assert why(graph, "init.minutes=0") == "no trials: init.minutes=0\n"
    assert "nothing is held out" in why(replace(graph, split=np.where(graph.split == 2, 0, graph.split)))
    assert "only tasks with labels" in why(replace(graph, labels=np.full(40, -1), split=np.zeros(40, np.int8)))
    many = Graph.from_edges([0], [1], 200_001, features=np.zeros((200_001, 1), np.float32))
    assert "the graph is large" in why(many)


def test_uneven_classes_are_told_with_their_key() -> None:
    graph = random_graph()
    for labels, uneven in ((np.arange(40) % 2, False), (np.arange(40) % 8 == 0, True)):
        found = {each.key: each.why for each in init.choose(asked(), replace(graph, labels=labels.astype(int)))}
        assert ("12 % of nodes in the smallest: task.class_weights=balanced" in found["task"]) == uneven


def test_columns_with_empty_cells_are_filled_or_left_out() -> None:
    graph = random_graph()
    few, most = np.array([[0, 0], [3, 1]]), np.stack([np.arange(30), np.zeros(30, int)], 1)

    def chosen(missing: Any) -> Any:
        found = {each.key: each.value for each in init.choose(asked(), replace(graph, missing=missing))}
        return found.get("features.fill")

    assert [chosen(None), chosen(few), chosen(most)] == [None, "mean", "drop"]


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.usefixtures("one_core")
def test_what_the_best_trial_had_is_what_the_files_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(baselines, "is_installed", lambda: False)
    monkeypatch.setitem(
        trials.LISTS, "table", ({"model": "sage", "model.hidden": 8}, {"model": "gcn", "model.hidden": 7})
    )
    monkeypatch.setitem(trials.LISTS, "skips", ())
    monkeypatch.setattr(trials, "MAX_EPOCHS", 5)
    random_graph().save(tmp_path / "graph")
    command = ["job=init", "dataset=saved", f"dataset.root={tmp_path}/graph", f"output={tmp_path}/new"]
    assert main([*command, "cache=false"]) == 0
    told = capsys.readouterr().out
    assert "4 of 4 trials" in told
    rows = list(csv.DictReader((tmp_path / "new/trials.csv").open()))
    best = min(rows, key=lambda row: (-float(row["val_accuracy"]), float(row["val_loss"])))
    text = (tmp_path / "new/experiment/mine.yaml").read_text()
    written = yaml.safe_load(text)
    assert written["model"]["hidden"] == int(best["model.hidden"])
    assert f"/model: {best['model']}  # best of 4 trials: val_accuracy" in text
    assert f"[{best['model.hidden']}] * (self.num_layers - 1)" in (tmp_path / "new/train.py").read_text()
    quick = ["comm=threads", "cache=false", "report=false", "logger=none", f"output={tmp_path}/run"]
    assert main(["--config-dir", f"{tmp_path}/new", "+experiment=mine", *quick]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["val_accuracy"] == pytest.approx(float(best["val_accuracy"]))  # the trial again
    assert main(["strategy=vertex_centric", "init.minutes=1"]) == 2
    assert "init.minutes is read by job=init only: leave the key out" in capsys.readouterr().err


def test_what_neighbours_suggest_comes_after_the_plain_default() -> None:
    n, rng = 400, np.random.default_rng(0)
    labels = np.repeat(np.arange(4), n // 4)
    graph = replace(random_graph(n), labels=labels, split=np.full(n, 1, np.int8))
    within = Graph.from_edges(rng.permuted(np.arange(n).reshape(4, -1), axis=1).ravel(), np.arange(n), n).csc
    agrees = replace(graph, csc=within, edge_features=None, edge_feature_names=None)
    first = [trials.candidates(one, "features")[:3] for one in (agrees, graph)]
    assert [[("label_inputs" in each, trials.learns(each)) for each in planned[1:]] for planned in first] == [
        [(True, False), (False, True)],
        [(False, False), (False, False)],
    ]
    assert [[keys.get("model.skip", False) for keys in planned[1:]] for planned in first] == [[False] * 2, [True] * 2]
    numbers = replace(graph, labels=labels * 1.5)
    for other, inputs, task in ((agrees, "features", ""), (graph, "learned", ""), (numbers, "features", "regression")):
        assert not any("model.skip" in keys for keys in trials.candidates(other, inputs, task or "node_classification"))
    assert first[0][0] == first[1][0] == {"model": "gcn"}


def test_the_degree_is_a_column_of_a_trial_where_labels_depend_on_it() -> None:
    graph, n = random_graph(400), 400
    degrees = np.diff(graph.csc.indptr)
    graph = replace(graph, split=np.full(n, 1, np.int8))
    classes, numbers = (degrees > np.median(degrees)).astype(np.int64), np.exp(degrees.astype(np.float64))
    for labels, task in ((classes, "node_classification"), (numbers, "regression")):
        tells = replace(graph, labels=labels)
        planned = trials.candidates(tells, "features", task)
        assert any(keys.get("features.degree") for keys in planned[:5])
        assert not any("features.degree" in keys for keys in trials.candidates(tells, "learned", task))
        boosted = {reads: keys.get("features.degree") for keys, reads in trials._baselines(tells, "val_loss", task)}
        assert boosted == {**dict.fromkeys(boosted), trials.MEANS: True}  # the others read no edges
    for labels in (np.zeros(n, np.int64), np.arange(n) % 3, np.full(n, 1.5)):
        unlike = replace(graph, labels=labels)
        tried = [*trials.candidates(unlike, "features"), *(keys for keys, _ in trials._baselines(unlike, "val_loss"))]
        assert not any("features.degree" in keys for keys in tried)


def test_no_setting_is_tried_under_a_loss_that_has_lost(fake: Callable[..., list[Any]]) -> None:
    seen = fake(5.0, 6.0, 4.0, 3.0, *[9.0] * 20)
    graph = replace(random_graph(), labels=np.arange(40.0))
    found = compared(asked("init.minutes=60"), graph, "regression")
    assert found.figure == "val_mae"
    losses = [(keys.get("task.loss"), keys.get("task.scale")) for _, keys, _ in seen]
    assert losses[:4] == [(None, None), (None, None), ("absolute", None), ("absolute", "log")]
    assert set(losses[4:]) == {("absolute", "log")}


def test_what_a_trial_costs_does_not_depend_on_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def epochs(seconds: float) -> tuple[int, float, str]:
        clock = iter(np.arange(0, 1e6, seconds))
        monkeypatch.setattr(trials.time, "monotonic", lambda: float(next(clock)))
        figures = {"val_accuracy": 0.5, "test_accuracy": 0.5, "epochs": 40, "stopped": None}
        monkeypatch.setattr(trials, "run_in_child", lambda *_, **__: figures)
        fixed = {"task": "node_classification", "trainer.monitor": "val_accuracy"}
        trial = trials._try(asked(), random_graph(), "val_accuracy", fixed, {"model": "gcn"}, 3.0, "", ())
        return trial.epochs, trial.work, trial.remark

    assert epochs(0.1) == epochs(100.0)
    assert epochs(0.1)[2] == "ended by init.minutes"


def test_without_the_package_the_default_keys_are_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert plugins.load(plugins.SEARCH, "trials") is trials.search
    installed = plugins.names
    monkeypatch.setattr(plugins, "names", lambda kind: [] if kind == plugins.SEARCH else installed(kind))
    choices, tested = init.by_evidence(asked(), random_graph())
    assert tested is None
    assert {choice.key for choice in choices} >= {"task", "model", "strategy"}
    assert "no trials: they need the package gnnkit-init: pip install gnnkit-init" in capsys.readouterr().out
