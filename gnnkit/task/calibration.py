"""Temperature scaling, and the calibration error."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gnnkit.comm import Communicator

BINS = 15  # of the calibration error
PRIOR = 10.0  # weight of T = 1 in nodes, which bounds T if validation has few errors
_MAX_TEMPERATURE, _STEPS = 20.0, 48  # bounds of T and 1 / T; bisection steps, to 1e-14


def fit_temperature(
    logits: Tensor, members: Tensor, probabilities: Callable[[Tensor], Tensor], comm: Communicator
) -> float:
    """Returns the T for which `probabilities(logits / T)` fit the labels. Collective.

    Temperature scaling (Guo et al., 2017) minimises the negative log-likelihood. Its
    derivative by 1 / T grows, so bisection over sums of all ranks finds the minimum.

    Args:
        logits: [k, num_classes] float64 outputs for this rank's rows.
        members: [k, num_classes] 1 for a row's classes, else 0.
        probabilities: Softmax or sigmoid.
        comm: The ranks.
    """
    low, high = -math.log(_MAX_TEMPERATURE), math.log(_MAX_TEMPERATURE)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        inverse = math.exp(middle)
        slope = ((probabilities(logits * inverse) - members) * logits).sum()
        total = float(comm.all_reduce(slope[None])) + PRIOR * (1 - 1 / inverse)
        low, high = (middle, high) if total < 0 else (low, middle)
    return math.exp(-(low + high) / 2)


def calibration_sums(confidence: Tensor, correct: Tensor) -> Tensor:  # [BINS] float64
    """Sums hits minus confidence per bin of equal width, for `calibration_error`.

    Args:
        confidence: [m] predicted probabilities.
        correct: [m] 1 where the prediction is right, else 0.
    """
    bins = (confidence * BINS).long().clamp(0, BINS - 1)  # NaN is in any bin, and makes the error NaN
    excess = (correct.to(torch.float64) - confidence).to(torch.float64)
    return torch.zeros(BINS, dtype=torch.float64, device=confidence.device).index_add_(0, bins, excess)


def calibration_error(sums: Tensor, count: float) -> float:
    """Returns the expected calibration error (ECE).

    Args:
        sums: [BINS] from `calibration_sums`, over all ranks.
        count: The predictions' number.
    """
    return float(sums.abs().sum() / max(count, 1))
