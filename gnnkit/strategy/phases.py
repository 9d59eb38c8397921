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
        their share. At least one of them is at the start if `start` is positive.

        Args:
            epochs: Number of epochs of the run.
            start: Share of exact epochs at the start.
            finish: Share of exact epochs at the end.
        """
        exact, first = (math.floor(share * epochs + 1e-9) for share in (start + finish, start))  # 0.3 * 100 < 30
        first = min(max(first, 1), exact) if start else 0
        return cls(first, epochs - (exact - first) if exact > first else sys.maxsize)

    def is_exact(self, epoch: int) -> bool:
        """Returns whether the steps of an epoch are exact."""
        return not self.first <= epoch < self.last

    def counts(self, epochs: int) -> tuple[int, int, int]:
        """Returns the number of exact, approximate and exact epochs among the first."""
        first, last = min(self.first, epochs), min(self.last, epochs)
        return first, last - first, epochs - last

    def describe(self, epochs: int) -> str:
        """Describes the schedule of a run, with epochs counted from 1."""
        first, last = min(self.first, epochs), min(self.last, epochs)
        parts = [(1, first, "exact"), (first + 1, last, "approximate"), (last + 1, epochs, "exact")]
        return ", ".join(f"{begin} to {end} {kind}" for begin, end, kind in parts if begin <= end)
