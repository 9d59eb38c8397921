"""Programs that need a process of their own, and no interpreter that imports anew."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

from tests.waiting import GUARD

SECONDS = GUARD  # that a program may take to end


class Forked:
    """A fork of the test's process that does some work and then ends."""

    def __init__(self, work: Callable[[], object], folder: Path) -> None:
        """Begins the work, with `folder` as working folder."""
        self.log = folder / "forked.log"  # stdout and stderr
        self.process: BaseProcess = multiprocessing.get_context("fork").Process(target=self._begin, args=(work, folder))
        self.process.start()
        self.pid = self.process.pid or 0

    def _begin(self, work: Callable[[], object], folder: Path) -> None:
        os.chdir(folder)
        log = self.log.open("w", buffering=1)
        for number in (1, 2, sys.stdout.fileno(), sys.stderr.fileno()):  # handlers of logs keep the streams of pytest
            os.dup2(log.fileno(), number)
        sys.stdout = sys.stderr = log
        work()

    def poll(self) -> int | None:
        return self.process.exitcode

    def text(self) -> str:
        """Returns what the work has printed so far."""
        return self.log.read_text() if self.log.exists() else ""

    def ended(self, seconds: float = SECONDS) -> tuple[int | None, str]:
        """Waits for the end. Returns the exit code and what the work has printed."""
        self.process.join(seconds)
        return self.process.exitcode, self.text()


@contextlib.contextmanager
def forked(work: Callable[[], object], folder: Path) -> Iterator[Forked]:
    """Begins some work in a fork, and kills the fork in the end."""
    program = Forked(work, folder)
    try:
        yield program
    finally:
        program.process.kill()
        program.process.join(SECONDS)
