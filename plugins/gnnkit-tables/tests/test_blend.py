"""The mean of a model of the graph and gradient boosting."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from gnnkit_tables import Tables
from gnnkit_tables.model import Blend
from gnnkit_tables.scores import MARK
from gnnkit_tables.select import ADVICE, list_candidates, select_keys

import gnnkit
from gnnkit.__main__ import main
from gnnkit.config.keys import plain
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.model.rgcn import RGCN
from tests.shops import days, task, write

COUNT = 240
LAST = "; the last epoch was the best, so trainer.max_epochs above 8 may be better"


def folder_of(path: Path, label: Any) -> Path:
    users = pa.table({"id": np.arange(COUNT), "age": np.arange(COUNT) % 10.0})
    split = np.array(["train", "val", "test"])[np.digitize(np.arange(COUNT), [160, 200])]
    rows = {"user_id": np.arange(COUNT), "time": days(*[4] * COUNT), "split": split}
    return write(path, users=users, returns=task(**rows, label=label))


def targets_of(graph: Graph) -> Any:
    return np.asarray(graph.features)[graph.schema.nodes("returns")], graph.split[graph.schema.nodes("returns")]


@pytest.mark.parametrize("kind", ["two classes", "three classes", "numbers"])
def test_held_out_targets_have_scores_and_training_targets_have_zeros(tmp_path: Path, kind: str) -> None:
    age = np.arange(COUNT) % 10
    label = (
        age + np.arange(COUNT) // 3 % 2 / 5
        if kind == "numbers"
        else np.minimum(age // 3, 1 if kind == "two classes" else 2)
    )
    rows, split = targets_of(Tables(str(folder_of(tmp_path / "data", label)), boosting=True).load())
    scores = rows[:, -(1 if kind == "numbers" else label.max() + 1) - len(MARK) :]
    train = split == Split.TRAIN
    assert not scores[train].any()
    assert (scores[~train, -2:] == MARK).all()
    if kind == "numbers":
        standard = (label - label[train].mean()) / label[train].std()
        np.testing.assert_allclose(scores[~train, 0], standard[~train], atol=0.5)
    else:
        np.testing.assert_allclose(np.exp(scores[~train, :-2]).sum(1), 1, atol=1e-4)
        assert (scores[~train, :-2].argmax(1) == label[~train]).all()


def test_labels_of_test_rows_change_no_score(tmp_path: Path) -> None:
    label, rows = np.arange(COUNT) % 10 // 5, []
    for number in range(2):
        label = np.where(np.arange(COUNT) < 200, label, 1 - label)
        graph = Tables(str(folder_of(tmp_path / str(number), label)), boosting=True).load()
        rows.append(targets_of(graph)[0])
    np.testing.assert_array_equal(*rows)


def test_a_blend_averages_marked_rows_only(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs = torch.full((4, 2), 3.0)
    monkeypatch.setattr(RGCN, "layer", lambda self, index, x, adjacency: outputs)
    model, rows = Blend(7, 2, num_layers=2), torch.zeros(4, 7)
    rows[0, 3:] = torch.tensor([1.0, 5.0, *MARK])
    rows[1, 3:] = torch.tensor([1.0, 5.0, 4096.0, 4096.0])
    rows[2] = rows[0] / 2  # as on the path of job=explain
    block: Any = SimpleNamespace(num_dst=4)
    x = model.layer(0, rows, block)
    assert model.layer(1, x, block).tolist() == [[2, 4], [3, 3], [3 - 2.5 / 4, 3 - 0.5 / 4], [3, 3]]


def test_a_blend_has_no_weights_of_the_scores() -> None:
    model = Blend(7, 2)
    assert model.project is not None
    assert not model.project[3:].any()
    assert model.project[:3].all()
    assert not model.skip[0].weight[:, 3:].any()


def test_boosting_without_links_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"remove dataset\.links=false"):
        Tables(str(tmp_path), links=False, boosting=True)


@pytest.mark.parametrize("place", ["configuration", "Python", "store", "inputs"])
def test_a_blend_without_boosting_is_refused(tmp_path: Path, place: str) -> None:
    folder = folder_of(tmp_path / "data", np.arange(COUNT) % 10 // 5)
    keys = {"workers": 1, "strategy": "vertex_centric", "types": "read", "comm": "threads", "trainer.max_epochs": 1}
    overrides = [f"{key}={value}" for key, value in keys.items()]
    source = ["dataset=tables", f"dataset.root={folder}"]
    data = Tables(str(folder)).load() if place == "Python" else None
    if place == "store":
        gnnkit.train(overrides=[*source, *overrides, "job=partition"], folder=tmp_path / "store")
        source = ["dataset=store", f"dataset.root={tmp_path}/store"]
    if place == "inputs":
        source += ["dataset.boosting=true", "inputs=degree"]
    source = [] if place == "Python" else source
    with pytest.raises(UserError, match=r"dataset\.boosting=true: set this key, or use model=rgcn"):
        gnnkit.train(data, overrides=[*source, *overrides, "model=blend"], folder=tmp_path / "run")


@pytest.mark.parametrize(
    ("stopped", "epochs", "best_epoch", "note"),
    [
        ("trainer.max_time=40: ended after epoch 3", 3, 2, "; a larger init.minutes would let it train longer"),
        ("trainer.max_time=40: ended after epoch 8", 8, 6, ""),
        ("trainer.max_time=40: ended after epoch 8", 8, 8, LAST),
        (None, 8, 8, LAST),
        ("trainer.monitor=val_roc_auc: ended after epoch 7", 7, 2, ""),
    ],
)
def test_a_trial_says_which_limit_ended_it(
    stopped: str | None,
    epochs: int,
    best_epoch: int,
    note: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    graph = Tables(str(folder_of(tmp_path / "data", np.arange(COUNT) % 2)), links=False).load()
    ended = {"epochs": epochs, "best_epoch": best_epoch, "stopped": stopped}
    monkeypatch.setattr(gnnkit, "train", lambda *args, **keys: {"val_roc_auc": 0.75, "test_roc_auc": 0.5, **ended})
    select_keys([("a model", graph, {"trainer.max_epochs": (8, "at most")})], "roc_auc", 2, 0, None)
    line = f"trial: a model: val_roc_auc 0.7500, test_roc_auc 0.5000{note}"
    assert f"{line}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("section", "label", "is_tried"), [("times", 1, True), ("events", 1, False), ("times", [1, 2], False)]
)
def test_a_deeper_model_is_a_trial_unless_entities_are_events_or_rows_are_ranked(
    section: str, label: Any, is_tried: bool
) -> None:
    graph: Any = SimpleNamespace(labels=np.array([label] * 3), num_classes=2)
    keys = {**ADVICE["graph"], **ADVICE[section]}
    trials = {name: written for name, _, written in list_candidates(graph, graph, graph, keys)}
    assert ("a deeper one of fewer rows" in trials) == is_tried
    for written in trials.values():
        fanouts, _ = written.get("sampler.fanouts", ([], ""))
        assert not fanouts or written["model.num_layers"][0] == len(fanouts)


@pytest.mark.parametrize("best", range(4))
def test_the_written_configuration_is_that_of_the_best_trial(
    best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials: list[dict[str, str]] = []

    def train(graph: Graph, overrides: list[str], folder: str) -> dict[str, float]:
        trials.append(dict(override.split("=", 1) for override in overrides))
        return {"val_roc_auc": float(len(trials) == best + 1), "test_roc_auc": 0.5, "epochs": 1.0}

    folder_of(tmp_path / "data", np.arange(COUNT) // 3 % 2)
    monkeypatch.setattr(gnnkit, "train", train)
    monkeypatch.chdir(tmp_path)
    assert main(["job=init", "dataset=tables", "dataset.root=data", "output=new"]) == 0
    written = yaml.safe_load((tmp_path / "new/experiment/mine.yaml").read_text())
    assert str(written["workers"]) == trials[best]["workers"]
    for section in ("trainer", "strategy", "sampler", "model"):
        for key, value in written.get(section, {}).items():
            assert plain(value) == trials[best].get(f"{section}.{key}"), f"{section}.{key}"
