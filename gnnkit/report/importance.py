"""The share of a figure's variance that one key's values explain."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

MIN_RUNS = 8  # fewer runs yield no estimate
NUM_GROUPS = 4  # bins of a key with many numeric values


def explained(values: Sequence[str], scores: Sequence[float]) -> float | None:
    """Returns the adjusted eta squared of a one-way analysis, from 0 to 1.

    1 - (n - 1) / (n - k) * within / total, of n runs in k groups of equal values. The
    adjustment subtracts the share that k groups explain by chance, down to 0. Numbers
    that rarely repeat are binned into `NUM_GROUPS` groups by size.

    Returns None for fewer than `MIN_RUNS` runs, fewer than two runs per group, a single
    group, or equal scores.

    Args:
        values: The value of the key, by run.
        scores: The figure, by run.
    """
    groups: dict[object, list[float]] = {}
    for group, score in zip(_grouped(values), scores, strict=True):
        groups.setdefault(group, []).append(score)
    count = len(scores)
    if count < MIN_RUNS or count < 2 * len(groups) or len(groups) < 2 or (total := _squares(scores)) <= 0:
        return None
    within = sum(map(_squares, groups.values()))
    return max(1 - (count - 1) / (count - len(groups)) * within / total, 0.0)


def _squares(scores: Sequence[float]) -> float:
    mean = statistics.fmean(scores)
    return sum((score - mean) ** 2 for score in scores)


def _grouped(values: Sequence[str]) -> list[object]:
    """Returns each value's group: itself, or the quarter of a number."""
    if 2 * len(set(values)) <= len(values):
        return list(values)
    numbers = as_numbers(values)
    if numbers is None:
        return list(values)
    ordered = sorted(set(numbers))
    return [ordered.index(value) * NUM_GROUPS // len(ordered) for value in numbers]


def as_numbers(values: Sequence[str]) -> list[float] | None:
    """Returns finite numbers, or None if any value is not one."""
    try:
        numbers = [float(value) for value in values]
    except ValueError:
        return None
    return numbers if all(map(math.isfinite, numbers)) else None
