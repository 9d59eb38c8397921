"""The page of a sweep: runs in a table, seeds together, and which keys matter."""

from __future__ import annotations

import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from gnnkit.errors import UserError
from gnnkit.report import learning
from gnnkit.report.charts import Curve, Part, bars, clipped, curves
from gnnkit.report.drawing import Figure, Point, colour
from gnnkit.report.importance import explained
from gnnkit.report.markup import Markup, element, joined, table
from gnnkit.report.page import PAGE, save, section
from gnnkit.report.parallel import parallel
from gnnkit.report.run import number, read_run

SEED, DONE = "seed", "done"
MOST_CURVES = 6  # runs whose curves are drawn: the best


@dataclass(frozen=True, slots=True)
class SweptRun:
    """One run of a sweep."""

    number: int
    status: str  # "done", or what became of the run
    swept: Mapping[str, str]  # value by key, as typed
    figures: Mapping[str, float]
    folder: Path  # the run folder
    log: Path
    remark: str = ""

    @property
    def page(self) -> Path | None:
        """The page of the run, or what it printed."""
        return next((path for path in (self.folder / PAGE, self.log) if path.exists()), None)


@dataclass(frozen=True, slots=True)
class Sweep:
    """All runs of a sweep so far."""

    runs: Sequence[SweptRun]
    main: str  # the figure that runs are judged by
    lower_is_better: bool
    columns: Sequence[str]  # figures of the tables
    ended: bool = True

    @property
    def keys(self) -> list[str]:
        """The swept keys, in the order in which they come."""
        return list(dict.fromkeys(key for run in self.runs for key in run.swept))

    @property
    def done(self) -> list[SweptRun]:
        """The runs that have the main figure, the best one first."""
        found = [run for run in self.runs if run.status == DONE and number(run.figures.get(self.main)) is not None]
        return sorted(found, key=lambda run: run.figures[self.main] * (1 if self.lower_is_better else -1))


def write_sweep(sweep: Sweep, folder: Path) -> Path:
    """Writes the page of a sweep. Returns its path. Paints PNGs once it has ended.

    Args:
        sweep: The runs.
        folder: The folder of the sweep.
    """
    shares = _shares(sweep)
    figures = [*_parallel(sweep), *_importance(sweep, shares), *_curves(sweep)]
    title = f"Sweep over {', '.join(sweep.keys)}" if sweep.keys else "Sweep"
    body = [
        element("h1", title),
        element("p", _state(sweep), class_="muted"),
        *_best(sweep),
        element("h2", "Runs"),
        element("div", _runs(sweep, folder), class_="panel wide"),
        *_seeds(sweep),
        section("What matters", figures, _too_few(sweep, shares)),
    ]
    return save(title, body, figures, folder, paints=sweep.ended)


def _state(sweep: Sweep) -> str:
    counts = Counter(run.status for run in sweep.runs)
    told = ", ".join(f"{count} {status}" for status, count in counts.items())
    return f"{len(sweep.runs)} runs: {told}.{'' if sweep.ended else ' The sweep goes on: load the page again.'}"


def _best(sweep: Sweep) -> list[Markup]:
    if not sweep.done:
        return []
    best = sweep.done[0]
    chosen = element("code", " ".join(f"{key}={value}" for key, value in best.swept.items()))
    return [element("p", f"Best {sweep.main} {best.figures[sweep.main]:.4g}, of run {best.number}: ", chosen)]


def _runs(sweep: Sweep, folder: Path) -> Markup:
    remarks = ["remark"] if any(run.remark for run in sweep.runs) else []
    head = ["run", *sweep.keys, *sweep.columns, "status", *remarks]
    rows = [
        [
            _linked(run, folder),
            *(run.swept.get(key, "") for key in sweep.keys),
            *(_figure(run.figures.get(name)) for name in sweep.columns),
            run.status,
            *([clipped(run.remark, 90)] if remarks else []),
        ]
        for run in sweep.runs
    ]
    return table(head, rows, sortable=True)


def _linked(run: SweptRun, folder: Path) -> object:
    if run.page is None:
        return run.number
    return element("a", run.number, href=quote(Path(os.path.relpath(run.page, folder)).as_posix()))


def _figure(value: object) -> str:
    found = number(value)
    return "" if found is None else f"{found:.4g}"


def _seeds(sweep: Sweep) -> list[Markup]:
    """Lists mean and deviation over seeds, for each choice of the other keys."""
    others = [key for key in sweep.keys if key != SEED]
    groups: dict[tuple[str, ...], list[SweptRun]] = {}
    for run in sweep.done if SEED in sweep.keys else []:
        groups.setdefault(tuple(run.swept.get(key, "") for key in others), []).append(run)
    if not any(len(runs) > 1 for runs in groups.values()):
        return []
    columns = [name for name in sweep.columns if not name.startswith("seconds")]
    head = [*(others or ["all"]), "runs", *columns]
    rows = [
        [*(values or ("seeds",)), len(runs), *(_spread(runs, name) for name in columns)]
        for values, runs in groups.items()
    ]
    title = element("h2", "Means and deviations over seeds")
    return [title, element("div", table(head, rows, sortable=True), class_="panel wide")]


def _spread(runs: Sequence[SweptRun], name: str) -> object:
    """Spells mean and deviation. The mean is what a table is sorted by."""
    values = [value for run in runs if (value := number(run.figures.get(name))) is not None]
    if not values:
        return ""
    mean = statistics.fmean(values)
    deviation = f" ± {statistics.stdev(values):.2g}" if len(values) > 1 else ""
    return element("data", f"{mean:.4g}{deviation}", value=mean)


def _parallel(sweep: Sweep) -> list[Figure]:
    keys = [key for key in sweep.keys if len({run.swept.get(key) for run in sweep.done}) > 1]
    if len(sweep.done) < 2 or not keys:
        return []
    lines = [([run.swept.get(key, "") for key in keys], run.figures[sweep.main]) for run in sweep.done]
    notes = [f"run {run.number}: {sweep.main} {run.figures[sweep.main]:.4g}" for run in sweep.done]
    return [parallel(keys, sweep.main, lines, notes)]


def _importance(sweep: Sweep, shares: Mapping[str, float | None]) -> list[Figure]:
    found = {key: share for key, share in shares.items() if share is not None}
    if not found:
        return []
    left = ", ".join(key for key, share in shares.items() if share is None)
    untold = f" Too few runs to tell: {left}." if left else ""
    caption = (
        f"Share of the variance of {sweep.main} that the values of a key explain by themselves: adjusted eta squared, "
        f"over {len(sweep.done)} runs. Many numbers are taken in four groups. Effects of several keys together are "
        f"in none of the bars.{untold}"
    )
    ordered = sorted(found, key=lambda key: -found[key])
    names = [key.rpartition(".")[2] or key for key in ordered]
    labels = names if len(set(names)) == len(names) else ordered
    labels = [f"{clipped(label, 9)} {found[key]:.0%}" for label, key in zip(labels, ordered, strict=True)]
    parts = [Part("explained", tuple(found[key] for key in ordered), "shade")]
    return [bars("importance", "Importance of keys", caption, labels, parts, "share of the variance")]


def _shares(sweep: Sweep) -> dict[str, float | None]:
    scores = [run.figures[sweep.main] for run in sweep.done]
    return {key: explained([run.swept.get(key, "") for run in sweep.done], scores) for key in sweep.keys}


def _too_few(sweep: Sweep, shares: Mapping[str, float | None]) -> list[Markup]:
    """Says so where no key's importance can be told."""
    if any(share is not None for share in shares.values()):
        return []
    words = (
        f"{len(sweep.done)} runs are too few to tell: this takes 8 that are done, and two for each value of a key, "
        "or figures that differ."
    )
    return [joined([element("h3", "Importance of keys"), element("p", words)])]


def _points(run: SweptRun, name: str) -> tuple[Point, ...]:
    try:
        return learning.points_of(read_run(run.folder), name)
    except UserError:  # its folder is gone
        return ()


def _curves(sweep: Sweep) -> list[Figure]:
    """Draws the main figure of the best runs by epoch."""
    drawn = []
    for index, run in enumerate(sweep.done[:MOST_CURVES]):
        if points := _points(run, sweep.main):
            title = " ".join(f"{key.rpartition('.')[2]}={value}" for key, value in run.swept.items())
            drawn.append(Curve(f"{run.number}: {title}", points, colour(index), dots=len(points) < 60))
    if not drawn:
        return []
    which = f"The {len(drawn)} best runs" if len(sweep.done) > len(drawn) else "All runs"
    caption = f"{which}, evaluation by evaluation."
    return [curves("figure", sweep.main, caption, drawn)]
