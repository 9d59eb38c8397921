"""Learning rate schedules, gradient clipping, and a time limit."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from gnnkit.errors import UserError


def _cosine(part: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * part))


def _linear(part: float) -> float:
    return 1 - part


_DECAYS: dict[str | None, Callable[[float], float]] = {None: lambda _: 1.0, "cosine": _cosine, "linear": _linear}


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """The learning rate over the epochs.

    It increases linearly during the warm-up. Then the decay starts, which reaches 0
    after the last epoch.
    """

    name: str | None = None  # decay: cosine or linear, or None if constant
    warmup: int = 0  # number of epochs
    epochs: int = 1  # total number of epochs

    def factor(self, epoch: int) -> float:
        """Returns the learning rate's factor in an epoch, counted from 0."""
        if epoch < self.warmup:
            return (epoch + 1) / (self.warmup + 1)
        return _DECAYS[self.name](min((epoch - self.warmup) / max(self.epochs - self.warmup, 1), 1.0))

    def of(self, optimizer: Optimizer) -> Any:
        """Returns the optimiser with its schedule, in Lightning's format."""
        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, self.factor)}


@dataclass(frozen=True, slots=True)
class Plateau:
    """A learning rate that decreases when a metric stops improving."""

    monitor: str  # `trainer.monitor`
    lower_is_better: bool = False
    name = "plateau"

    def of(self, optimizer: Optimizer) -> Any:
        """Returns the optimiser with its schedule, in Lightning's format."""
        mode: Literal["min", "max"] = "min" if self.lower_is_better else "max"
        scheduler = ReduceLROnPlateau(optimizer, mode, factor=0.1, patience=10, threshold=0.0)
        config = {"scheduler": scheduler, "monitor": self.monitor, "strict": False}
        return {"optimizer": optimizer, "lr_scheduler": config}


Schedules = RateSchedule | Plateau


def check_optimizers(configuration: object, model: str, *, by_steps: bool) -> Any:
    """Normalises the result of a model's `configure_optimizers`.

    Raises `UserError` for formats that several ranks do not support.

    Args:
        configuration: Optimisers and schedules, in any of Lightning's formats.
        model: Name of the model, for errors.
        by_steps: Whether a schedule may count steps.
    """
    parts = configuration if isinstance(configuration, list | tuple) else (configuration,)
    optimizers, schedulers = parts if _are_lists(parts) else (parts, [])
    if len(optimizers) != 1:
        raise UserError(
            f"model={model}: configure_optimizers gives {len(optimizers)} optimisers, and a step takes one: put the "
            "parameters into groups of one optimiser"
        )
    (optimizer,) = optimizers
    if isinstance(optimizer, dict):
        schedulers = [optimizer["lr_scheduler"]] if "lr_scheduler" in optimizer else []
        optimizer = optimizer["optimizer"]
    configs = [entry if isinstance(entry, dict) else {"scheduler": entry} for entry in schedulers]
    return [optimizer], [_check_schedule(entry, model, by_steps=by_steps) for entry in configs]


def _are_lists(parts: Any) -> bool:
    return len(parts) == 2 and all(isinstance(part, list | tuple) for part in parts)


def _check_schedule(entry: Mapping[str, object], model: str, *, by_steps: bool) -> dict[str, object]:
    """Checks one schedule, and makes it tolerate a missing metric."""
    if entry.get("interval") == "step" and not by_steps:
        raise UserError(
            f"model={model}: a schedule with interval=step would count each batch of trainer.accumulate: use "
            "interval=epoch"
        )
    by_value = isinstance(entry["scheduler"], ReduceLROnPlateau) or entry.get("reduce_on_plateau")
    if by_value and not entry.get("monitor"):
        raise UserError(f"model={model}: ReduceLROnPlateau needs monitor, such as val_loss, beside the scheduler")
    return {**entry, "strict": False}


def schedule_metric(trainer: L.Trainer, scheduler: object) -> str | None:
    """Returns the name of the metric that a schedule monitors, or None."""
    return next((config.monitor for config in trainer.lr_scheduler_configs if config.scheduler is scheduler), None)


def check_monitored(trainer: L.Trainer) -> None:
    """Raises `UserError` for a schedule that monitors a metric that is never logged."""
    for config in trainer.lr_scheduler_configs:
        if config.reduce_on_plateau and config.monitor not in trainer.callback_metrics:
            names = ", ".join(sorted(trainer.callback_metrics))
            raise UserError(
                f"ReduceLROnPlateau: monitor={config.monitor} is logged by nothing, there are: {names} (train_loss "
                "with trainer.monitor=train_loss)"
            )


def clip(optimizer: Optimizer, norm: float) -> None:
    """Makes an optimiser clip its gradients' total norm in each step.

    Args:
        optimizer: The optimiser.
        norm: The maximum norm.
    """

    def before(optimizer: Optimizer, *_: object) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    optimizer.register_step_pre_hook(before)


class TimeLimit(Callback):
    """Ends training after the epoch in which a time limit is reached.

    The leader's clock decides for all ranks.
    """

    def __init__(self, seconds: float, started_at: float | None = None) -> None:
        """Stores the limit.

        Args:
            seconds: The limit.
            started_at: Start of the time, by `time.monotonic`. Default: the start of
                training.
        """
        self.seconds, self._started_at, self._begin = seconds, started_at, time.monotonic()
        self.stopped: str | None = None  # why training ended

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._begin = time.monotonic() if self._started_at is None else self._started_at

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        over = time.monotonic() - self._begin >= self.seconds
        if not module.worker.comm.share(over):
            return
        self.stopped = f"trainer.max_time={self.seconds:g}: ended after epoch {trainer.current_epoch + 1}"
        trainer.should_stop = True
        if trainer.is_global_zero:
            print(self.stopped, file=sys.stderr, flush=True)
