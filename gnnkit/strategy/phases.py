"""The exact epochs at the start and at the end of approximate training."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

START, FINISH = 0.1, 0.2  # default shares of the epochs. The first and last steps suffer most from stale rows


@dataclass(frozen=True, slots=True)
class Phases:
    """A schedule of exact first, approximate middle and exact last epochs.

    It follows from the number of epochs alone, and nothing that a run measures changes
    it. By default, all epochs are approximate.
    """

    first: int = 0  # the first approximate epoch
    last: int = sys.maxsize  # the first epoch of the exact finish

    @classmethod
    def of(cls, epochs: int, start: float = START, finish: float = FINISH) -> Phases:
        """Returns the schedule of a run.

        The exact epochs are rounded down together, so that the approximate ones keep
        their share. If there are any, each positive share has at least one.

        Args:
            epochs: Number of epochs of the run.
            start: Share of exact epochs at the start.
            finish: Share of exact epochs at the end.
        """
        exact, first = (math.floor(share * epochs + 1e-9) for share in (start + finish, start))  # 0.3 * 100 < 30
        first = min(max(first, 1), exact) if start else 0
        return cls(first, epochs - max(exact - first, 1) if exact and finish else sys.maxsize)

    def is_exact(self, epoch: int) -> bool:
        """Returns whether the steps of an epoch are exact."""
        return not self.first <= epoch < self.last

    def describe(self, epochs: int, *, begin: int = 0, exact: str = "exact") -> str:
        """Describes the schedule of a run, with epochs counted from 1.

        Args:
            epochs: Number of epochs of the run.
            begin: Number of epochs that an earlier part of the run has completed.
            exact: What steps outside the approximate epochs are.
        """
        first, last = (min(max(epoch, begin), epochs) for epoch in (self.first, self.last))
        parts = [(begin + 1, first, exact), (first + 1, last, "approximate"), (last + 1, epochs, exact)]
        return ", ".join(f"{low} to {high} {kind}" for low, high, kind in parts if low <= high)
