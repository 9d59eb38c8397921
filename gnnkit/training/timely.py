"""Checkpoints at time intervals, and on the launcher's request."""

from __future__ import annotations

import time
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback

from gnnkit.launch.progress import can_save, is_asked, note_saved
from gnnkit.training.resume import Position
from gnnkit.training.saving import Checkpoints

BETWEEN = 0.5  # seconds between checks of the clock


class TimelyCheckpoint(Callback):
    """Saves a checkpoint when the leader's clock or the launcher requires it.

    Workers must step together. The leader decides for all ranks, at steps known in
    advance: each check also determines the number of steps to the next one. A step
    therefore costs nothing, and a check costs one broadcast.
    """

    def __init__(self, checkpoints: Checkpoints, minutes: float | None) -> None:
        """Stores the interval.

        Args:
            checkpoints: Saves the checkpoints.
            minutes: Minutes between checkpoints. If None, only on the launcher's
                request.
        """
        self.checkpoints, self.minutes = checkpoints, minutes
        self._saved_at = self._checked_at = time.monotonic()
        self._countdown = self._stride = 1  # steps to the next check, and between the last two

    def on_train_start(self, trainer: L.Trainer, module: Any) -> None:
        self._saved_at = self._checked_at = time.monotonic()
        can_save(True)

    def on_train_end(self, trainer: L.Trainer, module: Any) -> None:
        can_save(False)

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        if trainer.current_epoch != module.resumed[0]:
            self._pass(trainer, module, (trainer.current_epoch, 0))

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = batch_idx + 1
        if done < len(module.loader) and done % module.accumulate == 0:  # an evaluation may follow the last step
            self._pass(trainer, module, (trainer.current_epoch, done))

    def _pass(self, trainer: L.Trainer, module: Any, position: Position) -> None:
        """Counts a position between steps, and checks the clock at some. Collective."""
        self._countdown -= 1
        if self._countdown:
            return
        comm = module.worker.comm
        decision = torch.tensor(self._decide(), device=comm.device)
        due, self._stride = comm.broadcast(decision, src=0).tolist()
        self._countdown = self._stride
        if due:
            self.checkpoints.save(trainer, module, position)
            if comm.rank == 0 and is_asked():
                self.checkpoints.wait()
                note_saved()

    def _decide(self) -> tuple[int, int]:
        """Returns whether a checkpoint is due, and the steps to the next check."""
        now = time.monotonic()
        due = is_asked() or (self.minutes is not None and now - self._saved_at >= 60 * self.minutes)
        self._saved_at = now if due else self._saved_at
        pace, self._checked_at = max(now - self._checked_at, 1e-6) / self._stride, now
        return int(due), max(1, min(2 * self._stride, int(BETWEEN / pace)))
