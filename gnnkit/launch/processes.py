"""Starts ranks as processes of this machine, watches them, and leaves none behind.

Torch's elastic launcher needs seconds to notice a dead rank and blames the wrong one, and
its store listens on all interfaces. Here a death is seen at once, the rank that failed
first is the one shown, and rank 0 gets a socket that is bound to loopback already. Results
and errors come back as JSON, never pickled.
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
from gnnkit.launch.environment import LOOPBACK, StartedRank
from gnnkit.launch.watchdog import Board, Patience, Watchdog, is_stopped, report_on
from gnnkit.launch.watchdog import progress as progress  # noqa: PLC0414 - for mypy

StartMethod = Literal["fork", "spawn"]
RankFunction = Callable[[int, int, socket.socket | None], dict[str, Any] | None]

POLL = 0.2  # seconds; deaths wake the watch, but a grandchild may hold the pipe that tells of them
GRACE = 0.3  # seconds in which the others may report after a rank has failed of itself
GRACE_FOR_CAUSE = 1.0  # the same, while only ranks that lost a peer have reported
TERMINATION = 2.0  # seconds from SIGTERM to SIGKILL
LINGER = 10.0  # seconds that a rank may take to end after its result
STACKS = 0.5  # seconds in which all processes tell their stacks
_PR_SET_PDEATHSIG = 1
_HANDLED = (signal.SIGINT, signal.SIGTERM)
_SIGNALS = {-number: number.name for number in signal.Signals} | {128 + number: number.name for number in _HANDLED}
_LOST_PEER = re.compile(
    r"(RuntimeError|Dist\w*Error|PeerLost|DeadlineExceeded|Connection\w*Error|BrokenPipeError): .*"
    r"(connection (closed|reset|refused|was closed)|broken pipe|timed out|timeout|peer|aborted)",
    re.IGNORECASE | re.DOTALL,
)
_TIMED_OUT = re.compile(r"timed out|timeout", re.IGNORECASE)


class RankError(RuntimeError):
    """Failure of a process that gnnkit started.

    The message names the process, its exit and its own error, and how the others ended.
    """


def launch(
    function: RankFunction,
    world_size: int,
    *,
    start_method: StartMethod = "fork",
    patience: Patience | None = None,
    name: str = "rank {rank}",
) -> dict[str, Any]:
    """Runs a function in processes, and returns what the function returned on rank 0.

    Each process calls `function(rank, world_size, listener)`. Its environment holds RANK,
    WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Rank 0 gets the
    socket that listens there as `listener`.
    Results must be JSON. When a rank fails, none makes progress, or a signal comes, all
    ranks are ended before this function returns. Raises `UserError` with the message of a
    rank's `UserError`, else `RankError`.

    Args:
        function: What each rank does.
        world_size: Number of processes.
        start_method: How processes begin. Default: fork.
        patience: How long to wait for a sign of progress. Default: `Patience()`.
        name: What messages call a process.
    """
    with socket.create_server((LOOPBACK, 0), backlog=max(world_size, 128)) as listener:
        port = listener.getsockname()[1]
        children = [
            _Child(
                name.format(rank=rank),
                start_method,
                StartedRank(rank, world_size, rank, world_size, LOOPBACK, port).variables(),
                function,
                (rank, world_size, listener if rank == 0 else None),
            )
            for rank in range(world_size)
        ]
        group = _Group(children, patience or Patience(), after_first_start=listener.close)
        results = group.run()
    return dict(results[0] or {})


def run_in_child(
    function: Callable[..., Any],
    *arguments: Any,
    patience: Patience | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Any:
    """Returns `function(*arguments)`, which must be JSON, from a forked process.

    The process ends with the function. What the function leaves behind, such as memory and thread pools, ends too. Errors are
    raised as by `launch`.

    Args:
        function: What the process does.
        *arguments: Arguments of the function.
        patience: How long to wait for a sign of progress. Default: `Patience()`.
        meanwhile: Called a few times a second. An error of this function ends the process.
    """
    name = getattr(function, "__name__", str(function))
    child = _Child(f"the process of {name}", "fork", {}, function, arguments)
    return _Group([child], patience or Patience(), meanwhile=meanwhile).run()[0]


def die_with_parent() -> None:
    """Lets the kernel kill this process when the parent dies, on Linux."""
    _die_with(os.getppid())


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
        """Describes a process that `start` begins.

        Args:
            name: What messages call the process.
            start_method: How the process begins.
            environment: Further environment variables.
            function: What the process does.
            arguments: Arguments of the function.
        """
        self.name = name
        self.report: dict[str, Any] | None = None  # {"result"} or {"error", "message", "mendable", "traceback"}
        self.exitcode: int | None = None
        self.failed_at = math.inf  # monotonic seconds
        self._context: Any = multiprocessing.get_context(start_method)
        self._board: Any = self._context.RawValue(Board)
        self._board.phase = b"its start"
        self._work = (environment, function, arguments)
        self._process: Any = None
        self._reader: connection.Connection | None = None
        self._stacks: connection.Connection | None = None

    def start(self) -> None:
        self._reader, writer = self._context.Pipe(duplex=False)
        self._stacks, stacks_writer = self._context.Pipe(duplex=False)
        with writer, stacks_writer:  # afterwards only the child holds them
            channels = (writer, stacks_writer, self._board)
            process = self._context.Process(target=_enter, args=(*channels, os.getpid(), *self._work))
            process.start()
            self._process = process

    def events(self) -> list[Any]:
        """Returns what becomes ready when there is news."""
        return [self._process.sentinel, *([self._reader] if self._reader else [])]

    def look(self) -> None:
        """Takes in how the process ended and what the process reported so far."""
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

    def stacks(self, deadline: float) -> str:
        """Returns what the process has written from SIGUSR1 to the deadline."""
        text = b""
        while self._stacks is not None and connection.wait([self._stacks], max(deadline - time.monotonic(), 0.0)):
            part = os.read(self._stacks.fileno(), 2**16)
            if not part:
                break
            text += part
        return text.decode(errors="replace")

    @property
    def pid(self) -> int:
        pid: int = self._process.pid
        return pid

    @property
    def count(self) -> int:
        """Signs of progress so far."""
        return int(self._board.count)

    @property
    def phase(self) -> str:
        """What the process does, in its own words."""
        return bytes(self._board.phase).decode(errors="replace")

    @property
    def running(self) -> bool:
        return self.exitcode is None

    @property
    def working(self) -> bool:
        """Whether nothing has been heard from the process yet."""
        return self.running and self.report is None

    @property
    def failed(self) -> bool:
        if self.report is not None and "error" in self.report:
            return True
        return not self.running and (self.exitcode != 0 or self.report is None)

    @property
    def lost_peer(self) -> bool:
        """Whether its failure looks like the consequence of another's."""
        return self.report is not None and _LOST_PEER.match(self.report.get("error", "")) is not None

    @property
    def timed_out(self) -> bool:
        """Whether it gave up waiting for another."""
        return self.lost_peer and self.report is not None and _TIMED_OUT.search(self.report["error"]) is not None

    def __str__(self) -> str:
        if self.report is not None and "error" in self.report:
            return f"{self.name} failed: {self.report['error']}"
        if self.exitcode in _SIGNALS:
            hint = " (the system may have run out of memory)" if self.exitcode == -signal.SIGKILL else ""
            return f"{self.name} was ended by {_SIGNALS[self.exitcode]}{hint}"
        if self.failed:
            return f"{self.name} ended with exit code {self.exitcode} and no result"
        return f"{self.name} was running, in {self.phase}" if self.working else f"{self.name} ended well"


class _Group:
    """Processes that live and end together."""

    def __init__(
        self,
        children: list[_Child],
        patience: Patience,
        *,
        after_first_start: Callable[[], None] = lambda: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Makes the group, of which nothing runs yet.

        Args:
            children: The processes.
            patience: How long to wait for a sign of progress.
            after_first_start: Called when the first process has begun.
            meanwhile: Called whenever the group is looked at.
        """
        self._children = children
        self._watchdog = Watchdog(patience)
        self._after_first_start, self._meanwhile = after_first_start, meanwhile
        self._cancelled = False
        self._started, self._ended = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._starter = threading.Thread(target=self._start_and_stay, name="gnnkit-launcher", daemon=True)

    def run(self) -> list[Any]:
        """Starts the processes, returns their results, and ends all of them always."""
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
        """Starts the processes from a thread that stays until all have ended.

        A process that is forked from a thread that has used OpenMP hangs in its first
        parallel region. The thread stays, because the kernel takes the end of the thread
        that forked for the death of the parent.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)  # until the child has its own handlers
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", category=DeprecationWarning)  # "is multi-threaded": see above
                for child in self._children:
                    if not self._cancelled:
                        self._start(child)
                        self._after_first_start()
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
        self._ended.wait()

    def _start(self, child: _Child) -> None:
        try:
            child.start()
        except OSError as error:
            raise RankError(
                f"cannot start {child.name}: {error}; ulimit -u bounds processes, ulimit -n open files"
            ) from error

    def _watch(self) -> None:
        """Returns when all have ended well, or linger after their results.

        Raises when a process has failed or none goes on.
        """
        linger = math.inf
        while any(child.running for child in self._children) and time.monotonic() < linger:
            self._look(POLL)
            self._meanwhile()
            if any(child.failed for child in self._children):
                self._hear_others()
                raise self._failure()
            if stuck := self._watchdog.look([child for child in self._children if child.working]):
                raise self._stuck(stuck)
            if all(child.report is not None for child in self._children):
                linger = min(linger, time.monotonic() + LINGER)

    def _hear_others(self) -> None:
        """Waits a moment for the other ranks' reports.

        Waits longer if the cause is not among the failures yet.
        """
        start = time.monotonic()
        while any(child.running for child in self._children):
            caused = any(child.failed and not child.lost_peer for child in self._children)
            left = start + (GRACE if caused else GRACE_FOR_CAUSE) - time.monotonic()
            if left <= 0:
                return
            self._look(min(left, POLL))

    def _look(self, seconds: float) -> None:
        """Waits for news for at most `seconds`, and takes them in."""
        connection.wait([event for child in self._children if child.running for event in child.events()], seconds)
        for child in self._children:
            child.look()

    def _failure(self) -> Exception:
        """Returns the error of the rank whose failure no other one explains."""
        failed = [child for child in self._children if child.failed]
        silent = [child for child in self._children if child.working]
        if silent and all(child.lost_peer for child in failed) and any(child.timed_out for child in failed):
            return self._stuck(_blamed(silent))
        cause = min(failed, key=lambda child: (child.lost_peer, child.failed_at))
        report = cause.report or {}
        others = [str(child) for child in self._children if child is not cause]
        error = RankError("\n".join([str(cause), *others, *([report["traceback"]] if "traceback" in report else [])]))
        if not report.get("mendable"):
            return error
        mendable = UserError(report["message"])
        mendable.__cause__ = error
        return mendable

    def _stuck(self, why: str) -> RankError:
        """Returns the error of processes that do not go on, with all stacks."""
        lines = [why, *map(str, self._children)]
        running = [child for child in self._children if child.working]
        for number in (signal.SIGUSR1, signal.SIGCONT):  # a stopped process writes its stacks when continued
            for child in running:
                child.signal(number)
        deadline = time.monotonic() + STACKS
        for child in running:
            lines.append(f"stacks of {child.name}, in {child.phase}:\n{child.stacks(deadline) or 'none'}")
        return RankError("\n".join(lines))

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


def _blamed(silent: list[_Child]) -> str:
    """Names the ranks for which the others have waited in vain."""
    stopped = [child for child in silent if is_stopped(child.pid)]
    places = ", ".join(f"{child.name} in {child.phase}" for child in stopped or silent)
    how = " (stopped by SIGSTOP)" if stopped else ""
    return f"the others have waited for this until their deadline, comm.timeout: {places}{how}"


@contextlib.contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """Turns SIGTERM into `SystemExit(143)` where nobody else handles the signal.

    So the ranks are ended before this process.
    """
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
    """Ignores a second Ctrl-C, which must not keep the ranks alive."""
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
    stacks: connection.Connection,
    board: Board,
    parent: int,
    environment: Mapping[str, str],
    function: Callable[..., Any],
    arguments: Sequence[Any],
) -> None:
    """Runs the function in the started process, and reports to the parent in JSON.

    Args:
        writer: Takes the report.
        stacks: Takes the stacks of all threads at each SIGUSR1.
        board: Shows the progress.
        parent: Process id of the parent.
        environment: Further environment variables.
        function: What the process does.
        arguments: Arguments of the function.
    """
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group, and the parent decides
    signal.signal(signal.SIGTERM, _exit)  # so that what is half done is cleared away
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
    os.environ.update(environment)
    report_on(board)
    faulthandler.register(signal.SIGUSR1, file=stacks.fileno())
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
    """Returns an error as the report of a process."""
    own = error.with_traceback(error.__traceback__.tb_next if error.__traceback__ else None)
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", []))  # a thread's rank
    return {
        "error": f"{type(error).__name__}: {error}{notes}",
        "message": str(error),
        "mendable": isinstance(error, UserError),
        "traceback": "".join(traceback.format_exception(own)),
    }
