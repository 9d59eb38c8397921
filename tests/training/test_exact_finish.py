"""Approximate training ends with exact steps, or restarts where it does not learn."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import gnnkit
from gnnkit.training import checkpoint, exact_finish
from gnnkit.training.exact_finish import ExactFinish
from gnnkit.training.module import TrainingModule
from tests.cases import exhaustive
from tests.jobs.test_train import small_graph
from tests.runs import BARE

SCHEMES: dict[str, dict[str, Any]] = {
    "supersteps": {"strategy": {"name": "vertex_centric", "local_iterations": 3}},
    "auto": {"strategy": {"name": "vertex_centric", "local_iterations": "auto"}},
    "leader": {"strategy": {"name": "vertex_centric", "local_iterations": 3}, "sync": "leader"},
    "pipelined": {"exchange": "pipelined"},
    "quantized": {"exchange": {"name": "quantized", "bits": 2}},
    "async": {"sync": {"name": "parameter_server", "mode": "async"}},
    "servers": {"sync": {"name": "parameter_server", "mode": "ssp", "servers": 2}},
    "ssp": {"sync": {"name": "leader", "mode": "ssp"}},
    "neighbour": {"sync": {"name": "neighbour", "exchange": "parameters"}},
}


def run(folder: Path, trainer: dict[str, Any], **keys: Any) -> tuple[dict[str, Any], Tensor]:
    """Trains three workers. Returns the result and the last parameters."""
    chosen: dict[str, Any] = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads"}
    chosen |= {"partition": "1d", "model": {"name": "gcn", "hidden": 5, "dropout": 0.0}, **BARE, **keys}
    trainer = {"precision": 64, "monitor": None, "lr": 0.05} | trainer
    result = gnnkit.train(small_graph(), folder=folder, trainer=trainer, **chosen)
    state = checkpoint.load(folder / "checkpoints/last.json")["state_dict"]
    return dict(result), torch.cat([value.flatten() for value in state.values()])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in ("supersteps", "pipelined", "ssp") else exhaustive(name) for name in SCHEMES]
)
def test_steps_that_are_taken_back_leave_the_exact_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Six epochs remain, which start from the initial parameters."""
    _, expected = run(tmp_path / "exact", {"max_epochs": 6})
    monkeypatch.setattr(ExactFinish, "_problem", lambda *_: "which a test dislikes")
    monkeypatch.setattr(exact_finish, "POOR", -1)
    result, found = run(tmp_path / "run", {"max_epochs": 10, "check_val_every_n_epoch": 4}, **SCHEMES[name])
    assert float((found - expected).abs().max()) <= 1e-10
    assert result["drift"] == 0
    assert (result["exact_finish"]["epoch"], result["exact_finish"]["since"]["epoch"]) == (5, 8)
    told = (
        "which a test dislikes: approximate steps are taken back, and the remaining 6 epochs are exact from the initial"
    )
    assert told in capfd.readouterr().err


@pytest.mark.slow
def test_the_last_epochs_of_supersteps_are_exact_and_start_from_the_mean(tmp_path: Path) -> None:
    keys = SCHEMES["supersteps"]
    approximate, _ = run(tmp_path / "no", {"max_epochs": 10, "exact_finish": 0}, **keys)
    assert approximate["drift"] > 0
    result, expected = run(tmp_path / "run", {"max_epochs": 10, "exact_finish": 0.5}, **keys)
    assert result["drift"] == 0
    assert result["supersteps"] == [[0, 3], [5, 1]]
    run(tmp_path / "half", {"max_epochs": 7, "exact_finish": 0.3}, **keys)
    resume = str(tmp_path / "half/checkpoints/last.json")
    _, resumed = run(tmp_path / "rest", {"max_epochs": 10, "exact_finish": 0.5, "resume": resume}, **keys)
    assert torch.equal(resumed, expected)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "cosine"),
    [
        (SCHEMES["quantized"], 0.5),
        ({"exchange": {"name": "quantized", "bits": 16}}, 1 - 1e-5),
        exhaustive(({"exchange": {"name": "quantized", "bits": 16}, "comm": "gloo"}, 1 - 1e-5)),
        (SCHEMES["pipelined"], -1.0),
    ],
    ids=["2 bits", "16 bits", "processes", "pipelined"],
)
def test_a_run_measures_its_gradients_against_exact_ones_and_stays_the_same(
    keys: dict[str, Any], cosine: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = {"max_epochs": 10, "check_val_every_n_epoch": 3, "exact_finish": 0.1}
    result, found = run(tmp_path / "run", trainer, **keys)
    measured = result["exact_finish"]["gradients"]
    assert [epoch for epoch, _, _ in measured] == [3, 6, 9]
    assert all(cosine <= each <= 1 + 1e-12 and 0.2 < ratio < 5 for _, each, ratio in measured)
    assert min(each for _, each, _ in measured) < 1 - 1e-12
    monkeypatch.setattr(TrainingModule, "look_at_gradient", lambda *_, **__: None)
    if keys.get("comm") is None:
        assert torch.equal(run(tmp_path / "other", trainer, **keys)[1], found)


@pytest.mark.parametrize(
    ("epochs", "share", "first"), [(100, "auto", 90), (9, "auto", 9), (100, 0.25, 75), (7, 0.3, 5)]
)
def test_the_last_tenth_is_exact_rounded_down(epochs: int, share: Any, first: int) -> None:
    assert ExactFinish(epochs, share).first == first


@pytest.mark.parametrize(
    ("losses", "epoch", "latest", "problem"),
    [
        ([[0, 2.0]], 10, 2.1, "above 2 before training"),
        ([[0, 2.0]], 10, math.nan, "above 2 before training"),
        ([[0, 2.0]], 10, 1.99, None),
        ([[0, 2.0], [30, 1.0]], 40, 0.97, "which does not fall: it was 1 earlier"),
        ([[0, 2.0], [30, 1.0]], 40, 0.93, None),
        ([[0, 2.0], [35, 1.0]], 40, 0.97, None),
        ([[0, 2.0], [20, 1.0]], 30, 0.97, None),
        ([[0, 2.0], [30, 0.1]], 40, 0.15, None),
    ],
    ids=["worse", "nan", "better", "stands", "falls", "looked too soon", "too early", "learned"],
)
def test_a_loss_that_does_not_fall_is_a_problem(
    losses: list[list[float]], epoch: int, latest: float, problem: str | None
) -> None:
    finish = ExactFinish(100, "auto")
    finish.losses = losses
    assert finish._problem(epoch, latest) == problem


def test_a_longer_run_finishes_later_unless_steps_were_taken_back() -> None:
    short, longer = ExactFinish(100, "auto"), ExactFinish(200, "auto")
    longer.load_state_dict(short.state_dict())
    assert longer.first == 180
    short.first, short.taken_back = 40, "loss of 3"
    longer.load_state_dict(short.state_dict())
    assert longer.first == 40
