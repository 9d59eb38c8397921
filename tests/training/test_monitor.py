"""Training ends after the same epoch on all ranks, once a value gets no better."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import gnnkit
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.jobs import Order, check
from gnnkit.model.gcn import GCN
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.training import checkpoint
from gnnkit.training.monitor import Monitor
from tests.cases import exhaustive, few
from tests.jobs.test_train import small_graph
from tests.runs import BARE

PATIENCE = 3


def run(folder: Path, monitor: str | None, **keys: Any) -> dict[str, Any]:
    graph = keys.pop("graph", None) or small_graph()
    run_keys = {"max_epochs": 60, "precision": 64, "lr": 0.1, "check_val_every_n_epoch": 2, "monitor": monitor}
    trainer = {**run_keys, **({"patience": PATIENCE} if monitor else {}), **keys.pop("trainer", {})}
    chosen = {
        "strategy": "vertex_centric",
        "workers": 2,
        "threads": 1,
        "comm": "threads",
        "model": "gcn",
        **BARE,
        **keys,
    }
    return gnnkit.train(graph, folder=folder, trainer=trainer, **chosen)  # type: ignore[return-value]


def test_the_latest_of_equal_values_is_kept_without_more_patience() -> None:
    rule = Monitor("val_accuracy", 2, latest=True)
    assert looks(rule, [0.5, 0.7, 0.7, 0.7]) == 4
    assert (rule.best, rule.best_epoch) == (0.7, 4)
    assert rule.stopped == (
        "trainer.monitor=val_accuracy: ended after epoch 4, no later value was better than 0.7 of epoch 2 "
        "(trainer.patience=2); the saved model is of epoch 4"
    )
    first = Monitor("val_accuracy", 2)
    assert looks(first, [0.5, 0.7, 0.7, 0.7]) == 4
    assert first.best_epoch == 2


def looks(rule: Monitor, values: Sequence[float]) -> int | None:
    """The epoch, from 1, after which values of one in each epoch end training."""
    for epoch, value in enumerate(values):
        module = SimpleNamespace(snapshot=dict, joint=contextlib.nullcontext)
        rule.look(value, SimpleNamespace(current_epoch=epoch, is_global_zero=False), module)  # type: ignore[arg-type]
        if rule.stopped:
            return epoch + 1
    return None


def test_only_a_better_value_restarts_the_patience() -> None:
    assert looks(Monitor("train_loss", 2), [3, 2, 2, 1, 1, 1, 0]) == 6
    assert looks(Monitor("val_accuracy", 2), [0.1, 0.2, 0.2, 0.3, 0.2, 0.3, 0.9]) == 6
    assert looks(Monitor("train_loss", 3), [2, float("nan"), float("inf"), 1, 1, 1]) is None
    assert looks(Monitor("val_mae", 2, lower_is_better=True), [3, 2, 2, 1, 1, 1, 0]) == 6
    rule = Monitor("val_accuracy", 1)
    assert looks(rule, [0.5, 0.25]) == 2
    assert rule.stopped == (
        "trainer.monitor=val_accuracy: ended after epoch 2, no later value was better than 0.5 of epoch 1 "
        "(trainer.patience=1)"
    )


def test_a_checkpoint_without_the_first_epoch_of_a_tie_has_that_of_the_best() -> None:
    rule = Monitor("val_accuracy", 2)
    rule.load_state_dict({"name": "val_accuracy", "best": 0.5, "best_epoch": 3, "waited": 1, "parameters": None})
    assert (rule.best, rule.best_epoch, rule.first_epoch, rule.waited) == (0.5, 3, 3, 1)


@pytest.mark.slow
@pytest.mark.parametrize("monitor", ["train_loss", exhaustive("val_accuracy")])
@few("comm", ["threads", "gloo"], default=["threads"])
def test_training_ends_early_and_says_why(
    tmp_path: Path, monitor: str, comm: str, capfd: pytest.CaptureFixture[str]
) -> None:
    result = run(tmp_path / "run", monitor, comm=comm)
    epochs = result["epochs"]
    assert PATIENCE < epochs < 60
    assert result["stopped"].startswith(f"trainer.monitor={monitor}: ended after epoch {epochs}, no later ")
    assert capfd.readouterr().err.count(result["stopped"]) == 1
    assert json.loads((tmp_path / "run/result.json").read_text())["stopped"] == result["stopped"]
    assert checkpoint.load(tmp_path / "run/checkpoints/last.json")["epoch"] == epochs
    lines = [json.loads(line) for line in (tmp_path / "run/workers.jsonl").read_text().splitlines()]
    assert {line["epoch"] for line in lines} == set(range(epochs))
    assert len(lines) == 2 * epochs


@pytest.mark.slow
def test_the_loss_is_the_sum_over_all_ranks(tmp_path: Path) -> None:
    """Recomputes the decision from the states of all workers."""
    result = run(tmp_path / "run", "train_loss", workers=3)
    lines = [json.loads(line) for line in (tmp_path / "run/workers.jsonl").read_text().splitlines()]
    losses = [sum(line["loss"] for line in lines if line["epoch"] == epoch) for epoch in range(result["epochs"])]
    assert looks(Monitor("train_loss", PATIENCE), losses) == result["epochs"]
    alone = [line["loss"] for line in lines if line["rank"] == 1]
    assert looks(Monitor("train_loss", PATIENCE), alone) != result["epochs"]


@pytest.mark.slow
def test_without_patience_all_epochs_are_trained(tmp_path: Path) -> None:
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
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("monitor", "keys", "every"),
    [
        ("val_accuracy", {}, {"checkpoint_every": 1}),
        ("train_loss", SAMPLED, {"checkpoint_every_n_steps": 2}),
    ],
)
def test_a_resumed_run_ends_where_an_unbroken_one_does(
    tmp_path: Path, monitor: str, keys: dict[str, Any], every: dict[str, int]
) -> None:
    """Also from the middle of an epoch, whose loss is known in part."""
    full_run = run(tmp_path / "whole", monitor, model=lambda *widths: BreaksOff(*widths, 10**6), **keys)
    assert full_run["stopped"]
    steps = checkpoint.load(tmp_path / "whole/checkpoints/last.json")["global_step"] - 2
    with pytest.raises(RuntimeError, match="broken off"):
        run(tmp_path / "broken", monitor, model=lambda *widths: BreaksOff(*widths, steps), trainer=every, **keys)
    state = checkpoint.load(tmp_path / "broken/checkpoints/last.json")
    assert state["monitor"]["waited"] > 0
    assert bool(state["step"]) == bool(keys)
    if monitor == "train_loss":
        lines = [json.loads(line) for line in (tmp_path / "whole/workers.jsonl").read_text().splitlines()]
        for rank, (loss, _) in enumerate(state["monitor"]["rows"].tolist()):
            own = [line for line in lines if (line["rank"], line["epoch"]) == (rank, state["epoch"])]
            assert loss == pytest.approx(sum(line["loss"] * line["total"] for line in own[: state["step"]]), abs=1e-9)
    resume = {"resume": str(tmp_path / "broken")}
    resumed_run = run(
        tmp_path / "rest", monitor, model=lambda *widths: BreaksOff(*widths, 10**6), trainer=resume, **keys
    )
    assert resumed_run["stopped"] == full_run["stopped"]
    states = [checkpoint.load(tmp_path / name / "checkpoints/last.json")["state_dict"] for name in ("whole", "rest")]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


@pytest.mark.slow
def test_a_run_that_has_ended_goes_on_with_more_patience_only(tmp_path: Path) -> None:
    first = run(tmp_path / "first", "val_accuracy")
    resume = {"resume": str(tmp_path / "first")}
    with pytest.raises(UserError, match=r"trainer.patience=3: trainer.monitor=val_accuracy has ended the run"):
        run(tmp_path / "same", "val_accuracy", trainer=resume)
    more = run(tmp_path / "more", "val_accuracy", trainer=resume | {"patience": PATIENCE + 1})
    assert 2 * more["epochs"] >= 2
    second = run(tmp_path / "other", "train_loss", trainer=resume | {"max_epochs": first["epochs"] + 1})
    assert second["epochs"] == 1


@pytest.mark.slow
def test_an_accuracy_without_validation_nodes_is_refused(tmp_path: Path) -> None:
    graph = replace(small_graph(), split=np.where(small_graph().split == 2, 0, small_graph().split).astype(np.int8))
    with pytest.raises(UserError, match=r"trainer.monitor=val_accuracy: no labelled node is in the validation split"):
        gnnkit.train(graph, strategy="vertex_centric", comm="threads", folder=tmp_path / "run",
                     trainer={"monitor": "val_accuracy"})  # fmt: skip
    with pytest.raises(UserError, match=r"trainer.monitor=val_accuracy: no labelled node is in the validation split"):
        run(tmp_path / "patient", "auto", graph=graph)
    last = run(tmp_path / "last", "auto", graph=graph, trainer={"max_epochs": 4, "patience": None})
    assert (last["saved_epoch"], last["best_epoch"]) == (4, None)


@pytest.mark.slow
@few(
    ("task", "metric"),
    [
        ({"name": "node_classification"}, "val_accuracy"),
        ({"name": "node_classification", "class_weights": "balanced"}, "val_macro_f1"),
    ],
    default=1,
)
def test_the_model_of_the_best_main_metric_is_saved_by_default(
    tmp_path: Path, task: dict[str, Any], metric: str
) -> None:
    trainer = {"max_epochs": 20, "patience": None}
    results = [run(tmp_path / monitor, monitor, task=task, trainer=trainer) for monitor in ("auto", metric)]
    assert results[0]["best_value"] == results[1]["best_value"] == pytest.approx(results[0][metric])
    assert results[1]["best_epoch"] <= results[0]["saved_epoch"] == results[0]["best_epoch"]
    arguments = ["strategy=vertex_centric"]
    assert settle(compose(arguments)).trainer.monitor == "auto"


@pytest.mark.slow
def test_what_the_rule_does_not_read_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError,
        match=r"trainer.patience=3 is read by trainer.monitor=NAME only: leave the key out, or set trainer.monitor",
    ):
        settle(compose(["strategy=vertex_centric", "trainer.monitor=null", "trainer.patience=3"]))
    monkeypatch.setattr(AllReduce, "lockstep", False)
    with pytest.raises(UserError, match=r"trainer.monitor=train_loss needs workers that step together"):
        check(Order(settle(compose(["strategy=vertex_centric", "trainer.monitor=train_loss"]))))
    check(Order(settle(compose(["strategy=vertex_centric", "trainer.monitor=val_accuracy"]))))


@pytest.mark.slow
def test_the_task_names_the_figure_that_may_end_training() -> None:
    def check_keys(*overrides: str) -> None:
        check(Order(settle(compose(["strategy=vertex_centric", *overrides]))))

    check_keys("task=regression", "trainer.monitor=val_mae")
    check_keys("task=link_prediction", "trainer.monitor=train_loss")
    with pytest.raises(
        UserError,
        match=r"^trainer.monitor=val_accuracy is not known.* there are: train_loss, val_loss, val_mae, val_rmse$",
    ):
        check_keys("task=regression", "trainer.monitor=val_accuracy")
    with pytest.raises(
        UserError,
        match=r"^trainer.monitor=val_mae is not known.* there are: train_loss, val_accuracy, val_average_precision, val_loss, val_macro_f1, val_roc_auc$",
    ):
        check_keys("trainer.monitor=val_mae")


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_least_error_of_a_task_ends_training(tmp_path: Path) -> None:
    graph = replace(small_graph(), labels=np.where(small_graph().labels == 0, 1.0, 3.0)[:, None])
    result = run(tmp_path / "run", "val_mae", graph=graph, task="regression", logger="csv")
    assert PATIENCE < result["epochs"] < 60
    lines = (tmp_path / "run/csv/metrics.csv").read_text().splitlines()
    column = lines[0].split(",").index("val_mae")
    errors = [float(line.split(",")[column]) for line in lines[1:] if line.split(",")[column]]
    rule = Monitor("val_mae", PATIENCE, lower_is_better=True)
    assert looks(rule, errors) == len(errors) == result["epochs"] // 2
    assert f"better than {min(errors):.4g} of" in result["stopped"]


@pytest.mark.slow
def test_a_task_about_edges_needs_edges_that_validate(tmp_path: Path) -> None:
    task = {"name": "link_prediction", "width": 4, "eval_negatives": 5}
    result = run(tmp_path / "run", "val_mrr", task=task)
    assert result["stopped"].startswith("trainer.monitor=val_mrr: ended after epoch ")
    with pytest.raises(UserError, match=r"trainer.monitor=val_mrr: no edge is in the validation split"):
        run(tmp_path / "none", "val_mrr", task={**task, "val_share": 0})


def scalars(folder: Path, name: str) -> list[float]:
    """The values of a scalar, in order of time."""
    header, *lines = [line.split(",") for line in (folder / "csv/metrics.csv").read_text().splitlines()]
    column = header.index(name)
    return [float(line[column]) for line in lines if line[column]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        exhaustive({}),
        exhaustive({"sync": "leader"}),
        exhaustive({"sync": "parameter_server"}),
        {"strategy": {"name": "vertex_centric", "local_iterations": 3}},
    ],
    ids=["all_reduce", "leader", "parameter_server", "supersteps"],
)
def test_a_run_ends_with_the_model_of_the_best_evaluation(tmp_path: Path, keys: dict[str, Any]) -> None:
    """The learning rate is so large that the last model is worse."""
    run_keys = {"trainer": {"lr": 2.0, "max_epochs": 11, "check_val_every_n_epoch": 1, "patience": None}, **keys}
    result = run(tmp_path / "run", "val_loss", logger="csv", **run_keys)
    losses = scalars(tmp_path / "run", "val_loss")
    best = int(np.argmin(losses))
    assert best < len(losses) - 1
    assert losses[-1] > 1.1 * losses[best]
    assert (result["best_epoch"], result["stopped"]) == (best + 1, None)
    assert result["best_value"] == pytest.approx(losses[best], rel=1e-12)
    assert result["val_loss"] == pytest.approx(losses[best], rel=1e-6)
    if "strategy" not in keys:
        short = run(
            tmp_path / "short", None, **{**run_keys, "trainer": {**run_keys["trainer"], "max_epochs": best + 1}}
        )
        assert short["test_accuracy"] == result["test_accuracy"]
        assert tensors(tmp_path / "short") == tensors(tmp_path / "run")
    last = checkpoint.load(tmp_path / "run/checkpoints/last.json")["state_dict"]
    kept = load_file(tmp_path / "run/model.safetensors")
    assert any(not torch.equal(last[f"model.{name}"], value) for name, value in kept.items())


def tensors(folder: Path) -> dict[str, list[float]]:
    return {name: value.tolist() for name, value in load_file(folder / "model.safetensors").items()}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_run_knows_the_best_model_of_the_run_before(tmp_path: Path) -> None:
    run_keys = {"lr": 2.0, "check_val_every_n_epoch": 1, "patience": None}
    full_run = run(tmp_path / "whole", "val_loss", trainer={**run_keys, "max_epochs": 12})
    first = run(tmp_path / "first", "val_loss", trainer={**run_keys, "max_epochs": full_run["best_epoch"] + 1})
    assert first["best_epoch"] == full_run["best_epoch"]
    resume_keys = {**run_keys, "max_epochs": 12, "resume": str(tmp_path / "first")}
    resumed_run = run(tmp_path / "rest", "val_loss", trainer=resume_keys)
    assert (resumed_run["best_epoch"], resumed_run["test_loss"]) == (full_run["best_epoch"], full_run["test_loss"])
    assert tensors(tmp_path / "rest") == tensors(tmp_path / "whole")


def test_a_worker_that_is_new_counts_from_0_and_keeps_the_best_model() -> None:
    state = {
        "name": "train_loss",
        "best": -0.5,
        "best_epoch": 3,
        "first_epoch": 2,
        "waited": 1,
        "rows": torch.ones(2, 2),
        "parameters": None,
    }
    rows = []
    for rank in (1, 2):
        monitor = Monitor("train_loss", 2)
        monitor.restore(state, rank)
        assert (monitor.best, monitor.best_epoch, monitor.first_epoch, monitor.waited) == (-0.5, 3, 2, 1)
        monitor.take_best(None)  # no model is kept: nothing is changed
        rows.append(monitor.rows.tolist())
    assert rows == [[1, 1], [0, 0]]
