"""The table of job=compare: a row per scheme, with means over seeds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_report.page import PageTable, format_value
from gnnkit_report.run import KINDS

from gnnkit.result.result import EPOCHS
from gnnkit.task import Task
from gnnkit.utils.documents import parse_json, read_object

STEPS = "workers.jsonl"
TARGET_SHARE = 0.99  # of the best validation figure, for time to target
# 95 % quantiles of Student's t by degrees of freedom from 1, and beyond.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_BEYOND = 2.0
_COLUMNS = {  # printed names and factors, by key of `SchemeTable.figures`. Others are printed as they are
    "way": ("scheme", 1),
    "time_to_target": ("s to target", 1),
    "reached_target": ("runs to target", 1),
    "approximate_epochs": ("approximate", 1),
    "seconds_per_epoch": ("s an epoch", 1),
    "exposed_seconds": ("s exposed", 1),
    "bytes_sent": ("MB sent an epoch", 1e-6),
    "memory": ("MB of memory", 1e-6),
    "error": ("remark", 1),
}
_MEANS = ("epochs", "approximate_epochs", "seconds_per_epoch", "exposed_seconds", "bytes_sent", "memory")
EpochCurve = Sequence[tuple[float, float]]  # seconds of training, validation figure


@dataclass(frozen=True, slots=True)
class SchemeRun:
    """The figures of one run that the comparison shows."""

    test: float | None  # of the saved model
    epochs: int
    seconds_per_epoch: float | None  # median without the first one
    bytes_sent: float | None  # rows sent by the busiest worker in an epoch, without gradients
    memory: int | None  # bytes, peak of the busiest worker
    curve: EpochCurve
    figure: str | None = None  # the validation figure. None: the task's
    approximate_epochs: int = 0  # epochs of approximate steps
    exposed_seconds: float | None = None  # per epoch, in which the slowest worker did not compute

    @classmethod
    def read(cls, folder: Path, task: Task) -> SchemeRun:
        """Reads a run folder, including the earlier parts of a resumed run."""
        result = read_object(folder / "result.json")
        figure: str = result.get("main_figure", {}).get("name", task.progress)
        parts = [*sorted(folder.glob("earlier-*"), key=_number), folder]
        states = [state for part in parts for state in _lines(part / STEPS)]
        lines = [line for part in parts for line in _lines(part / EPOCHS)]
        seconds_by_epoch = training_seconds(lines)
        figures_by_epoch = {line["epoch"]: line["figures"] for line in lines if "figures" in line}
        curve = [
            (seconds_by_epoch[epoch], figures[figure])
            for epoch, figures in sorted(figures_by_epoch.items())
            if epoch in seconds_by_epoch and figures.get(figure) is not None
        ]
        schedule = result.get("schedule") or {"approximate": len(seconds_by_epoch)}
        return cls(
            test=result.get(figure.replace("val_", "test_", 1)),
            epochs=len(seconds_by_epoch),
            seconds_per_epoch=result.get("seconds_per_epoch"),
            bytes_sent=result.get("bytes_sent"),
            memory=max((state["memory"] for state in states), default=None),
            curve=curve,
            figure=figure,
            approximate_epochs=schedule["approximate"] if result.get("approximate") else 0,
            exposed_seconds=exposed_seconds(lines),
        )


def training_seconds(lines: Iterable[Mapping[str, Any]]) -> dict[int, float]:
    """Returns the slowest worker's training seconds until the end of each epoch.

    Args:
        lines: The lines of `epochs.jsonl`. Those of evaluations are ignored.
    """
    seconds: dict[int, Any] = defaultdict(float)  # by epoch: [world_size], the parts of a resumed epoch added up
    for line in lines:
        if "seconds_compute" in line:
            seconds[line["epoch"]] += np.sum([line[f"seconds_{kind}"] for kind in KINDS], axis=0)
    order = sorted(seconds)
    totals = np.cumsum([seconds[epoch] for epoch in order], axis=0)  # [num_epochs, world_size]
    return {epoch: float(workers.max()) for epoch, workers in zip(order, totals, strict=True)}


def exposed_seconds(lines: Iterable[Mapping[str, Any]]) -> float | None:
    """Returns the slowest worker's mean seconds per epoch without computation.

    Args:
        lines: The lines of `epochs.jsonl`. Those of evaluations are ignored.
    """
    kinds = [f"seconds_{kind}" for kind in KINDS if kind != "compute"]
    seconds = [np.sum([line[kind] for kind in kinds], axis=0) for line in lines if "seconds_compute" in line]
    return float(np.mean(seconds, axis=0).max()) if seconds else None


def best(curve: EpochCurve, *, lower_is_better: bool = False) -> float | None:
    """Returns the best validation figure, or None."""
    return (min if lower_is_better else max)((value for _, value in curve), default=None)


def target(best: float, *, lower_is_better: bool = False) -> float:
    """Returns 99 % of a metric, or an error over 0.99."""
    return best / TARGET_SHARE if lower_is_better else best * TARGET_SHARE


def seconds_to(curve: EpochCurve, target: float, *, lower_is_better: bool = False) -> float | None:
    """Returns the training seconds until a validation reached the target."""
    times = (at for at, value in curve if (value <= target if lower_is_better else value >= target))
    return next(times, None)


def _number(folder: Path) -> int:
    number = folder.name.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.is_file():
        with path.open(encoding="utf-8") as lines:
            yield from (parse_json(line, str(path)) for line in lines)


@dataclass(frozen=True, slots=True)
class SchemeRow:
    """The runs of one scheme."""

    scheme: str
    runs: Sequence[SchemeRun]  # completed ones
    error: str = ""  # the reason why a run is missing

    def mean(self, field: str) -> float | None:
        """Returns the mean of a field over the runs that have it."""
        return _mean([value for run in self.runs if (value := getattr(run, field)) is not None])

    @property
    def tests(self) -> list[float]:
        """The test figure of each run."""
        return [run.test for run in self.runs if run.test is not None]


class SchemeTable:
    """All rows. The first one with a run is the reference for the others."""

    def __init__(self, rows: Sequence[SchemeRow], task: Task) -> None:
        """Stores the rows, and determines what they are measured by."""
        self.rows, self.lower = rows, task.lower_is_better
        self.first = next((row for row in rows if row.runs), SchemeRow("", []))
        names = (run.figure for run in self.first.runs if run.figure is not None)
        self.figure = next(names, task.progress)  # the validation figure
        self.test = self.figure.replace("val_", "test_", 1)
        curves = [best(run.curve, lower_is_better=self.lower) for run in self.first.runs]
        reference = _mean([value for value in curves if value is not None])
        self.target = None if reference is None else target(reference, lower_is_better=self.lower)

    def times(self, row: SchemeRow) -> list[float]:
        """Returns the seconds to the target, of the runs that reached it."""
        if self.target is None:
            return []
        times = (seconds_to(run.curve, self.target, lower_is_better=self.lower) for run in row.runs)
        return [seconds for seconds in times if seconds is not None]

    def difference(self, row: SchemeRow) -> float | None:
        """Returns the mean test figure minus the reference's."""
        mean, reference = row.mean("test"), self.first.mean("test")
        return None if mean is None or reference is None else mean - reference

    def figures(self) -> list[dict[str, Any]]:
        """Returns the rows for `result.json`."""
        return [
            {
                "way": row.scheme,
                "runs": len(row.runs),
                self.test: row.mean("test"),
                "deviation": statistics.stdev(row.tests) if len(row.tests) > 1 else None,
                "difference": self.difference(row),
                "time_to_target": _mean(self.times(row)),
                "reached_target": len(self.times(row)),
                **{name: row.mean(name) for name in _MEANS},
                "error": row.error or None,
            }
            for row in self.rows
        ]

    def table(self) -> PageTable:
        """Returns the rows as text."""
        figures = self.figures()
        columns = [(key, *_COLUMNS.get(key, (key, 1))) for key in figures[0]]
        rows = [["" if row[key] is None else format_value(row[key] * by) for key, _, by in columns] for row in figures]
        return PageTable([name for _, name, _ in columns], rows)

    def sentence(self) -> str:
        """Names the fastest, equal and partly approximate schemes."""
        return " ".join([*self._fastest(), *self._equal(), *self._partly_exact()]) if self.first.runs else ""

    def _partly_exact(self) -> Iterator[str]:
        shares = [
            f"{approximate:.0f} of {row.mean('epochs'):.0f} of {row.scheme}"
            for row in self.rows
            if 0 < (approximate := row.mean("approximate_epochs") or 0) < (row.mean("epochs") or 0)
        ]
        if shares:
            yield f"Approximate epochs: {_join_names(shares)}; the others are exact, and part of the figures."

    def _fastest(self) -> Iterator[str]:
        if self.target is None:
            return
        goal = f"{self.figure} {self.target:.4g} (99 % of the best of {self.first.scheme})"
        means = {
            row.scheme: statistics.fmean(times)
            for row in self.rows
            if (times := self.times(row)) and len(times) == len(row.runs)
        }
        if not means:
            yield f"No scheme reached {goal} in every run."
            return
        fastest = min(means, key=lambda scheme: means[scheme])
        yield f"{fastest} reached {goal} first, after {means[fastest]:.3g} s of training."

    def _equal(self) -> Iterator[str]:
        rows = [row for row in self.rows if row is not self.first and row.tests]
        if not rows:
            return
        if max(len(row.tests) for row in (self.first, *rows)) < 2:
            yield f"One seed does not show the noise of {self.test}: use compare.seeds=3."
            return
        equal = [row.scheme for row in rows if within_noise(self.first.tests, row.tests)]
        if len(equal) == len(rows):
            yield f"All schemes have the same {self.test} within noise."
        else:
            verb = "have" if len(equal) > 1 else "has"
            yield f"Within noise, {_join_names(equal) or 'no other scheme'} {verb} the {self.test} of {self.first.scheme}."


def within_noise(first: Sequence[float], second: Sequence[float]) -> bool:
    """Tests whether two means may be equal: Student's t at 95 %, equal variances.

    Args:
        first: The figure of each seed.
        second: The figure of each seed of another scheme.
    """
    freedom = len(first) + len(second) - 2
    if freedom < 1:
        return False
    squares = sum((value - statistics.fmean(group)) ** 2 for group in (first, second) for value in group)
    error = (squares / freedom * (1 / len(first) + 1 / len(second))) ** 0.5
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _BEYOND
    return bool(abs(statistics.fmean(first) - statistics.fmean(second)) <= quantile * error)


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _join_names(names: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])
