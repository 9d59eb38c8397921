"""A started process: its first function, and how the launching process sees it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import connection
from typing import Any, Literal, NamedTuple

from gnnkit.launch.lean import keep_freed_memory
from gnnkit.launch.progress import Board, as_user_error, report_on
from gnnkit.launch.signals import HANDLED, ending_process, leave_terminal
from gnnkit.utils.redaction import redact

_LOST_PEER = re.compile(
    r"(RuntimeError|Dist\w*Error|PeerLost|DeadlineExceeded|Connection\w*Error|BrokenPipeError): .*"
    r"(connection (closed|reset|refused|was closed)|broken pipe|timed out|timeout|peer|aborted)",
    re.IGNORECASE | re.DOTALL,
)
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RankReport:
    """A process's result or error, which is sent as JSON."""

    result: Any = None  # a JSON value
    error: str | None = None  # type and text, or None if the work has succeeded
    message: str = ""  # text for users
    is_user_error: bool = False  # whether the error is a `UserError`
    traceback: str | None = None  # None for disk errors

    @classmethod
    def of(cls, error: BaseException) -> RankReport:
        """Converts a process's error, without secrets."""
        trimmed_error = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
        notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))  # name the failed thread's rank
        user_error = as_user_error(error)
        has_traceback = user_error in (None, error)
        return cls(
            error=redact(f"{type(error).__name__}: {error}{notes}"),
            message=redact(str(user_error or error)),
            is_user_error=user_error is not None,
            traceback=redact("".join(traceback.format_exception(trimmed_error))) if has_traceback else None,
        )

    @property
    def lost_peer(self) -> bool:
        """Whether the error looks like a consequence of another process's failure."""
        return self.error is not None and _LOST_PEER.match(self.error) is not None

    @property
    def timed_out(self) -> bool:
        """Whether the process timed out waiting for another."""
        return self.error is not None and self.lost_peer and _TIMED_OUT.search(self.error) is not None


GRACE = 1.0  # seconds from SIGTERM to the end of a process that reports no further progress


class Channels(NamedTuple):
    """A started process's connections to its parent."""

    writer: connection.Connection  # pipe for the report
    stacks: connection.Connection  # pipe for the stacks of all threads, written at each SIGUSR1
    board: Board  # shared memory for the progress


class Work(NamedTuple):
    """What a started process runs."""

    environment: Mapping[str, str]  # additional environment variables
    function: Callable[..., Any]
    arguments: Sequence[Any]


def enter(channels: Channels, parent: int, work: Work) -> None:
    """Runs the work in the started process, and reports to the parent in JSON.

    Args:
        channels: Connections to the parent.
        parent: Process id of the parent.
        work: What to run.
    """
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes, and the parent handles it
    signal.signal(signal.SIGHUP, leave_terminal)  # reaches all processes, too
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with ending_process(GRACE):  # closes loggers and files in order
        signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
        _run(channels, work)


def _run(channels: Channels, work: Work) -> None:
    os.environ.update(work.environment)
    # Otherwise, torch keeps stacks of the last 2,000 collectives, 8 MB in each rank.
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
    _print_whole_lines()
    report_on(channels.board)
    gc.freeze()  # collecting imported modules would copy shared pages
    gc.enable()
    keep_freed_memory()
    faulthandler.register(signal.SIGUSR1, file=channels.stacks.fileno())
    with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may be missing
        faulthandler.enable(sys.__stderr__)  # type: ignore[arg-type]  # shows where native code crashed
    try:
        has_failed, text = False, json.dumps({"result": work.function(*work.arguments)})
    except SystemExit:
        raise
    except BaseException as error:  # includes panics of native code
        has_failed, text = True, json.dumps(asdict(RankReport.of(error)))
    channels.writer.send_bytes(text.encode())
    channels.writer.close()
    sys.exit(1 if has_failed else 0)


def _print_whole_lines() -> None:
    """Writes each printed line at once, even with PYTHONUNBUFFERED.

    Otherwise, the output of several processes mixes within lines.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):  # the stream may be a notebook's, or missing
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]


def die_with_parent(parent: int | None = None) -> None:
    """Makes the kernel kill this process when its parent dies, on Linux.

    Args:
        parent: Process id of the parent. Default: the current one.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # 1: PR_SET_PDEATHSIG
        if os.getppid() != parent:  # the parent died before the call
            os.kill(os.getpid(), signal.SIGKILL)


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
        function: Callable[..., object],
        arguments: Sequence[object],
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
