"""A started process, as seen by the launching process."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import connection
from typing import Any, Literal

from gnnkit.launch.entry import Channels, RankReport, Work, enter
from gnnkit.launch.progress import Board
from gnnkit.launch.signals import HANDLED

StartMethod = Literal["fork", "spawn"]

STARTED_AGAIN = 76  # exit code of a process whose main module starts ranks on import

QUIET = 0.3  # seconds without further output after which stacks are complete

_SIGNALS = {-number: number.name for number in signal.Signals} | {128 + number: number.name for number in HANDLED}
_START = "its start"
_UNREAD = (
    ": it was spawned and could not import what it runs, such as a notebook's class:"
    " move that to a module, or use comm=threads"
)


class Child:
    """One process, with its report, exit code and progress board."""

    def __init__(
        self,
        name: str,
        start_method: StartMethod,
        environment: Mapping[str, str],
        function: Callable[..., Any],
        arguments: Sequence[Any],
    ) -> None:
        """Describes a process, which `start` starts.

        Args:
            name: Name of the process in messages.
            start_method: fork or spawn.
            environment: Additional environment variables.
        """
        self.name = name
        self.report = RankReport()  # empty before the process reports
        self.reported = False
        self.exitcode: int | None = None
        self.failed_at = math.inf  # by time.monotonic
        self.lost = False  # failed, while the others continue
        self._afresh = start_method == "spawn"
        self._context: Any = multiprocessing.get_context(start_method)
        self.board: Board = self._context.RawValue(Board)  # progress, written by the process
        self.board.encoded_phase = _START.encode()
        self._work = Work(environment, function, arguments)
        self._process: Any = None
        self._reader: connection.Connection | None = None
        self._stacks: connection.Connection | None = None

    def start(self) -> None:
        """Starts the process. Raises `OSError` if the system cannot create it."""
        self._reader, writer = self._context.Pipe(duplex=False)
        self._stacks, stacks_writer = self._context.Pipe(duplex=False)
        with writer, stacks_writer:  # from then on, only the child holds these ends
            channels = Channels(writer, stacks_writer, self.board)
            process = self._context.Process(target=enter, args=(channels, os.getpid(), self._work))
            process.start()
            self._process = process

    def events(self) -> list[Any]:
        """Returns the handles that become ready when the process reports or exits."""
        return [self._process.sentinel, *([self._reader] if self._reader else [])]

    def look(self) -> None:
        """Reads the exit code and the report, if available."""
        self.exitcode = self._process.exitcode  # before the pipe, because a report is written before the exit
        if self._reader is not None and self._reader.poll():
            with self._reader, contextlib.suppress(EOFError, OSError):
                self.report = RankReport(**json.loads(self._reader.recv_bytes()))
                self.reported = True
            self._reader = None
        if self.failed:
            self.failed_at = min(self.failed_at, time.monotonic())

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, if the process is running."""
        if self._process is not None and self._process.exitcode is None:
            os.kill(self._process.pid, number)

    def ended_within(self, deadline: float) -> bool:
        """Waits for the exit until `deadline`, by time.monotonic. Returns success."""
        if self._process is None:
            return True
        self._process.join(max(deadline - time.monotonic(), 0.0))
        return self._process.exitcode is not None

    def stacks(self, deadline: float) -> str:
        """Returns the stacks requested by SIGUSR1 and written by `deadline`."""
        text, end = b"", deadline
        while self._stacks is not None and connection.wait([self._stacks], max(end - time.monotonic(), 0.0)):
            part = os.read(self._stacks.fileno(), 2**16)
            if not part:
                break
            text += part
            end = min(deadline, time.monotonic() + QUIET)
        return text.decode(errors="replace")

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def running(self) -> bool:
        return self.exitcode is None

    @property
    def working(self) -> bool:
        """Whether the process is running and has not reported yet."""
        return self.running and not self.reported

    @property
    def saves(self) -> bool:
        """Whether the process saves a checkpoint on request."""
        return self.working and self.board.saves

    @property
    def failed(self) -> bool:
        if self.report.error is not None:
            return True
        return not self.running and (self.exitcode != 0 or not self.reported)

    @property
    def traceback(self) -> list[str]:
        """The error's traceback, empty for disk errors."""
        return [] if self.report.traceback is None else [self.report.traceback]

    @property
    def dispensable(self) -> bool:
        """Whether the other processes continue after this failure."""
        return self.board.dispensable and not self.report.lost_peer and not self.report.is_user_error

    def __str__(self) -> str:
        if self.report.error is not None:
            return f"{self.name} failed: {self.report.error}"
        if self.exitcode in _SIGNALS:
            hint = " (the system may have run out of memory)" if self.exitcode == -signal.SIGKILL else ""
            return f"{self.name} was ended by {_SIGNALS[self.exitcode]}{hint}"
        if self.failed:
            unread = _UNREAD if self._afresh and self.board.phase == _START else ""
            return f"{self.name} ended with exit code {self.exitcode} and no result{unread}"
        return f"{self.name} was running, in {self.board.phase}" if self.working else f"{self.name} ended well"


def end_if_started_anew() -> None:
    """Ends a spawned process that is still importing the script that started it.

    The script would start ranks recursively. The parent reports what to change.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(STARTED_AGAIN)


def forks_differentiate() -> bool:
    """Returns whether a process forked from this one can call `backward`.

    Torch refuses if a gradient was computed on a device or in compiled code before the
    fork. In such cases, this function tries it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not (torch.cuda.is_initialized() or "torch._dynamo" in sys.modules):
        return True
    with warnings.catch_warnings(
        action="ignore", category=DeprecationWarning
    ):  # about forking a multi-threaded process
        pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        try:
            torch.ones(1, requires_grad=True).sum().backward()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0
