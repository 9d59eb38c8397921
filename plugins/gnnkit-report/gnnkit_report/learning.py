"""The model's quality: curves of loss and metrics, and the confusion of classes."""

from __future__ import annotations

from dataclasses import dataclass

from gnnkit.utils.documents import number
from gnnkit_report.charts import SPLITS, Chart, Curve, Point, colour, curves, matrix
from gnnkit_report.page import clipped
from gnnkit_report.run import RunFiles, at, section, square

MOST_CLASSES = 40  # limit of the confusion matrix
MOST_METRICS, MOST_CURVES = 8, 24


@dataclass(frozen=True, slots=True)
class BestEpoch:
    """The epoch with the best monitored or main figure."""

    epoch: float  # from 1
    name: str
    value: float
    is_saved: bool  # whether the run saved this epoch's model


def drawings(run: RunFiles) -> list[Chart]:
    """Draws the loss and the task's metrics, with a curve for each split."""
    best, figures = best_of(run), []
    for metric, names in _metrics(run).items():
        figures += _curves(run, metric, names, best)
    return [*figures, *_confusion(run)]


def best_of(run: RunFiles) -> BestEpoch | None:
    """Returns the saved model's epoch, or else the best evaluation's.

    None without evaluations or without a main figure.
    """
    best_epoch, value = run.number("best_epoch"), run.number("best_value")
    if best_epoch is not None and value is not None:
        monitor = run.result.get("best_figure") or section(run, "trainer").get("monitor") or "trainer.monitor"
        return BestEpoch(best_epoch, clipped(str(monitor), 60), value, is_saved=True)
    name = str(at(run.result, "main_figure", "name"))
    points = points_of(run, name)
    if not points:
        return None
    sign = -1 if at(run.result, "main_figure", "lower_is_better") is True else 1
    epoch, value = max(points, key=lambda point: sign * point[1])
    return BestEpoch(epoch, name, value, is_saved=False)


def _metrics(run: RunFiles) -> dict[str, list[str]]:
    """Returns curve names by metric, the loss first."""
    metrics: dict[str, list[str]] = {"loss": ["train_loss"]}
    for name in _names(run):
        split, _, metric = name.partition("_")
        metrics.setdefault(metric if split in SPLITS else name, []).append(name)
    return {metric: sorted(set(names), key=names.index) for metric, names in [*metrics.items()][:MOST_METRICS]}


def points_of(run: RunFiles, name: str) -> tuple[Point, ...]:
    """Returns a figure's points, with epochs from 1."""
    lines = run.epochs if name == "train_loss" else run.evaluations
    figures = ((line["epoch"] + 1, line if name == "train_loss" else line["figures"]) for line in lines)
    points = ((epoch, number(values.get(name))) for epoch, values in figures)
    return tuple((epoch, value) for epoch, value in points if value is not None)


def main_figure(run: RunFiles) -> str | None:
    """Names the validation figure that measures progress."""
    if isinstance(name := at(run.result, "main_figure", "name"), str):
        return name
    return next((name for name in _names(run) if name.startswith("val_") and not name.endswith("_loss")), None)


def _names(run: RunFiles) -> list[str]:
    """Lists all evaluations' figures, in order."""
    return list(dict.fromkeys(str(name) for line in run.evaluations for name in line["figures"]))[:MOST_CURVES]


def _curves(run: RunFiles, metric: str, names: list[str], best: BestEpoch | None) -> list[Chart]:
    """Draws a metric, each split in its colour, and marks the best epoch."""
    lines = [
        Curve(curve, points, _tint(curve, index))
        for index, curve in enumerate(names)
        if (points := points_of(run, curve))
    ]
    if not lines:
        return []
    caption = (
        "Mean over the training rows of each epoch, and of each evaluation."
        if metric == "loss"
        else f"Measured at each evaluation, on all {rows_of(run)} of a split."
    )
    mark = None
    if best is not None:
        caption += f" Best {best.name} {best.value:.4g} in epoch {best.epoch:g}{_saved_model(run, best)}."
        mark = best.epoch, f"best epoch {best.epoch:g}"
    name = metric if metric == "loss" else f"figures_{metric}"
    return [curves(name, metric, caption, lines, mark)]


def rows_of(run: RunFiles) -> str:
    """Names what the run's task predicts."""
    return "edges" if str(run.result.get("task")).startswith(("link_", "edge_")) else "nodes"


def _saved_model(run: RunFiles, best: BestEpoch) -> str:
    if run.number("epochs") is None:  # an unfinished run
        return " so far"
    return (
        ": its model was saved"
        if best.is_saved
        else ": the last model was saved; trainer.monitor=NAME saves the best one"
    )


def _tint(name: str, index: int) -> str:
    """Returns a split's colour, which is the same in all charts."""
    return SPLITS.get(name.partition("_")[0], colour(index + len(SPLITS)))


def _confusion(run: RunFiles) -> list[Chart]:
    """Draws the test rows' true and predicted classes."""
    counts, classes = square(at(run.result, "confusion", "test")), at(run.result, "confusion", "classes")
    if not counts or not isinstance(classes, list) or len(classes) != len(counts):
        return []
    order = sorted(range(len(counts)), key=lambda index: -sum(counts[index]))[:MOST_CLASSES]
    order = order if len(order) < len(counts) else list(range(len(counts)))
    cells = [[max(counts[row][column], 0) for column in order] for row in order]
    limit = "" if len(order) == len(counts) else f" The {len(order)} most frequent of {len(counts)} classes."
    caption = f"Test {rows_of(run)} by true and predicted class. Correct predictions are on the diagonal.{limit}"
    names = [str(classes[index]) for index in order]
    return [matrix("confusion", "Confusion of classes", caption, cells, names, ("true", "predicted"))]
