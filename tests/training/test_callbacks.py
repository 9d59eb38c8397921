"""Callbacks: on every rank alike, resumed, or refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from lightning.pytorch import callbacks as theirs
from torch.optim.lr_scheduler import ReduceLROnPlateau

import gnnkit
from gnnkit.errors import UserError
from gnnkit.testing import check_callback
from gnnkit.training import checkpoint
from gnnkit.training.module import TrainingModule
from tests.cases import few
from tests.jobs.test_train import small_graph
from tests.training.test_own_models import Own, make_seeded, read_logged

RANKS: list[dict[str, Any]] = [{"comm": "threads"}, {"comm": "gloo"}, {"comm": "gloo", "sync": "leader"}]
on_ranks = few("keys", RANKS, default=[RANKS[0]])


def run(folder: Path, *callbacks: Any, **keys: Any) -> Any:
    trainer = {"max_epochs": 6, "precision": 64, "check_val_every_n_epoch": 1, **keys.pop("trainer", {})}
    run_keys = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads", "logger": "csv", **keys}
    return gnnkit.train(small_graph(), folder=folder, trainer=trainer, callbacks=callbacks, report=False, **run_keys)


class Shrink(L.Callback):
    """Halves the parameters after some epochs, and counts the epochs."""

    def __init__(self, epochs: int = 2) -> None:
        self.epochs, self.seen = epochs, 0

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        self.seen += 1
        if self.seen % self.epochs == 0:
            with torch.no_grad():
                for parameter in module.model.parameters():
                    parameter.mul_(0.5)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def parameters(folder: Path) -> dict[str, Any]:
    return checkpoint.load(folder / "checkpoints/last.json")["state_dict"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def shrunk(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The loss of one rank with the callback, which has a copy of it."""
    given, folder = Shrink(), tmp_path_factory.mktemp("shrunk")
    one, free = run(folder / "one", given, workers=1), run(folder / "free", workers=1)
    assert one["train_loss"] != pytest.approx(free["train_loss"], rel=1e-3)
    assert given.seen == 0
    return float(one["train_loss"])


@pytest.mark.slow
@pytest.mark.exhaustive
@on_ranks
def test_a_callback_changes_training_on_all_ranks_alike(tmp_path: Path, shrunk: float, keys: dict[str, Any]) -> None:
    many = run(tmp_path / "run", Shrink(), **keys)
    assert many["train_loss"] == pytest.approx(shrunk, rel=1e-10)
    assert many["drift"] == 0


@pytest.mark.slow
def test_a_resumed_run_goes_on_with_the_state_of_callbacks(tmp_path: Path) -> None:
    """Three epochs, then one: the fourth epoch is the second of a pair."""
    run(tmp_path / "whole", Shrink(), trainer={"max_epochs": 4}, workers=2)
    run(tmp_path / "first", Shrink(), trainer={"max_epochs": 3}, workers=2)
    run(tmp_path / "rest", Shrink(), trainer={"max_epochs": 4, "resume": str(tmp_path / "first")}, workers=2)
    for name, value in parameters(tmp_path / "whole").items():
        assert torch.equal(parameters(tmp_path / "rest")[name], value), name


@pytest.mark.slow
@pytest.mark.exhaustive
@on_ranks
def test_early_stopping_of_lightning_ends_all_ranks_after_the_same_epoch(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Also by a value that differs between ranks: one rank that stops, stops all."""

    class Uneven(Own):
        def on_validation_epoch_end(self) -> None:
            worse = self.trainer.global_rank == 1 and self.current_epoch > 2
            self.log("uneven", float(self.current_epoch) * (-1 if worse else 1))

        def __init__(self) -> None:
            super().__init__()
            self.plain.linear = torch.nn.Linear(8, 3)

    stop = theirs.EarlyStopping("uneven", mode="max", patience=1)
    result = run(tmp_path / "run", stop, model=make_seeded(Uneven), trainer={"max_epochs": 20}, **keys)
    assert result["epochs"] == 4


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("monitor", ["val_loss", "train_loss"])
def test_the_rate_falls_on_a_plateau_on_all_ranks_and_in_resumed_runs(
    tmp_path: Path, monitor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def impatient(*args: Any, **options: Any) -> ReduceLROnPlateau:
        return ReduceLROnPlateau(*args, **options | {"patience": 0})

    monkeypatch.setattr("gnnkit.training.schedule.ReduceLROnPlateau", impatient)
    keys = {"schedule": "plateau", "monitor": monitor, "lr": 3.0}
    keys |= {"optimizer": "sgd", "max_epochs": 6, "check_val_every_n_epoch": 2 if monitor == "val_loss" else 1}
    one = run(tmp_path / "one", "learning_rate", workers=1, trainer=keys)
    rates = read_logged(tmp_path / "one", "lr")
    assert len(rates) == 6
    assert rates[-1] < rates[0] == 3.0
    if monitor == "val_loss":
        assert rates[0::2] == rates[1::2], "evaluations decide, every second epoch"
    many = run(tmp_path / "many", "learning_rate", trainer=keys)
    assert read_logged(tmp_path / "many", "lr") == rates
    assert many["train_loss"] == pytest.approx(one["train_loss"], rel=1e-9)
    run(tmp_path / "first", trainer={**keys, "max_epochs": 4})
    run(tmp_path / "rest", "learning_rate", trainer={**keys, "resume": str(tmp_path / "first")})
    assert read_logged(tmp_path / "rest", "lr") == rates[4:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (
            theirs.ModelCheckpoint,
            "ModelCheckpoint: Checkpoint does not work .*use trainer.monitor and trainer.checkpoint",
        ),
        (theirs.LearningRateMonitor, "LearningRateMonitor does not work on several ranks: use callback=learning_rate"),
        (theirs.Timer, "use trainer.max_time"),
        (lambda: theirs.GradientAccumulationScheduler({0: 2}), "use trainer.accumulate"),
        (theirs.TQDMProgressBar, "use trainer.progress_bar"),
        (lambda: theirs.LambdaCallback(on_after_backward=print), "callback=LambdaCallback: on_after_backward"),
        (type("Late", (L.Callback,), {"on_after_backward": print}), "callback=Late: on_after_backward is not called"),
        (type("Saves", (L.Callback,), {"on_save_checkpoint": print}), "on_save_checkpoint .*use state_dict"),
        (type("Tests", (L.Callback,), {"on_test_epoch_end": print}), "on_test_epoch_end is not called: leave"),
        (object, "callback=object must be a Callback of lightning.pytorch, got object"),
    ],
)
def test_what_several_ranks_cannot_have_is_refused(tmp_path: Path, callback: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        run(tmp_path / "run", callback())


@pytest.mark.slow
def test_a_callback_that_differs_between_ranks_is_found() -> None:
    class Lonely(Shrink):
        def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
            if trainer.is_global_zero:
                super().on_train_epoch_end(trainer, module)

    class Forgets(Shrink):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    check_callback(Shrink)
    with pytest.raises(AssertionError, match=r"parameters of rank|the state of rank"):
        check_callback(Lonely)
    with pytest.raises(AssertionError, match="load_state_dict does not restore"):
        check_callback(Forgets)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "count"), [("vertex_centric", 1), ("individual_sample", 3)])
def test_a_loader_of_one_step_is_kept(
    strategy: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders: list[object] = []
    make = TrainingModule.train_dataloader
    monkeypatch.setattr(TrainingModule, "train_dataloader", lambda module: loaders.append(make(module)) or loaders[-1])
    result = gnnkit.train(
        strategy={"name": strategy, **({} if count == 1 else {"batch_size": 2})},
        dataset={"name": "synthetic", "num_nodes": 50, "num_edges": 99},
        launcher="inline",
        workers=1,
        trainer={"max_epochs": 3},
        logger=None,
        report=False,
        folder=tmp_path / "run",
    )
    assert (result["epochs"], len(loaders)) == (3, count)
