"""Predictions from the targets' columns alone, which a graph model should beat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gnnkit.graph import Floats, Graph, Split
from gnnkit.task.ranking import mean_areas
from gnnkit.utils.checks import Array

_TREES, _STEP = 300, 20  # at most, and between two validations
_OPTIONS = {"learning_rate": 0.05, "max_leaf_nodes": 8}
_LEAF, _LEAVES = 50, 20  # rows of a leaf at most, and leaves that all training rows can fill
Predict = Callable[[Array], Array]  # from columns [k, width] to scores or numbers [k]


@dataclass(frozen=True, slots=True)
class Baseline:
    """A baseline's figures."""

    name: str
    val: float
    test: float


def describe_baselines(columns: Graph) -> Iterator[str]:
    """Yields a line for each baseline, of which validation selects the details.

    Args:
        columns: The targets and their columns, from `build_columns`.
    """
    labels, split = columns.labels, columns.split
    is_number = labels.dtype.kind == "f"
    is_ranked = labels.ndim == 1 and not is_number and columns.num_classes == 2
    if not (is_number or is_ranked) or not all((split == part).any() for part in (Split.TRAIN, Split.VAL, Split.TEST)):
        return
    metric = "mae" if is_number else "roc_auc"
    for baseline in filter(None, (_best_column(columns, metric), _boosting(columns, metric))):
        yield f"baseline: {baseline.name}: val_{metric} {baseline.val:.4f}, test_{metric} {baseline.test:.4f}"


def _best_column(columns: Graph, metric: str) -> Baseline | None:
    """Measures the column that alone predicts best, by a line through training rows."""
    rows, names = np.asarray(columns.features), columns.feature_names or ()
    train = columns.split == Split.TRAIN
    varied = np.flatnonzero(np.ptp(rows[train], 0) > 0)
    best: tuple[float, int, Predict] | None = None
    for place in varied.tolist():
        slope, intercept = np.polyfit(rows[train, place].astype(np.float64), columns.labels[train], 1)
        predict = _line(place, slope, intercept)
        value = _measure(columns, predict, Split.VAL, metric)
        if best is None or (value < best[0] if metric == "mae" else value > best[0]):
            best = value, place, predict
    if best is None:
        return None
    return Baseline(f"only {names[best[1]]}", best[0], _measure(columns, best[2], Split.TEST, metric))


def _line(place: int, slope: float, intercept: float) -> Predict:
    return lambda rows: rows[:, place] * slope + intercept


def _boosting(columns: Graph, metric: str) -> Baseline | None:
    """Measures gradient boosting, or returns None if scikit-learn is not installed."""
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from threadpoolctl import threadpool_limits
    except ImportError:
        return None
    kind: Any = HistGradientBoostingRegressor if metric == "mae" else HistGradientBoostingClassifier
    loss = {"loss": "absolute_error"} if metric == "mae" else {}
    rows, train = np.asarray(columns.features), columns.split == Split.TRAIN
    leaf = max(min(_LEAF, int(train.sum()) // _LEAVES), 1)
    fixed = {"warm_start": True, "early_stopping": False, "random_state": 0, "min_samples_leaf": leaf}
    estimator = kind(**_OPTIONS, **loss, **fixed)
    figures: list[tuple[float, float]] = []
    with threadpool_limits(1):
        for size in range(_STEP, _TREES + 1, _STEP):
            estimator.set_params(max_iter=size).fit(rows[train], columns.labels[train])
            predict: Predict = (
                estimator.predict if metric == "mae" else lambda part: estimator.predict_proba(part)[:, 1]
            )
            val, test = (_measure(columns, predict, part, metric) for part in (Split.VAL, Split.TEST))
            figures.append((val, test))
    val, test = min(figures) if metric == "mae" else max(figures)
    return Baseline("gradient boosting on all columns", val, test)


def _measure(columns: Graph, predict: Predict, part: Split, metric: str) -> float:
    mask = columns.split == part
    predicted, labels = predict(np.asarray(columns.features)[mask]), columns.labels[mask]
    if metric == "mae":
        return float(np.abs(predicted - labels).mean())
    rows: Floats = np.asarray(predicted, np.float64)
    areas = mean_areas(torch.from_numpy(rows)[:, None], torch.from_numpy(labels == 1)[:, None])
    return areas["roc_auc"]
