"""How much of the spread of a figure the values of one key explain."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

LEAST_RUNS = 8  # fewer tell nothing
NUM_GROUPS = 4  # of a key with many numbers


def explained(values: Sequence[str], scores: Sequence[float]) -> float | None:
    """Returns the adjusted eta squared of a one-way analysis of variance, from 0 to 1.

    1 - (n - 1) / (n - k) * within / total, of n runs in k groups of equal values. The
    adjustment takes off what k groups would explain by chance, and 0 is the least. A
    key with more numbers than half of the runs is taken in `NUM_GROUPS` groups by size.

    Returns None where that cannot be told: fewer than `LEAST_RUNS` runs, fewer than two
    for each group, one group, or scores that are all equal.

    Args:
        values: The value of the key, by run.
        scores: The figure, by run.
    """
    groups: dict[object, list[float]] = {}
    for group, score in zip(_grouped(values), scores, strict=True):
        groups.setdefault(group, []).append(score)
    count = len(scores)
    if count < LEAST_RUNS or count < 2 * len(groups) or len(groups) < 2 or (total := _squares(scores)) <= 0:
        return None
    within = sum(map(_squares, groups.values()))
    return max(1 - (count - 1) / (count - len(groups)) * within / total, 0.0)


def _squares(scores: Sequence[float]) -> float:
    mean = statistics.fmean(scores)
    return sum((score - mean) ** 2 for score in scores)


def _grouped(values: Sequence[str]) -> list[object]:
    """Returns the group of each value: itself, or the quarter of a number."""
    different = set(values)
    if 2 * len(different) <= len(values):
        return list(values)
    numbers = as_numbers(values)
    if numbers is None:
        return list(values)
    ordered = sorted(set(numbers))
    return [ordered.index(each) * NUM_GROUPS // len(ordered) for each in numbers]


def as_numbers(values: Sequence[str]) -> list[float] | None:
    """Returns finite numbers, None where any value is none."""
    try:
        found = [float(value) for value in values]
    except ValueError:
        return None
    return found if all(abs(each) < float("inf") for each in found) else None
