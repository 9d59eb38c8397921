"""A sweep's page: all runs, means over seeds, and curves of the best runs."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote

from gnnkit_report import learning
from gnnkit_report.charts import Curve, clipped, curves
from gnnkit_report.drawing import Figure, Point, colour
from gnnkit_report.page import Cell, PageTable, Panel, save, save_text_tables
from gnnkit_report.run import read_run

from gnnkit.errors import UserError
from gnnkit_sweep.rows import SEED, Sweep, SweptRun, by_seed, spread

TEMPLATE = Path(__file__).parent / "templates/sweep.html"
MOST_CURVES = 6  # only the best runs


def write_sweep(sweep: Sweep, folder: Path) -> Path:
    """Writes a sweep's page. Returns its path.

    If the sweep has ended, also writes SVG files, and its table, of means over seeds if
    there are several, as Markdown and LaTeX.
    """
    figures = list(_curves(sweep))
    runs, seeds = _runs(sweep, folder), _seeds(sweep)
    if sweep.ended:
        table = (seeds or runs).table
        assert table is not None
        save_text_tables(table.without_empty_columns(), folder)
    return save(
        TEMPLATE,
        figures,
        folder,
        draws=sweep.ended,
        title=f"Sweep over {', '.join(sweep.keys)}" if sweep.keys else "Sweep",
        state=_state(sweep),
        sweep=sweep,
        best=sweep.done[0] if sweep.done else None,
        runs=runs,
        seeds=seeds,
        figures=figures,
    )


def _state(sweep: Sweep) -> str:
    counts = Counter(run.status for run in sweep.runs)
    statuses = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{len(sweep.runs)} runs: {statuses}.{'' if sweep.ended else ' The sweep goes on: load the page again.'}"


def _runs(sweep: Sweep, folder: Path) -> Panel:
    remarks = ["remark"] if any(run.remark for run in sweep.runs) else []
    rows: list[list[str | Cell]] = [
        [
            _link(run, folder),
            *(run.swept.get(key, "") for key in sweep.keys),
            *(_figure(run, name) for name in sweep.columns),
            run.status,
            *([clipped(run.remark, 90)] if remarks else []),
        ]
        for run in sweep.runs
    ]
    head = ["run", *sweep.keys, *sweep.columns, "status", *remarks]
    return Panel(table=PageTable(head, rows, sortable=True), wide=True)


def _link(run: SweptRun, folder: Path) -> Cell:
    link = "" if run.page is None else quote(Path(os.path.relpath(run.page, folder)).as_posix())
    return Cell(str(run.number), link)


def _figure(run: SweptRun, name: str) -> str:
    value = run.figure(name)
    return "" if value is None else f"{value:.4g}"


def _seeds(sweep: Sweep) -> Panel | None:
    """Lists mean and deviation over seeds, for each combination of other keys."""
    groups = by_seed(sweep.done)
    if all(len(runs) == 1 for runs in groups.values()):
        return None
    keys = [key for key in sweep.keys if key != SEED]
    columns = [name for name in sweep.columns if not name.startswith("seconds")]
    rows = [
        [
            *([dict(values).get(key, "") for key in keys] or ["seeds"]),
            str(len(runs)),
            *(_spread(runs, name) for name in columns),
        ]
        for values, runs in groups.items()
    ]
    head = [*(keys or ["all"]), "runs", *columns]
    return Panel(table=PageTable(head, rows, sortable=True), wide=True)


def _spread(runs: Sequence[SweptRun], name: str) -> str | Cell:
    """Formats mean and deviation. Tables are sorted by the mean."""
    values = [value for run in runs if (value := run.figure(name)) is not None]
    return Cell(spread(values, "±"), value=statistics.fmean(values)) if values else ""


def _points(run: SweptRun, name: str) -> tuple[Point, ...]:
    try:
        return learning.points_of(read_run(run.folder), name)
    except UserError:  # the folder was removed
        return ()


def _curves(sweep: Sweep) -> Iterator[Figure]:
    """Draws the best runs' main figure by epoch."""
    lines = []
    for index, run in enumerate(sweep.done[:MOST_CURVES]):
        if points := _points(run, sweep.main):
            title = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in run.swept.items())
            lines.append(Curve.of(f"{run.number}: {title}", sweep.main, points, colour(index)))
    if lines:
        runs = f"The {len(lines)} best runs" if len(sweep.done) > len(lines) else "All runs"
        yield curves("figure", sweep.main, f"{runs}, evaluation by evaluation.", lines)
