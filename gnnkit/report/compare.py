"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.report import learning, timeline
from gnnkit.report.charts import Curve, Part, bars, clipped, curves
from gnnkit.report.drawing import Figure, colour
from gnnkit.report.markup import Markup, element, joined, table
from gnnkit.report.page import save, section, spelt
from gnnkit.report.run import Run, settings

_NOT_COMPARED = {
    "confusion",
    "per_rank",
    "per_class",
    "why",
    "command",
    "versions",
    "layouts",
    "regions",
    "peers",
}
_SETTINGS = {
    "strategy",
    "sampler",
    "exchange",
    "partition",
    "nodes",
    "grid",
    "world_size",
    "dataset",
    "model",
    "task",
    "seed",
    "device",
}


def compare(runs: Sequence[Run], folder: Path, names: Sequence[str] | None = None, top: Markup | None = None) -> Path:
    """Writes a page of several runs: what differs, figures, and curves together.

    Args:
        runs: The runs.
        folder: Where the page goes.
        names: The name of each run. Default: the name of the folder.
        top: Stands first on the page. Default: nothing.
    """
    names = _names(runs) if names is None else [clipped(name, 60) for name in names]
    drawn = [*_curves(runs, names), *_times(runs, names)]
    listed = table(["run", "folder"], zip(names, (run.folder for run in runs), strict=True), numbers=False)
    body = [
        element("h1", f"{len(runs)} runs compared"),
        top or Markup(),
        listed,
        element("h2", "Settings that differ"),
        _rows(_settings(runs), names, "All settings are equal."),
        section("Curves", drawn),
        element("h2", "Figures"),
        _rows(_figures(runs), names, "There are no figures."),
        _notes(runs, names),
    ]
    return save(f"{len(runs)} runs", body, drawn, folder)


def _names(runs: Sequence[Run]) -> list[str]:
    """Returns the last part of each folder's name, numbered where two are equal."""
    plain = [run.folder.name or str(run.folder) for run in runs]
    return [f"{name} ({index + 1})" if plain.count(name) > 1 else name for index, name in enumerate(plain)]


def _rows(rows: Mapping[str, list[str]], names: Sequence[str], otherwise: str) -> Markup:
    if not rows:
        return element("p", otherwise)
    return table(["", *names], [(key, *values) for key, values in rows.items()])


def _settings(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Returns settings by key, those that are not the same for all runs."""
    found = [dict(_flat(settings(run))) or _named(run) for run in runs]
    keys = dict.fromkeys(key for each in found for key in each)
    rows = {key: [each.get(key, "") for each in found] for key in keys if key not in ("output", "cache")}
    return {key: values for key, values in rows.items() if len(set(values)) > 1}


def _named(run: Run) -> dict[str, str]:
    """Returns what `result.json` says of the settings, without a configuration."""
    return {key: spelt(value) for key, value in run.result.items() if key in _SETTINGS}


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yields keys as in `model.hidden`. A deep node counts as one value."""
    for key, value in node.items() if isinstance(node, Mapping) else ():
        if isinstance(value, Mapping) and prefix.count(".") < 4:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", spelt(value)


def _figures(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Returns figures by name, of all runs that have these."""
    keys = dict.fromkeys(key for run in runs for key in run.result if key not in _NOT_COMPARED | _SETTINGS)
    return {key: [clipped(spelt(run.result.get(key)), 60) for run in runs] for key in keys}


def _curves(runs: Sequence[Run], names: Sequence[str]) -> list[Figure]:
    main = next((name for run in runs if (name := learning.main_figure(run)) is not None), None)
    wanted = [("loss", "train_loss", "Training loss"), *([("figure", main, main)] if main else [])]
    found = []
    for name, key, title in wanted:
        drawn = [
            Curve(named, points, colour(index), dots=key != "train_loss" and len(points) < 60)
            for index, (run, named) in enumerate(zip(runs, names, strict=True))
            if (points := learning.points_of(run, key))
        ]
        if drawn:
            found.append(curves(name, title, f"{key} by epoch.", drawn))
    return found


def _times(runs: Sequence[Run], names: Sequence[str]) -> list[Figure]:
    """Draws the mean time of a rank in each run."""
    totals = [timeline.totals(run) for run in runs]
    if not any(totals):
        return []
    parts = [
        Part(kind, tuple(sum(rank[kind] for rank in ranks) / max(len(ranks), 1) for ranks in totals), tint)
        for kind, tint in timeline.COLOURS.items()
    ]
    return [bars("time", "Where the time went", "Seconds of all steps, mean of the ranks.", names, parts, "seconds")]


def _notes(runs: Sequence[Run], names: Sequence[str]) -> Markup:
    notes = [(name, note) for run, name in zip(runs, names, strict=True) for note in run.notes]
    return joined(element("p", f"Note: {name}: {note}.", class_="muted") for name, note in notes)
