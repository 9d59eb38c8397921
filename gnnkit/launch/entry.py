"""The first function that runs in a started process, up to its report to the parent."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing import connection
from typing import Any, NamedTuple

from gnnkit.launch.allocator import keep_freed_memory
from gnnkit.launch.exits import as_user_error
from gnnkit.launch.progress import Board, report_on
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
        has_failed, text = True, json.dumps(asdict(_describe(error)))
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


def _describe(error: BaseException) -> RankReport:
    """Converts an error to a process's report."""
    trimmed_error = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))  # name the failed thread's rank
    user_error = as_user_error(error)
    has_traceback = user_error in (None, error)
    return RankReport(
        error=redact(f"{type(error).__name__}: {error}{notes}"),
        message=redact(str(user_error or error)),
        is_user_error=user_error is not None,
        traceback=redact("".join(traceback.format_exception(trimmed_error))) if has_traceback else None,
    )
