"""Hooks of a user's LightningModule: called alike on all ranks, or refused by name."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy, MulticlassAUROC

from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.training import hooks
from gnnkit.training.hooks import gather_everywhere
from tests.cases import exhaustive
from tests.training.test_own_models import CLASSES, Own, make_seeded, read_logged, train

RANKS: list[dict[str, Any]] = [
    {"comm": "threads", "workers": 3},
    {"comm": "threads", "workers": 2, "sync": "leader"},
    {"comm": "gloo", "workers": 2},
    {"comm": "gloo", "workers": 2, "sync": "leader"},
]
on_ranks = pytest.mark.parametrize("keys", [RANKS[0], *map(exhaustive, RANKS[1:])], ids=str)
EVERY = {"max_epochs": 4, "precision": 64, "checkpoint": False, "check_val_every_n_epoch": 2}


class Measured(Own):
    """A network with steps of its own and metrics of torchmetrics."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = MulticlassAccuracy(CLASSES, average="micro")
        self.right = MulticlassAccuracy(CLASSES, average="micro")
        self.area = MulticlassAUROC(CLASSES)  # keeps the scores of all rows

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        self.seen(logits, batch.labels)
        self.log("seen", self.seen, on_step=False, on_epoch=True)
        return F.cross_entropy(logits, batch.labels, reduction="sum") / batch.total

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.right.update(batch.logits, batch.labels)
        self.area.update(batch.logits, batch.labels)
        loss = F.cross_entropy(batch.logits, batch.labels, reduction="sum") / batch.total
        self.log("own_loss", loss, sync_dist=True, reduce_fx="sum")

    def on_validation_epoch_end(self) -> None:
        self.log_dict({"right": self.right.compute(), "area": self.area.compute()})
        self.right.reset()
        self.area.reset()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        hits = (batch.logits.argmax(1) == batch.labels).sum() / batch.total
        self.log("tested", hits, sync_dist=True, reduce_fx="sum")


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, list[float]], Any]:
    """What one rank logs, and what its test step does."""
    folder = tmp_path_factory.mktemp("measured") / "one"
    one = train(make_seeded(Measured), folder, 1, trainer=EVERY)
    reference = {name: read_logged(folder, name) for name in ("seen", "own_loss", "right", "area", "val_loss")}
    assert reference["right"] == read_logged(folder, "val_accuracy")
    assert reference["own_loss"] == pytest.approx(reference["val_loss"], rel=1e-6)
    assert len(reference["seen"]) == 4
    assert len(reference["area"]) == 2
    assert one["test_step"] == {"tested": pytest.approx(one["test_accuracy"])}
    return reference, one["test_step"]


@pytest.mark.slow
@on_ranks
def test_steps_and_metrics_of_a_model_are_about_all_ranks(
    tmp_path: Path, measured: tuple[dict[str, list[float]], Any], keys: dict[str, Any]
) -> None:
    many = train(make_seeded(Measured), tmp_path / "run", trainer=EVERY, **keys)
    for name, values in measured[0].items():
        assert read_logged(tmp_path / "run", name) == pytest.approx(values, rel=1e-6), name
    assert many["test_step"] == measured[1]


def test_tensors_of_all_ranks_are_everywhere() -> None:
    """Those without rows, and those without dimensions too."""

    def work(comm: Any) -> tuple[list[Tensor], list[Tensor]]:
        return gather_everywhere(comm, torch.full((comm.rank, 2), comm.rank)), gather_everywhere(
            comm, torch.tensor(float(comm.rank))
        )

    for rows, numbers in Threads.run(work, 3):
        assert [part.shape[0] for part in rows] == [0, 1, 2]
        assert all(bool((part == rank).all()) for rank, part in enumerate(rows))
        assert [float(number) for number in numbers] == [0, 1, 2]
        assert numbers[0].shape == ()


class Noting(Own):
    """A network that notes the hooks and the gradients that it sees."""

    def note(self, text: str) -> None:
        with (Path(os.environ["NOTES"]) / f"{self.trainer.global_rank}").open("a") as file:
            file.write(f"{text}\n")

    def on_train_start(self) -> None:
        self.note("train_start")

    def on_train_epoch_start(self) -> None:
        self.note(f"epoch_start {self.current_epoch}")

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.note(f"batch_start {len(batch.rows) <= batch.total}")

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        norm = torch.cat([p.grad.flatten() for p in self.parameters() if p.grad is not None]).norm()
        self.note(f"before_step {float(norm):.12f}")

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note("batch_end")

    def on_validation_epoch_end(self) -> None:
        self.note("validation_epoch_end")

    def on_train_epoch_end(self) -> None:
        self.note(f"epoch_end {self.current_epoch}")

    def on_train_end(self) -> None:
        self.note("train_end")


def noted(folder: Path, **keys: Any) -> list[list[str]]:
    """Trains, and returns what the model notes on each rank."""
    (folder / "notes").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NOTES", str(folder / "notes"))
        train(make_seeded(Noting), folder / "run", trainer=EVERY | {"max_epochs": 2}, **keys)
    return [path.read_text().splitlines() for path in sorted((folder / "notes").iterdir())]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a model of the only rank notes."""
    (alone,) = noted(tmp_path_factory.mktemp("alone"), workers=1, comm="threads")
    assert [line.split()[0] for line in alone] == [
        "train_start",
        *("epoch_start", "batch_start", "before_step", "batch_end"),
        "epoch_end",
        *("epoch_start", "batch_start", "before_step", "batch_end"),
        *("validation_epoch_end", "epoch_end", "train_end"),
    ]
    return alone


@pytest.mark.slow
@on_ranks
def test_hooks_are_called_on_all_ranks_in_the_order_of_lightning(
    tmp_path: Path, alone: list[str], keys: dict[str, Any]
) -> None:
    notes = noted(tmp_path, **keys)
    assert len(notes) == keys["workers"]
    for rank, lines in enumerate(notes):
        steps_here = keys.get("sync") != "leader" or rank == 0
        reference = alone if steps_here else [line for line in alone if "before_step" not in line]
        assert lines == reference, rank


class Clipping(Own):
    """A network that clips gradients itself."""

    def configure_gradient_clipping(self, optimizer: Any, gradient_clip_val: Any, gradient_clip_algorithm: Any) -> None:
        self.clip_gradients(optimizer, gradient_clip_val=0.01, gradient_clip_algorithm="norm")


@pytest.fixture(scope="module")
def clipped(tmp_path_factory: pytest.TempPathFactory) -> float:
    """The loss of one rank whose model clips gradients."""
    folder = tmp_path_factory.mktemp("clipped")
    one = train(make_seeded(Clipping), folder / "one", 1, trainer=EVERY)
    free = train(make_seeded(Own), folder / "free", 1, trainer=EVERY)
    assert one["train_loss"] != pytest.approx(free["train_loss"], rel=1e-6)
    return float(one["train_loss"])


@pytest.mark.slow
@on_ranks
def test_a_model_clips_the_gradient_of_all_ranks(tmp_path: Path, clipped: float, keys: dict[str, Any]) -> None:
    many = train(make_seeded(Clipping), tmp_path / "run", trainer=EVERY, **keys)
    assert many["train_loss"] == pytest.approx(clipped, rel=1e-10)


class Following(Own):
    """A network whose learning rate follows a value."""

    monitor = "val_accuracy"

    def on_train_start(self) -> None:
        self.log("begun", 1.0)

    def on_validation_epoch_end(self) -> None:
        self.log("mine", 0.5 + self.trainer.global_rank)  # the leader's counts

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=1e-6)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "max", 0.5, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": self.monitor}}


def rates(folder: Path) -> list[float]:
    return read_logged(folder, "lr")


@pytest.mark.slow
@pytest.mark.parametrize("monitor", [exhaustive("val_accuracy"), "mine"])
@on_ranks
def test_a_rate_follows_a_value_of_evaluations(
    tmp_path: Path, keys: dict[str, Any], monitor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The value does not move, so the rate halves after each further evaluation."""
    monkeypatch.setattr(Following, "monitor", monitor)
    train(make_seeded(Following), tmp_path / "run", trainer=EVERY | {"max_epochs": 7}, callback="learning_rate", **keys)
    assert rates(tmp_path / "run") == pytest.approx([1e-6] * 4 + [5e-7] * 2 + [2.5e-7])


@pytest.mark.slow
def test_a_rate_that_follows_nothing_is_refused(tmp_path: Path) -> None:
    class Lost(Following):
        monitor = "val_acuracy"

    with pytest.raises(
        UserError, match=r"ReduceLROnPlateau: monitor=val_acuracy is logged by nothing, there are: .*val_acc"
    ):
        train(make_seeded(Lost), tmp_path / "run", 2, trainer=EVERY)


REFUSED: dict[str, Any] = {
    "on_after_backward": lambda self: None,
    "predict_step": lambda self, batch, index: None,
    "train_dataloader": lambda self: [],
    "on_save_checkpoint": lambda self, checkpoint: None,
    "optimizer_step": lambda self, *_: None,
    "on_validation_batch_end": lambda self, *_: None,
    "setup": lambda self, stage: None,
}


@pytest.mark.slow
@pytest.mark.parametrize("hook", REFUSED)
def test_a_hook_that_would_not_be_called_is_refused_by_name(tmp_path: Path, hook: str) -> None:
    kind = type("Hooked", (Own,), {hook: REFUSED[hook]})
    with pytest.raises(UserError, match=f"model=Hooked: the hook {hook} is not called: .*leave it out"):
        train(make_seeded(kind), tmp_path / "run", 1)
    assert not (tmp_path / "run/workers.jsonl").exists()


@pytest.mark.slow
def test_manual_optimisation_and_two_optimisers_are_refused(tmp_path: Path) -> None:
    class Manual(Own):
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

    class Two(Own):
        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=1.0), torch.optim.Adam(self.parameters())]

    with pytest.raises(UserError, match="model=Manual: automatic_optimization=False"):
        train(make_seeded(Manual), tmp_path / "manual", 1)
    with pytest.raises(UserError, match="model=Two: configure_optimizers gives 2 optimisers"):
        train(make_seeded(Two), tmp_path / "two", 1)


@pytest.mark.slow
def test_a_step_of_an_evaluation_says_what_it_gets(tmp_path: Path) -> None:
    class Usual(Own):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            self(batch.x, batch.adjacencies)

    with pytest.raises(UserError, match=r"batch\.x: validation_step and test_step get batch\.logits"):
        train(make_seeded(Usual), tmp_path / "run", 1, trainer=EVERY)


@pytest.mark.slow
def test_the_hyperparameters_of_a_model_are_written(tmp_path: Path) -> None:
    class Named(Own):
        def __init__(self, width: int = 7) -> None:
            super().__init__()
            self.save_hyperparameters()

    train(make_seeded(Named), tmp_path / "run", 1, logger=["csv", "tensorboard"])
    for folder in ("csv", "tensorboard"):
        text = (tmp_path / "run" / folder / "hparams.yaml").read_text()
        assert "width: 7" in text
        assert "max_epochs: 3" in text


def test_hooks_where_servers_step_and_steps_of_other_tasks_are_refused() -> None:
    class Seeing(Own):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            pass

    class Judging(Own):
        def validation_step(self, batch: Any, batch_idx: int) -> None:
            pass

    servers, here = SimpleNamespace(steps_here=False), SimpleNamespace(steps_here=True)
    hooks.check(make_seeded(Seeing), here, True)  # type: ignore[arg-type]
    hooks.check(make_seeded(Judging), servers, True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="model=Seeing: the hook on_before_optimizer_step is not called where servers"):
        hooks.check(make_seeded(Seeing), servers, True)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="model=Judging: the hook validation_step needs a task about nodes"):
        hooks.check(make_seeded(Judging), here, False)  # type: ignore[arg-type]


def test_no_rank_ends_an_epoch_alone() -> None:
    class Ending(Own):
        answer = 0

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> int:
            return self.answer

    module = SimpleNamespace(model=make_seeded(Ending))
    hooks.OwnHooks.on_train_batch_start(module, None, 0)  # type: ignore[arg-type]
    module.model.answer = -1
    with pytest.raises(UserError, match="model=Ending: on_train_batch_start returns -1 to end an epoch, which other"):
        hooks.OwnHooks.on_train_batch_start(module, None, 0)  # type: ignore[arg-type]


def test_a_callback_sees_the_gradient_before_the_model_clips_it() -> None:
    values = []

    class Watching(L.Callback):
        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            values.append(float(weight.grad))  # type: ignore[arg-type]

    class Halving(Own):
        def configure_gradient_clipping(self, optimizer: Any, *_: Any) -> None:
            weight.grad *= 0.5  # type: ignore[operator]

    weight = torch.nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    trainer = SimpleNamespace(callbacks=[L.Callback(), Watching()], optimizers=[optimizer])
    hooks.before_step(SimpleNamespace(model=make_seeded(Halving), trainer=trainer), None)
    weight.grad = torch.tensor(0.5)
    optimizer.step()
    assert (values, float(weight)) == ([0.5], 0.75)
