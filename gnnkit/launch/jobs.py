"""Runs jobs on this machine, in processes forked after all imports.

Each process leads its own session, so Ctrl-C reaches only the sweep, which then ends
the jobs. The kernel kills a job when its sweep dies.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gnnkit.launch.child import die_with_parent
from gnnkit.launch.signals import check, defer_signals, ending_process, if_forced
from gnnkit.utils.redaction import redact

POLL = 0.1  # seconds between checks
ENDING = 10.0  # seconds from SIGTERM to SIGKILL


@dataclass(frozen=True, slots=True)
class _Running:
    number: int  # of the job
    log: Path
    pid: int
    errors: int  # file descriptor of the job's standard error


def run_jobs(work: Callable[[int], int], logs: Sequence[Path], at_once: int) -> Generator[tuple[int, int]]:
    """Runs jobs, and yields (job number, exit code) as each job ends.

    Closing the generator terminates the remaining jobs.

    Args:
        work: Runs a job in its process. Returns the exit code.
        logs: By job, the file for its output.
        at_once: Maximum number of concurrent jobs. If 1, errors are also printed here.
    """
    waiting, running = deque(enumerate(logs)), list[_Running]()
    with defer_signals(), if_forced(lambda: _kill(running)):
        yield from _run(work, waiting, running, at_once)


def _run(
    work: Callable[[int], int], waiting: deque[tuple[int, Path]], running: list[_Running], at_once: int
) -> Generator[tuple[int, int]]:
    try:
        while waiting or running:
            check()
            while waiting and len(running) < at_once:
                running.append(_start(work, *waiting.popleft()))
            _pass_on(running, POLL, aloud=at_once == 1)
            for job in list(running):
                code = _poll_exit_code(job.pid)
                if code is not None:
                    _pass_on([job], 0, aloud=at_once == 1)
                    os.close(job.errors)
                    running.remove(job)
                    yield job.number, code
    finally:
        _end(running)


def _start(work: Callable[[int], int], number: int, log: Path) -> _Running:
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):  # about forking threads
        pid = os.fork()
    if pid == 0:
        _become(work, number, log, writer)
    os.close(writer)
    return _Running(number, log, pid, reader)


def _become(work: Callable[[int], int], number: int, log: Path, errors: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        die_with_parent()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with ending_process():
            _redirect(log, errors)
            code = work(number)
    except BaseException:
        sys.stderr.write(redact(traceback.format_exc()))
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code)


def _pass_on(running: Sequence[_Running], seconds: float, *, aloud: bool) -> None:
    """Writes jobs' errors to their logs, and also prints them if `aloud`."""
    ready = _ready([job.errors for job in running], seconds)
    for job in running:
        text = _read(job.errors) if job.errors in ready else b""
        if not text:
            continue
        with job.log.open("ab") as log:
            log.write(text)
        if aloud:
            with contextlib.suppress(OSError, ValueError):
                sys.stderr.write(text.decode(errors="replace"))
                sys.stderr.flush()
    if ready and seconds:
        time.sleep(POLL / 10)  # a pipe at end of file is always ready


def _ready(descriptors: Sequence[int], seconds: float) -> set[int]:
    """Waits for descriptors, also above 1,023, which `select.select` rejects."""
    with selectors.DefaultSelector() as selector:
        for descriptor in descriptors:
            selector.register(descriptor, selectors.EVENT_READ)
        return {key.fd for key, _ in selector.select(seconds)}


def _read(descriptor: int) -> bytes:
    text = b""
    with contextlib.suppress(BlockingIOError):
        while part := os.read(descriptor, 2**16):
            text += part
    return text


def _redirect(log: Path, errors: int) -> None:
    """Redirects output to the log and errors to the pipe, and closes the input."""
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    empty = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((empty, 0), (output, 1), (errors, 2)):
        os.dup2(source, target)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as we live
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115


def _poll_exit_code(pid: int) -> int | None:
    """Returns a job's exit code, as a shell reports it, or None if it is running."""
    ended_pid, status = os.waitpid(pid, os.WNOHANG)
    if ended_pid == 0:
        return None
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def _end(running: Sequence[_Running]) -> None:
    for job in running:
        os.kill(job.pid, signal.SIGTERM)
    deadline = time.monotonic() + ENDING
    for job in running:
        while _poll_exit_code(job.pid) is None:
            if time.monotonic() > deadline:
                os.killpg(job.pid, signal.SIGKILL)
            time.sleep(POLL)
        os.close(job.errors)


def _kill(running: Sequence[_Running]) -> None:
    """Kills jobs, because this process is about to exit. Their ranks end with them."""
    for job in running:
        with contextlib.suppress(OSError):
            os.killpg(job.pid, signal.SIGKILL)
