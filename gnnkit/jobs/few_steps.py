"""A few steps and an evaluation, as a run takes these, for predictions."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch.callbacks import Callback

from gnnkit.comm import Mailbox
from gnnkit.sync import GradientSync
from gnnkit.training.ddp import SyncMeter
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer

EPOCHS = 2  # the first exchanges more, and the second finds a heap with gaps


def few_steps(
    module: TrainingModule,
    sync: GradientSync,
    mailbox: Mailbox,
    *,
    steps: int | None = None,
    epochs: int = EPOCHS,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Trains, evaluates after each epoch, and closes the strategy. Collective.

    Writes no scalars and no checkpoint. Returns the least seconds of a step after the
    first.

    Args:
        module: The module of this rank.
        sync: The gradient synchronisation.
        mailbox: Letters between all ranks.
        steps: Of an epoch at most. Default: all.
        epochs: Number of epochs. Default: `EPOCHS`.
        clock: Measures the steps. Default: the time.
    """
    seconds = _Seconds(clock)
    options: dict[str, Any] = {"max_epochs": epochs, "limit_train_batches": steps, "logger": False}
    make_trainer(module, sync, SyncMeter(), mailbox=mailbox, callbacks=[seconds], **options).fit(module)
    sync.close()
    module.strategy.close()
    return min(seconds.found[1:], default=0.0)


class _Seconds(Callback):
    """Measures each step, from the begin of the epoch or the end of the step before."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._begun = clock, 0.0
        self.found: list[float] = []

    def on_train_epoch_start(self, *_: object) -> None:
        self._begun = self._clock()

    def on_train_batch_end(self, *_: object) -> None:
        now = self._clock()
        self.found.append(now - self._begun)
        self._begun = now
