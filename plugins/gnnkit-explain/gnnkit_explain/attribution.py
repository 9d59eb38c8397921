"""Attributes an output to input numbers, and measures how faithful a ranking is."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.errors import UserError

Score = Callable[[Tensor], Tensor]  # input rows [num_rows, width] -> the explained number
FEWEST, MOST = 16, 256  # minimum and maximum number of points on the path
TOLERANCE = 0.01  # largest accepted `Attribution.gap`
SHARE = 0.2  # share of items that a fidelity removes or keeps
DRAWS = 5  # number of random rankings per explanation


@dataclass(frozen=True, slots=True, eq=False)
class Attribution:
    """Each input number's contribution to a score's change."""

    values: Tensor  # [num_rows, width]
    score: float  # of the input rows
    baseline: float  # with zero rows

    @property
    def gap(self) -> float:
        """The error of the values' sum, relative to the magnitude of the importances.

        Magnitudes are used, because importances of both signs cancel out.
        """
        change = self.score - self.baseline
        importances = min(float(self.values.sum(dim).abs().sum()) for dim in (0, 1))
        return abs(float(self.values.sum()) - change) / max(importances, abs(change), 1e-300)


def integrated_gradients(score: Score, x: Tensor) -> Attribution:
    """Integrates gradients from zero rows to `x` (Sundararajan et al., ICML 2017).

    The values sum to score(x) - score(0). The number of points of the Gauss-Legendre
    rule is doubled until they do so within `TOLERANCE`, or `MOST` points were used.

    Args:
        score: Computes the explained number from input rows.
        x: [num_rows, width] rows, in float64 for a meaningful comparison.

    Raises `UserError` for a score that is not differentiable, such as that of trees.
    """
    with torch.no_grad():
        ends = float(score(x)), float(score(torch.zeros_like(x)))
    count = FEWEST
    while True:
        result = Attribution(x * _mean_gradient(score, x, count), *ends)
        if result.gap <= TOLERANCE or count == MOST:
            return result
        count *= 2


def _mean_gradient(score: Score, x: Tensor, count: int) -> Tensor:
    """Averages the gradient over the path from zeros to `x`, at `count` points."""
    total = torch.zeros_like(x)
    for place, weight in zip(*np.polynomial.legendre.leggauss(count), strict=True):
        point = (x * ((place + 1) / 2)).requires_grad_()
        number = score(point)
        if not number.requires_grad:
            raise UserError(
                "job=explain needs outputs with gradients, which this model's do not have: use another model"
            )
        (gradient,) = torch.autograd.grad(number, point)
        total += gradient * (weight / 2)
    return total


@dataclass(frozen=True, slots=True)
class Fidelity:
    """Changes of the score if important items are removed, or all others are.

    An item is an input column or row, which zeros replace. A faithful ranking
    has a large `plus` (fidelity+) and a small `minus` (fidelity-), as defined for
    probabilities by Amara et al., LoG 2022, and by PyG.
    """

    plus: float  # score(all) - score(without the important items)
    minus: float  # score(all) - score(important items only)
    random_plus: float  # the same for random rankings, on average
    random_minus: float


@torch.no_grad()
def fidelity(score: Score, x: Tensor, importance: Tensor, dim: int, key: int) -> Fidelity | None:
    """Compares a ranking with random ones. Returns None for fewer than two items.

    Args:
        score: Computes the explained number from input rows.
        x: [num_rows, width] rows.
        importance: [num_rows] or [width] importance of each row or column. Those with
            importance 0 are excluded: they are never replaced or ranked.
        dim: 0 if items are rows, 1 if they are columns.
        key: Determines the random rankings.
    """
    items = torch.nonzero(importance)[:, 0]
    if len(items) < 2:
        return None
    count, complete = math.ceil(SHARE * len(items)), float(score(x))

    def measure(order: Tensor) -> tuple[float, float]:
        ranking = items[order]
        ablations = (x.index_fill(dim, part, 0) for part in (ranking[:count], ranking[count:]))
        without, only = (complete - float(score(rows)) for rows in ablations)
        return without, only

    draws = np.random.default_rng(key)
    random = [measure(torch.from_numpy(draws.permutation(len(items)))) for _ in range(DRAWS)]
    best = measure(torch.argsort(importance[items], descending=True, stable=True))
    return Fidelity(*best, *np.mean(random, axis=0).tolist())


def characterisation(plus: float, minus: float) -> float:
    """Returns the harmonic mean of fidelity+ and 1 - fidelity-, each cut to [0, 1]."""
    sufficient, necessary = (min(max(value, 0.0), 1.0) for value in (1 - minus, plus))
    return 2 * sufficient * necessary / max(sufficient + necessary, 1e-12)
