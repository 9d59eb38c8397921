"""The table of job=compare: a row per scheme, with means over seeds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_report.page import PageTable
from gnnkit_report.run import KINDS

from gnnkit.result.folder import EPOCHS
from gnnkit.task import Task
from gnnkit.utils.approximate import SAVES_BYTES
from gnnkit.utils.documents import parse_json, read_object

STEPS = "workers.jsonl"
TARGET_SHARE = 0.99  # of the best validation figure, for time to target
# 95 % quantiles of Student's t by degrees of freedom from 1, and beyond.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_BEYOND = 2.0
EpochCurve = Sequence[tuple[float, float]]  # seconds of training, validation figure


@dataclass(frozen=True, slots=True)
class SchemeRun:
    """The figures of one run that the comparison shows."""

    test: float | None  # of the saved model
    epochs: int
    seconds_per_epoch: float | None  # median without the first one
    bytes_per_epoch: float | None  # rows sent by the busiest worker, without gradients
    memory: int | None  # bytes, peak of the busiest worker
    curve: EpochCurve
    figure: str | None = None  # the validation figure. None: the task's
    approximate: int = 0  # epochs of approximate steps
    exposed: float | None = None  # seconds per epoch of exchange, synchronisation and waits, of the slowest worker

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
            bytes_per_epoch=result.get("bytes_sent"),
            memory=max((state["memory"] for state in states), default=None),
            curve=curve,
            figure=figure,
            approximate=schedule["approximate"] if result.get("approximate") else 0,
            exposed=exposed_seconds(lines),
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
        values = [value for run in self.runs if (value := getattr(run, field)) is not None]
        return statistics.fmean(values) if values else None

    @property
    def tests(self) -> list[float]:
        """The test figure of each run."""
        return [run.test for run in self.runs if run.test is not None]


@dataclass(frozen=True, slots=True)
class SchemeTable:
    """All rows. The first one with a run is the reference for the others."""

    rows: Sequence[SchemeRow]
    task: Task

    @property
    def first(self) -> SchemeRow | None:
        """The reference."""
        return next((row for row in self.rows if row.runs), None)

    @property
    def figure(self) -> str:
        """The validation figure's name."""
        return (self.first.runs[0].figure if self.first is not None else None) or self.task.progress

    @property
    def target(self) -> float | None:
        """The validation figure for time to target."""
        lower = self.task.lower_is_better
        runs = () if self.first is None else self.first.runs
        values = [value for run in runs if (value := best(run.curve, lower_is_better=lower)) is not None]
        return target(statistics.fmean(values), lower_is_better=lower) if values else None

    def times(self, row: SchemeRow) -> list[float]:
        """Returns the seconds to the target, of the runs that reached it."""
        goal, lower = self.target, self.task.lower_is_better
        if goal is None:
            return []
        times = (seconds_to(run.curve, goal, lower_is_better=lower) for run in row.runs)
        return [seconds for seconds in times if seconds is not None]

    def figures(self) -> list[dict[str, object]]:
        """Returns the rows for `result.json`."""
        return [self._figures(row) for row in self.rows]

    def _figures(self, row: SchemeRow) -> dict[str, object]:
        times, tests = self.times(row), row.tests
        return {
            "way": row.scheme,
            "runs": len(row.runs),
            "error": row.error or None,
            self.test: row.mean("test"),
            "deviation": statistics.stdev(tests) if len(tests) > 1 else None,
            "difference": self.difference(row),
            "epochs": row.mean("epochs"),
            "approximate_epochs": row.mean("approximate"),
            "exposed_seconds": row.mean("exposed"),
            "seconds_per_epoch": row.mean("seconds_per_epoch"),
            "time_to_target": statistics.fmean(times) if times else None,
            "reached_target": len(times),
            "bytes_sent": row.mean("bytes_per_epoch"),
            "memory": row.mean("memory"),
        }

    @property
    def test(self) -> str:
        """The name of the test figure."""
        return self.figure.replace("val_", "test_", 1)

    @property
    def scale(self) -> float:
        """The factor for display: 100 for shares, 1 for errors."""
        return 1.0 if self.task.lower_is_better else 100.0

    def difference(self, row: SchemeRow) -> float | None:
        """Returns the mean test figure minus the reference's."""
        mean, reference = row.mean("test"), None if self.first is None else self.first.mean("test")
        return None if mean is None or reference is None else mean - reference

    def table(self) -> PageTable:
        """Returns the rows as text, with a remark as the last cell."""
        unit, points = ("", "difference") if self.scale == 1 else (", %", "points")
        goal = "target" if self.target is None else f"{_format_scaled(self.target, self.scale)}{unit.lstrip(',')}"
        head = ["scheme", f"{self.test}{unit}", points, "epochs", "approximate", "s an epoch", "exposed"]
        head += [f"s to {goal}", "MB sent an epoch", "MB of memory"]
        return PageTable((*head, "remark"), [self._cells(row, len(head)) for row in self.rows])

    def _cells(self, row: SchemeRow, count: int) -> list[str]:
        if not row.runs:
            return [row.scheme, *["-"] * (count - 1), row.error]
        tests, times, scale = row.tests, self.times(row), self.scale
        spread = f" +- {statistics.stdev(tests) * scale:.2g}" if len(tests) > 1 else ""
        difference = None if row is self.first else self.difference(row)
        share = "" if len(times) in (0, len(row.runs)) else f" ({len(times)} of {len(row.runs)})"
        return [
            row.scheme,
            f"{_format_scaled(row.mean('test'), scale)}{spread}",
            "" if difference is None else f"{difference * scale:+.2f}" if scale > 1 else f"{difference:+.3g}",
            _format(row.mean("epochs"), ".0f"),
            _format(row.mean("approximate"), ".0f"),
            _format(row.mean("seconds_per_epoch"), ".3g"),
            _format(row.mean("exposed"), ".2g"),
            f"{statistics.fmean(times):.3g}{share}" if times else "not reached",
            _format(row.mean("bytes_per_epoch"), ",.3f", 1e-6),
            _format(row.mean("memory"), ",.0f", 1e-6),
            row.error,
        ]

    def sentence(self) -> str:
        """Names the fastest, equal and partly approximate schemes."""
        return " ".join([*self._fastest(), *self._equal(), *self._partly_exact(), *self._saves_bytes()])

    def _partly_exact(self) -> Iterator[str]:
        shares = [
            f"{row.mean('approximate'):.0f} of {row.mean('epochs'):.0f} of {row.scheme}"
            for row in self.rows
            if 0 < (row.mean("approximate") or 0) < (row.mean("epochs") or 0)
        ]
        if shares:
            yield f"Approximate epochs: {_join_names(shares)}; the others are exact, and part of the figures."

    def _saves_bytes(self) -> Iterator[str]:
        """Advises quantized rows if they cost least of several approximate schemes."""
        rows = [row for row in self.rows if row.mean("approximate") and row.tests]
        if self.first is None or len(rows) < 2 or self.first in rows:
            return
        sign = -1 if self.task.lower_is_better else 1
        best = max(rows, key=lambda row: sign * (self.difference(row) or 0.0))
        sent = [row.mean("bytes_per_epoch") or 0.0 for row in (best, self.first)]
        is_equal = len(best.tests) > 1 and within_noise(self.first.tests, best.tests)
        if "exchange=quantized" in best.scheme and sent[0] < sent[1] and is_equal:
            yield f"{SAVES_BYTES[0].upper()}{SAVES_BYTES[1:]}."

    def _fastest(self) -> Iterator[str]:
        if self.first is None or self.target is None:
            return
        goal = f"{self.figure} {_format_scaled(self.target, self.scale)}{'' if self.scale == 1 else ' %'}"
        goal = f"{goal} (99 % of the best of {self.first.scheme})"
        times = {row.scheme: self.times(row) for row in self.rows}
        means = {
            row.scheme: statistics.fmean(times[row.scheme])
            for row in self.rows
            if 0 < len(times[row.scheme]) == len(row.runs)
        }
        if not means:
            yield f"No scheme reached {goal} in every run."
            return
        fastest = min(means, key=lambda scheme: means[scheme])
        yield f"{fastest} reached {goal} first, after {means[fastest]:.3g} s of training."

    def _equal(self) -> Iterator[str]:
        rows = [row for row in self.rows if row is not self.first and row.tests]
        if self.first is None or not rows:
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


def _format_scaled(value: float | None, scale: float) -> str:
    return "-" if value is None else f"{value * scale:.2f}" if scale > 1 else f"{value:.4g}"


def _format(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value * scale, form)


def _join_names(names: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])
