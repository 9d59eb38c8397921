"""Throughput of a run over the last seconds."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

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
