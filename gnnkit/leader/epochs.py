"""The file `epochs.jsonl`: each epoch's sums by worker, and each evaluation.

Also measures the throughput over the last seconds.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.result.result import EPOCHS, finite
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import Lines

if TYPE_CHECKING:
    from gnnkit.leader.watch import WorkerState


SPACING, KEPT = 0.25, 40  # seconds between two samples, and number of samples kept
_RATES = ("seeds/s", "edges/s", "bytes/s", "bytes/s from disk")
_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


class Rates:
    """Rows, edges and bytes per second, summed over all workers.

    The formatted text omits bytes from disk if none are read.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Starts at zero. `clock` returns seconds."""
        self._clock = clock
        self._totals = (0.0, 0.0, 0.0, 0.0)
        self._looks = deque([(clock(), self._totals)], KEPT)  # time and totals of each sample

    def add(self, rows: int, edges: int, num_bytes: int, bytes_read: int = 0) -> None:
        """Adds the work of all workers in a step.

        Args:
            rows: Rows that the loss reads.
            edges: Edges aggregated over.
            num_bytes: Bytes sent.
            bytes_read: Bytes read from disk.
        """
        rows_before, edges_before, sent_before, read_before = self._totals
        self._totals = (rows_before + rows, edges_before + edges, sent_before + num_bytes, read_before + bytes_read)
        now = self._clock()
        if now - self._looks[-1][0] >= SPACING:
            self._looks.append((now, self._totals))

    def per_second(self) -> dict[str, float]:
        """Returns the rates by unit."""
        then, before = self._looks[0]
        seconds = max(self._clock() - then, 1e-9)
        return {name: (total - old) / seconds for name, total, old in zip(_RATES, self._totals, before, strict=True)}

    def __str__(self) -> str:
        rates = list(self.per_second().items())[: 4 if self._totals[3] else 3]
        return "  ".join(f"{short(rate)} {name}" for name, rate in rates)


def short(number: float) -> str:
    """Formats a number with three digits, such as 1.23M."""
    factor, unit = next(((factor, unit) for factor, unit in _UNITS if abs(number) >= factor * 0.99995), (1.0, ""))
    return f"{number / factor:.3g}{unit}"


def duration(seconds: float) -> str:
    """Formats a duration for users, such as 2 min 5 s."""
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {remainder} s" if minutes else f"{remainder} s"


_SUMS = (
    "rows",
    "edges",
    "bytes_sent",
    "bytes_read",
    "seconds_wait",
    "seconds_compute",
    "seconds_exchange",
    "seconds_sync",
)


class EpochLog:
    """Sums the steps of an epoch by worker, and writes a line per epoch."""

    def __init__(self, folder: Path, world_size: int) -> None:
        """Opens the file in the run folder."""
        self._lines = Lines(folder / EPOCHS)
        self._start_time = time.monotonic()
        self._sums = {name: np.zeros(world_size) for name in _SUMS}
        self._steps = 0

    def add(self, states: Sequence[WorkerState]) -> None:
        """Adds a step of all workers."""
        self._steps += 1
        for state in states:
            for name, sums in self._sums.items():
                sums[state.rank] += getattr(state, name)

    def end(self, epoch: int, train_loss: float) -> None:
        """Writes the epoch's line and starts the next epoch.

        Args:
            epoch: Number of the epoch, from 0.
            train_loss: Mean over the epoch's rows.
        """
        sums = {name: [round(float(value), 6) for value in values] for name, values in self._sums.items()}
        self._write(epoch, {"steps": self._steps, "train_loss": train_loss, **sums})
        self._steps = 0
        for values in self._sums.values():
            values[:] = 0

    def state(self) -> Json:
        """Returns the state from which restarted ranks continue."""
        sums = {name: values.tolist() for name, values in self._sums.items()}
        return {"begun": self._start_time, "steps": self._steps, "sums": sums, "size": self._lines.path.stat().st_size}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Continues from a state of the same host, or clears the file without one."""
        os.truncate(self._lines.path, 0 if state is None else state["size"])
        if state is not None:
            self._start_time, self._steps = state["begun"], state["steps"]
            self._sums = {name: np.array(values) for name, values in state["sums"].items()}

    def measured(self, epoch: int, figures: Mapping[str, float]) -> None:
        """Writes a line with an evaluation's figures.

        Args:
            epoch: Number of the epoch, from 0.
            figures: The task's figures by name.
        """
        self._write(epoch, {"figures": dict(figures)})

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()

    def _write(self, epoch: int, fields: Mapping[str, object]) -> None:
        line = {"epoch": epoch, "clock": round(time.monotonic() - self._start_time, 4), **fields}
        self._lines.add(json.dumps(finite(line)))
