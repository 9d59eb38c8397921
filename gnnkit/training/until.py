"""Training until a value gets no better."""

from __future__ import annotations

import math
import sys
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.strategy import Batch, Worker

DEFAULT_PATIENCE = 10
LOSS = "train_loss"  # looked at after each epoch. The least value is best


class Until(Callback):
    """The callback that ends training once a value has got no better for some time.

    `train_loss` is looked at after each epoch: the loss of all ranks, as mean over the
    rows. The figure of the task, such as `val_accuracy`, is looked at after each
    evaluation. All ranks see the same values, and end after the same epoch.
    """

    def __init__(
        self,
        name: str,
        patience: int | None = None,
        min_delta: float | None = None,
        *,
        lower_is_better: bool = False,
    ) -> None:
        """Keeps the rule.

        Args:
            name: `train_loss` or `Task.progress`.
            patience: Epochs, or evaluations, without a better value. Default: 10.
            min_delta: Change of the value that counts as better. Default: 0.
            lower_is_better: Whether the least figure of the task is best.
        """
        self.name, self.min_delta = name, min_delta or 0.0
        self.patience = patience or DEFAULT_PATIENCE
        self.sign = -1 if self.name == LOSS or lower_is_better else 1
        self.best, self.best_epoch, self.waited = -math.inf, 0, 0  # times the sign; epochs from 1; looks since
        self.rows = torch.zeros(2, dtype=torch.float64)  # of this rank and epoch: sum of the loss, rows
        self.stopped: str | None = None  # why training ended

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        if self.name == LOSS:
            return
        kind, count = _validating(module.worker)
        if not module.worker.comm.all_reduce(torch.tensor([count], device=module.worker.device)).item():
            raise UserError(f"trainer.until={self.name}: no {kind} is in the validation split")

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        loss = float(module.local_loss) * batch.total
        if self.name == LOSS and math.isfinite(loss):  # otherwise the step was left out
            self.rows += torch.tensor([loss, len(batch.rows)], dtype=torch.float64)

    def on_validation_end(self, trainer: L.Trainer, module: Any) -> None:
        if self.name != LOSS:
            self._look(float(trainer.callback_metrics[self.name]), trainer)

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        if self.name == LOSS:
            loss, rows = module.worker.comm.all_reduce(self.rows.to(module.worker.device)).tolist()
            self.rows.zero_()
            self._look(loss / rows if rows else math.inf, trainer)
        trainer.should_stop = trainer.should_stop or self.stopped is not None

    def _look(self, value: float, trainer: L.Trainer) -> None:
        """Compares a value with the best one before."""
        epoch, value = trainer.current_epoch + 1, self.sign * value
        if value > self.best + self.min_delta:
            self.best, self.best_epoch, self.waited = value, epoch, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.stopped = (
                f"trainer.until={self.name}: ended after epoch {epoch}, no later value was better than "
                f"{self.sign * self.best:.4g} of epoch {self.best_epoch} (trainer.patience={self.patience})"
            )
            if trainer.is_global_zero:
                print(self.stopped, file=sys.stderr, flush=True)

    def gathered(self, comm: Communicator) -> dict[str, Any]:
        """Returns the state for a checkpoint, equal on all ranks. Collective."""
        rows = torch.zeros(comm.world_size, 2, dtype=torch.float64, device=comm.device)
        rows[comm.rank] = self.rows
        best = None if math.isinf(self.best) else self.best
        return {
            "name": self.name,
            "best": best,
            "best_epoch": self.best_epoch,
            "waited": self.waited,
            "rows": comm.all_reduce(rows),
        }

    def restore(self, state: dict[str, Any] | None, rank: int) -> None:
        """Goes on from a checkpoint of a run with the same rule.

        Raises `UserError` where the rule has ended that run.

        Args:
            state: The state from `gathered`, None where the run had no such rule.
            rank: This rank.
        """
        if state is None or state["name"] != self.name:
            return
        if state["waited"] >= self.patience:
            raise UserError(
                f"trainer.patience={self.patience}: trainer.until={self.name} has ended the run of the checkpoint, "
                "ask for more"
            )
        self.best = -math.inf if state["best"] is None else state["best"]
        self.best_epoch, self.waited = state["best_epoch"], state["waited"]
        rows: Tensor = state["rows"]
        if rank < len(rows):  # in mid-epoch, so many workers as before
            self.rows = rows[rank].clone()


def _validating(worker: Worker) -> tuple[str, int]:
    """Names what the task is about, and counts what validates on this rank."""
    if worker.links is not None:
        return "edge", len(worker.links.val)
    shard = worker.shard
    return "labelled node", int(np.count_nonzero(shard.labelled & (shard.split == Split.VAL)))


def until(trainer: L.Trainer) -> Until | None:
    """Returns the trainer's callback of this kind."""
    return next((each for each in trainer.callbacks if isinstance(each, Until)), None)  # type: ignore[attr-defined]
