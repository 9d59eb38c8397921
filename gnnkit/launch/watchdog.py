"""Notices that processes make no more progress, and how long a launcher waits."""

from __future__ import annotations

import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

LEAST = 10.0  # seconds, the shortest patience
MEDIANS = 20  # median times between two signs
FEWEST = 5  # such times that make a median
BUSY = 30  # times the patience with idle processes
PERIOD = 1.0  # seconds between two looks
WORKING = 0.25  # of one core. A process in training that uses less, and has no thread that could run, rests
_IDLE_SHARE = 0.002  # of one core. A process that uses less does nothing
_IDLE_SECONDS = 0.02  # of CPU time, two ticks of the clock


@dataclass(frozen=True, slots=True)
class Patience:
    """The seconds that a launcher waits for a sign of progress.

    The bounds for idle and busy processes grow to `MEDIANS` and `BUSY * MEDIANS` times
    the median time between two signs.
    """

    stopped: float = LEAST  # of a process that SIGSTOP holds
    idle: float = 120.0  # while no process uses the CPU
    busy: float = BUSY * 120.0  # while a process computes

    @classmethod
    def of(cls, timeout: float) -> Patience:
        """Returns the patience that fits `comm.timeout` in seconds."""
        idle = max(LEAST, timeout)
        return cls(LEAST, idle, BUSY * idle)


class Watched(Protocol):
    """A running process under watch."""

    name: str

    @property
    def pid(self) -> int: ...

    @property
    def count(self) -> int: ...

    @property
    def phase(self) -> str: ...

    @property
    def training(self) -> bool: ...


class Watchdog:
    """The watch over a group of processes, for signs of progress.

    One sign of any process is progress of the group, because processes wait for each
    other. Time while the launcher itself was stopped does not count.

    Outside of training, any use of the CPU is work: data may come over a network. In
    training, a process that turns in short sleeps rests, whatever its threads do. Work
    is a share of a core, or a thread that runs, waits for a core or for a disk.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._period = min(PERIOD, patience.stopped / 5, patience.idle / 5, patience.busy / 5)
        self._last = time.monotonic()
        self._silent = 0.0  # seconds since the last sign of progress
        self._idle = 0.0  # seconds since a process last used the CPU
        self._stopped: dict[int, float] = {}  # by process, seconds
        self._rest: dict[int, float] = {}  # by process in training, seconds without work
        self._seconds: dict[int, float] = {}  # by process, CPU time at the last look
        self._warned = False  # of this silence
        self._counts: list[int] = []
        self._cpu = 0.0  # seconds of all processes when one last used the CPU
        self._intervals: deque[float] = deque(maxlen=101)  # seconds between signs

    def look(self, processes: Sequence[Watched]) -> str | None:
        """Returns a message on processes that hang, or None while all is well."""
        now = time.monotonic()
        if now - self._last < self._period or not processes:
            return None
        elapsed, self._last = min(now - self._last, 2 * self._period), now
        self._note_progress([process.count for process in processes], elapsed)
        seconds = {process.pid: cpu_seconds(process.pid) for process in processes}
        self._note_cpu(list(seconds.values()), elapsed)
        self._note_stopped([process.pid for process in processes], elapsed)
        self._note_rest(seconds, elapsed)
        if (stuck := self._verdict(processes)) is None:
            self._warn(processes)
        return stuck

    def _verdict(self, processes: Sequence[Watched]) -> str | None:
        patience, steps = self._patience, self._usual
        places = _places(processes)
        for process in processes:
            if (seconds := self._stopped.get(process.pid, 0.0)) > patience.stopped:
                return f"{process.name} has been stopped for {seconds:.0f} s (SIGSTOP), in {process.phase}"
        if self._idle > max(patience.idle, steps):
            return f"no progress for {self._silent:.0f} s, and nothing computes: {places}"
        if any(process.training for process in processes) and min(self._rest.values()) > max(patience.idle, steps):
            return f"no step for {self._silent:.0f} s, and no process does more than turn in short sleeps: {places}"
        if self._silent > max(patience.busy, BUSY * steps):
            return (
                f"no progress for {self._silent:.0f} s of computing, {BUSY} times comm.timeout, "
                f"which a larger comm.timeout extends: {places}"
            )
        return None

    @property
    def _usual(self) -> float:
        """Seconds beyond which a silence is unusual. 0 while too few are known."""
        return MEDIANS * statistics.median(self._intervals) if len(self._intervals) >= FEWEST else 0.0

    def _warn(self, processes: Sequence[Watched]) -> None:
        """Names the processes that work, in a silence of training, once."""
        if self._warned or not self._usual or self._silent < max(LEAST, self._usual):
            return
        slow = [process for process in processes if process.training and not self._rest.get(process.pid)]
        if slow:
            self._warned = True
            others = f", {len(processes) - len(slow)} others wait" if len(slow) < len(processes) else ""
            line = f"no step for {self._silent:.0f} s, longer than usual: {_places(slow)}{others}"
            print(line, file=sys.stderr, flush=True)

    def _note_progress(self, counts: list[int], elapsed: float) -> None:
        self._silent += elapsed
        if counts != self._counts:
            if self._counts:
                signs = max(new - old for new, old in zip(counts, self._counts, strict=False))
                self._intervals.append(self._silent / max(signs, 1))
            self._counts, self._silent, self._idle, self._warned = counts, 0.0, 0.0, False

    def _note_cpu(self, seconds: list[float | None], elapsed: float) -> None:
        self._idle += elapsed
        used = sum(spent for spent in seconds if spent is not None)
        if None in seconds or abs(used - self._cpu) > _IDLE_SECONDS + _IDLE_SHARE * self._idle:
            self._cpu, self._idle = used, 0.0

    def _note_rest(self, seconds: dict[int, float | None], elapsed: float) -> None:
        """Adds up rest, and takes off thrice the time of work.

        So one thread that happens to run in a look does not count for much.

        Args:
            seconds: CPU time by process. None: unknown, which counts as work.
            elapsed: Seconds since the last look.
        """
        for pid, now in seconds.items():
            used = math.inf if now is None else now - self._seconds.get(pid, 0.0)
            works = not self._silent or used >= WORKING * elapsed or could_run(pid)
            self._rest[pid] = max(self._rest.get(pid, 0.0) + (-3 * elapsed if works else elapsed), 0.0)
            self._rest[pid] *= bool(self._silent)
        self._rest = {pid: self._rest[pid] for pid in seconds}  # of processes that are left
        self._seconds = {pid: now or 0.0 for pid, now in seconds.items()}

    def _note_stopped(self, pids: list[int], elapsed: float) -> None:
        self._stopped = {pid: self._stopped.get(pid, 0.0) + elapsed for pid in pids if is_stopped(pid)}


def _places(processes: Sequence[Watched]) -> str:
    return ", ".join(f"{process.name} in {process.phase}" for process in processes)


def could_run(pid: int) -> bool:
    """Says whether a thread of a process or a descendant runs, or waits to.

    So does a thread that waits for a core, or for a disk.
    """
    threads = list(Path(f"/proc/{pid}/task").glob("*/stat"))
    return any(_fields(file)[:1] in (["R"], ["D"]) for file in threads) or any(map(could_run, _children(pid)))


def is_stopped(pid: int) -> bool:
    """Says whether SIGSTOP holds the process. False where the system does not tell."""
    fields = _stat(pid)
    return bool(fields) and fields[0] == "T"


def cpu_seconds(pid: int) -> float | None:
    """Returns the CPU time of a process with all descendants, in seconds.

    Returns None where the system does not say.
    """
    fields = _stat(pid)
    if not fields:
        return None
    used = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # of ended descendants too
    return used + sum(cpu_seconds(child) or 0.0 for child in _children(pid))


def _stat(pid: int) -> list[Any]:
    """Returns the fields of /proc/PID/stat from the third on."""
    return _fields(Path(f"/proc/{pid}/stat"))


def _fields(file: Path) -> list[Any]:
    """Returns the fields of a file such as /proc/PID/stat from the third on."""
    try:
        return file.read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _children(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            yield from map(int, file.read_text().split())
        except OSError:  # the thread has ended
            continue
