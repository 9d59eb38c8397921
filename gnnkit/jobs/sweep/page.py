"""Writes the page of a sweep, in the end and after each job."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gnnkit.jobs.report import costing_a_line
from gnnkit.jobs.sweep import table
from gnnkit.jobs.sweep.job import Outcome
from gnnkit.task import Task

if TYPE_CHECKING:
    from gnnkit.report import SweptRun

_SHARE = 0.05  # of the time that pages between two jobs may take


class Page:
    """The page of a sweep. A failure costs a line, not the sweep."""

    def __init__(self, folder: Path, task: Task, goal: tuple[str, bool]) -> None:
        """Keeps what the page is about.

        Args:
            folder: The folder of the sweep.
            task: Knows the figures of a run.
            goal: The figure that runs are judged by, and whether the least is best.
        """
        self.folder, self.task, self.goal = folder, task, goal
        self._next = 0.0  # the clock from which another page is written

    def write(self, outcomes: Sequence[Outcome], *, ended: bool) -> None:
        """Writes the page, unless pages would take long while the sweep goes on."""
        begun = time.monotonic()
        if not ended and begun < self._next:
            return
        with costing_a_line():
            self._write(outcomes, ended=ended)
        self._next = time.monotonic() + (time.monotonic() - begun) / _SHARE

    def _write(self, outcomes: Sequence[Outcome], *, ended: bool) -> None:
        from gnnkit.report import Sweep, write_sweep

        main, lower = self.goal
        columns = list(dict.fromkeys([main, *table.main_figures(outcomes, self.task)]))
        write_sweep(Sweep([*map(_run, outcomes)], main, lower, columns, ended), self.folder)


def _run(outcome: Outcome) -> SweptRun:
    from gnnkit.report import SweptRun

    job = outcome.job
    swept = {key: str(table.value(outcome, key)) for key in job.swept}
    return SweptRun(job.number, outcome.status, swept, outcome.figures, job.folder, job.log, outcome.error)
