"""Training ends after the same epoch on all ranks, once a value gets no better."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.config import compose
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.jobs import dispatch
from gnnkit.model.gcn import GCN
from gnnkit.settings import settle
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.training import checkpoint
from gnnkit.training.until import Until
from tests.jobs.test_train import small_graph

PATIENCE = 3


def run(folder: Path, until: str | None, **keys: Any) -> dict[str, Any]:
    graph = keys.pop("graph", None) or small_graph()
    given = {"max_epochs": 60, "precision": 64, "lr": 0.1, "check_val_every_n_epoch": 2, "until": until}
    trainer = {**given, **({"patience": PATIENCE} if until else {}), **keys.pop("trainer", {})}
    chosen = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads", "model": "gcn", **keys}
    return gnnkit.train(graph, folder=folder, trainer=trainer, **chosen)  # type: ignore[return-value]


def looks(rule: Until, values: Sequence[float]) -> int | None:
    """The epoch, from 1, after which values of one in each epoch end training."""
    for epoch, value in enumerate(values):
        rule._look(value, SimpleNamespace(current_epoch=epoch, is_global_zero=False))  # type: ignore[arg-type]
        if rule.stopped:
            return epoch + 1
    return None


def test_a_value_has_to_get_better_by_more_than_min_delta() -> None:
    assert looks(Until("train_loss", 2), [3, 2, 2, 1, 1, 1, 0]) == 6
    assert looks(Until("val_accuracy", 2), [0.1, 0.2, 0.2, 0.3, 0.2, 0.3, 0.9]) == 6
    assert looks(Until("train_loss", 2, 0.5), [3, 2.6, 2.4, 2.2, 1.8, 1.7, 1.6]) == 7
    assert looks(Until("train_loss", 3), [2, float("nan"), float("inf"), 1, 1, 1]) is None
    assert looks(Until("val_mae", 2, lower_is_better=True), [3, 2, 2, 1, 1, 1, 0]) == 6
    rule = Until("val_accuracy", 1)
    assert looks(rule, [0.5, 0.25]) == 2
    assert rule.stopped == (
        "trainer.until=val_accuracy: ended after epoch 2, no later value was better than 0.5 of epoch 1 "
        "(trainer.patience=1)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("until", ["train_loss", "val_accuracy"])
@pytest.mark.parametrize("comm", ["threads", "gloo"])
def test_training_ends_early_and_says_why(
    tmp_path: Path, until: str, comm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "run", until, comm=comm)
    epochs = result["epochs"]
    assert PATIENCE < epochs < 60
    assert result["stopped"].startswith(f"trainer.until={until}: ended after epoch {epochs}, no later ")
    assert capfd.readouterr().err.count(result["stopped"]) == 1
    assert json.loads((tmp_path / "run/result.json").read_text())["stopped"] == result["stopped"]
    assert checkpoint.load(tmp_path / "run/checkpoints/last.json")["epoch"] == epochs
    lines = [json.loads(line) for line in (tmp_path / "run/workers.jsonl").read_text().splitlines()]
    assert {line["epoch"] for line in lines} == set(range(epochs))
    assert len(lines) == 3 * epochs


@pytest.mark.slow
def test_the_loss_is_the_sum_over_all_ranks(tmp_path: Path) -> None:
    """Recomputes the decision from the states of all workers."""
    result = run(tmp_path / "run", "train_loss")
    lines = [json.loads(line) for line in (tmp_path / "run/workers.jsonl").read_text().splitlines()]
    losses = [sum(line["loss"] for line in lines if line["epoch"] == epoch) for epoch in range(result["epochs"])]
    assert looks(Until("train_loss", PATIENCE), losses) == result["epochs"]
    alone = [line["loss"] for line in lines if line["rank"] == 1]
    assert looks(Until("train_loss", PATIENCE), alone) != result["epochs"]


@pytest.mark.slow
def test_without_until_all_epochs_are_trained(tmp_path: Path) -> None:
    result = run(tmp_path / "run", None, trainer={"max_epochs": 2})
    assert (result["epochs"], result["stopped"]) == (2, None)


class BreaksOff(nn.Module):
    """A network that fails in the training step after so many."""

    num_layers, self_loops = 2, True

    def __init__(self, in_features: int, num_classes: int, steps: int) -> None:
        super().__init__()
        self.gcn, self.steps = GCN(in_features, num_classes, hidden=5), steps

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        self.steps -= self.training
        if self.steps < 0:
            raise RuntimeError("broken off")
        logits: Tensor = self.gcn(x, adjacencies)
        return logits


SAMPLED = {
    "strategy": {"name": "individual_sample", "batch_size": 3},
    "sampler": {"name": "neighbor", "fanouts": [3, 3]},
}


@pytest.mark.slow
@pytest.mark.parametrize("until", ["train_loss", "val_accuracy"])
@pytest.mark.parametrize(("keys", "every"), [({}, {"checkpoint_every": 1}), (SAMPLED, {"checkpoint_every_n_steps": 2})])
def test_a_resumed_run_ends_where_an_unbroken_one_does(
    tmp_path: Path, until: str, keys: dict[str, Any], every: dict[str, int]
) -> None:
    """Also from the middle of an epoch, whose loss is known in part."""
    whole = run(tmp_path / "whole", until, model=lambda *widths: BreaksOff(*widths, 10**6), **keys)
    assert whole["stopped"]
    steps = checkpoint.load(tmp_path / "whole/checkpoints/last.json")["global_step"] - 2
    with pytest.raises(RuntimeError, match="broken off"):
        run(tmp_path / "broken", until, model=lambda *widths: BreaksOff(*widths, steps), trainer=every, **keys)
    saved = checkpoint.load(tmp_path / "broken/checkpoints/last.json")
    assert saved["until"]["waited"] > 0
    assert bool(saved["step"]) == bool(keys)
    if until == "train_loss":
        lines = [json.loads(line) for line in (tmp_path / "whole/workers.jsonl").read_text().splitlines()]
        for rank, (loss, _) in enumerate(saved["until"]["rows"].tolist()):
            own = [line for line in lines if (line["rank"], line["epoch"]) == (rank, saved["epoch"])]
            assert loss == pytest.approx(sum(line["loss"] * line["total"] for line in own[: saved["step"]]), abs=1e-9)
    resume = {"resume": str(tmp_path / "broken")}
    rest = run(tmp_path / "rest", until, model=lambda *widths: BreaksOff(*widths, 10**6), trainer=resume, **keys)
    assert rest["stopped"] == whole["stopped"]
    states = [checkpoint.load(tmp_path / name / "checkpoints/last.json")["state_dict"] for name in ("whole", "rest")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on_with_more_patience_only(tmp_path: Path) -> None:
    first = run(tmp_path / "first", "val_accuracy")
    resume = {"resume": str(tmp_path / "first")}
    with pytest.raises(UserError, match=r"trainer.patience=3: trainer.until=val_accuracy has ended the run"):
        run(tmp_path / "same", "val_accuracy", trainer=resume)
    more = run(tmp_path / "more", "val_accuracy", trainer=resume | {"patience": PATIENCE + 1})
    assert 2 * more["epochs"] >= 2
    other = run(tmp_path / "other", "train_loss", trainer=resume | {"max_epochs": first["epochs"] + 1})
    assert other["epochs"] == 1


@pytest.mark.slow
def test_an_accuracy_without_validation_nodes_is_refused(tmp_path: Path) -> None:
    graph = replace(small_graph(), split=np.where(small_graph().split == 2, 0, small_graph().split).astype(np.int8))
    with pytest.raises(UserError, match=r"trainer.until=val_accuracy: no labelled node is in the validation split"):
        gnnkit.train(graph, strategy="vertex_centric", comm="threads", folder=tmp_path / "run",
                     trainer={"until": "val_accuracy"})  # fmt: skip


def test_what_the_rule_does_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("patience=3", "min_delta=0.1"):
        with pytest.raises(UserError, match=f"trainer.{key} is of trainer.until, which is null"):
            settle(compose(["strategy=vertex_centric", f"trainer.{key}"]))
    monkeypatch.setattr(AllReduce, "lockstep", False)
    with pytest.raises(UserError, match=r"trainer.until=train_loss needs workers that step together"):
        dispatch.check(settle(compose(["strategy=vertex_centric", "trainer.until=train_loss"])))
    dispatch.check(settle(compose(["strategy=vertex_centric", "trainer.until=val_accuracy"])))


def test_the_task_names_the_figure_that_may_end_training() -> None:
    def check(*overrides: str) -> None:
        dispatch.check(settle(compose(["strategy=vertex_centric", *overrides])))

    check("task=regression", "trainer.until=val_mae")
    check("task=link_prediction", "trainer.until=train_loss")
    with pytest.raises(UserError, match=r"^trainer.until=val_accuracy is not known.* there are: train_loss, val_mae$"):
        check("task=regression", "trainer.until=val_accuracy")
    with pytest.raises(UserError, match=r"^trainer.until=val_mae is not known.* there are: train_loss, val_accuracy$"):
        check("trainer.until=val_mae")


@pytest.mark.slow
def test_the_least_error_of_a_task_ends_training(tmp_path: Path) -> None:
    graph = replace(small_graph(), labels=np.where(small_graph().labels == 0, 1.0, 3.0)[:, None])
    result = run(tmp_path / "run", "val_mae", graph=graph, task="regression")
    assert PATIENCE < result["epochs"] < 60
    lines = (tmp_path / "run/csv/metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("val_mae")
    errors = [float(line.split(",")[column]) for line in lines[1:] if line.split(",")[column]]
    rule = Until("val_mae", PATIENCE, lower_is_better=True)
    assert looks(rule, errors) == len(errors) == result["epochs"] // 2
    assert f"better than {min(errors):.4g} of" in result["stopped"]


@pytest.mark.slow
def test_a_task_about_edges_needs_edges_that_validate(tmp_path: Path) -> None:
    task = {"name": "link_prediction", "width": 4, "eval_negatives": 5}
    result = run(tmp_path / "run", "val_mrr", task=task)
    assert result["stopped"].startswith("trainer.until=val_mrr: ended after epoch ")
    with pytest.raises(UserError, match=r"trainer.until=val_mrr: no edge is in the validation split"):
        run(tmp_path / "none", "val_mrr", task={**task, "val_share": 0})
