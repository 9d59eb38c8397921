"""The file `epochs.jsonl`: each epoch's sums by worker, and each evaluation."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.result.folder import EPOCHS
from gnnkit.result.result import finite
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import Lines

if TYPE_CHECKING:
    from gnnkit.leader.watch import WorkerState

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

    def _write(self, epoch: int, fields: Mapping[str, Any]) -> None:
        line = {"epoch": epoch, "clock": round(time.monotonic() - self._start_time, 4), **fields}
        self._lines.add(json.dumps(finite(line)))
