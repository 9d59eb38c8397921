"""Between two steps of a run: what a checkpoint holds, and how a run goes on from one.

Lightning's own checkpoints are not used: saved between two epochs, a run that is resumed
from one trains nothing in an epoch that ends with a validation. Here the position is two
numbers, and the strategy hands out the batches from there on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.partition.shard import Shard
from gnnkit.training import checkpoint
from gnnkit.training.module import TrainingModule

Position = tuple[int, int]  # epoch, and step of it that comes next


class PeriodicCheckpoint(Callback):
    """Saves between epochs, every so many, and within epochs, every so many steps."""

    def __init__(self, path: Path, identity: Mapping[str, Any], epochs: int, steps: int | None) -> None:
        """Keeps the intervals.

        Args:
            path: The checkpoint, replaced each time.
            identity: What a run must have in common with this one to go on from the checkpoint.
            epochs: Epochs between checkpoints.
            steps: Steps of an epoch between checkpoints. None: only between epochs.
        """
        self.path, self.identity, self.epochs, self.steps = path, identity, epochs, steps

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        resumed = module.resumed[0] == trainer.current_epoch  # the checkpoint is there already
        if trainer.current_epoch > 0 and trainer.current_epoch % self.epochs == 0 and not resumed:
            save(self.path, trainer, module, self.identity, (trainer.current_epoch, 0))

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = module.loader.first + batch_idx + 1
        if self.steps and done % self.steps == 0 and batch_idx + 1 < len(module.loader):
            save(self.path, trainer, module, self.identity, (trainer.current_epoch, done))


def save(
    path: Path,
    trainer: L.Trainer,
    module: TrainingModule,
    identity: Mapping[str, Any],
    position: Position,
    before: Mapping[str, Any] | None = None,
) -> None:
    """Writes the state of the run between two steps; the leader writes. Collective where ranks differ.

    Args:
        path: The JSON file of the checkpoint.
        trainer: The trainer of this rank.
        module: Its module.
        identity: What a run must have in common with this one.
        position: The epoch, and the step of it that comes next.
        before: The state of this rank that a longer run goes on from, where the final
            average has replaced its parameters.
    """
    own = state(trainer, module)
    packed = checkpoint.pack(before or own).to(module.worker.device)
    workers = module.worker.comm.gather(packed) if _differs(module) else None
    if module.worker.comm.rank == 0:
        place = {"epoch": position[0], "step": position[1], "global_step": trainer.global_step}
        checkpoint.save({**place, "identity": dict(identity), **own, "workers": workers}, path)


def state(trainer: L.Trainer, module: TrainingModule) -> dict[str, Any]:
    """What this rank goes on with: parameters, optimisers, schedules, and the strategy's state."""
    return {
        "state_dict": module.state_dict(),
        "optimizer_states": [optimizer.state_dict() for optimizer in trainer.optimizers],
        "lr_schedulers": [config.scheduler.state_dict() for config in trainer.lr_scheduler_configs],
        "strategy": module.strategy.state_dict() if _differs(module) else {},
        "shard": fingerprint(module.worker.shard),
    }


def _differs(module: TrainingModule) -> bool:
    """Whether ranks hold states of their own."""
    return module.strategy.drifts


class Resume(Callback):
    """Sets a run to where a checkpoint was saved."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self.saved = saved

    def place(self, trainer: L.Trainer, module: TrainingModule) -> None:
        """Sets epoch and step, before `trainer.fit`. Raises `UserError` for a state of other workers."""
        self.own = _own_state(self.saved, module)
        epoch, step, steps = (self.saved[name] for name in ("epoch", "step", "global_step"))
        module.resumed = (epoch, step)
        loop = trainer.fit_loop
        for progress in (loop.epoch_progress.current, loop.epoch_progress.total):
            progress.ready = progress.started = progress.processed = progress.completed = epoch
        loop.epoch_loop.automatic_optimization.optim_progress.optimizer.step.total.completed = steps
        loop.epoch_loop._batches_that_stepped = steps
        module.load_state_dict(self.own["state_dict"])

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        for optimizer, state in zip(trainer.optimizers, self.own["optimizer_states"], strict=True):
            optimizer.load_state_dict(state)
        for config, state in zip(trainer.lr_scheduler_configs, self.own["lr_schedulers"], strict=True):
            config.scheduler.load_state_dict(state)
        if self.own["strategy"]:
            module.strategy.load_state_dict(self.own["strategy"])


def _own_state(saved: dict[str, Any], module: TrainingModule) -> dict[str, Any]:
    """The part of this rank, where ranks differ."""
    workers: list[Tensor] | None = saved["workers"]
    if workers is None:
        return saved
    if not _differs(module):
        raise UserError("trainer.resume: its workers have parameters of their own, strategy.local_iterations=1 has not")
    if len(workers) != module.worker.comm.world_size:
        raise UserError(
            f"trainer.resume: it was saved by {len(workers)} workers, got workers={module.worker.comm.world_size}"
        )
    own: dict[str, Any] = checkpoint.unpack(workers[module.worker.comm.rank])
    if own["shard"] != fingerprint(module.worker.shard):
        raise UserError("trainer.resume: it was saved on another graph or partition, whose workers had other nodes")
    return own


def fingerprint(shard: Shard) -> str:
    """Hashes the ids of the rows that a rank owns and reads."""
    digest = hashlib.sha256(str(shard.grid).encode())
    for rows in (shard.owned, shard.sources, shard.targets):
        digest.update(np.asarray(rows, np.int64).tobytes())
    return digest.hexdigest()
