"""Learning rates over the epochs, clipping of gradients, and a limit of time."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR


def _cosine(part: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * part))


def _linear(part: float) -> float:
    return 1 - part


_DECAYS: dict[str | None, Callable[[float], float]] = {None: lambda _: 1.0, "cosine": _cosine, "linear": _linear}


@dataclass(frozen=True, slots=True)
class Schedule:
    """The learning rate over the epochs.

    Rises in equal steps over the warm-up. The decay begins after the warm-up, and would
    reach 0 after the last epoch.
    """

    name: str | None = None  # of the decay: cosine or linear. None: the rate stays
    warmup: int = 0  # epochs
    epochs: int = 1  # all

    def factor(self, epoch: int) -> float:
        """Returns the factor of the learning rate in an epoch, from 0."""
        if epoch < self.warmup:
            return (epoch + 1) / (self.warmup + 1)
        return _DECAYS[self.name](min((epoch - self.warmup) / max(self.epochs - self.warmup, 1), 1.0))

    def of(self, optimizer: Optimizer) -> Any:
        """Returns the optimiser with its schedule, as Lightning takes both."""
        if self.name is None and not self.warmup:
            return optimizer
        return {"optimizer": optimizer, "lr_scheduler": LambdaLR(optimizer, self.factor)}


def clip(optimizer: Optimizer, norm: float) -> None:
    """Makes each step of an optimiser scale down gradients of a larger norm.

    The norm is over all parameters of the optimiser.

    Args:
        optimizer: The optimiser.
        norm: The largest norm.
    """

    def before(optimizer: Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(parameters, norm)

    optimizer.register_step_pre_hook(before)


class TimeLimit(Callback):
    """The callback that ends training after the epoch in which time runs out.

    The leader's clock decides for all ranks.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.started = seconds, time.monotonic()
        self.stopped: str | None = None  # why training ended

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        self.started = time.monotonic()

    def on_train_epoch_end(self, trainer: L.Trainer, module: Any) -> None:
        over = time.monotonic() - self.started >= self.seconds
        if not module.worker.comm.share(over):
            return
        self.stopped = f"trainer.max_time={self.seconds:g}: ended after epoch {trainer.current_epoch + 1}"
        trainer.should_stop = True
        if trainer.is_global_zero:
            print(self.stopped, file=sys.stderr, flush=True)
