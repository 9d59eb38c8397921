"""How well the model does: curves of loss and figures, and the confusion of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gnnkit.report.charts import Curve, curves, heat
from gnnkit.report.drawing import Figure, Point, colour
from gnnkit.report.run import Run, matrix, number

MOST_CLASSES = 40  # of the confusion matrix


def drawings(run: Run) -> list[Figure]:
    """Draws losses, and the task's figures."""
    figures = {name: points for name in _names(run) if (points := points_of(run, name))}
    losses = {"train_loss": points_of(run, "train_loss")} | {k: v for k, v in figures.items() if k.endswith("_loss")}
    rest = {name: points for name, points in figures.items() if not name.endswith("_loss")}
    return [
        *_curves("loss", "Loss", "The mean over the training rows of each epoch, and of each evaluation.", losses),
        *_curves("figures", "Figures of the task", "Measured at each evaluation, on all nodes of a split.", rest),
        *_confusion(run),
    ]


def points_of(run: Run, name: str) -> tuple[Point, ...]:
    """Returns a figure by epoch, from 1. Evaluations come less often than epochs."""
    lines = run.epochs if name == "train_loss" else run.evaluations
    found = ((number(line.get("epoch")), number(_figures(line).get(name))) for line in lines)
    return tuple((epoch + 1, value) for epoch, value in found if epoch is not None and value is not None)


def main_figure(run: Run) -> str | None:
    """Returns the name of the validation figure that says how training gets on."""
    return next((name for name in _names(run) if name.startswith("val_") and not name.endswith("_loss")), None)


def _figures(line: Mapping[str, Any]) -> Mapping[str, Any]:
    figures = line.get("figures", line)
    return figures if isinstance(figures, Mapping) else {}


def _names(run: Run) -> list[str]:
    """Lists the figures of all evaluations, in order."""
    return list(dict.fromkeys(str(name) for line in run.evaluations for name in _figures(line)))[:12]


def _curves(name: str, title: str, caption: str, given: Mapping[str, tuple[Point, ...]]) -> list[Figure]:
    drawn = [
        Curve(each, points, colour(index), dots=each != "train_loss" and len(points) < 60)
        for index, (each, points) in enumerate(given.items())
        if points
    ]
    return [curves(name, title, caption, drawn)] if drawn else []


def _confusion(run: Run) -> list[Figure]:
    """Draws true and predicted classes of the test nodes."""
    given = run.result.get("confusion")
    if not isinstance(given, Mapping):
        return []
    counts, classes = matrix(given.get("test")), given.get("classes")
    if not counts or not isinstance(classes, list) or len(classes) != len(counts):
        return []
    order = sorted(range(len(counts)), key=lambda index: -sum(counts[index]))[:MOST_CLASSES]
    order = order if len(order) < len(counts) else list(range(len(counts)))
    cells = [[max(counts[row][column], 0) for column in order] for row in order]
    which = "" if len(order) == len(counts) else f" The {len(order)} most frequent of {len(counts)} classes."
    caption = f"Test nodes by true and predicted class. The diagonal is right.{which}"
    names = [str(classes[index]) for index in order]
    return [heat("confusion", "Confusion of classes", caption, cells, names, ("true", "predicted"))]
