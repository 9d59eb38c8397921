"""Checkpoints of a run: when they are saved, and the thread that writes them.

The training thread copies the state between two steps. Files are written beside the
next steps. Where ranks hold different states, the leader receives these piece by piece
while the file is written, and holds at most one beside its own.
"""

from __future__ import annotations

import contextlib
import math
import threading
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
from gnnkit.training import checkpoint
from gnnkit.training.module import TrainingModule
from gnnkit.training.resume import Identity, Position, state

PIECE = 1 << 24  # bytes of a state that travel at a time
GRACE = 1.5  # seconds that a run which is broken off waits for the checkpoint at hand. The launcher waits 2 s


class Checkpoints:
    """The checkpoints of a run, written by the leader on a thread of their own.

    At most one is written at a time: a save waits for the one before. As a context,
    waits at the end for the last one, and for a moment where the run is broken off. A
    process that ends earlier leaves the checkpoint before.
    """

    def __init__(
        self,
        path: Path,
        identity: Identity,
        keep: int = 1,
        writer: Path | None = None,
        copy: Callable[[], None] = lambda: None,
    ) -> None:
        """Keeps the place.

        Args:
            path: The JSON file of the checkpoint, replaced each time.
            identity: Values that a resumed run must have in common.
            keep: Number of the newest checkpoints that stay. Default: 1.
            writer: Folder of `checkpoint.writing`. Default: the folder of `path`.
            copy: Called by the thread that writes, after each checkpoint.
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
        """Copies the state of the run between two steps, and lets the leader write it.

        Collective where ranks hold different states, or `trainer.monitor` is set.
        Raises `UserError` for a state that is not finite, and keeps the checkpoint
        before. Raises the error of the last writing.

        Args:
            trainer: The trainer of this rank.
            module: The module of this rank.
            position: The epoch, and the step of the epoch that comes next.
        """
        comm = module.worker.comm
        module.settle()
        own = state(trainer, module)
        _check_finite(own)
        saved: dict[str, Any] = {}
        if comm.rank == 0:
            place = {"epoch": position[0], "step": position[1], "global_step": trainer.global_step}
            self.wait()  # before the copy, so that memory holds one
            saved = {**place, "identity": self.identity.to_dict(), **checkpoint.copied(own), "workers": None}
        if _differs(module):
            others = checkpoint.pack(own) if comm.rank else torch.empty(0, dtype=torch.uint8)
            while not self._save_all(comm, saved, others):
                pass  # a worker has died meanwhile, and the others go on: again, without it
        elif comm.rank == 0:
            self._thread.begin(lambda: self._put(saved))

    def _save_all(self, comm: Communicator, saved: dict[str, Any], packed: Tensor) -> bool:
        """Sends all states to the leader, which writes each piece as it comes.

        Collective. Returns whether all came whole.

        Args:
            comm: The ranks.
            saved: What the leader writes beside.
            packed: [num_bytes] uint8. The state of this rank, empty on the leader.
        """
        sizes = torch.zeros(comm.world_size, dtype=torch.int64, device=comm.device)
        sizes[comm.rank] = len(packed)
        lengths: list[int] = comm.all_reduce(sizes).tolist()
        pieces = Pieces(max(lengths))
        if comm.rank == 0:
            self._thread.begin(lambda: self._write(saved, lengths, pieces))
        try:
            is_whole = _gathered(comm, packed, lengths, pieces)
        except BaseException:
            pieces.end()
            raise
        if not comm.broadcast(torch.tensor([int(is_whole)], device=comm.device), src=0):
            pieces.end()
            self._thread.join()
            return False
        return True

    def _write(self, saved: dict[str, Any], lengths: Sequence[int], pieces: Pieces) -> None:
        workers = [checkpoint.Streamed(size, pieces.take(size)) for size in lengths]
        try:
            with contextlib.suppress(PiecesEnd):  # the training thread says why
                self._put({**saved, "workers": workers})
        finally:
            pieces.end()

    def _put(self, state: Mapping[str, Any]) -> None:
        checkpoint.save(state, self.path, self.keep, self.writer)
        self._copy()

    def wait(self) -> None:
        """Waits until the last checkpoint is on the disk. Raises the error of writing.

        Does nothing on ranks that do not write.
        """
        self._thread.join()
        self.look()

    def look(self) -> None:
        """Raises the error of writing, if there was one."""
        if self._thread.error is not None:
            raise self._thread.error


class PiecesEnd(Exception):
    """No piece comes any more."""


class Pieces:
    """Tensors on their way from the training thread to the writer."""

    def __init__(self, room: int) -> None:
        """Makes the way.

        Args:
            room: Bytes that may wait for the writer, and one tensor beside.
        """
        self._room, self._waiting, self._ended = room, deque[Tensor](), False
        self._changed = threading.Condition()

    def put(self, piece: Tensor) -> None:
        """Adds a tensor, when there is room. Drops it after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or sum(map(len, self._waiting)) < self._room)
            self._waiting.append(piece)
            self._changed.notify_all()

    def take(self, size: int) -> Iterator[Tensor]:
        """Yields tensors of `size` bytes together. Raises `PiecesEnd` after the end."""
        while size:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or self._waiting)
                if self._ended:
                    raise PiecesEnd
                piece = self._waiting.popleft()
                self._changed.notify_all()
            size -= len(piece)
            yield piece

    def end(self) -> None:
        """Ends all waits. Nothing happens where all was taken."""
        with self._changed:
            self._ended = True
            self._waiting.clear()
            self._changed.notify_all()


class Writer:
    """One piece of work at a time, on a thread."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # of the last work, once it has ended
        self._thread: threading.Thread | None = None

    def begin(self, work: Callable[[], None]) -> None:
        """Starts work. The work before must have ended."""
        # A process that is told to end does not wait for such a thread.
        self._thread = threading.Thread(target=self._do, args=(work,), name="gnnkit-checkpoint", daemon=True)
        self._thread.start()

    def join(self, seconds: float | None = None) -> None:
        """Waits for the end of the work, at most so many seconds. Default: any."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.error = error


class PeriodicCheckpoint(Callback):
    """The callback that saves every so many epochs, and every so many steps of one."""

    def __init__(
        self, checkpoints: Checkpoints, epochs: int, steps: int | None = None, *, at_start: bool = False
    ) -> None:
        """Keeps the intervals.

        Args:
            checkpoints: Where to save.
            epochs: Epochs between checkpoints.
            steps: Steps of an epoch between checkpoints. None: only between epochs.
            at_start: Whether the run saves before the first step. Default: False.
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


def _gathered(comm: Communicator, packed: Tensor, lengths: Sequence[int], pieces: Pieces) -> bool:
    """Moves the states of all ranks to the leader. Returns there whether all came.

    Collective. A worker that is gone sends nothing, where others go on without it.
    """
    is_whole = True
    for rank, length in enumerate(lengths):
        for begin in range(0, length, PIECE):
            end = min(begin + PIECE, length)
            own = packed[begin:end] if comm.rank == rank else packed[:0]
            if found := comm.gather(own.to(comm.device)):
                is_whole = is_whole and len(found[rank]) == end - begin
                if is_whole:
                    pieces.put(found[rank].cpu())
    return is_whole


def _differs(module: TrainingModule) -> bool:
    """Says whether ranks hold different states."""
    drifts = module.strategy.steps.drift or (module.sync is not None and module.sync.drifts)
    return drifts or module.strategy.steps.keep_state or module.embedding is not None


def _check_finite(state: Mapping[str, Any]) -> None:
    """Raises `UserError` for parameters or an optimiser's state that are not finite."""
    for tensor in _tensors([state[part] for part in ("state_dict", "optimizer_states", "sync", "embedding")]):
        if tensor.is_floating_point() and not _is_finite(tensor):
            raise UserError(
                "trainer.checkpoint: parameters or the optimiser's state are not finite, nothing was saved: "
                "lower trainer.lr"
            )


def _is_finite(tensor: Tensor) -> bool:
    """Says whether all numbers are finite. Looks at each only where the sum is not."""
    return math.isfinite(float(tensor.sum())) or bool(torch.isfinite(tensor).all())


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
