"""Finds workers that stay slower than the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

WINDOW = 7  # steps whose median counts: four slow steps in a row tell, three do not
PERSISTENT = 50  # steps. Three of four count where a worker waits for a processor, as on any busy machine
FACTOR = 2.0  # times the others' median
LEAST = 0.005  # seconds a step. Less is noise of the system's scheduler


@dataclass(frozen=True, slots=True)
class Straggler:
    """A worker that became slow."""

    rank: int
    step: int
    seconds: float  # compute of a step, its median, or what three of four steps take at least
    others: float  # the median of the other workers
    steps: int = WINDOW  # that count

    @property
    def factor(self) -> float:
        return self.seconds / max(self.others, 1e-9)

    def __str__(self) -> str:
        persists = self.steps == PERSISTENT
        of = f"three of four of {self.steps} steps" if persists else f"medians of {self.steps} steps"
        why = "; other work takes its processor" if persists else ""
        return (
            f"step {self.step}: rank {self.rank} is slow in compute, {1e3 * self.seconds:.1f} ms a step, {self.factor:.1f} "
            f"times the others' {1e3 * self.others:.1f} ms ({of}); the others wait for it{why}"
        )


class Stragglers:
    """The recent compute times of all workers.

    Times in exchange and synchronisation do not count. All others spend the wait for a
    slow worker there. On a busy machine workers wait for a processor, now this one, now
    that one. So a worker is slow if it is so without its waits, while those of the
    others count, or for a long time.
    """

    def __init__(self, num_workers: int) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=PERSISTENT) for _ in range(num_workers)]
        self._own: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(num_workers)]  # without waits
        self._slow: set[int] = set()  # named workers. A worker that recovers may be named again

    @property
    def slow(self) -> frozenset[int]:
        """The workers that are slow now."""
        return frozenset(self._slow)

    def pace(self) -> list[float]:  # [num_workers]
        """Returns the recent compute seconds of a step of each worker, the medians."""
        return [median(list(recent)[-WINDOW:]) for recent in self._recent]

    def observe(
        self, step: int, seconds: Mapping[int, float], queued: Mapping[int, float] | None = None
    ) -> list[Straggler]:
        """Takes in one step. Returns the workers slow since this step.

        Args:
            step: Step of the run.
            seconds: Compute time of the step by rank, of the workers that are left.
            queued: The part in which a rank waited for a processor. Default: none.
        """
        for rank, value in seconds.items():
            self._recent[rank].append(value)
            self._own[rank].append(max(value - (queued or {}).get(rank, 0.0), 0.0))
        slow: dict[int, Straggler] = {}
        for recent, steps in ((self._recent, PERSISTENT), (self._own, WINDOW)):
            if len(seconds) < 2 or len(recent[min(seconds)]) < steps:
                continue
            place = steps // 2 if steps == WINDOW else steps // 4
            own = {rank: sorted(recent[rank])[place] for rank in seconds}
            medians = {rank: median(list(self._recent[rank])[-steps:]) for rank in seconds}
            found = (Straggler(rank, step, own[rank], _others(medians, rank), steps) for rank in sorted(own))
            slow |= {straggler.rank: straggler for straggler in found if _is_slow(straggler)}
        new = [slow[rank] for rank in sorted(slow.keys() - self._slow)]
        self._slow = set(slow)
        return new


def _others(medians: Mapping[int, float], rank: int) -> float:
    others: Iterable[float] = (value for other, value in medians.items() if other != rank)
    return median(others)


def _is_slow(found: Straggler) -> bool:
    return found.seconds > FACTOR * found.others and found.seconds > found.others + LEAST
