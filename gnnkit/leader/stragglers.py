"""Detection of workers that stay slower than the others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

WINDOW = 7  # number of steps in the median. Four slow steps in a row are detected, three are not
PERSISTENT = 50  # steps of which three quarters must be slow if a worker waits for a processor
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
        of = f"three of four of {self.steps} steps" if persists else f"medians of {self.steps} steps"
        suffix = "; other work takes its processor" if persists else ""
        return (
            f"step {self.step}: rank {self.rank} is slow in compute, {1e3 * self.seconds:.1f} ms a step, {self.factor:.1f} "
            f"times the others' {1e3 * self.others:.1f} ms ({of}); the others wait for it{suffix}"
        )


class Stragglers:
    """Detects stragglers from the workers' recent compute times.

    Exchange and synchronisation are ignored, because the other workers wait for a slow
    worker there. On a busy host, workers take turns waiting for a processor. Therefore,
    a worker is slow if its time without such waits exceeds the others' time with them,
    or if it is slow for a long time.
    """

    def __init__(self, num_workers: int) -> None:
        self._recent: list[deque[float]] = [deque(maxlen=PERSISTENT) for _ in range(num_workers)]
        self._without_waits: list[deque[float]] = [deque(maxlen=WINDOW) for _ in range(num_workers)]  # without waits
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
