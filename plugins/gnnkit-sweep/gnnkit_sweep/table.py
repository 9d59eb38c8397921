"""The results of a sweep: files with a row for each job, a table, and a page."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from gnnkit_report.charts import clipped

from gnnkit.jobs.pages import as_a_warning
from gnnkit.result.result import finite, format_figure
from gnnkit.task import Task
from gnnkit.utils.storage import write_atomically
from gnnkit_sweep.page import write_sweep
from gnnkit_sweep.rows import DONE, Sweep, SweptRun, by_seed, spread

Goal = Callable[[Sequence[SweptRun], Task], tuple[str, bool]]
_MORE = ("train_loss", "seconds_per_epoch", "seconds_total")
_PAGE_SHARE = 0.05  # of the time, for writing pages between jobs


def write(runs: Sequence[SweptRun], folder: Path) -> None:
    """Writes `results.json` and `results.csv` atomically."""
    rows = [_row(run) for run in runs]
    write_atomically(folder / "results.json", json.dumps(finite(rows), indent=2, allow_nan=False).encode())
    keys = _names(run.swept for run in runs)
    figures = [name for name in _names(run.figures for run in runs) if name not in keys]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["job", "status", "exit_code", *keys, *figures, "folder"])
    for run in runs:
        values = [_value(run, name) for name in (*keys, *figures)]
        writer.writerow([run.number, run.status, run.exit_code, *values, run.folder])
    write_atomically(folder / "results.csv", text.getvalue().encode())


def _row(run: SweptRun) -> dict[str, object]:
    return {
        "job": run.number,
        "status": run.status,
        "exit_code": run.exit_code,
        "overrides": list(run.overrides),
        "swept": run.swept,
        "figures": dict(run.figures),
        "error": run.remark,
        "folder": str(run.folder),
    }


def shown(runs: Sequence[SweptRun], task: Task) -> str:
    """Returns the table, and the means over seeds if several were run."""
    keys, figures = _names(run.swept for run in runs), main_figures(runs, task)
    lines = [["job", *keys, *figures, ""]]
    for run in runs:
        cells = [format_figure(_value(run, name)) for name in (*keys, *figures)]
        remark = "" if run.status == DONE else " ".join(filter(None, [run.status, run.remark]))
        lines.append([str(run.number), *cells, remark])
    return "\n".join([*aligned(lines), *_over_seeds(runs, figures)])


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Aligns columns to the right. The last cell of a line is a remark, cut if long."""
    widths = [max(map(len, column)) for column in zip(*(line[:-1] for line in lines), strict=True)]
    return ["  ".join([*map(str.rjust, line, widths), clipped(line[-1], 67)]).rstrip() for line in lines]


def judged(runs: Sequence[SweptRun], task: Task) -> str:
    """Returns the first main validation figure that a run has."""
    return next((run.main for run in runs if run.main is not None), task.progress)


def main_figures(runs: Sequence[SweptRun], task: Task) -> list[str]:
    """Lists the table's figures: the main metric, the loss and seconds."""
    main = judged(runs, task)
    names = (main, main.replace("val_", "test_", 1), *_MORE)
    return [name for name in names if any(name in run.figures for run in runs)]


def line(run: SweptRun, task: Task) -> str:
    """Returns one line about a run that has ended."""
    if run.status != DONE:
        return f"{run.status} with exit code {run.exit_code}: {run.remark or run.log}"
    return "  ".join(f"{name} {format_figure(run.figures[name])}" for name in main_figures([run], task)) or DONE


def _over_seeds(runs: Sequence[SweptRun], figures: Sequence[str]) -> list[str]:
    """Lists mean and standard deviation over seeds, for each choice of the others."""
    names = [name for name in figures if not name.startswith("seconds")]
    lines = []
    for values, members in by_seed(run for run in runs if run.status == DONE).items():
        if len(members) > 1:
            setting = " ".join(f"{key}={value}" for key, value in values)
            parts = [f"{name} {_spread(members, name)}" for name in names]
            lines.append(f"mean of {len(members)} seeds{f', {setting}' if setting else ''}: {'  '.join(parts)}")
    return lines


def _spread(runs: Sequence[SweptRun], name: str) -> str:
    values = [run.figures[name] for run in runs if name in run.figures]
    return spread(values, "+-") if len(values) > 1 else "-"


def _names(mappings: Iterable[Iterable[str]]) -> list[str]:
    """Lists all keys in order of appearance."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _value(run: SweptRun, name: str) -> object:
    """Returns a swept value or a figure, or an empty text."""
    return run.swept.get(name, run.figures.get(name, ""))


class SweepPage:
    """The page of a sweep. A failure is printed as a line, and the sweep continues."""

    def __init__(self, folder: Path, task: Task, goal: Goal) -> None:
        """Stores the arguments.

        Args:
            folder: The folder of the sweep.
            task: Declares the figures of a run.
            goal: Returns the figure that ranks the runs, and whether lower is better.
        """
        self.folder, self.task, self.goal = folder, task, goal
        self._next = 0.0  # time of `time.monotonic` of the next page

    def write(self, runs: Sequence[SweptRun], *, is_last: bool) -> None:
        """Writes the page, unless pages take too much of a running sweep's time."""
        start = time.monotonic()
        if not is_last and start < self._next:
            return
        main, lower = self.goal(runs, self.task)
        with as_a_warning():
            columns = list(dict.fromkeys([main, *main_figures(runs, self.task)]))
            write_sweep(Sweep(runs, main, lower, columns, is_last), self.folder)
        self._next = time.monotonic() + (time.monotonic() - start) / _PAGE_SHARE
