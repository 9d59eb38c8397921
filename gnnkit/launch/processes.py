"""Starts ranks as processes of this machine, watches them, and leaves none behind.

Why not torch's elastic launcher: it needs seconds to notice a dead rank, blames the wrong one, and its store listens on all
interfaces. Here a death is seen at once, the rank that failed first is the one shown, and rank 0 gets a socket that is
bound to loopback already. Results and errors come back as JSON, never pickled.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import json
import math
import multiprocessing
import os
import re
import signal
import socket
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing import connection
from typing import Any, Literal

from gnnkit.errors import UserError

StartMethod = Literal["fork", "spawn"]
RankFunction = Callable[[int, int, socket.socket | None], dict[str, Any] | None]

POLL = 0.2  # seconds; deaths wake the watch, but a grandchild may hold the pipe that tells of them
GRACE = 0.3  # seconds in which the others may report after a rank has failed of itself
GRACE_FOR_CAUSE = 1.0  # the same, while only ranks that lost a peer have reported
TERMINATION = 2.0  # seconds from SIGTERM to SIGKILL
LINGER = 10.0  # seconds that a rank may take to end after its result
_PR_SET_PDEATHSIG = 1
_HANDLED = (signal.SIGINT, signal.SIGTERM)
_SIGNALS = {-number: number.name for number in signal.Signals} | {128 + number: number.name for number in _HANDLED}
_LOST_PEER = re.compile(
    r"connection (closed|reset|refused|was closed)|broken pipe|timed out|timeout|peer|aborted", re.I
)


class RankError(RuntimeError):
    """A process that we started failed; the message names it, its exit, its own error, and how the others ended."""


def launch(function: RankFunction, world_size: int, *, start_method: StartMethod = "fork") -> dict[str, Any]:
    """Runs `function(rank, world_size, listener)` in `world_size` processes and returns what rank 0 returned.

    The environment of each holds RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT; `listener` is
    the socket that listens there, for rank 0 only. Results must be JSON. When a rank fails or a signal comes, all ranks are
    ended before this returns. Raises `UserError` with the message of a rank's `ValueError`, else `RankError`.
    """
    with socket.create_server(("127.0.0.1", 0), backlog=max(world_size, 128)) as listener:
        children = [
            _Child(
                f"rank {rank}",
                start_method,
                _environment(rank, world_size, listener.getsockname()[1]),
                function,
                (rank, world_size, listener if rank == 0 else None),
            )
            for rank in range(world_size)
        ]
        results = _Group(children, after_first_start=listener.close).run()
    return dict(results[0] or {})


def run_in_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """Returns `function(*arguments)`, which must be JSON, from a forked process that ends with it.

    What the function leaves behind, such as memory and thread pools, ends too. Errors are raised as by `launch`.
    """
    name = getattr(function, "__name__", str(function))
    return _Group([_Child(f"the process of {name}", "fork", {}, function, arguments)]).run()[0]


def _environment(rank: int, world_size: int, port: int) -> dict[str, str]:
    numbers = {
        "RANK": rank,
        "WORLD_SIZE": world_size,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": world_size,
        "MASTER_PORT": port,
    }
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    return {
        **{key: str(value) for key, value in numbers.items()},
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", loopback),
        "GNNKIT_LOCAL": "1",
    }


class _Child:
    """One process and what is known of it."""

    def __init__(
        self,
        name: str,
        start_method: StartMethod,
        environment: Mapping[str, str],
        function: Callable[..., Any],
        arguments: Sequence[Any],
    ) -> None:
        self.name = name
        self.report: dict[str, Any] | None = None  # {"result"} or {"error", "message", "mendable", "traceback"}
        self.exitcode: int | None = None
        self.failed_at = math.inf  # monotonic seconds
        self._context: Any = multiprocessing.get_context(start_method)
        self._work = (environment, function, arguments)
        self._process: Any = None
        self._reader: connection.Connection | None = None

    def start(self) -> None:
        self._reader, writer = self._context.Pipe(duplex=False)
        with writer:  # afterwards only the child holds it
            self._process = self._context.Process(target=_enter, args=(writer, os.getpid(), *self._work))
            self._process.start()

    def events(self) -> list[Any]:
        """What becomes ready when there is news."""
        return [self._process.sentinel, *([self._reader] if self._reader else [])]

    def look(self) -> None:
        """Takes in how the process ended and what it reported, as far as that is there."""
        self.exitcode = self._process.exitcode  # before the pipe: a report is written before the end
        if self._reader is not None and self._reader.poll():
            with self._reader, contextlib.suppress(EOFError, OSError):
                self.report = json.loads(self._reader.recv_bytes())
            self._reader = None
        if self.failed:
            self.failed_at = min(self.failed_at, time.monotonic())

    def signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.exitcode is None:
            os.kill(self._process.pid, number)

    def ended_within(self, deadline: float) -> bool:
        if self._process is None:
            return True
        self._process.join(max(deadline - time.monotonic(), 0.0))
        return self._process.exitcode is not None

    @property
    def running(self) -> bool:
        return self.exitcode is None

    @property
    def failed(self) -> bool:
        if self.report is not None and "error" in self.report:
            return True
        return not self.running and (self.exitcode != 0 or self.report is None)

    @property
    def lost_peer(self) -> bool:
        """Whether its failure looks like the consequence of another's."""
        return self.report is not None and _LOST_PEER.search(self.report.get("error", "")) is not None

    def __str__(self) -> str:
        if self.report is not None and "error" in self.report:
            return f"{self.name} failed: {self.report['error']}"
        if self.exitcode in _SIGNALS:
            hint = " (the system may have run out of memory)" if self.exitcode == -signal.SIGKILL else ""
            return f"{self.name} was ended by {_SIGNALS[self.exitcode]}{hint}"
        if self.failed:
            return f"{self.name} ended with exit code {self.exitcode} and no result"
        return f"{self.name} {'was running' if self.running else 'ended well'}"


class _Group:
    """Processes that live and end together."""

    def __init__(self, children: list[_Child], after_first_start: Callable[[], None] = lambda: None) -> None:
        self._children = children
        self._after_first_start = after_first_start
        self._cancelled = False
        self._started, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._starter = threading.Thread(target=self._start_and_stay, name="gnnkit-launcher", daemon=True)

    def run(self) -> list[Any]:
        """Starts the processes, returns their results, and ends them all whatever happens."""
        try:
            with _sigterm_as_exit():
                self._starter.start()
                self._started.wait()
                if self._error is not None:
                    raise self._error
                self._watch()
            return [child.report["result"] for child in self._children if child.report is not None]
        finally:
            with _no_interruption():
                self._end()

    def _start_and_stay(self) -> None:
        """Starts the processes from a thread of their own, which stays until they have ended.

        Of its own: a process that is forked from a thread that has used OpenMP hangs in its first parallel region. And it
        stays, because the kernel takes the end of the thread that forked for the death of the parent.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # until the child has its own handlers
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=DeprecationWarning)  # "is multi-threaded": see above
                for child in self._children:
                    if not self._cancelled:
                        child.start()
                        self._after_first_start()
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
        self._ended.wait()

    def _watch(self) -> None:
        """Returns when all have ended well, or linger after their results; raises when one has failed."""
        linger = math.inf
        while any(child.running for child in self._children) and time.monotonic() < linger:
            self._look(POLL)
            if any(child.failed for child in self._children):
                self._hear_others()
                raise _failure(self._children)
            if all(child.report is not None for child in self._children):
                linger = min(linger, time.monotonic() + LINGER)

    def _hear_others(self) -> None:
        """Waits a moment for what the other ranks have to say, longer if the cause is not among the failures yet."""
        start = time.monotonic()
        while any(child.running for child in self._children):
            caused = any(child.failed and not child.lost_peer for child in self._children)
            left = start + (GRACE if caused else GRACE_FOR_CAUSE) - time.monotonic()
            if left <= 0:
                return
            self._look(min(left, POLL))

    def _look(self, seconds: float) -> None:
        """Waits so long for news at most, and takes them in."""
        connection.wait([event for child in self._children if child.running for event in child.events()], seconds)
        for child in self._children:
            child.look()

    def _end(self) -> None:
        """Leaves no process: asks them to end, then makes them."""
        self._cancelled = True
        if self._starter.ident is not None:
            self._started.wait()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._children:
                child.signal(number)
            deadline = time.monotonic() + TERMINATION
            if all(child.ended_within(deadline) for child in self._children):
                break
        self._ended.set()


def _failure(children: list[_Child]) -> Exception:
    """The error to raise: that of the rank whose failure no other one explains."""
    cause = min((child for child in children if child.failed), key=lambda child: (child.lost_peer, child.failed_at))
    report = cause.report or {}
    others = [str(child) for child in children if child is not cause]
    error = RankError("\n".join([str(cause), *others, *([report["traceback"]] if "traceback" in report else [])]))
    if not report.get("mendable"):
        return error
    mendable = UserError(report["message"])
    mendable.__cause__ = error
    return mendable


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Turns SIGTERM into `SystemExit(143)` where nobody else handles it, so that the ranks are ended before this process."""
    ours = _in_main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, _exit)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextlib.contextmanager
def _no_interruption() -> Iterator[None]:
    """A second Ctrl-C must not keep the ranks alive."""
    numbers = _HANDLED if _in_main_thread() else ()
    before = [(number, signal.signal(number, signal.SIG_IGN)) for number in numbers]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _exit(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _enter(
    writer: connection.Connection,
    parent: int,
    environment: Mapping[str, str],
    function: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    """What the started process does: runs the function and writes one line of JSON to its parent."""
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent decides
    signal.signal(signal.SIGTERM, _exit)  # so that what is half done is cleared away
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    os.environ.update(environment)
    with contextlib.suppress(AttributeError, OSError, ValueError):  # where there is no stderr
        faulthandler.enable(sys.__stderr__)  # type: ignore[arg-type]  # a crash in native code says where it was
    try:
        text = json.dumps({"result": function(*arguments)})
    except SystemExit:
        raise
    except BaseException as error:  # also the panics of native code
        text = json.dumps(_describe(error))
    writer.send_bytes(text.encode())
    writer.close()
    sys.exit(0 if text.startswith('{"result"') else 1)


def _die_with(parent: int) -> None:
    """Asks the kernel to kill this process when its parent dies (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # died in between
            os.kill(os.getpid(), signal.SIGKILL)


def _describe(error: BaseException) -> dict[str, Any]:
    own = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    return {
        "error": f"{type(error).__name__}: {error}",
        "message": str(error),
        "mendable": isinstance(error, UserError),
        "traceback": "".join(traceback.format_exception(own)),
    }
