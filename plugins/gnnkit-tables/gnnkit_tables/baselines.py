"""The column that alone predicts the targets best, which a model should beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from gnnkit.graph import Graph, Split
from gnnkit.task.ranking import mean_areas
from gnnkit.utils.checks import Array
from gnnkit_tables.lists import METRICS, Rule, rank_figures, rank_within
from gnnkit_tables.targets import Targets


@dataclass(frozen=True, slots=True)
class Baseline:
    """A rule and its figures of validation and test."""

    name: str
    metric: str
    val: float
    test: float
    column: str = ""  # that has the places in lists, if it ranks

    def __str__(self) -> str:
        return f"baseline: {self.name}: val_{self.metric} {self.val:.4f}, test_{self.metric} {self.test:.4f}"


def can_compare(columns: Graph) -> bool:
    """Returns whether each part has lists, one number, or several classes."""
    if columns.labels.ndim > 1:  # of a ranking task, which has no other labels of two dimensions
        return all((columns.split == part).any() for part in (Split.TRAIN, Split.VAL, Split.TEST))
    least = 1 if columns.labels.dtype.kind == "f" else 2
    parts = (columns.labels[columns.split == part] for part in (Split.TRAIN, Split.VAL, Split.TEST))
    return columns.labels.ndim == 1 and all(len(np.unique(labels)) >= least for labels in parts)


def best_column(columns: Graph) -> Baseline | None:
    """Measures the best column, by a line through training rows, if there is one.

    Args:
        columns: The targets and their columns, from `build_columns`.
    """
    rows, names, is_number = np.asarray(columns.features), columns.feature_names or (), columns.labels.dtype.kind == "f"
    if not is_number and columns.num_classes != 2:
        return None
    metric, train = "mae" if is_number else "roc_auc", columns.split == Split.TRAIN
    best: Baseline | None = None
    for place in np.flatnonzero(np.ptp(rows[train], 0) > 0).tolist():
        slope, intercept = np.polyfit(rows[train, place].astype(np.float64), columns.labels[train], 1)
        predicted = rows[:, place] * slope + intercept
        val, test = (_measure(columns, predicted, part, metric) for part in (Split.VAL, Split.TEST))
        if best is None or (val < best.val if is_number else val > best.val):
            best = Baseline(f"only {names[place]}", metric, val, test)
    return best


def rank_by_rules(targets: Targets) -> list[Baseline]:
    """Measures each rule of a ranking task with the rows that validate best."""
    pairs, best = targets.pairs, dict[str, Baseline]()
    assert pairs is not None
    for rule in pairs.rules:
        val, test = (_measure_rule(targets, rule, pairs.length, part) for part in (Split.VAL, Split.TEST))
        if rule.name not in best or val > best[rule.name].val:
            best[rule.name] = Baseline(f"{rule.name} ({rule.events})", METRICS[0], val, test, rule.column)
    return [*best.values()]


def _measure_rule(targets: Targets, rule: Rule, length: int, part: Split) -> float:
    mask = targets.split == part
    wanted, lists, sizes = targets.labels[mask].T
    ranks, is_listed = rank_within(lists, rule.scores[mask]), rule.scores[mask] > 0
    return rank_figures(lists, ranks, wanted * is_listed, sizes, length)[METRICS[0]]


def _measure(columns: Graph, predicted: Array, part: Split, metric: str) -> float:
    mask = columns.split == part
    scores, labels = predicted[mask].astype(np.float64), columns.labels[mask]
    if metric == "mae":
        return float(np.abs(scores - labels).mean())
    areas = mean_areas(torch.from_numpy(scores)[:, None], torch.from_numpy(labels == 1)[:, None])
    return areas["roc_auc"]
