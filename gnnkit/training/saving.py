"""Checkpoints of a run: when they are saved, and the thread that writes them.

The training thread copies the state between two steps, and files are written during the
next steps. If ranks hold different states, they are streamed to the leader while the
file is written, so the leader holds at most one in addition to its own.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.launch.progress import can_save, is_asked, note_saved
from gnnkit.training import checkpoint
from gnnkit.training.module import TrainingModule
from gnnkit.training.resume import Identity, Position, state

PIECE = 1 << 24  # bytes per message
GRACE = 1.5  # seconds that an interrupted run waits for a checkpoint. The launcher waits 2 s


class Checkpoints:
    """A run's checkpoints, written by a thread of the leader.

    A save waits for the previous one to be written. On exit, the context waits for the
    last checkpoint, or briefly if the run was interrupted. A process that ends earlier
    leaves the previous checkpoint.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        keep: int = 1,
        writer: Path | None = None,
        copy: Callable[[], None] = lambda: None,
    ) -> None:
        """Stores the arguments.

        Args:
            path: The checkpoint's JSON file, replaced each time.
            identity: Values that a resumed run must share.
            keep: Number of checkpoints to keep.
            writer: Folder from `checkpoint.writing`. Default: the folder of `path`.
            copy: Called by the writing thread after each checkpoint.
        """
        self.path, self.identity, self.keep, self.writer, self._copy = path, identity, keep, writer, copy
        self._thread = Writer()

    def __enter__(self) -> Checkpoints:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.wait()
        else:
            self._thread.join(GRACE)

    def save(self, trainer: L.Trainer, module: TrainingModule, position: Position) -> None:
        """Copies the run's state between two steps, which the leader then writes.

        Collective if ranks hold different states, or `trainer.monitor` is set. Raises
        `UserError` for a state that is not finite, keeping the previous checkpoint.
        Raises the previous save's error.

        Args:
            trainer: This rank's trainer.
            module: This rank's module.
            position: The epoch, and its next step.
        """
        comm = module.worker.comm
        module.settle()
        rank_state = state(trainer, module)
        _check_finite(rank_state)
        leader_state: dict[str, object] = {}
        if comm.rank == 0:
            place = {"epoch": position[0], "step": position[1], "global_step": trainer.global_step}
            self.wait()  # before copying, so that memory holds one copy
            leader_state = {
                **place,
                "identity": self.identity.to_dict(),
                **checkpoint.copy_to_host(rank_state),
                "workers": None,
            }
        if _differs(module):
            packed_state = checkpoint.pack(rank_state) if comm.rank else torch.empty(0, dtype=torch.uint8)
            while not self._save_all(comm, leader_state, packed_state):
                pass  # a worker has died, and the others continue: repeat without it
        elif comm.rank == 0:
            self._thread.begin(lambda: self._put(leader_state))

    def _save_all(self, comm: Communicator, leader_state: Mapping[str, object], packed_state: Tensor) -> bool:
        """Streams all states to the leader, which writes each piece on arrival.

        Collective. Returns whether all were complete.

        Args:
            comm: Connects the ranks.
            leader_state: Further data written by the leader.
            packed_state: [num_bytes] uint8. This rank's state, empty on the leader.
        """
        lengths: list[int] = comm.all_gather(len(packed_state)).tolist()
        pieces = Pieces(max(lengths))
        if comm.rank == 0:
            self._thread.begin(lambda: self._write(leader_state, lengths, pieces))
        try:
            is_whole = _gather_states(comm, packed_state, lengths, pieces)
        except BaseException:
            pieces.end()
            raise
        if not comm.broadcast(torch.tensor([int(is_whole)], device=comm.device), src=0):
            pieces.end()
            self._thread.join()
            return False
        return True

    def _write(self, leader_state: Mapping[str, object], lengths: Sequence[int], pieces: Pieces) -> None:
        workers = [checkpoint.Streamed(size, pieces.take(size)) for size in lengths]
        try:
            with contextlib.suppress(PiecesEnd):  # the training thread reports the reason
                self._put({**leader_state, "workers": workers})
        finally:
            pieces.end()

    def _put(self, state: Mapping[str, object]) -> None:
        checkpoint.save(state, self.path, self.keep, self.writer)
        self._copy()

    def wait(self) -> None:
        """Waits until the last checkpoint has been written. Raises its error.

        Does nothing on ranks that do not write.
        """
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Raises the last save's error, if there was one."""
        if self._thread.error is not None:
            raise self._thread.error


class PiecesEnd(Exception):
    """Raised if no more pieces will arrive."""


class Pieces:
    """A bounded queue of tensors from the training thread to the writer."""

    def __init__(self, room: int) -> None:
        """Creates an empty queue.

        Args:
            room: Maximum bytes in the queue, in addition to one tensor.
        """
        self._room, self._waiting, self._is_over = room, deque[Tensor](), False
        self._condition = threading.Condition()

    def put(self, piece: Tensor) -> None:
        """Adds a tensor when there is room. Discards it after the end."""
        with self._condition:
            self._condition.wait_for(lambda: self._is_over or sum(map(len, self._waiting)) < self._room)
            self._waiting.append(piece)
            self._condition.notify_all()

    def take(self, size: int) -> Iterator[Tensor]:
        """Yields tensors of `size` bytes in total. Raises `PiecesEnd` after the end."""
        while size:
            with self._condition:
                self._condition.wait_for(lambda: self._is_over or self._waiting)
                if self._is_over:
                    raise PiecesEnd
                piece = self._waiting.popleft()
                self._condition.notify_all()
            size -= len(piece)
            yield piece

    def end(self) -> None:
        """Ends all waits. Has no effect if everything was taken."""
        with self._condition:
            self._is_over = True
            self._waiting.clear()
            self._condition.notify_all()


class Writer:
    """Runs one task at a time in a thread."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # of the last task, once it has ended
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Starts a task. The previous one must have ended."""
        # A daemon thread does not delay the end of the process.
        self._thread = threading.Thread(target=self._do, args=(work,), name="gnnkit-checkpoint", daemon=True)
        self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        """Waits for the task to end, at most `seconds`. Default: no limit."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error


class PeriodicCheckpoint(Callback):
    """Saves checkpoints at intervals of epochs, and of steps within an epoch."""

    def __init__(
        self, checkpoints: Checkpoints, epochs: int, steps: int | None = None, *, at_start: bool = False
    ) -> None:
        """Stores the intervals.

        Args:
            checkpoints: Saves the checkpoints.
            epochs: Number of epochs between checkpoints.
            steps: Number of steps between checkpoints within an epoch. If None, none.
            at_start: Whether to save before the first step.
        """
        self.checkpoints, self.epochs, self.steps, self.at_start = checkpoints, epochs, steps, at_start

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        epoch, is_first = trainer.current_epoch, trainer.current_epoch == module.resumed[0]
        if self.at_start if is_first else epoch % self.epochs == 0:
            self.checkpoints.save(trainer, module, module.resumed if is_first else (epoch, 0))

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = batch_idx + 1
        self.checkpoints.look()
        if self.steps and done % self.steps == 0 and done < len(module.loader):
            self.checkpoints.save(trainer, module, (trainer.current_epoch, done))


def _gather_states(comm: Communicator, packed_state: Tensor, lengths: Sequence[int], pieces: Pieces) -> bool:
    """Streams all ranks' states to the leader. Returns there whether all arrived.

    Collective. If training continues without a lost worker, its state is omitted.
    """
    is_whole = True
    for rank, length in enumerate(lengths):
        for begin in range(0, length, PIECE):
            end = min(begin + PIECE, length)
            piece = packed_state[begin:end] if comm.rank == rank else packed_state[:0]
            if parts := comm.gather(piece.to(comm.device)):
                is_whole = is_whole and len(parts[rank]) == end - begin
                if is_whole:
                    pieces.put(parts[rank].cpu())
    return is_whole


def _differs(module: TrainingModule) -> bool:
    """Returns whether ranks hold different states."""
    return module.drifts or module.strategy.steps.keep_state or module.embedding is not None


def _check_finite(state: Mapping[str, object]) -> None:
    """Raises `UserError` for parameters or optimiser state that is not finite."""
    for tensor in _tensors([state[part] for part in ("state_dict", "optimizer_states", "sync", "embedding")]):
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise UserError(
                "trainer.checkpoint: parameters or the optimiser's state are not finite, nothing was saved: "
                "lower trainer.lr"
            )


def _is_finite(tensor: Tensor) -> bool:
    """Returns whether all numbers are finite, checking each only if the sum is not."""
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


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

    def on_train_start(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        self._saved_at = self._checked_at = time.monotonic()
        can_save(True)

    def on_train_end(self, trainer: L.Trainer, module: L.LightningModule) -> None:
        can_save(False)

    def on_train_epoch_start(self, trainer: L.Trainer, module: Any) -> None:
        if trainer.current_epoch != module.resumed[0]:
            self._pass(trainer, module, (trainer.current_epoch, 0))

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        done = batch_idx + 1
        if done < len(module.loader) and done % module.accumulate == 0:  # an evaluation may follow the last step
            self._pass(trainer, module, (trainer.current_epoch, done))

    def _pass(self, trainer: L.Trainer, module: TrainingModule, position: Position) -> None:
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
