"""The value that a run looks at: keeps the best parameters, and may end training."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.strategy import Batch, Worker
from gnnkit.training.step import LOSS


class Monitor(Callback):
    """The callback that keeps the best model, and ends training that gets no better.

    `train_loss` is looked at after each epoch: the loss of all ranks, as mean over the
    rows. A figure of the task, such as `val_accuracy`, is looked at after each
    evaluation. All ranks see the same values, keep the model of the same epoch, and end
    after the same epoch. Where workers hold different parameters, the model is the one
    that would be saved then.
    """

    def __init__(
        self,
        name: str,
        patience: int | None = None,
        min_delta: float | None = None,
        *,
        lower_is_better: bool = False,
        on_better: Callable[[nn.Module], None] | None = None,
    ) -> None:
        """Keeps the rule.

        Args:
            name: `train_loss`, or a figure that evaluations log.
            patience: Epochs, or evaluations, without a better value that end training.
                None: training never ends early.
            min_delta: Change of the value that counts as better. Default: 0.
            lower_is_better: Whether the least value is best. `train_loss` always is.
            on_better: Called with the model at each better value, on every rank.
        """
        self.name, self.patience, self.min_delta = name, patience, min_delta or 0.0
        self.sign = -1 if self.name == LOSS or lower_is_better else 1
        self.best, self.best_epoch, self.waited = -math.inf, 0, 0  # times the sign; epochs from 1; looks since
        self.parameters: dict[str, Tensor] | None = None  # of the best model, from `TrainingModule.snapshot`
        self.rows = torch.zeros(2, dtype=torch.float64)  # of this rank and epoch: sum of the loss, rows
        self.stopped: str | None = None  # why training ended
        self._on_better = on_better

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        if not self.name.startswith("val_"):
            return
        kind, count = _validating(module.worker)
        if not module.worker.comm.all_reduce(torch.tensor([count], device=module.worker.device)).item():
            raise UserError(f"trainer.monitor={self.name}: no {kind} is in the validation split")

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        loss = float(module.local_loss) * batch.total
        if self.name == LOSS and math.isfinite(loss):  # otherwise the step was left out
            self.rows += torch.tensor([loss, len(batch.rows)], dtype=torch.float64)

    def on_validation_end(self, trainer: L.Trainer, module: Any) -> None:
        if self.name != LOSS:
            if self.name not in trainer.callback_metrics:
                raise UserError(
                    f"trainer.monitor={self.name}: not measured on these data, only "
                    f"{', '.join(name for name in module.task.names if name in trainer.callback_metrics)}"
                )
            self._look(float(trainer.callback_metrics[self.name]), trainer, module)

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        if self.name == LOSS:
            loss, rows = module.worker.comm.all_reduce(self.rows.to(module.worker.device)).tolist()
            self.rows.zero_()
            module.settle()
            self._look(loss / rows if rows else math.inf, trainer, module)
            module.log(LOSS, loss / rows if rows else math.inf, logger=False)  # the watch writes the curve
        trainer.should_stop = trainer.should_stop or self.stopped is not None

    def _look(self, value: float, trainer: L.Trainer, module: Any) -> None:
        """Compares a value with the best one before. Collective."""
        epoch, value = trainer.current_epoch + 1, self.sign * value
        if value > self.best + self.min_delta:
            self.best, self.best_epoch, self.waited = value, epoch, 0
            with module.joint():
                self.parameters = module.snapshot()
                if self._on_better is not None:
                    self._on_better(module.model)
            return
        self.waited += 1
        if self.patience is not None and self.waited >= self.patience:
            self.stopped = (
                f"trainer.monitor={self.name}: ended after epoch {epoch}, no later value was better than "
                f"{self.sign * self.best:.4g} of epoch {self.best_epoch} (trainer.patience={self.patience})"
            )
            if trainer.is_global_zero:
                print(self.stopped, file=sys.stderr, flush=True)

    def take_best(self, module: Any) -> None:
        """Goes back to the best model of a `TrainingModule`, if there is one."""
        if self.parameters is not None:
            module.put_back(self.parameters)

    def gathered(self, comm: Communicator) -> dict[str, Any]:
        """Returns the state for a checkpoint, equal on ranks that hold one model.

        Collective.
        """
        rows = torch.zeros(comm.world_size, 2, dtype=torch.float64, device=comm.device)
        rows[comm.rank] = self.rows
        best = None if math.isinf(self.best) else self.best
        return {
            "name": self.name,
            "best": best,
            "best_epoch": self.best_epoch,
            "waited": self.waited,
            "rows": comm.all_reduce(rows),
            "parameters": self.parameters,
        }

    def restore(self, state: dict[str, Any] | None, rank: int) -> None:
        """Goes on from a checkpoint of a run with the same rule.

        Args:
            state: The state from `gathered`, None where the run had no such rule.
            rank: This rank.
        """
        if state is None or state["name"] != self.name:
            return
        self.best = -math.inf if state["best"] is None else state["best"]
        self.best_epoch, self.waited, self.parameters = state["best_epoch"], state["waited"], state["parameters"]
        rows: Tensor = state["rows"]
        if rank < len(rows):  # in mid-epoch, so many workers as before
            self.rows = rows[rank].clone()


def _validating(worker: Worker) -> tuple[str, int]:
    """Names what the task is about, and counts what validates on this rank."""
    if worker.links is not None:
        return "edge", len(worker.links.val)
    shard = worker.shard
    return "labelled node", int(np.count_nonzero(shard.labelled & (shard.split == Split.VAL)))


def figures(trainer: L.Trainer) -> dict[str, Any]:
    """Returns the best epoch and value, and why any callback ended training.

    None where nothing was monitored, or nothing ended training.
    """
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    stopped = next((why for each in callbacks if (why := getattr(each, "stopped", None))), ended_by_user(trainer))
    rule = monitor(trainer)
    if rule is None or math.isinf(rule.best):
        return {"best_epoch": None, "best_value": None, "stopped": stopped}
    return {"best_epoch": rule.best_epoch, "best_value": rule.sign * rule.best, "stopped": stopped}


def ended_by_user(trainer: L.Trainer) -> str | None:
    """Says which part of the user has ended training. None where none has."""
    callbacks: list[Callback] = trainer.callbacks  # type: ignore[attr-defined]
    if not trainer.should_stop or any(getattr(each, "stopped", None) for each in callbacks):
        return None
    reasons = ((type(each).__name__, getattr(each, "stopping_reason_message", None)) for each in callbacks)
    name, why = next((found for found in reasons if found[1]), ("", "a callback has set trainer.should_stop"))
    return f"{name and f'callback={name}: '}ended after epoch {trainer.current_epoch}: {why}"


def monitor(trainer: L.Trainer) -> Monitor | None:
    """Returns the trainer's callback of this kind."""
    return next((each for each in trainer.callbacks if isinstance(each, Monitor)), None)  # type: ignore[attr-defined]
