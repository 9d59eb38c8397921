"""Detection of processes that make no progress."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gnnkit.launch.progress import Board
from gnnkit.utils.documents import read_or_empty

LEAST = 10.0  # minimum patience in seconds
MEDIANS = 20  # patience in median intervals between reports
FEWEST = 5  # minimum number of intervals for a median
BUSY = 30  # factor for busy processes, relative to idle ones
PERIOD = 1.0  # seconds between checks
_IDLE_SHARE = 0.002  # share of a core. A process below it is idle
_IDLE_SECONDS = 0.02  # CPU seconds, two clock ticks


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a launcher waits for progress, in seconds.

    The bounds for idle and busy processes grow to `MEDIANS` and `BUSY * MEDIANS` times
    the median interval between reports.
    """

    stopped: float = LEAST  # for a process stopped by SIGSTOP
    idle: float = 120.0  # while no process uses a CPU
    busy: float = BUSY * 120.0  # while a process computes

    @classmethod
    def of(cls, timeout: float) -> Patience:
        """Returns the patience for a `comm.timeout` in seconds."""
        idle = max(LEAST, timeout)
        return cls(LEAST, idle, BUSY * idle)


class Watched(Protocol):
    """A running process to be monitored."""

    name: str

    @property
    def pid(self) -> int: ...

    @property
    def board(self) -> Board: ...


class Watchdog:
    """Monitors a group of processes for progress.

    A report from any process counts as progress of the group, because processes wait
    for each other. Time during which the launcher itself was stopped does not count.

    Outside training, any use of a CPU is work, because data may arrive over a network.
    In training, work is a minimum share of a core, or a thread that runs or waits for a
    core or a disk. A process that only polls in short sleeps is idle.
    """

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._period = min(PERIOD, patience.stopped / 5, patience.idle / 5, patience.busy / 5)
        self._last = time.monotonic()
        self._silent = 0.0  # seconds since the last report
        self._idle = 0.0  # seconds since a process last used a CPU
        self._stop_seconds: dict[int, float] = {}  # seconds by stopped process
        self._idle_seconds: dict[int, float] = {}  # seconds without work by training process
        self._seconds: dict[int, float] = {}  # CPU time by process at the last check
        self._warned = False  # about the current silence
        self._counts: list[int] = []
        self._cpu = 0.0  # CPU seconds of all processes when one last used a CPU
        self._intervals: deque[float] = deque(maxlen=101)  # seconds between reports

    def look(self, processes: Sequence[Watched]) -> str | None:
        """Returns a message about processes that hang, or None."""
        now = time.monotonic()
        if now - self._last < self._period or not processes:
            return None
        interval, self._last = min(now - self._last, 2 * self._period), now
        self._note_progress([process.board.count for process in processes], interval)
        seconds = {process.pid: cpu_seconds(process.pid) for process in processes}
        self._note_cpu(list(seconds.values()), interval)
        self._note_stopped([process.pid for process in processes], interval)
        self._note_idle(seconds, interval)
        if (stuck := self._verdict(processes)) is None:
            self._warn(processes)
        return stuck

    def _verdict(self, processes: Sequence[Watched]) -> str | None:
        patience, steps = self._patience, self._usual
        places = _places(processes)
        for process in processes:
            if (seconds := self._stop_seconds.get(process.pid, 0.0)) > patience.stopped:
                return f"{process.name} has been stopped for {seconds:.0f} s (SIGSTOP), in {process.board.phase}"
        if self._idle > max(patience.idle, steps):
            return f"no progress for {self._silent:.0f} s, and nothing computes: {places}"
        if any(process.board.training for process in processes) and min(self._idle_seconds.values()) > max(
            patience.idle, steps
        ):
            return f"no step for {self._silent:.0f} s, and no process does more than poll in short sleeps: {places}"
        if self._silent > max(patience.busy, BUSY * steps):
            return (
                f"no progress for {self._silent:.0f} s of computing, {BUSY} times comm.timeout, "
                f"which a larger comm.timeout extends: {places}"
            )
        return None

    @property
    def _usual(self) -> float:
        """Seconds after which a silence is unusual, or 0 if unknown."""
        return MEDIANS * statistics.median(self._intervals) if len(self._intervals) >= FEWEST else 0.0

    def _warn(self, processes: Sequence[Watched]) -> None:
        """Warns once about the processes that work during a silence in training."""
        if self._warned or not self._usual or self._silent < max(LEAST, self._usual):
            return
        slow = [process for process in processes if process.board.training and not self._idle_seconds.get(process.pid)]
        if slow:
            self._warned = True
            suffix = f", {len(processes) - len(slow)} others wait" if len(slow) < len(processes) else ""
            line = f"no step for {self._silent:.0f} s, longer than usual: {_places(slow)}{suffix}"
            print(line, file=sys.stderr, flush=True)

    def _note_progress(self, counts: list[int], interval: float) -> None:
        self._silent += interval
        if counts != self._counts:
            if self._counts:
                signs = max(new - old for new, old in zip(counts, self._counts, strict=False))
                self._intervals.append(self._silent / max(signs, 1))
            self._counts, self._silent, self._idle, self._warned = counts, 0.0, 0.0, False

    def _note_cpu(self, seconds: list[float | None], interval: float) -> None:
        self._idle += interval
        cpu_time = sum(value for value in seconds if value is not None)
        if None in seconds or abs(cpu_time - self._cpu) > _IDLE_SECONDS + _IDLE_SHARE * self._idle:
            self._cpu, self._idle = cpu_time, 0.0

    def _note_idle(self, seconds: dict[int, float | None], interval: float) -> None:
        """Accumulates idle time, and subtracts three times the working time.

        A thread that happens to run during a check therefore has little influence.

        Args:
            seconds: CPU time by process. If None, unknown, counted as work.
        """
        for pid, now in seconds.items():
            cpu_time = math.inf if now is None else now - self._seconds.get(pid, 0.0)
            # Idle: less than a quarter of a core, and no thread that can run.
            works = not self._silent or cpu_time >= 0.25 * interval or could_run(pid)
            self._idle_seconds[pid] = max(
                self._idle_seconds.get(pid, 0.0) + (-3 * interval if works else interval), 0.0
            )
            self._idle_seconds[pid] *= bool(self._silent)
        self._idle_seconds = {pid: self._idle_seconds[pid] for pid in seconds}  # drops processes that have ended
        self._seconds = {pid: now or 0.0 for pid, now in seconds.items()}

    def _note_stopped(self, pids: list[int], interval: float) -> None:
        self._stop_seconds = {pid: self._stop_seconds.get(pid, 0.0) + interval for pid in pids if is_stopped(pid)}


def _places(processes: Sequence[Watched]) -> str:
    return ", ".join(f"{process.name} in {process.board.phase}" for process in processes)


def could_run(pid: int) -> bool:
    """Returns whether a thread of a process or its descendants runs or waits to run.

    This includes threads that wait for a core or a disk.
    """
    threads = _files_of_threads(pid, "stat")
    return any(_fields(file)[:1] in (["R"], ["D"]) for file in threads) or any(map(could_run, _children(pid)))


def is_stopped(pid: int) -> bool:
    """Returns whether SIGSTOP has stopped the process, or False if unknown."""
    fields = _stat(pid)
    return bool(fields) and fields[0] == "T"


def cpu_seconds(pid: int) -> float | None:
    """Returns the CPU seconds of a process and its descendants, or None if unknown."""
    fields = _stat(pid)
    if not fields:
        return None
    total = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")  # includes ended descendants
    return total + sum(cpu_seconds(child) or 0.0 for child in _children(pid))


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat from the third on."""
    return _fields(Path(f"/proc/{pid}/stat"))


def _fields(file: Path) -> list[str]:
    """Returns the fields of a file such as /proc/PID/stat from the third on."""
    return read_or_empty(file).rpartition(")")[2].split()


def _children(pid: int) -> Iterator[int]:
    for file in _files_of_threads(pid, "children"):
        yield from map(int, read_or_empty(file).split())  # empty: the thread has ended


def _files_of_threads(pid: int, name: str) -> list[Path]:
    """Returns /proc/PID/task/*/NAME, or nothing if the process has ended."""
    with contextlib.suppress(OSError):
        return list(Path(f"/proc/{pid}/task").glob(f"*/{name}"))
    return []
