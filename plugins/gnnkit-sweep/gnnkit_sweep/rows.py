"""The rows of a sweep's tables and page."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gnnkit.result.folder import REPORT
from gnnkit.utils.documents import number

SEED, DONE = "seed", "done"


@dataclass(frozen=True, slots=True)
class SweptRun:
    """One run in a sweep, without secrets."""

    number: int
    status: str  # "done", or the reason why there is no result
    swept: Mapping[str, str]  # value by key, as typed
    figures: Mapping[str, float]
    folder: Path  # the run folder
    log: Path
    remark: str = ""  # the last line of the log about an error
    exit_code: int | None = None
    main: str | None = None  # the main validation figure's name, if it has trained
    overrides: Sequence[str] = ()

    @property
    def page(self) -> Path | None:
        """The run's page, or its log without one."""
        return next((path for path in (self.folder / REPORT, self.log) if path.exists()), None)

    @property
    def name(self) -> str:
        """The swept values as text."""
        return " ".join(f"{key}={value}" for key, value in self.swept.items())

    def figure(self, name: str) -> float | None:
        """Returns a finite figure, or None."""
        return number(self.figures.get(name))


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep's runs so far."""

    runs: Sequence[SweptRun]
    main: str  # the figure that ranks the runs
    lower_is_better: bool
    columns: Sequence[str]  # figures in the tables
    ended: bool = True

    @property
    def keys(self) -> list[str]:
        """The swept keys, in order of appearance."""
        return list(dict.fromkeys(key for run in self.runs for key in run.swept))

    @property
    def done(self) -> list[SweptRun]:
        """The runs with the main figure, best first."""
        runs = [run for run in self.runs if run.status == DONE and run.figure(self.main) is not None]
        return sorted(runs, key=lambda run: run.figures[self.main] * (1 if self.lower_is_better else -1))


def by_seed(runs: Iterable[SweptRun]) -> dict[tuple[tuple[str, str], ...], list[SweptRun]]:
    """Groups runs that differ in their seed only, by their other swept values."""
    groups: dict[tuple[tuple[str, str], ...], list[SweptRun]] = {}
    for run in runs:
        if SEED in run.swept:
            setting = tuple((key, value) for key, value in run.swept.items() if key != SEED)
            groups.setdefault(setting, []).append(run)
    return groups


def spread(values: Sequence[float], plus_minus: str) -> str:
    """Formats the mean, and the standard deviation of several values."""
    deviation = f" {plus_minus} {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.4g}{deviation}"
