"""The check of a user's loss before the first step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.strategy import Batch
from gnnkit.training.metrics import metrics_of
from gnnkit.training.module import TrainingModule

_TOLERANCE = 1e-3  # relative: a mean is wrong by half


class LossCheck(Callback):
    """The check that a loss of `training_step` is a sum divided by `batch.total`.

    The gradients of ranks are added up. A mean over the rows of each rank would come
    out too large by the number of ranks. Before the first step, the model computes the
    loss of the batch in evaluation mode, then the loss with twice the total. A right
    loss halves. A loss that draws at random is not judged.
    """

    def __init__(self) -> None:
        self._checked = False

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        step, strategy = module.own_training_step, module.strategy
        serves_one_pass = strategy.drifts or strategy.keeps_state
        if self._checked or step is None or module.worker.comm.world_size == 1 or serves_one_pass:
            return
        self._checked = True
        with _quiet(module):
            _check(module, step, batch, batch_idx)


def _check(module: TrainingModule, step: Callable[..., Tensor], batch: Batch, index: int) -> None:
    """Raises `UserError` on all ranks where the loss of one is wrong. Collective."""

    again = module.filled(batch).again()

    def loss(total: int) -> float:
        module.batch = replace(again, total=total)
        return float(step(module.batch, index))

    once, twice = loss(batch.total), loss(2 * batch.total)
    suspect = abs(2 * twice - once) > _TOLERANCE * abs(once)
    if not _anywhere(suspect, module):
        return
    repeated = abs(loss(batch.total) - once) <= _TOLERANCE * abs(once)
    if _anywhere(suspect and repeated, module):
        raise UserError(
            f"model={type(module.model).__name__}: training_step must return a sum over batch.rows divided by "
            "batch.total, because gradients of ranks are added up, but the loss does not halve when batch.total "
            'doubles: use reduction="sum" and divide by batch.total'
        )


def _anywhere(flag: bool, module: TrainingModule) -> bool:
    """Says whether the flag is set on any rank. Collective."""
    flags = torch.tensor([float(flag)], device=module.worker.device)
    return bool(module.worker.comm.all_reduce(flags) > 0)


@contextmanager
def _quiet(module: TrainingModule) -> Iterator[None]:
    """Sets the model to evaluation mode inside the `with` statement.

    Logs nothing, counts no words, and keeps nothing for a backward pass.
    """
    training = {part: part.training for part in module.modules()}
    module.muted = True
    module.model.eval()
    try:
        with torch.no_grad(), module.strategy.tally.paused():
            yield
    finally:
        module.muted = False
        for part, mode in training.items():
            part.training = mode
        for metric in metrics_of(module.model):
            metric.reset()
