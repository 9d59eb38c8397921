"""The column that alone predicts the targets best, which a model should beat."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from gnnkit.graph import Floats, Graph, Split
from gnnkit.task.ranking import mean_areas
from gnnkit.utils.checks import Array

Predict = Callable[[Array], Array]  # from columns [k, width] to scores or numbers [k]


def can_compare(columns: Graph) -> bool:
    """Returns whether each part has targets, with one number or class each."""
    parts = all((columns.split == part).any() for part in (Split.TRAIN, Split.VAL, Split.TEST))
    return parts and columns.labels.ndim == 1


def best_column(columns: Graph) -> str | None:
    """Describes the best column, by a line through training rows, if there is one.

    Args:
        columns: The targets and their columns, from `build_columns`.
    """
    rows, names, is_number = np.asarray(columns.features), columns.feature_names or (), columns.labels.dtype.kind == "f"
    if not is_number and columns.num_classes != 2:
        return None
    metric, train = "mae" if is_number else "roc_auc", columns.split == Split.TRAIN
    best: tuple[float, int, Predict] | None = None
    for place in np.flatnonzero(np.ptp(rows[train], 0) > 0).tolist():
        slope, intercept = np.polyfit(rows[train, place].astype(np.float64), columns.labels[train], 1)
        predict = _line(place, slope, intercept)
        value = _measure(columns, predict, Split.VAL, metric)
        if best is None or (value < best[0] if is_number else value > best[0]):
            best = value, place, predict
    if best is None:
        return None
    test = _measure(columns, best[2], Split.TEST, metric)
    return f"baseline: only {names[best[1]]}: val_{metric} {best[0]:.4f}, test_{metric} {test:.4f}"


def _line(place: int, slope: float, intercept: float) -> Predict:
    return lambda rows: rows[:, place] * slope + intercept


def _measure(columns: Graph, predict: Predict, part: Split, metric: str) -> float:
    mask = columns.split == part
    predicted, labels = predict(np.asarray(columns.features)[mask]), columns.labels[mask]
    if metric == "mae":
        return float(np.abs(predicted - labels).mean())
    rows: Floats = np.asarray(predicted, np.float64)
    areas = mean_areas(torch.from_numpy(rows)[:, None], torch.from_numpy(labels == 1)[:, None])
    return areas["roc_auc"]
