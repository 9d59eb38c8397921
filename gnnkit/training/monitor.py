"""Judgement of a run by its metrics: selection, early stopping, chance level."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.callback.leader import Leader
from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.leader.best import BestModel
from gnnkit.result.figures import Selection
from gnnkit.strategy import Batch, Worker
from gnnkit.task import Task
from gnnkit.training.step import LOSS

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule


class Monitor(BestModel):
    """Stores the best model of a run, and stops training that no longer improves.

    `train_loss` is checked after each epoch. It is the mean over all ranks' rows. A
    task's figure, such as `val_accuracy`, is checked after each evaluation. All ranks
    receive the same values, so they store the model of the same epoch and stop after
    the same epoch. If workers hold different parameters, the stored model is the one
    that a checkpoint would contain.
    """

    def __init__(self, name: str, patience: int | None = None, **options: Any) -> None:
        """Stores the options.

        Args:
            name: `train_loss`, or a figure that evaluations log.
            patience: Number of epochs or evaluations in a row without improvement that
                end training. If None, training never ends early.
            **options: `lower_is_better`, `latest` and `on_better` of `BestModel`. The
                lowest `train_loss` is always best.
        """
        super().__init__(name, patience, **options | ({"lower_is_better": True} if name == LOSS else {}))
        self.rows = torch.zeros(2, dtype=torch.float64)  # this rank's sum of the loss and number of rows in this epoch

    def begin(self, module: TrainingModule) -> None:
        """Raises `UserError` if the validation split is empty. Collective."""
        if self.name.startswith("val_") and not count_labelled(module.worker, Split.VAL):
            kind = "labelled " * (not module.worker.rows.drawn) + module.task.noun
            raise UserError(f"trainer.monitor={self.name}: no {kind} is in the validation split")

    def end_step(self, module: TrainingModule, batch: Batch) -> None:
        """Adds the loss of a step."""
        if self.name != LOSS:
            return
        loss = float(module.local_loss) * batch.total
        if math.isfinite(loss):  # otherwise, the step was skipped
            self.rows += torch.tensor([loss, len(batch.rows)], dtype=torch.float64)

    def end_evaluation(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Checks the figure of an evaluation. Collective."""
        if self.name == LOSS:
            return
        if self.name not in trainer.callback_metrics:
            raise UserError(
                f"trainer.monitor={self.name}: not measured on these data, only "
                f"{', '.join(name for name in module.task.names if name in trainer.callback_metrics)}"
            )
        self.look(float(trainer.callback_metrics[self.name]), trainer, module)

    def end_epoch(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Checks an epoch's loss, and stops training if necessary. Collective."""
        if self.name == LOSS:
            loss, rows = module.worker.comm.all_reduce(self.rows.to(module.worker.device)).tolist()
            self.rows.zero_()
            module.settle()
            self.look(loss / rows if rows else math.inf, trainer, module)
            module.log(LOSS, loss / rows if rows else math.inf, logger=False)  # the watch logs the curve
        trainer.should_stop = trainer.should_stop or self.stopped is not None

    def gathered(self, comm: Communicator) -> dict[str, object]:
        """Returns the state for a checkpoint. Collective.

        It is equal on ranks that hold the same model.
        """
        return self.state_dict() | {"rows": comm.all_gather(self.rows, torch.float64)}

    def restore(self, state: dict[str, Any] | None, rank: int) -> None:
        """Restores the state of a run with the same rule.

        Args:
            state: The state from `gathered`. If None, the run had no such rule.
            rank: This rank.
        """
        if state is None or state["name"] != self.name:
            return
        self.load_state_dict(state)
        rows: Tensor = state["rows"]
        if rank < len(rows):  # within an epoch, the number of workers is unchanged
            self.rows = rows[rank].clone()


def count_labelled(worker: Worker, split: Split) -> int:
    """Counts all ranks' labelled rows in a split. Collective."""
    count = worker.rows.count(split, worker.targets)
    return int(worker.comm.all_reduce(torch.tensor([count], device=worker.device)).item())


def selection(trainer: L.Trainer) -> Selection:
    """Returns the best epoch and value, and the reason why a callback ended training.

    Values are None if nothing was monitored, or if training was not ended.
    """
    reasons = (getattr(callback, "stopped", None) for callback in trainer.callbacks)  # type: ignore[attr-defined]
    reason = next(filter(None, reasons), ended_by_user(trainer))
    rule = monitor(trainer)
    if rule is None or math.isinf(rule.best):
        return Selection(stopped=reason)
    return Selection(rule.best_epoch, rule.sign * rule.best, rule.name, reason)


def ended_by_user(trainer: L.Trainer) -> str | None:
    """Returns which of the user's callbacks ended training, or None."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if not trainer.should_stop or any(getattr(callback, "stopped", None) for callback in callbacks):
        return None
    reasons = ((type(callback).__name__, getattr(callback, "stopping_reason_message", None)) for callback in callbacks)
    name, message = next((reason for reason in reasons if reason[1]), ("", "a callback has set trainer.should_stop"))
    return f"{name and f'callback={name}: '}ended after epoch {trainer.current_epoch}: {message}"


def monitor(trainer: L.Trainer) -> Monitor | None:
    """Returns the rule of the trainer's leader, if any."""
    leader = Leader.of(trainer)
    return None if leader is None else leader.site.rule  # type: ignore[return-value]


MIN_STEPS = 50  # after fewer steps, a model may not have learned yet


def learned_nothing(
    task: Task, metrics: Mapping[str, float], chance: Mapping[str, float], epochs: int, steps: int
) -> str | None:
    """Returns a warning if a model is hardly better than chance.

    Args:
        task: The task.
        metrics: The model's metrics.
        chance: From `Task.chance`.
        epochs: Number of completed epochs.
        steps: Number of optimiser steps.
    """
    if steps < MIN_STEPS or skill(task, metrics, chance) > task.least_skill:
        return None
    names, baseline = [name for name in chance if name in metrics], task.without_learning
    words = " and ".join(f"{name}={metrics[name]:.4g} where {baseline} gives {chance[name]:.4g}" for name in names)
    return (
        f"the model has learned nothing after {epochs} epochs ({steps} steps): {words}; change trainer.lr, "
        "trainer.max_epochs, the model or the features (inputs=learned), or compare with workers=1"
    )


def skill(task: Task, metrics: Mapping[str, float], chance: Mapping[str, float]) -> float:
    """Returns the largest skill of any metric, or 1 if none has a baseline.

    The skill is 0 at chance level and 1 for a perfect value.

    Args:
        task: The task.
        metrics: The model's metrics.
        chance: From `Task.chance`.
    """
    names = [name for name in chance if name in metrics]
    return max((_skill(metrics[name], chance[name], task.is_lower_better(name)) for name in names), default=1.0)


def _skill(value: float, chance: float, lower_is_better: bool) -> float:
    """Returns a metric's skill, or 1 if chance is already perfect."""
    possible_gain = chance if lower_is_better else 1 - chance
    if possible_gain <= 0:
        return 1.0
    gain = chance - value if lower_is_better else value - chance
    return gain / possible_gain
