"""The page that compares several runs."""

from __future__ import annotations

import os
import re
import shlex
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import filterfalse
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gnnkit_report import learning, timeline
from gnnkit_report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    Axis,
    Curve,
    Part,
    bars,
    clipped,
    curves,
    frame,
    legend,
)
from gnnkit_report.drawing import WIDTH, Figure, Point, colour, dot, strokes
from gnnkit_report.page import Cell, PageTable, format_value, save, save_text_tables
from gnnkit_report.run import RunFiles, at
from gnnkit_report.run_page import SETTINGS

from gnnkit.config import leaves
from gnnkit.result.folder import REPORT
from gnnkit.utils.documents import number

_TEMPLATE = Path(__file__).parent / "templates/compare.html"
_NOT_COMPARED = {"confusion", "per_rank", "per_class", "why", "command", "versions", "layouts", "regions", "peers"}
_SETTINGS = {*SETTINGS} - {"num_parameters"}
_OF_A_RUN = {"seed", "output", "cache"}  # keys in which a group's runs may differ
_OF_DATA = (
    *("dataset.name", "dataset.root", "dataset.split", "dataset.seed"),
    *("task.name", "task.seed", "task.val_share", "task.test_share"),
)
_UNSET = {"", "none"}


@dataclass(frozen=True, slots=True)
class PointGroup:
    """Named points, such as a scheme's runs."""

    name: str
    points: tuple[Point, ...]
    notes: tuple[str, ...]  # a tooltip per point
    colour: str


def scatter(name: str, title: str, caption: str, groups: Sequence[PointGroup], unit: str) -> Figure:
    """Draws points, and each group's mean with bars for one standard deviation.

    Args:
        groups: The groups, with at least one point each.
        unit: Title below the horizontal axis.
    """
    shapes, top = legend([(group.name, group.colour) for group in groups])
    height = HEIGHT + max(top - TOP, 0)
    spreads = [[Spread.of(values) for values in zip(*group.points, strict=True)] for group in groups]
    points = [point for group in groups for point in group.points]
    points += [(a.mean + sign * a.deviation, b.mean + sign * b.deviation) for a, b in spreads for sign in (-1, 1)]
    x = Axis.around([point[0] for point in points], LEFT, WIDTH - RIGHT)
    y = Axis.around([point[1] for point in points], height - BOTTOM, top)
    shapes += frame(x, y, unit)
    for group, (across, up) in zip(groups, spreads, strict=True):
        a, b = x.at(across.mean), y.at(up.mean)
        wide, high = x.at(across.mean + across.deviation) - a, b - y.at(up.mean + up.deviation)
        shapes.append(strokes([((a - wide, b), (a + wide, b)), ((a, b - high), (a, b + high))], group.colour, 1.4))
        radii = [2.2] * len(group.points) if len(group.points) > 1 else [4.0]
        shapes += [
            dot(x.at(at), y.at(value), radius, group.colour, note)
            for (at, value), note, radius in zip(group.points, group.notes, radii, strict=True)
        ]
    return Figure(name, title, caption, height, tuple(shapes))


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation, which is 0 for one value."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)


@dataclass(frozen=True, slots=True)
class RunGroup:
    """Runs that differ only in their seed, with their settings."""

    name: str
    runs: Sequence[RunFiles]
    colour: str
    values: Mapping[str, str]  # settings by key

    def numbers(self, read: Callable[[RunFiles], float | None]) -> list[float]:
        """Returns a figure from all runs that have it."""
        return [value for run in self.runs if (value := read(run)) is not None]

    def points(self, name: str) -> tuple[Point, ...]:
        """Returns the mean curve, at the epochs that all runs have."""
        by_epoch: dict[float, list[float]] = {}
        for run in self.runs:
            for epoch, value in learning.points_of(run, name):
                by_epoch.setdefault(epoch, []).append(value)
        return tuple((epoch, Spread.of(v).mean) for epoch, v in by_epoch.items() if len(v) == len(self.runs))


def compare(
    runs: Sequence[RunFiles],
    folder: Path,
    names: Sequence[str] | None = None,
    summary: PageTable | None = None,
    sentence: str = "",
) -> Path:
    """Writes a page on several runs, and its first table as Markdown and LaTeX.

    The page leads with a chart of test figure and training seconds. Settings that
    differ, curves and figures follow, by group of runs.

    Args:
        folder: Receives the page, `table.md` and `table.tex`.
        names: Each run's group name. Default: runs with settings that differ only in
            the seed are a group, named as the first run's folder.
        summary: The first table on the page. Default: figures and seconds by group.
        sentence: A text below the summary.
    """
    groups = _groups(runs, names)
    main = next((name for run in runs if (name := learning.main_figure(run)) is not None), None)
    charts = [*_curves(groups, main), *_times(groups)]
    trade_off = None if main is None else _trade_off(groups, main)
    summary = (_summary(groups, main) if summary is None else summary).without_empty_columns()
    save_text_tables(summary, folder)
    return save(
        _TEMPLATE,
        [*charts, *filter(None, [trade_off])],
        folder,
        title=f"{len(runs)} runs compared",
        trade_off=trade_off,
        summary=summary,
        sentence=sentence,
        settings=_table(dict(_settings(groups)), groups),
        curves=charts,
        pages=_pages(groups, folder, main),
        figures=_table(_figures(groups), groups),
        notes=[*_differing_data(groups), *(f"{run.folder.name}: {note}" for run in runs for note in run.notes)],
    )


def _groups(runs: Sequence[RunFiles], names: Sequence[str] | None) -> list[RunGroup]:
    values = [{key: format_value(value) for key, value in leaves(run.settings)} or _named_settings(run) for run in runs]
    keys: list[Any] = [tuple(sorted((k, v) for k, v in of_run.items() if k not in _OF_A_RUN)) for of_run in values]
    keys = keys if names is None else list(names)
    members: dict[Any, list[int]] = {}
    for index, key in enumerate(keys):
        members.setdefault(key, []).append(index)
    titles = _titles([[runs[index] for index in indices] for indices in members.values()])
    groups = []
    for position, (key, indices) in enumerate(members.items()):
        name = titles[position] if names is None else str(key)
        group = [runs[index] for index in indices]
        groups.append(RunGroup(clipped(name, 60), group, colour(position), values[indices[0]]))
    return groups


def _differing_data(groups: Sequence[RunGroup]) -> list[str]:
    """Returns a note if groups have different data or tasks."""
    differing = [key for key in _OF_DATA if len({group.values.get(key) for group in groups}) > 1]
    return [f"the runs differ in {', '.join(differing)}, so their figures may not be comparable"] if differing else []


def _titles(groups: Sequence[Sequence[RunFiles]]) -> list[str]:
    """Names groups as their first run's folder, numbered where names are equal."""
    folders = [group[0].folder for group in groups]
    plain = [re.sub(r"[-_]seed=?\d+$", "", folder.name) or str(folder) for folder in folders]
    titles = []
    for position, (name, group) in enumerate(zip(plain, groups, strict=True)):
        suffix = f" ({plain[: position + 1].count(name)})" if plain.count(name) > 1 else ""
        titles.append(f"{name}{suffix}" + (f", {len(group)} runs" if len(group) > 1 else ""))
    return titles


def _table(rows: Mapping[str, Sequence[str]], groups: Sequence[RunGroup]) -> PageTable:
    head = ("", *(group.name for group in groups))
    return PageTable(head, [(key, *values) for key, values in rows.items()], grouped=True)


def _settings(groups: Sequence[RunGroup]) -> Iterator[tuple[str, list[str]]]:
    """Yields the settings that differ between groups, by key.

    A key that is missing in some groups, such as another strategy's option, counts only
    if a command sets it, or if it names the option.
    """
    set_keys = {key for group in groups for run in group.runs for key in _keys_in_command(run)}
    keys = dict.fromkeys(key for group in groups for key in group.values)
    for key in filterfalse(_OF_A_RUN.__contains__, keys):
        row = [group.values.get(key, "") for group in groups]
        counts = key in set_keys or (
            not {*row} <= _UNSET and (key.endswith(".name") or all(key in group.values for group in groups))
        )
        if counts and len(set(row)) > 1:
            yield key, row


def _keys_in_command(run: RunFiles) -> list[str]:
    """Returns the keys set by the run's command line."""
    try:
        words = shlex.split(str(run.result.get("command", "")))
    except ValueError:  # an open quote
        return []
    return [word.partition("=")[0].lstrip("+") for word in words if "=" in word]


def _named_settings(run: RunFiles) -> dict[str, str]:
    """Returns the settings in `result.json`, for a run without a configuration."""
    return {key: format_value(value) for key, value in run.result.items() if key in _SETTINGS}


def _figures(groups: Sequence[RunGroup]) -> dict[str, list[str]]:
    """Returns the groups' figures by name: means with deviations if all are numbers."""
    runs = [run for group in groups for run in group.runs]
    keys = dict.fromkeys(key for run in runs for key in run.result if key not in _NOT_COMPARED | _SETTINGS)
    return {key: [_figure(group, key) for group in groups] for key in keys}


def _figure(group: RunGroup, key: str) -> str:
    values = group.numbers(lambda run: run.number(key))
    if len(values) == len(group.runs) > 1:
        return _spread(values)
    return clipped(format_value(group.runs[0].result.get(key)), 60)


def _spread(values: Sequence[float]) -> str:
    """Formats mean and standard deviation."""
    if not values:
        return "-"
    spread = Spread.of(values)
    return format_value(spread.mean) + (f" ± {spread.deviation:.2g}" if spread.deviation else "")


def _training_seconds(run: RunFiles) -> float | None:
    return run.number("phases", "training") or run.number("seconds_total")


def _test_figure(main: str) -> str:
    return f"test_{main.removeprefix('val_')}"


def _trade_off(groups: Sequence[RunGroup], main: str) -> Figure | None:
    """Draws each run's test figure against its training seconds."""
    name, point_groups = _test_figure(main), []
    for group in groups:
        pairs = [(_training_seconds(run), run.number(name), run) for run in group.runs]
        points = [(s, value, run) for s, value, run in pairs if s is not None and value is not None]
        if points:
            notes = [f"{run.folder.name}: {name} {value:.4g} after {s:.3g} s" for s, value, run in points]
            places = tuple((s, value) for s, value, _ in points)
            point_groups.append(PointGroup(group.name, places, tuple(notes), group.colour))
    if not point_groups:
        return None
    better = "Down" if at(groups[0].runs[0].result, "main_figure", "lower_is_better") is True else "Up"
    caption = (
        f"A point is a run. Bars show one standard deviation around a group's mean. {better} and to the left is better."
    )
    return scatter("trade_off", f"{name} and training time", caption, point_groups, "seconds of training")


def _summary(groups: Sequence[RunGroup], main: str | None) -> PageTable:
    names = [] if main is None else [_test_figure(main), main]
    head = ("run", *names, "s of training", "s an epoch")
    rows = [
        (
            group.name,
            *(_spread(group.numbers(lambda run, key=name: run.number(key))) for name in names),  # type: ignore[misc]
            _spread(group.numbers(_training_seconds)),
            _spread(group.numbers(lambda run: run.number("seconds_per_epoch"))),
        )
        for group in groups
    ]
    return PageTable(head, rows)


def _pages(groups: Sequence[RunGroup], folder: Path, main: str | None) -> PageTable:
    """Links each run's page, relative to the folder."""
    rows = []
    for group in groups:
        for run in group.runs:
            page = run.folder / REPORT
            target = Path(os.path.relpath(page if page.exists() else run.folder, folder)).as_posix()
            seed = run.settings.get("seed")
            figure = None if main is None else run.number(_test_figure(main))
            cells = ("" if number(seed) is None else str(seed), "" if figure is None else format_value(figure))
            rows.append((Cell(run.folder.name or str(run.folder), quote(target)), group.name, *cells))
    return PageTable(("run", "group", "seed", "" if main is None else _test_figure(main)), rows, numbers=False)


def _curves(groups: Sequence[RunGroup], main: str | None) -> list[Figure]:
    metrics = [("loss", "train_loss", "Training loss"), *([("figure", main, main)] if main else [])]
    mean = ", mean over the runs of a group" if any(len(group.runs) > 1 for group in groups) else ""
    charts = []
    for name, metric, title in metrics:
        lines = [
            Curve.of(group.name, metric, points, group.colour) for group in groups if (points := group.points(metric))
        ]
        if lines:
            charts.append(curves(name, title, f"{metric} by epoch{mean}.", lines))
    return charts


def _times(groups: Sequence[RunGroup]) -> list[Figure]:
    """Draws each group's mean time per rank."""
    totals = [[rank for run in group.runs for rank in timeline.totals(run)] for group in groups]
    if not any(totals):
        return []
    parts = [
        Part(kind, tuple(sum(rank[kind] for rank in ranks) / max(len(ranks), 1) for ranks in totals), tint)
        for kind, tint in timeline.COLOURS.items()
    ]
    names, caption = [group.name for group in groups], "Seconds of all steps, mean of the ranks."
    return [bars("time", "Where the time went", caption, names, parts, "seconds")]
