"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.report import learning, timeline
from gnnkit.report.charts import Curve, Part, bars, clipped, curves
from gnnkit.report.drawing import Figure, colour
from gnnkit.report.page import PageTable, format_value, save
from gnnkit.report.run import RunFiles, settings
from gnnkit.report.run_page import SETTINGS

_NOT_COMPARED = {"confusion", "per_rank", "per_class", "why", "command", "versions", "layouts", "regions", "peers"}
_SETTINGS = {*SETTINGS} - {"num_parameters"}


def compare(
    runs: Sequence[RunFiles],
    folder: Path,
    names: Sequence[str] | None = None,
    summary: PageTable | None = None,
    sentence: str = "",
) -> Path:
    """Writes a page on several runs: differing settings, figures, and overlaid curves.

    Args:
        folder: Receives the page.
        names: The name of each run. Default: its folder's name.
        summary: The first table on the page.
        sentence: A text below the summary.
    """
    names = _names(runs) if names is None else [clipped(name, 60) for name in names]
    charts = [*_curves(runs, names), *_times(runs, names)]
    folders = [(name, str(run.folder)) for name, run in zip(names, runs, strict=True)]
    return save(
        "compare.html",
        charts,
        folder,
        title=f"{len(runs)} runs",
        summary=summary,
        sentence=sentence,
        folders=PageTable(("run", "folder"), folders, numbers=False),
        settings=_table(_settings(runs), names),
        curves=charts,
        figures=_table(_figures(runs), names),
        notes=[f"{name}: {note}" for run, name in zip(runs, names, strict=True) for note in run.notes],
    )


def _names(runs: Sequence[RunFiles]) -> list[str]:
    """Returns the last part of each folder's name, numbered where two are equal."""
    plain = [run.folder.name or str(run.folder) for run in runs]
    return [f"{name} ({index + 1})" if plain.count(name) > 1 else name for index, name in enumerate(plain)]


def _table(rows: Mapping[str, Sequence[str]], names: Sequence[str]) -> PageTable:
    return PageTable(("", *names), [(key, *values) for key, values in rows.items()])


def _settings(runs: Sequence[RunFiles]) -> dict[str, list[str]]:
    """Returns the settings that differ, by key."""
    values = [dict(_flat(settings(run))) or _named_settings(run) for run in runs]
    keys = dict.fromkeys(key for of_run in values for key in of_run)
    rows = {key: [of_run.get(key, "") for of_run in values] for key in keys if key not in ("output", "cache")}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def _named_settings(run: RunFiles) -> dict[str, str]:
    """Returns the settings in `result.json`, for a run without a configuration."""
    return {key: format_value(value) for key, value in run.result.items() if key in _SETTINGS}


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields keys as in `model.hidden`. A deep node counts as one value."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(value, Mapping) and prefix.count(".") < 4:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", format_value(value)


def _figures(runs: Sequence[RunFiles]) -> dict[str, list[str]]:
    """Returns all runs' figures by name."""
    keys = dict.fromkeys(key for run in runs for key in run.result if key not in _NOT_COMPARED | _SETTINGS)
    return {key: [clipped(format_value(run.result.get(key)), 60) for run in runs] for key in keys}


def _curves(runs: Sequence[RunFiles], names: Sequence[str]) -> list[Figure]:
    main = next((name for run in runs if (name := learning.main_figure(run)) is not None), None)
    metrics = [("loss", "train_loss", "Training loss"), *([("figure", main, main)] if main else [])]
    charts = []
    for name, metric, title in metrics:
        drawn = [
            Curve.of(run_name, metric, points, colour(index))
            for index, (run, run_name) in enumerate(zip(runs, names, strict=True))
            if (points := learning.points_of(run, metric))
        ]
        if drawn:
            charts.append(curves(name, title, f"{metric} by epoch.", drawn))
    return charts


def _times(runs: Sequence[RunFiles], names: Sequence[str]) -> list[Figure]:
    """Draws each run's mean time per rank."""
    totals = [timeline.totals(run) for run in runs]
    if not any(totals):
        return []
    parts = [
        Part(kind, tuple(sum(rank[kind] for rank in ranks) / max(len(ranks), 1) for ranks in totals), tint)
        for kind, tint in timeline.COLOURS.items()
    ]
    return [bars("time", "Where the time went", "Seconds of all steps, mean of the ranks.", names, parts, "seconds")]
