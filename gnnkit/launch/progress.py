"""What a process tells its launcher and its user: progress, warnings, exit code."""

from __future__ import annotations

import ctypes
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from gnnkit.errors import UserError, of_disk
from gnnkit.launch import signals
from gnnkit.launch.signals import check
from gnnkit.utils.ranges import one_line, printable
from gnnkit.utils.redaction import redact

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


_start_time, _silent = time.monotonic(), False


def begin(*, silent: bool = False) -> None:
    """Starts the clock. Forked processes share it.

    Args:
        silent: Whether to print nothing, because a progress bar is shown.
    """
    global _start_time, _silent
    _start_time, _silent = time.monotonic(), silent


def phase(text: str) -> None:
    """Prints a line for a phase that starts, and reports it to the launcher."""
    if not _silent:
        say(f"{time.monotonic() - _start_time:6.1f} s  {text}")
    progress(text)


def say(text: str) -> None:
    """Prints to standard output. A closed pipe does not end the job."""
    try:
        print(printable(redact(text)), flush=True)
    except (OSError, ValueError):  # a closed pipe or file, a full disk
        return


@contextmanager
def warnings_in_lines(name: str) -> Iterator[None]:
    """Collects a dataset's warnings and prints them at the end, one per line.

    Args:
        name: The dataset, as in `dataset=NAME`.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for text in dict.fromkeys(str(warning.message) for warning in caught):
        warn(f"dataset={name}: {text}")


def warn(text: str) -> None:
    """Prints a warning to standard error, on one line."""
    line = redact(one_line(text))
    if (lines := _COLLECTED.get()) is not None:
        lines.append(line)
    print(f"gnnkit: warning: {line}", file=sys.stderr, flush=True)


_COLLECTED: ContextVar[list[str] | None] = ContextVar("collected", default=None)


@contextmanager
def collected_warnings() -> Iterator[list[str]]:
    """Yields a list that gets the warnings of this thread, besides standard error."""
    lines: list[str] = []
    token = _COLLECTED.set(lines)
    try:
        yield lines
    finally:
        _COLLECTED.reset(token)


FAILED, USER_ERROR = 1, 2  # exit codes


def exit_code(work: Callable[[], int]) -> int:
    """Calls `work`, prints its error, and returns the exit code.

    After a signal, the exit code is the signal's, regardless of what `work` returns or
    raises.
    """
    code, error = _outcome(work)
    if by_signal := signals.exit_code():
        return by_signal
    return code if error is None else _print_failure(error)


def _outcome(work: Callable[[], int]) -> tuple[int, Exception | None]:
    """Returns the exit code of `work`, or the error that it raised."""
    try:
        return work(), None
    except KeyboardInterrupt:
        return 128 + signal.SIGINT, None
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else FAILED, None
    except Exception as error:
        return FAILED, error


def _print_failure(error: Exception) -> int:
    """Prints a user error, a failed rank's report, or a traceback.

    Returns the exit code.
    """
    launcher: Any = sys.modules.get("gnnkit.launch.processes")
    if (user_error := as_user_error(error)) is not None:
        print(f"gnnkit: error: {one_line(user_error)}", file=sys.stderr)
        return USER_ERROR
    if launcher is not None and isinstance(error, launcher.RankError):
        print(f"gnnkit: error: {printable(redact(str(error)))}", file=sys.stderr)
    else:
        sys.stderr.write(printable(redact("".join(traceback.format_exception(error)))))
    return FAILED


def as_user_error(error: BaseException) -> UserError | None:
    """Returns the error as one that the user can fix, or None."""
    if isinstance(error, OSError):
        return of_disk(error)
    return error if isinstance(error, UserError) else None
