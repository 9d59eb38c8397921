"""The value that a run monitors: keeps the best parameters, and may end training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.callback.leader import Leader
from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.leader.best import BestModel
from gnnkit.strategy import Batch, Worker
from gnnkit.training.step import LOSS

if TYPE_CHECKING:
    from gnnkit.training.module import TrainingModule


class Monitor(BestModel):
    """Keeps the best model of a run, and ends training that gets no better.

    `train_loss` is looked at after each epoch: the loss of all ranks, as mean over the
    rows. A figure of the task, such as `val_accuracy`, is looked at after each
    evaluation. All ranks see the same values, keep the model of the same epoch, and end
    after the same epoch. Where workers hold different parameters, the model is the one
    that would be saved then.
    """

    def __init__(self, name: str, patience: int | None = None, min_delta: float | None = None, **options: Any) -> None:
        """Keeps the rule.

        Args:
            name: `train_loss`, or a figure that evaluations log.
            patience: Epochs, or evaluations, without a better value that end training.
                None: training never ends early.
            min_delta: Change of the value that counts as better. Default: 0.
            **options: `lower_is_better` and `on_better` of `BestModel`. The least
                `train_loss` is always best.
        """
        super().__init__(name, patience, min_delta, **options | ({"lower_is_better": True} if name == LOSS else {}))
        self.rows = torch.zeros(2, dtype=torch.float64)  # of this rank and epoch: sum of the loss, rows

    def begin(self, module: TrainingModule) -> None:
        """Raises `UserError` where nothing would be measured. Collective."""
        if not self.name.startswith("val_"):
            return
        kind, count = _validating(module.worker)
        if not module.worker.comm.all_reduce(torch.tensor([count], device=module.worker.device)).item():
            raise UserError(f"trainer.monitor={self.name}: no {kind} is in the validation split")

    def end_step(self, module: TrainingModule, batch: Batch) -> None:
        """Adds the loss of a step."""
        if self.name != LOSS:
            return
        loss = float(module.local_loss) * batch.total
        if math.isfinite(loss):  # otherwise the step was left out
            self.rows += torch.tensor([loss, len(batch.rows)], dtype=torch.float64)

    def end_evaluation(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Looks at the figure of an evaluation. Collective."""
        if self.name == LOSS:
            return
        if self.name not in trainer.callback_metrics:
            raise UserError(
                f"trainer.monitor={self.name}: not measured on these data, only "
                f"{', '.join(name for name in module.task.names if name in trainer.callback_metrics)}"
            )
        self.look(float(trainer.callback_metrics[self.name]), trainer, module)

    def end_epoch(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Looks at the loss of an epoch, and ends training. Collective."""
        if self.name == LOSS:
            loss, rows = module.worker.comm.all_reduce(self.rows.to(module.worker.device)).tolist()
            self.rows.zero_()
            module.settle()
            self.look(loss / rows if rows else math.inf, trainer, module)
            module.log(LOSS, loss / rows if rows else math.inf, logger=False)  # the watch writes the curve
        trainer.should_stop = trainer.should_stop or self.stopped is not None

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
    """Returns the rule of the trainer's leader."""
    leader = Leader.of(trainer)
    return None if leader is None else leader.site.rule  # type: ignore[return-value]
