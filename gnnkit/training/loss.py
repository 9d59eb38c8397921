"""Checks a user's loss before the first step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import nn

from gnnkit.errors import UserError
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.strategy import Batch
from gnnkit.training.module import TrainingModule, copy_model
from gnnkit.training.step import own_method

_UNCHECKED = (
    "model={}: cannot be copied, so training_step was not checked: on several workers it must return a sum over "
    "batch.rows divided by batch.total"
)
_TOLERANCE = 1e-3  # relative. A mean is wrong by half


class LossCheck(Callback):
    """Checks that the loss of `training_step` is a sum divided by `batch.total`.

    The ranks' gradients are summed, so a mean over each rank's rows would be too large
    by the number of ranks. Before the first step, a copy of the model computes the
    batch's loss in evaluation mode, and again with twice the total. A correct loss
    halves. Losses with random draws are not checked.
    """

    def __init__(self) -> None:
        self._is_checked = False

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        strategy = module.strategy
        serves_one_pass = strategy.steps.drift or strategy.steps.keep_state
        brings_step = own_method(module.model, "training_step") is not None
        if self._is_checked or not brings_step or module.worker.comm.world_size == 1 or serves_one_pass:
            return
        self._is_checked = True
        model = copy_model(module)
        if not _anywhere(model is None, module):
            assert model is not None
            with _quiet(module, model):
                _check(module, model, batch, batch_idx)
        elif trainer.is_global_zero:
            print(_UNCHECKED.format(type(module.model).__name__), file=sys.stderr, flush=True)


def _check(module: TrainingModule, model: nn.Module, batch: Batch, index: int) -> None:
    """Raises `UserError` on all ranks if any rank's loss is wrong. Collective."""
    again, step = module.filled(batch).again(), own_method(model, "training_step")
    assert step is not None

    def loss(total: int) -> float:
        return float(step(replace(again, total=total), index))

    once, twice = loss(batch.total), loss(2 * batch.total)
    suspect = abs(2 * twice - once) > _TOLERANCE * abs(once)
    if not _anywhere(suspect, module):
        return
    is_repeatable = abs(loss(batch.total) - once) <= _TOLERANCE * abs(once)
    if _anywhere(suspect and is_repeatable, module):
        if isinstance(module.model, EdgeIndexModel):
            raise UserError(
                f"model={type(module.model).__name__}: training_step adds to the mean over the batch's rows, and each "
                "worker would add it again: leave a penalty to trainer.weight_decay or to the optimiser, or use workers=1"
            )
        raise UserError(
            f"model={type(module.model).__name__}: training_step must return a sum over batch.rows divided by "
            "batch.total, because gradients of ranks are added up, but the loss does not halve when batch.total "
            'doubles: use reduction="sum" and divide by batch.total'
        )


def _anywhere(flag: bool, module: TrainingModule) -> bool:
    """Returns whether the flag is set on any rank. Collective."""
    flags = torch.tensor([float(flag)], device=module.worker.device)
    return bool(module.worker.comm.all_reduce(flags) > 0)


@contextmanager
def _quiet(module: TrainingModule, model: nn.Module) -> Iterator[None]:
    """Sets a copy of the model to evaluation mode within the context.

    Logging, word counts and gradients are disabled, and torch's random state is
    restored.
    """
    device = module.worker.device
    module.user_log.muted = True
    model.eval()
    try:
        with (
            torch.no_grad(),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
            module.strategy.tally.paused(),
        ):
            yield
    finally:
        module.user_log.muted = False
