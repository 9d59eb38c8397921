"""Runs a module as a program during training: JSON in, JSON out.

The leader's process has native threads, so it cannot fork. The program is a fresh
process that ends with its parent, and its memory is freed then.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from gnnkit.launch.child import die_with_parent
from gnnkit.launch.progress import Board
from gnnkit.launch.watchdog import Patience, Watchdog
from gnnkit.utils.documents import Json

POLL = 0.1  # seconds


@dataclass
class _Program:
    """The program, as the watchdog sees it."""

    name: str
    pid: int
    board: Board = field(default_factory=lambda: Board(encoded_phase=b"computing"))  # reports no progress


def run(name: str, request: Mapping[str, object], patience: Patience, meanwhile: Callable[[], None]) -> Json:
    """Runs a module in a fresh process, which it always ends. Returns the answer.

    Raises `RuntimeError` with the reason if the process fails or hangs.

    Args:
        name: The module, which calls `answer`.
        request: Plain values for the program.
        patience: How long to wait for a process that is stopped, idle, or computes.
        meanwhile: Called a few times a second.
    """
    with _start(name) as process:
        watchdog, program = Watchdog(patience), _Program(f"the process {name}", process.pid)
        text: str | None = json.dumps(request)
        while True:
            try:
                output, _ = process.communicate(text, timeout=POLL)
                break
            except subprocess.TimeoutExpired:
                text = None  # only the first call takes it
                meanwhile()
            if stuck := watchdog.look([program]):
                raise RuntimeError(stuck)
    if process.returncode:
        raise RuntimeError(f"{program.name} {_ending(process.returncode)}")
    result: Json = json.loads(output)
    return result


@contextlib.contextmanager
def _start(name: str) -> Iterator[subprocess.Popen[str]]:
    """Starts the program, and kills it when its answer is no longer awaited."""
    paths = os.pathsep.join(path for path in sys.path if path)
    argv = [sys.executable, "-P", "-m", name, str(os.getpid())]
    environment = {**os.environ, "PYTHONPATH": paths}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True, env=environment)
    except OSError as error:
        raise RuntimeError(f"cannot start the process {name}: {error}") from error
    with process:
        try:
            yield process
        finally:
            process.kill()


def _ending(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


def answer(function: Callable[[Json], Mapping[str, object]]) -> None:
    """Answers the request on standard input. Called by the program."""
    die_with_parent(int(sys.argv[1]))
    for number in (signal.SIGINT, signal.SIGHUP):  # both reach the whole group, and the leader decides
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.write(json.dumps(dict(function(json.load(sys.stdin)))))
