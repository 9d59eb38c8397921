"""Starts ranks as processes of this machine, monitors them, and ends all of them.

Torch's elastic launcher takes seconds to detect a dead rank, and blames the wrong one.
Torch's store listens on all interfaces. Here, a death is detected at once, the message
names the rank that failed first, and ranks rendezvous in an anonymous file, with a
secret token. Results and errors are returned as JSON and never pickled.

A `Child` represents one process in the launching process, a `Group` represents all of
them, and the watchdog detects a group that hangs.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from multiprocessing import connection
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch.child import STARTED_AGAIN, Child, StartMethod
from gnnkit.launch.environment import LOOPBACK, StartedRank
from gnnkit.launch.lean import share_one_arena
from gnnkit.launch.signals import HANDLED, check, defer_signals, if_forced
from gnnkit.launch.watchdog import Patience, Watchdog, is_stopped
from gnnkit.utils.ranges import one_line

# Seconds between checks. An exit wakes the loop, unless a grandchild holds the pipe.
POLL = 0.2
GRACE = 0.3  # seconds to wait for other reports after a rank has failed
GRACE_FOR_CAUSE = 1.0  # the same, while only ranks that lost a peer have reported
LINGER = 10.0  # seconds from a rank's result to its exit
SAVING = 5.0  # seconds from a signal to the checkpoint


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the processes of a group ended."""

    name: str | None = None  # the process's name, or None for several processes
    cause: str = ""  # one line
    step: int | None = None  # training step, counted from 1, or None before the first
    epoch: int | None = None  # the step's epoch, counted from 1
    lost_peer: bool = False  # the failure is a consequence of another process's failure
    at: float = field(default_factory=time.monotonic)  # by time.monotonic


class RankError(RuntimeError):
    """Failure of a process that gnnkit started.

    The message names the process, its exit code and error, and how the others ended.
    """

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        """Stores the message.

        Args:
            message: The text to display.
            failure: The same as data. Default: only the message's first line.
        """
        super().__init__(message)
        self.failure = failure or Failure(cause=message.partition("\n")[0])


class Group:
    """Processes that run and end together.

    If a process fails after calling `progress.dispensable`, the others continue. A
    `UserError` or the loss of a peer ends the others even then.
    """

    def __init__(
        self,
        children: list[Child],
        patience: Patience,
        *,
        beside: Callable[[], object] = lambda: None,
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Creates the group without starting it.

        Args:
            patience: How long to wait for progress.
            beside: Called once, when all processes have started. Must return within
                seconds, because the processes are not monitored during the call.
            meanwhile: Called at each check.
        """
        self._children = children
        self._watchdog = Watchdog(patience)
        self._beside, self._meanwhile = beside, meanwhile
        self._cancelled = False
        self._start_event, self._end_event = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._starter = threading.Thread(target=self._start_and_stay, name="gnnkit-launcher", daemon=True)

    def run(self) -> dict[int, Any]:
        """Starts the processes, and returns their results by number.

        Omits processes that failed while the others continued. Always ends all
        processes.
        """
        with defer_signals(), if_forced(self._kill), self._ending():
            share_one_arena()
            self._starter.start()
            while not self._start_event.wait(POLL):
                check()
            if self._error is not None:
                raise self._error
            self._beside()
            try:
                self._watch()
            except (KeyboardInterrupt, SystemExit):
                self._let_save()
                raise
        return {number: child.report.result for number, child in enumerate(self._children) if not child.lost}

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """Ends all processes when the context exits."""
        try:
            yield
        finally:
            self._end()

    def _start_and_stay(self) -> None:
        """Starts the processes from a thread that lives until all have ended.

        A process forked from a thread that has used OpenMP hangs in its first parallel
        region. The thread must stay alive, because the kernel treats the end of the
        forking thread as the parent's death.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)  # until the child has installed its handlers
        try:
            with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # about forking threads
                for child in self._children:
                    if not self._cancelled:
                        _start(child)
        except BaseException as error:
            self._error = error
        finally:
            self._start_event.set()
        self._end_event.wait()

    def _watch(self) -> None:
        """Returns when all processes have succeeded, or linger after their results.

        Raises if a process has failed, none makes progress, or a signal has arrived.
        """
        linger = math.inf
        while any(child.running for child in self._children) and time.monotonic() < linger:
            self._look(POLL)
            check()
            self._meanwhile()
            self._spare()
            if any(child.failed and not child.lost for child in self._children):
                self._hear_others()
                check()  # if all processes got a signal, it is the cause
                raise self._failure()
            if stuck := self._watchdog.look([child for child in self._children if child.working]):
                raise self._stuck(stuck)
            if all(child.lost or child.reported for child in self._children):
                linger = min(linger, time.monotonic() + LINGER)

    def _let_save(self) -> None:
        """Lets training processes save a checkpoint before a signal ends them."""
        able = [child for child in self._children if child.saves]
        for child in able:
            child.board.request_save()
        deadline = time.monotonic() + SAVING
        while able and time.monotonic() < deadline:
            self._look(POLL / 4)
            if any(child.board.saved for child in able) or not all(child.saves for child in able):
                return

    def _spare(self) -> None:
        """Reports processes that have failed while the others continue."""
        for child in self._children:
            if child.failed and child.dispensable and not child.lost:
                child.lost = True
                lines = [f"{child}; the run continues without {child.name}", *child.traceback]
                print("\n".join(lines), file=sys.stderr, flush=True)

    def _hear_others(self) -> None:
        """Waits briefly for the other ranks' reports.

        Waits longer if all failures so far are consequences.
        """
        start = time.monotonic()
        while any(child.running for child in self._children):
            has_cause = any(child.failed and not child.report.lost_peer and not child.lost for child in self._children)
            seconds = start + (GRACE if has_cause else GRACE_FOR_CAUSE) - time.monotonic()
            if seconds <= 0:
                return
            self._look(min(seconds, POLL))

    def _look(self, seconds: float) -> None:
        """Waits at most `seconds` for events, and handles them."""
        connection.wait([event for child in self._children if child.running for event in child.events()], seconds)
        for child in self._children:
            child.look()

    def _failure(self) -> Exception:
        """Returns the error of the rank that failed first."""
        failed_children = [child for child in self._children if child.failed]
        if any(child.exitcode == STARTED_AGAIN for child in failed_children):
            return UserError(
                'spawned ranks import this script again: move everything that it runs below `if __name__ == "__main__":`,'
                " and keep classes and functions above"
            )
        silent = [child for child in self._children if child.working]
        if (
            silent
            and all(child.report.lost_peer for child in failed_children)
            and any(child.report.timed_out for child in failed_children)
        ):
            return self._stuck(_describe_silent(silent))
        return self._error_of(
            min(failed_children, key=lambda child: (child.report.lost_peer, child.lost, child.failed_at))
        )

    def _error_of(self, cause: Child) -> Exception:
        """Returns a rank's error, followed by the other ranks' states."""
        other_states = [str(child) for child in self._children if child is not cause]
        error = RankError("\n".join([str(cause), *other_states, *cause.traceback]), self._in_parts(str(cause), cause))
        if not cause.report.is_user_error:
            return error
        user_error = UserError(cause.report.message)
        user_error.__cause__ = error
        return user_error

    def _in_parts(self, cause: str, child: Child | None) -> Failure:
        """Creates a failure with the step of the process, or of all processes.

        Args:
            child: The process. If None, no single one.
        """
        places = [child.board.place for child in self._children]
        step, epoch = child.board.place if child is not None and child.board.place[0] else max(places)
        at = time.monotonic() if child is None else min(child.failed_at, time.monotonic())
        lost_peer = child is not None and child.report.lost_peer
        name = None if child is None else child.name
        return Failure(name, one_line(cause), step or None, epoch or None, lost_peer, at)

    def _stuck(self, reason: str) -> RankError:
        """Returns the error of a group that hangs, with all stacks."""
        lines, failure = [reason, *map(str, self._children)], self._in_parts(reason, None)
        running = [child for child in self._children if child.working]
        phases = {child: child.board.phase for child in running}  # read before stopped processes continue
        for number in (signal.SIGUSR1, signal.SIGCONT):  # a stopped process writes its stacks when continued
            for child in running:
                child.signal(number)
        deadline = time.monotonic() + 3.0
        stacks = {child: child.stacks(deadline) for child in running}
        if waiting := [f"{child.name} in {place}" for child in running if (place := waits_in(stacks[child]))]:
            lines.insert(1, f"waiting: {', '.join(waiting)}")
        lines += [f"stacks of {child.name}, in {phases[child]}:\n{stacks[child] or 'none'}" for child in running]
        return RankError("\n".join(lines), failure)

    def _end(self) -> None:
        """Ends every process, by SIGTERM and then SIGKILL."""
        self._cancelled = True
        if self._starter.ident is not None:
            self._start_event.wait()
        for number in (signal.SIGTERM, signal.SIGKILL):
            for child in self._children:
                child.signal(number)
            deadline = time.monotonic() + 2.0  # to SIGKILL
            if all(child.ended_within(deadline) for child in self._children):
                break
        self._end_event.set()

    def _kill(self) -> None:
        """Kills every process, because this one is about to exit."""
        self._cancelled = True
        for child in self._children:
            with contextlib.suppress(OSError):
                child.signal(signal.SIGKILL)


def _start(child: Child) -> None:
    try:
        child.start()
    except OSError as error:
        raise RankError(
            f"cannot start {child.name}: {error}; ulimit -u limits processes, ulimit -n open files"
        ) from error


def waits_in(stacks: str) -> str | None:
    """Returns the collective or transfer in which the main thread waits."""
    _, _, main = stacks.partition("Current thread")
    frames = re.findall(r'File "(.*)", line \d+ in (\w+)', main.partition("\n\n")[0])
    latest = None
    for file, name in frames:  # innermost first
        if _COMM.search(file):
            latest = name
        elif latest is not None or not _WRAPPER.search(file):
            break
    return latest


_COMM = re.compile(r"[/\\](gnnkit[/\\]comm|torch[/\\]distributed)[/\\]")
_WRAPPER = re.compile(r"[/\\](threading|socket|selectors|functools|contextlib)\.py$")  # frames below a transfer's


def _describe_silent(silent: list[Child]) -> str:
    """Formats the ranks that the others have waited for."""
    stopped_children = [child for child in silent if is_stopped(child.pid)]
    places = ", ".join(f"{child.name} in {child.board.phase}" for child in stopped_children or silent)
    suffix = " (stopped by SIGSTOP)" if stopped_children else ""
    return f"the others have waited until their deadline, comm.timeout, for {places}{suffix}"


RankFunction = Callable[[int, int], Any]
_INLINE = ContextVar("inline", default=False)


def launch(
    function: RankFunction,
    world_size: int,
    *,
    start_method: StartMethod = "fork",
    patience: Patience | None = None,
    names: Sequence[str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, Any]:
    """Runs a function in processes, and returns its results by rank.

    Each process calls `function(rank, world_size)`. Its environment contains RANK,
    WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, and what `gnnkit.comm.rendezvous` reads.
    Results must be JSON values.

    If a rank fails after calling `progress.dispensable`, the others continue, and the
    results omit it.

    All ranks have ended when this function returns, also if a rank fails, no rank makes
    progress, or a signal arrives. Raises a rank's `UserError` unchanged, and otherwise
    `RankError`.

    Args:
        start_method: fork or spawn. Default: fork.
        patience: How long to wait for progress. Default: `Patience()`.
        names: Name of each process in messages. Default: `rank` with the number.
        meanwhile: Called a few times per second. Default: does nothing.
    """
    token = secrets.token_hex(16)
    with _meeting_file() as store:
        places = [
            StartedRank(rank, world_size, rank, world_size, LOOPBACK, store=store, token=token)
            for rank in range(world_size)
        ]
        return launch_at(
            function, places, start_method=start_method, patience=patience, names=names, meanwhile=meanwhile
        )


def launch_at(
    function: RankFunction,
    places: Sequence[StartedRank],
    *,
    start_method: StartMethod = "fork",
    patience: Patience | None = None,
    names: Sequence[str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, Any]:
    """Runs the part of a distributed run that belongs to this machine.

    Otherwise like `launch`.

    Args:
        places: The ranks on this machine, with the rendezvous address.
        start_method: fork or spawn. Default: fork.
        patience: How long to wait for progress. Default: `Patience()`.
        names: Name of each of the run's processes in messages. Default: `rank` with the
            number.
        meanwhile: Called a few times per second. Default: does nothing.
    """
    children = [
        Child(
            f"rank {place.rank}" if names is None else names[place.rank],
            start_method,
            place.variables(),
            function,
            (place.rank, place.world_size),
        )
        for place in places
    ]
    outcome = Group(children, patience or Patience(), meanwhile=meanwhile).run()
    return {places[number].rank: result for number, result in outcome.items()}


@contextlib.contextmanager
def _meeting_file() -> Iterator[str]:
    """Yields a file for the rendezvous that only this user's processes can open."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:  # mode 0700
            yield os.path.join(folder, "store")
        return
    descriptor = os.memfd_create("gnnkit-store")
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """Makes `run_in_child` call functions in this process, for debuggers and tests."""
    token = _INLINE.set(True)
    try:
        yield
    finally:
        _INLINE.reset(token)


def is_inline() -> bool:
    """Returns whether `inline` is active."""
    return _INLINE.get()


def run_in_child(
    function: Callable[..., Any],
    *arguments: Any,
    always: bool = False,
    patience: Patience | None = None,
    beside: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Any:
    """Returns `function(*arguments)` from a forked process. The result must be JSON.

    The process ends with the function, which releases its memory and thread pools.
    Raises errors as `launch` does. Within `inline`, the function runs in this process,
    and its errors are not wrapped.

    Args:
        always: Whether to start a process even within `inline`, because the function
            changes the process permanently.
        patience: How long to wait for progress. Default: `Patience()`.
        beside: Called once, as soon as the process has started. If it raises, the
            process is ended. Default: does nothing.
        meanwhile: Called a few times per second after that. An error ends the
            process too.
    """
    if is_inline() and not always:
        beside()
        return json.loads(json.dumps(function(*arguments)))
    name = getattr(getattr(function, "func", function), "__name__", str(function))
    child = Child(f"the process of {name}", "fork", {}, function, arguments)
    return Group([child], patience or Patience(), beside=beside, meanwhile=meanwhile).run()[0]
