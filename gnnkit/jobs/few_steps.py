"""A few steps and an evaluation, as a run takes these, for predictions of memory."""

from __future__ import annotations

from typing import Any

from gnnkit.comm import Mailbox
from gnnkit.sync import GradientSync
from gnnkit.training.ddp import SyncMeter
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer

EPOCHS = 2  # the first exchanges more, and the second finds a heap with gaps


def few_steps(module: TrainingModule, sync: GradientSync, mailbox: Mailbox, *, steps: int | None = None) -> None:
    """Trains `EPOCHS`, evaluates after each, and closes the strategy. Collective.

    Writes no scalars and no checkpoint.

    Args:
        module: The module of this rank.
        sync: The gradient synchronisation.
        mailbox: Letters between all ranks.
        steps: Of an epoch at most. Default: all.
    """
    options: dict[str, Any] = {"max_epochs": EPOCHS, "limit_train_batches": steps, "logger": False}
    make_trainer(module, sync, SyncMeter(), mailbox=mailbox, **options).fit(module)
    sync.close()
    module.strategy.close()
