"""The leader's record of the workers' states, and of workers that stay slow."""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from gnnkit.leader.epochs import EpochLog, Rates, duration
from gnnkit.partition.quality import max_over_mean
from gnnkit.result.result import finite
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import Lines

WINDOW = 7  # number of steps in the median. Four slow steps in a row are detected, three are not
PERSISTENT = 50  # number of steps of which three quarters must be slow, waits for a processor included
FACTOR = 2.0  # minimum ratio to the others' median
LEAST = 0.005  # minimum difference in seconds per step. Smaller ones are scheduler noise


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that has become slow.

    Reported on standard error and in `result.json`. A worker that recovers may be
    reported again.
    """

    rank: int
    step: int
    seconds: float  # compute time per step: the median, or the first quartile of PERSISTENT steps
    others: float  # median of the other workers
    steps: int = WINDOW  # number of steps considered

    @property
    def factor(self) -> float:
        return self.seconds / max(self.others, 1e-9)

    def __str__(self) -> str:
        persists = self.steps == PERSISTENT
        of = f"in 3/4 of {self.steps} steps" if persists else f"medians of {self.steps} steps"
        suffix = "; other processes use its processor" if persists else ""
        return (
            f"step {self.step}: rank {self.rank} is slow in compute, {1e3 * self.seconds:.1f} ms a step, {self.factor:.1f} "
            f"times the others' {1e3 * self.others:.1f} ms ({of}); the others wait for it{suffix}"
        )


class Stragglers:
    """Detects stragglers from the workers' recent compute times.

    Exchange and synchronisation are ignored, because the other workers wait for a slow
    worker there. A worker is slow if its time per step is more than `FACTOR` times the
    others' median. On a busy host, workers wait for a processor in turn. Therefore,
    such waits count for the others only in the last `WINDOW` steps, and for all workers
    in the last `PERSISTENT` steps.
    """

    def __init__(self, num_workers: int) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=PERSISTENT) for _ in range(num_workers)]
        self._without_waits: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(num_workers)]
        self._slow: set[int] = set()  # reported workers. A worker that recovers may be reported again

    @property
    def slow(self) -> frozenset[int]:
        """The workers that are currently slow."""
        return frozenset(self._slow)

    def pace(self) -> list[float]:  # [num_workers]
        """Returns each worker's recent compute seconds per step, as a median."""
        return [median(list(recent)[-WINDOW:]) for recent in self._recent]

    def observe(
        self, step: int, seconds: Mapping[int, float], queue_seconds: Mapping[int, float] | None = None
    ) -> list[Straggler]:
        """Adds a step. Returns the workers that have become slow.

        Args:
            step: Number of the step in the run.
            seconds: Compute time by rank, for the remaining workers.
            queue_seconds: Part of it spent waiting for a processor, by rank. Default:
                zero.
        """
        for rank, value in seconds.items():
            self._recent[rank].append(value)
            self._without_waits[rank].append(max(value - (queue_seconds or {}).get(rank, 0.0), 0.0))
        slow: dict[int, Straggler] = {}
        for recent, steps in ((self._recent, PERSISTENT), (self._without_waits, WINDOW)):
            if len(seconds) < 2 or len(recent[min(seconds)]) < steps:
                continue
            place = steps // 2 if steps == WINDOW else steps // 4
            rank_seconds = {rank: sorted(recent[rank])[place] for rank in seconds}
            medians = {rank: median(list(self._recent[rank])[-steps:]) for rank in seconds}
            candidates = (
                Straggler(rank, step, rank_seconds[rank], _median_of_others(medians, rank), steps)
                for rank in sorted(rank_seconds)
            )
            slow |= {straggler.rank: straggler for straggler in candidates if _is_slow(straggler)}
        new = [slow[rank] for rank in sorted(slow.keys() - self._slow)]
        self._slow = set(slow)
        return new


def _median_of_others(medians: Mapping[int, float], rank: int) -> float:
    values: Iterable[float] = (value for peer, value in medians.items() if peer != rank)
    return median(values)


def _is_slow(straggler: Straggler) -> bool:
    return straggler.seconds > FACTOR * straggler.others and straggler.seconds > straggler.others + LEAST


STATUS_SECONDS = 10.0  # seconds between progress lines without a terminal
Log = Callable[[Mapping[str, float], int], None]  # arguments: scalars by name, step


@dataclass(frozen=True)
class WorkerState:
    """One worker's state after a step.

    Every worker sends one to rank 0 after each step, without waiting. Times are
    wall-clock seconds of this step, divided into phases that do not overlap.
    `LeaderHook.after_step` receives the states of all workers.
    """

    rank: int
    epoch: int
    step: int  # number of the step in the run, from 1
    loss: float  # sum over the worker's rows, divided by `total`
    total: int  # rows of all ranks, of this rank if it steps alone, or of several accumulated steps
    rows: int  # rows of this worker that the loss reads
    synchronised: bool
    gradient_norm: float  # norm of this worker's gradient before synchronisation
    seconds_wait: float  # waiting for the batch
    seconds_compute: float
    seconds_exchange: float
    seconds_sync: float
    edges: int  # number of aggregated edges, summed over the layers
    rows_per_second: float  # output rows per second
    memory: int  # peak so far, in bytes
    bytes_sent: int = 0  # bytes sent to other ranks in exchanges
    bytes_read: int = 0  # bytes of features prefetched from disk
    seconds_queued: float = 0.0  # part of the compute time spent waiting for a processor, 0 if unknown

    @property
    def seconds(self) -> dict[str, float]:
        """The step's seconds by phase: `wait`, `compute`, `exchange` and `sync`."""
        return {
            "wait": self.seconds_wait,
            "compute": self.seconds_compute,
            "exchange": self.seconds_exchange,
            "sync": self.seconds_sync,
        }

    @property
    def phase(self) -> str:
        """The phase that took the most time."""
        return max(self.seconds, key=self.seconds.__getitem__)


class Watch:
    """Collects the workers' states as they arrive, and analyses them.

    Reports stragglers, and measures each epoch's balance of work, counted in edges.
    With a folder, writes `workers.jsonl`, one line per worker and listed step, and
    `epochs.jsonl`.
    """

    def __init__(
        self,
        world_size: int,
        folder: Path | None,
        max_epochs: int,
        *,
        quiet: bool,
        every: int,
        log: Log,
        status_seconds: float = STATUS_SECONDS,
    ) -> None:
        """Opens the files.

        Args:
            folder: The run folder. If None, no files are written.
            quiet: Whether to print no progress lines, because a display shows progress.
            every: Number of steps between scalars.
        """
        self.status_seconds = status_seconds
        self.world_size, self.max_epochs, self.quiet, self.every, self.log = world_size, max_epochs, quiet, every, log
        self.states: list[WorkerState] = []  # states of the last complete step, by rank, without lost workers
        self.lost: set[int] = set()  # workers without which the run continues
        self.slow_factors: dict[int, float] = {}  # by rank: ratio to the others' time when last reported
        self.train_loss = math.nan  # mean over the rows of the current epoch
        self.work_max_over_mean: list[float] = []  # of each epoch, over the ranks. 1 is balanced
        self.wait_share = 0.0  # share of the run's step time, mean over workers
        self._waiting: dict[int, dict[int, WorkerState]] = defaultdict(dict)  # by step and rank
        self._epoch: list[tuple[float, int]] = []  # loss and rows of each step in this epoch
        self._edges = np.zeros(world_size, np.int64)  # edges in this epoch, by rank
        self._seconds = {"wait": 0.0, "all": 0.0}
        self.listeners: list[Callable[[Sequence[WorkerState]], None]] = []  # called with each step's states
        self._slow = Stragglers(world_size)
        self._timed_from = 0  # timings up to this step are ignored
        self._closed = False
        self._lines = None if folder is None else Lines(folder / "workers.jsonl")
        self._log = None if folder is None else EpochLog(folder, world_size)
        self.rates = Rates()
        self._first: tuple[float, int] | None = None  # time and epoch of the first step
        self._last_status = -math.inf

    def take(self, state: WorkerState) -> None:
        """Adds a state.

        A step is complete when the states of all remaining workers have arrived.
        """
        self._waiting[state.step][state.rank] = state
        self._count(state.step)

    def lose(self, rank: int) -> None:
        """Marks a worker as lost, so that no step waits for its states."""
        if rank not in self.lost:
            self.lost.add(rank)
            after = self.states[0].step if self.states else 0
            print(f"after step {after}: rank {rank} is lost, the run continues", file=sys.stderr, flush=True)
            for step in sorted(self._waiting):
                self._count(step)

    def awaits(self, step: int) -> bool:
        """Returns whether states up to a step are still missing."""
        last_step = self.states[0].step if self.states else 0
        return not self._closed and last_step < step

    def state(self) -> Json:
        """Returns the state from which restarted ranks continue, as plain data.

        Requires a folder, like `restore`.
        """
        assert self._lines is not None
        assert self._log is not None
        return {
            "states": [] if self._closed else [vars(state) for state in self.states],
            "size": os.path.getsize(self._lines.path),
            "log": self._log.state(),
            "stragglers": self.stragglers,
            "train_loss": self.train_loss,
            "work_max_over_mean": self.work_max_over_mean,
            "epoch": [list(pair) for pair in self._epoch],
            "edges": self._edges.tolist(),
            "seconds": self._seconds,
            "wait_share": self.wait_share,
        }

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Restores a state written on this host, and removes lines of later steps.

        Without a state, empties the files.
        """
        assert self._lines is not None
        assert self._log is not None
        os.truncate(self._lines.path, 0 if state is None else state["size"])
        self._log.restore(None if state is None else state["log"])
        if state is not None:
            self.states = [WorkerState(**fields) for fields in state["states"]]
            self.slow_factors = {
                int(name.removeprefix("rank ")): factor for name, factor in state["stragglers"].items()
            }
            self.train_loss = state["train_loss"]
            self.work_max_over_mean, self._seconds = state["work_max_over_mean"], state["seconds"]
            self.wait_share, self._edges = state["wait_share"], np.array(state["edges"], np.int64)
            self._epoch = [(loss, rows) for loss, rows in state["epoch"]]

    def _count(self, step: int) -> None:
        """Completes a step if all remaining workers' states have arrived."""
        together = self._waiting[step]
        if len(together.keys() | self.lost) == self.world_size:
            del self._waiting[step]
            self._analyse_step([together[rank] for rank in sorted(together)])

    @property
    def stragglers(self) -> dict[str, float]:
        """`slow_factors` with the names used in `result.json`."""
        return {f"rank {rank}": factor for rank, factor in self.slow_factors.items()}

    @property
    def pace(self) -> list[float] | None:  # [world_size]
        """Each worker's compute seconds per step, or None if no worker is slow."""
        return self._slow.pace() if self._slow.slow else None

    @property
    def slow(self) -> list[int]:
        """The workers that are currently slow, ascending."""
        return sorted(self._slow.slow)

    def discard_timings(self, step: int) -> None:
        """Discards the timings up to this step, because the work has changed."""
        self._slow, self._timed_from = Stragglers(self.world_size), step

    def finish(self) -> None:
        """Ends the last epoch and closes the files. Further calls have no effect."""
        if self.states and not self._closed:
            self._end_epoch(self.states[0].step)
            self._print_status()
        self.close()

    def close(self) -> None:
        """Closes the files. The last epoch of an interrupted run is not written."""
        self._closed = True
        for file in (self._lines, self._log):
            if file is not None:
                file.close()

    def measured(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Writes an evaluation's figures.

        Args:
            epoch: Number of the epoch, from 0.
            figures: The task's figures by name.
        """
        if self._log is not None:
            self._log.measured(epoch, figures)

    @property
    def status(self) -> str:
        """The run's progress, throughput and estimated remaining time."""
        if not self.states or self._first is None:
            return ""
        start_time, first = self._first
        done = len(self.work_max_over_mean)
        parts = [
            f"epoch {self.states[0].epoch + 1}/{self.max_epochs}",
            f"train_loss {self.train_loss:.4f}",
            str(self.rates),
        ]
        if done:
            remaining = (time.monotonic() - start_time) / done * max(self.max_epochs - first - done, 0)
            parts.append(f"{duration(remaining)} left")
        return "  ".join(parts)

    @property
    def balance(self) -> dict[str, float]:
        """Maximum over mean of the ranks' work, as mean and maximum over the epochs.

        Empty before the end of the first epoch.
        """
        epochs = self.work_max_over_mean
        return {"work_mean": statistics.fmean(epochs), "work_worst": max(epochs)} if epochs else {}

    def _analyse_step(self, states: list[WorkerState]) -> None:
        step = states[0].step
        if self._first is None:
            self._first = (time.monotonic(), states[0].epoch)
        if self.states and states[0].epoch != self.states[0].epoch:
            self._end_epoch(self.states[0].step)
        self.states = states
        if self._log is not None:
            self._log.add(states)
        self.rates.add(
            *(
                sum(counts)
                for counts in zip(*((s.rows, s.edges, s.bytes_sent, s.bytes_read) for s in states), strict=True)
            )
        )
        loss = self._add_figures(states)
        self._publish(states, step, loss)
        if step > self._timed_from:
            self._report_stragglers(step, states)
        for listener in self.listeners:
            listener(states)

    def _add_figures(self, states: Sequence[WorkerState]) -> float:
        """Adds a step to the epoch's and the run's figures. Returns the step's loss."""
        for state in states:
            self._edges[state.rank] += state.edges
            self._seconds["wait"] += state.seconds_wait
            self._seconds["all"] += sum(state.seconds.values())
        self.wait_share = self._seconds["wait"] / max(self._seconds["all"], 1e-9)
        rows = sum(state.rows for state in states)
        loss = sum(state.loss * (state.total / max(rows, 1)) for state in states)  # mean over the rows
        if math.isfinite(loss):  # otherwise, the step was skipped
            self._epoch.append((loss, rows))
            self.train_loss = _mean_loss(self._epoch)
        return loss

    def _report_stragglers(self, step: int, states: Sequence[WorkerState]) -> None:
        seconds = {state.rank: state.seconds_compute for state in states}
        queue_seconds = {state.rank: state.seconds_queued for state in states}
        for straggler in self._slow.observe(step, seconds, queue_seconds):
            self.slow_factors[straggler.rank] = round(straggler.factor, 1)
            print(straggler, file=sys.stderr, flush=True)

    def _end_epoch(self, step: int) -> None:
        ranks = [rank for rank in range(self.world_size) if rank not in self.lost]
        self.work_max_over_mean.append(max_over_mean(self._edges[ranks]))
        self.log({"work_max_over_mean": self.work_max_over_mean[-1]}, step - 1)
        if self._log is not None:
            self._log.end(self.states[0].epoch, self.train_loss)
        self._edges[:], self._epoch = 0, []

    def _publish(self, states: list[WorkerState], step: int, loss: float) -> None:
        for state in states if self._lines is not None and _is_listed(step) else ():
            line = finite({"time": time.time(), "phase": state.phase} | vars(state))
            self._lines.add(json.dumps(line))  # type: ignore[union-attr]
        if step % self.every == 0:
            self.log({"train_loss": loss} | _step_scalars(states), step - 1)
        if time.monotonic() - self._last_status > self.status_seconds:
            self._print_status()

    def _print_status(self) -> None:
        self._last_status = time.monotonic()
        if not self.quiet:
            print(self.status, file=sys.stderr, flush=True)


def _is_listed(step: int) -> bool:
    """Returns whether `workers.jsonl` lists a step.

    Lists the first 1,023 steps, then every second one, from step 2,048 every fourth
    one, and so on. The file thus grows with the logarithm of the number of steps.
    """
    return step % (1 << max(step.bit_length() - 10, 0)) == 0


def _step_scalars(states: list[WorkerState]) -> dict[str, float]:
    """Returns a step's scalars: the slowest worker's times, and totals.

    Scalars per worker are only in `workers.jsonl`, because there would be too many
    curves.
    """
    slowest = max(states, key=lambda state: sum(state.seconds.values()))
    return {
        **{f"seconds/{phase}": seconds for phase, seconds in slowest.seconds.items()},
        "rows_per_second": sum(state.rows_per_second for state in states),
        "memory": float(max(state.memory for state in states)),
    }


def _mean_loss(steps: list[tuple[float, int]]) -> float:
    """Returns the steps' mean loss, weighted by their rows."""
    if len(steps) == 1:
        return steps[0][0]
    rows = sum(total for _, total in steps)
    return math.fsum(loss * total for loss, total in steps) / max(rows, 1)


def peak_memory(device: torch.device) -> int:
    """Returns the peak in bytes of the GPU's allocator, or of the resident set."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
