"""A row for each way, with means over seeds, and what the rows say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.jobs.compare import measured
from gnnkit.jobs.compare.measured import Measured
from gnnkit.jobs.sweep.table import cut
from gnnkit.task import Task

# Quantiles of Student's t for 95 %, by degrees of freedom from 1. Beyond: 2.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13)
_BEYOND = 2.0


@dataclass(frozen=True, slots=True)
class Row:
    """The runs of one way."""

    way: str
    runs: Sequence[Measured]  # that are done
    error: str = ""  # why a run is missing

    def mean(self, figure: Callable[[Measured], float | None]) -> float | None:
        """Returns the mean of a figure over the runs that have the figure."""
        values = [value for run in self.runs if (value := figure(run)) is not None]
        return statistics.fmean(values) if values else None

    @property
    def tests(self) -> list[float]:
        """The test figure of each run."""
        return [run.test for run in self.runs if run.test is not None]


@dataclass(frozen=True, slots=True)
class Table:
    """All rows. The others are held to the first one that has a run."""

    rows: Sequence[Row]
    task: Task

    @property
    def first(self) -> Row | None:
        """The row that the others are compared with."""
        return next((row for row in self.rows if row.runs), None)

    @property
    def target(self) -> float | None:
        """The validation figure that time is measured to."""
        first, lower = self.first, self.task.lower_is_better
        best = None if first is None else first.mean(lambda run: measured.best(run.curve, lower_is_better=lower))
        return None if best is None else measured.target(best, lower_is_better=lower)

    def times(self, row: Row) -> list[float]:
        """Returns the seconds to the target, of the runs that reached it."""
        goal, lower = self.target, self.task.lower_is_better
        if goal is None:
            return []
        found = (measured.seconds_to(run.curve, goal, lower_is_better=lower) for run in row.runs)
        return [seconds for seconds in found if seconds is not None]

    def figures(self) -> list[dict[str, Any]]:
        """Returns the rows for `result.json`."""
        return [self._figures(row) for row in self.rows]

    def _figures(self, row: Row) -> dict[str, Any]:
        times, tests = self.times(row), row.tests
        return {
            "way": row.way,
            "runs": len(row.runs),
            "error": row.error or None,
            self.test: row.mean(lambda run: run.test),
            "deviation": statistics.stdev(tests) if len(tests) > 1 else None,
            "difference": self.difference(row),
            "epochs": row.mean(lambda run: run.epochs),
            "seconds_per_epoch": row.mean(lambda run: run.seconds_per_epoch),
            "time_to_target": statistics.fmean(times) if times else None,
            "reached_target": len(times),
            "bytes_sent": row.mean(lambda run: run.bytes_per_epoch),
            "memory": row.mean(lambda run: run.memory),
        }

    @property
    def test(self) -> str:
        """The name of the test figure."""
        return f"test_{self.task.metrics[0]}"

    @property
    def scale(self) -> float:
        """What a figure is shown times: shares in per cent, errors as they are."""
        return 1.0 if self.task.lower_is_better else 100.0

    def difference(self, row: Row) -> float | None:
        """Returns the mean test figure less that of the first row."""
        own, other = (None if each is None else each.mean(lambda run: run.test) for each in (row, self.first))
        return None if own is None or other is None else own - other

    @property
    def head(self) -> list[str]:
        """The names of the columns."""
        unit, points = ("", "difference") if self.scale == 1 else (", %", "points")
        goal = "target" if self.target is None else f"{spelt(self.target, self.scale)}{unit.lstrip(',')}"
        return [
            "way",
            f"{self.test}{unit}",
            points,
            "epochs",
            "s an epoch",
            f"s to {goal}",
            "MB sent an epoch",
            "MB of memory",
        ]

    def cells(self, *, whole: bool = False) -> list[list[str]]:
        """Returns the rows as text, each with a remark as the last cell.

        Args:
            whole: Whether to keep long remarks. Default: cuts these.
        """
        return [[*self._cells(row), row.error if whole else cut(row.error)] for row in self.rows]

    def _cells(self, row: Row) -> list[str]:
        if not row.runs:
            return [row.way, *["-"] * (len(self.head) - 1)]
        tests, times, scale = row.tests, self.times(row), self.scale
        spread = f" +- {statistics.stdev(tests) * scale:.2g}" if len(tests) > 1 else ""
        difference = None if row is self.first else self.difference(row)
        rest = "" if len(times) in (0, len(row.runs)) else f" ({len(times)} of {len(row.runs)})"
        return [
            row.way,
            f"{spelt(row.mean(lambda run: run.test), scale)}{spread}",
            "" if difference is None else f"{difference * scale:+.2f}" if scale > 1 else f"{difference:+.3g}",
            _number(row.mean(lambda run: run.epochs), ".0f"),
            _number(row.mean(lambda run: run.seconds_per_epoch), ".3g"),
            f"{statistics.fmean(times):.3g}{rest}" if times else "not reached",
            _number(row.mean(lambda run: run.bytes_per_epoch), ",.3f", 1e-6),
            _number(row.mean(lambda run: run.memory), ",.0f", 1e-6),
        ]

    def sentence(self) -> str:
        """Says which way reached the target first, and which equal the first row."""
        return " ".join([*self._fastest(), *self._alike()])

    def _fastest(self) -> Iterator[str]:
        if self.first is None or self.target is None:
            return
        goal = f"{self.task.progress} {spelt(self.target, self.scale)}{'' if self.scale == 1 else ' %'}"
        goal = f"{goal} (99 % of the best of {self.first.way})"
        found = {row.way: times for row in self.rows if (times := self.times(row)) and len(times) == len(row.runs)}
        if not found:
            yield f"No way reached {goal} in every run."
            return
        way = min(found, key=lambda each: statistics.fmean(found[each]))
        yield f"{way} reached {goal} first, after {statistics.fmean(found[way]):.3g} s of training."

    def _alike(self) -> Iterator[str]:
        others = [row for row in self.rows if row is not self.first and row.tests]
        if self.first is None or not others:
            return
        if max(len(row.tests) for row in (self.first, *others)) < 2:
            yield f"One seed does not tell the noise of {self.test}: compare.seeds=3 does."
            return
        alike = [row.way for row in others if within_noise(self.first.tests, row.tests)]
        if len(alike) == len(others):
            yield f"All ways have the same {self.test} within noise."
        else:
            have = "have" if len(alike) > 1 else "has"
            yield f"Within noise, {_listed(alike) or 'no other way'} {have} the {self.test} of {self.first.way}."


def within_noise(one: Sequence[float], other: Sequence[float]) -> bool:
    """Says whether two means may be equal: Student's t-test at 95 %, equal variances.

    Args:
        one: The figure of each seed.
        other: The same of another way.
    """
    freedom = len(one) + len(other) - 2
    if freedom < 1:
        return False
    squares = sum((value - statistics.fmean(group)) ** 2 for group in (one, other) for value in group)
    error = (squares / freedom * (1 / len(one) + 1 / len(other))) ** 0.5
    quantile = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else _BEYOND
    return bool(abs(statistics.fmean(one) - statistics.fmean(other)) <= quantile * error)


def spelt(value: float | None, scale: float) -> str:
    """Spells a figure of the task."""
    return "-" if value is None else f"{value * scale:.2f}" if scale > 1 else f"{value:.4g}"


def _number(value: float | None, form: str, scale: float = 1.0) -> str:
    return "-" if value is None else format(value * scale, form)


def _listed(names: Sequence[str]) -> str:
    return " and ".join([*filter(None, [", ".join(names[:-1])]), *names[-1:]])
