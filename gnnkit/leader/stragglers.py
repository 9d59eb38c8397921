"""Finds workers that stay slower than the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

WINDOW = 7  # steps whose median counts: four slow steps in a row tell, three do not
FACTOR = 2.0  # times the others' median
LEAST = 0.005  # seconds a step. Less is noise of the system's scheduler


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that became slow."""

    rank: int
    step: int
    seconds: float  # compute of a step, its median
    others: float  # the same of the other workers

    @property
    def factor(self) -> float:
        return self.seconds / max(self.others, 1e-9)

    def __str__(self) -> str:
        return (
            f"step {self.step}: rank {self.rank} is slow in compute, {1e3 * self.seconds:.1f} ms a step, {self.factor:.1f} "
            f"times the others' {1e3 * self.others:.1f} ms (medians of {WINDOW} steps); the others wait for it"
        )


class Stragglers:
    """The recent compute times of all workers.

    Times in exchange and synchronisation do not count. All others spend the wait for a
    slow worker there.
    """

    def __init__(self, num_workers: int) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(num_workers)]
        self._slow: set[int] = set()  # named workers. A worker that recovers may be named again

    @property
    def slow(self) -> frozenset[int]:
        """The workers that are slow now."""
        return frozenset(self._slow)

    def pace(self) -> list[float]:  # [num_workers]
        """Returns the recent compute seconds of a step of each worker, the medians."""
        return [median(recent) for recent in self._recent]

    def observe(self, step: int, seconds: Mapping[int, float]) -> list[Straggler]:
        """Takes in one step. Returns the workers slow since this step.

        Args:
            step: Step of the run.
            seconds: Compute time of the step by rank, of the workers that are left.
        """
        for rank, value in seconds.items():
            self._recent[rank].append(value)
        if len(seconds) < 2 or len(self._recent[min(seconds)]) < WINDOW:
            return []
        medians = {rank: median(self._recent[rank]) for rank in seconds}
        slow = {rank: others for rank in medians if _is_slow(medians[rank], others := _others(medians, rank))}
        new = [Straggler(rank, step, medians[rank], slow[rank]) for rank in sorted(slow.keys() - self._slow)]
        self._slow = set(slow)
        return new


def _others(medians: Mapping[int, float], rank: int) -> float:
    others: Iterable[float] = (value for other, value in medians.items() if other != rank)
    return median(others)


def _is_slow(seconds: float, others: float) -> bool:
    return seconds > FACTOR * others and seconds > others + LEAST
