"""Signs of progress that a started process gives to the launcher."""

from __future__ import annotations

import ctypes
import threading

from gnnkit.launch.signals import check

_PHASE_BYTES = 120


class Board(ctypes.Structure):
    """The progress of one process, in memory shared with the launcher."""

    _fields_ = (
        ("count", ctypes.c_uint64),
        ("phase", ctypes.c_char * _PHASE_BYTES),
        ("dispensable", ctypes.c_bool),
        ("step", ctypes.c_int64),
        ("epoch", ctypes.c_int64),
        ("training", ctypes.c_bool),
        ("saves", ctypes.c_bool),
        ("asked", ctypes.c_bool),
        ("saved", ctypes.c_bool),
    )

    count: int  # signs of progress so far
    phase: bytes
    dispensable: bool  # the others go on without this process
    step: int  # of the run that is taken or was taken last, the first is 1. 0: none yet
    epoch: int  # of this step, the first is 1
    training: bool  # the process takes steps, and waits for others no longer than comm.timeout
    saves: bool  # the process saves a checkpoint when asked
    asked: bool  # by the launcher: save a checkpoint now
    saved: bool  # the process has saved a checkpoint since


_own_board: Board | None = None


def progress(phase: str) -> None:
    """Reports to the launcher that this process makes progress.

    Costs a microsecond. Reports nothing in a process that gnnkit has not started. Ends
    the work if a signal asks for that.

    Args:
        phase: The work that begins now, such as `step 12`. A report on a hang shows
            the phase.
    """
    check()
    if _own_board is not None:
        thread = threading.current_thread()
        place = "" if thread is threading.main_thread() else f"{thread.name}: "
        _own_board.phase = (place + phase).encode(errors="replace")[:_PHASE_BYTES]
        _own_board.count += 1


def stepping(epoch: int, step: int) -> None:
    """Tells the launcher of a step of training that begins.

    Args:
        epoch: Epochs done before.
        step: Steps of the run done before.
    """
    if _own_board is not None:
        _own_board.epoch, _own_board.step = epoch + 1, step + 1
    progress(f"step {step}")


def dispensable() -> None:
    """Tells the launcher that the others go on if this process fails.

    Does nothing in a process that gnnkit has not started.
    """
    if _own_board is not None:
        _own_board.dispensable = True


def training(begins: bool) -> None:
    """Tells the launcher that this process takes steps from now on, or no more."""
    if _own_board is not None:
        _own_board.training = begins


def can_save(possible: bool) -> None:
    """Tells the launcher whether this process saves a checkpoint when asked."""
    if _own_board is not None:
        _own_board.saves = possible


def is_asked() -> bool:
    """Says whether the launcher has asked for a checkpoint."""
    return _own_board is not None and bool(_own_board.asked)


def note_saved() -> None:
    """Tells the launcher that a checkpoint is saved, if it has asked for one."""
    if is_asked() and _own_board is not None:
        _own_board.saved = True


def report_on(board: Board) -> None:
    """Makes `board` the place of this process's signs."""
    global _own_board  # noqa: PLW0603 - one per process
    _own_board = board
