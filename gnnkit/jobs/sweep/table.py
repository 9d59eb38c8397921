"""The results of a sweep: files with a row for each job, and a table for people."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gnnkit.jobs.redacted import override
from gnnkit.jobs.sweep.job import DONE, Outcome
from gnnkit.result.result import finite, spelt
from gnnkit.storage import write_atomically
from gnnkit.task import Task

_MORE = ("train_loss", "seconds_per_epoch", "seconds_total")


def write(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Writes `results.json` and `results.csv`, whole or not at all."""
    rows = [_row(outcome) for outcome in outcomes]
    write_atomically(folder / "results.json", json.dumps(finite(rows), indent=2, allow_nan=False).encode())
    swept = _names(outcome.job.swept for outcome in outcomes)
    figures = [name for name in _names(outcome.figures for outcome in outcomes) if name not in swept]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["job", "status", "exit_code", *swept, *figures, "folder"])
    for outcome in outcomes:
        values = [value(outcome, name) for name in (*swept, *figures)]
        writer.writerow([outcome.job.number, outcome.status, outcome.exit_code, *values, outcome.job.folder])
    write_atomically(folder / "results.csv", text.getvalue().encode())


def shown(outcomes: Sequence[Outcome], task: Task) -> str:
    """Returns the table, and the mean over seeds where several were run."""
    swept = _names(outcome.job.swept for outcome in outcomes)
    figures = main_figures(outcomes, task)
    lines = [["job", *swept, *figures, ""]]
    for outcome in outcomes:
        cells = [spelt(value(outcome, name)) for name in (*swept, *figures)]
        remark = "" if outcome.status == DONE else " ".join(filter(None, [outcome.status, cut(outcome.error)]))
        lines.append([str(outcome.job.number), *cells, remark])
    return "\n".join([*aligned(lines), *_over_seeds(outcomes, swept, figures)])


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Sets cells in columns, aligned right. The last cell of a line is a remark."""
    widths = [max(map(len, column)) for column in zip(*(line[:-1] for line in lines), strict=True)]
    return ["  ".join([*map(str.rjust, line, widths), line[-1]]).rstrip() for line in lines]


def main_figures(outcomes: Sequence[Outcome], task: Task) -> list[str]:
    """Lists the figures of the table: the task's first one, the loss and seconds."""
    wanted = (task.progress, f"test_{task.metrics[0]}", *_MORE)
    return [name for name in wanted if any(name in outcome.figures for outcome in outcomes)]


def line(outcome: Outcome, task: Task) -> str:
    """Returns one line about a job that has ended."""
    if outcome.status != DONE:
        return f"{outcome.status} with exit code {outcome.exit_code}: {outcome.error or outcome.job.log}"
    return "  ".join(f"{name} {spelt(outcome.figures[name])}" for name in main_figures([outcome], task)) or DONE


def _row(outcome: Outcome) -> dict[str, Any]:
    job = outcome.job
    return {
        "job": job.number,
        "status": outcome.status,
        "exit_code": outcome.exit_code,
        "overrides": [override(text) for text in job.overrides],
        "swept": {key: value(outcome, key) for key in job.swept},
        "figures": dict(outcome.figures),
        "error": outcome.error,
        "folder": str(job.folder),
    }


def _over_seeds(outcomes: Sequence[Outcome], swept: Sequence[str], figures: Sequence[str]) -> list[str]:
    """Lists mean and standard deviation over seeds, for each choice of the others."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes if "seed" in swept else ():
        if outcome.status == DONE:
            name = " ".join(f"{key}={value(outcome, key)}" for key in swept if key != "seed")
            groups.setdefault(name, []).append(outcome)
    lines = []
    for name, members in groups.items():
        if len(members) > 1:
            parts = [f"{figure} {_spread(members, figure)}" for figure in figures if not figure.startswith("seconds")]
            lines.append(f"mean of {len(members)} seeds{f', {name}' if name else ''}: {'  '.join(parts)}")
    return lines


def _spread(members: Sequence[Outcome], figure: str) -> str:
    values = [outcome.figures[figure] for outcome in members if figure in outcome.figures]
    if len(values) < 2:
        return "-"
    return f"{statistics.mean(values):.4g} +- {statistics.stdev(values):.2g}"


def _names(mappings: Iterable[Iterable[str]]) -> list[str]:
    """Lists all keys, in the order in which they come."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def value(outcome: Outcome, name: str) -> Any:
    """Returns a swept value as typed, without secrets, or a figure. Empty: neither."""
    if name in outcome.job.swept:
        return override(f"{name}={outcome.job.swept[name]}").partition("=")[2]
    return outcome.figures.get(name, "")


def cut(text: str) -> str:
    """Shortens a remark to 60 characters."""
    return text if len(text) <= 60 else f"{text[:57]}..."
