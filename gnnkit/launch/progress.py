"""Progress reports of a started process to the launching process."""

from __future__ import annotations

import ctypes
import threading

from gnnkit.launch.signals import check

_PHASE_BYTES = 120


class Board(ctypes.Structure):
    """One process's progress, in memory shared with the launching process."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("encoded_phase", ctypes.c_char * _PHASE_BYTES),
        ("dispensable", ctypes.c_bool),
        ("step", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("training", ctypes.c_bool),
        ("saves", ctypes.c_bool),
        ("asked", ctypes.c_bool),
        ("saved", ctypes.c_bool),
    )

    count: int  # number of reports
    encoded_phase: bytes
    dispensable: bool  # the others continue if this process fails
    step: int  # current or last training step, counted from 1, or 0 before the first
    epoch: int  # the step's epoch, counted from 1
    training: bool  # in training steps, which wait for others no longer than comm.timeout
    saves: bool  # saves a checkpoint on request
    asked: bool  # the launcher requests a checkpoint
    saved: bool  # the requested checkpoint has been saved

    @property
    def phase(self) -> str:
        """The last reported phase."""
        return self.encoded_phase.decode(errors="replace")

    @property
    def place(self) -> tuple[int, int]:
        """The current or last training step, and its epoch."""
        return self.step, self.epoch

    def request_save(self) -> None:
        """Requests a checkpoint from the process."""
        self.saved, self.asked = False, True


_own_board = Board()  # not shared in a process that gnnkit has not started


def progress(phase: str) -> None:
    """Reports to the launcher that this process makes progress.

    Takes a microsecond. Has no effect in a process that gnnkit has not started. Raises
    if a signal has asked the process to end.

    Args:
        phase: The work that starts now, such as `step 12`. Shown if the process hangs.
    """
    check()
    thread = threading.current_thread()
    place = "" if thread is threading.main_thread() else f"{thread.name}: "
    _own_board.encoded_phase = (place + phase).encode(errors="replace")[:_PHASE_BYTES]
    _own_board.count += 1


def stepping(epoch: int, step: int) -> None:
    """Reports the start of a training step."""
    _own_board.epoch, _own_board.step = epoch + 1, step + 1
    progress(f"step {step}")


def dispensable() -> None:
    """Reports that the others continue if this process fails.

    Has no effect in a process that gnnkit has not started.
    """
    _own_board.dispensable = True


def training(begins: bool) -> None:
    """Reports that training steps start or end."""
    _own_board.training = begins


def can_save(possible: bool) -> None:
    """Reports whether this process saves a checkpoint on request."""
    _own_board.saves = possible


def is_asked() -> bool:
    """Returns whether the launcher has requested a checkpoint."""
    return bool(_own_board.asked)


def note_saved() -> None:
    """Reports that a requested checkpoint has been saved."""
    if _own_board.asked:
        _own_board.saved = True


def report_on(board: Board) -> None:
    """Makes `board` the destination of this process's reports."""
    global _own_board  # noqa: PLW0603 - one per process
    _own_board = board
