"""A classifier's decision figures: thresholds and calibration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.strategy import Worker
from gnnkit.task.base import rows_of
from gnnkit.utils.documents import Json

if TYPE_CHECKING:
    from gnnkit.task.classes import ClassTask


HALF = 0.5
_RECALLS = tuple(step / 10 for step in range(1, 11))  # levels of the table


def best_threshold(scores: Tensor, labels: Tensor) -> float:
    """Returns the threshold with the highest F1, between two scores.

    Of equal F1, the highest threshold is returned. It is `HALF` without rows of the
    class, and if the scores rank them so badly that predicting every row is best.

    Args:
        scores: [n] float64 probabilities of the class.
        labels: [n] 1 for rows of the class, else 0.
    """
    if not labels.any():
        return HALF
    sorted_scores, order = scores.sort(descending=True)
    hits = labels[order].to(torch.float64).cumsum(0)
    places = torch.arange(1, len(scores) + 1, device=scores.device)
    f1 = 2 * hits / (places + labels.sum())
    # The last one of equal scores
    is_last = torch.cat([sorted_scores[1:] < sorted_scores[:-1], sorted_scores.new_ones(1, dtype=torch.bool)])
    best = int(torch.where(is_last, f1, -1.0).argmax())
    return HALF if best + 1 == len(scores) else float((sorted_scores[best] + sorted_scores[best + 1]) / 2)


def threshold_table(splits: Mapping[str, Tensor], threshold: float | None) -> Json:
    """Returns precision and recall by threshold, for each split.

    The thresholds are 0.5, the given one, and the ones at which the recall in the first
    split is 0.1, 0.2, ..., 1.

    Args:
        splits: [n, 2] probabilities and labels of a class, 1 or 0, by split.
        threshold: The threshold of predictions. If None, 0.5.
    """
    levels = {HALF, HALF if threshold is None else threshold}
    for rows in splits.values():
        scores = rows[rows[:, 1] == 1, 0].sort(descending=True).values
        levels |= {float(scores[max(round(level * len(scores)), 1) - 1]) for level in _RECALLS if len(scores)}
        break
    return {
        split: [_row(rows[:, 0], rows[:, 1], level) for level in sorted(levels, reverse=True)]
        for split, rows in splits.items()
    }


def _row(scores: Tensor, labels: Tensor, threshold: float) -> dict[str, float]:
    is_predicted = scores >= threshold
    hits, count, actual = (int(part.sum()) for part in (is_predicted & (labels == 1), is_predicted, labels))
    return {
        "threshold": threshold,
        "precision": hits / max(count, 1),
        "recall": hits / max(actual, 1),
        "f1": 2 * hits / max(count + actual, 1),
        "predicted": count,
    }


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


RARE = 0.1  # share of the training nodes below which a class is rare


def rare_classes(task: ClassTask, shares: Sequence[float]) -> list[int]:
    """Lists the rare classes that a threshold may decide.

    Args:
        task: The task.
        shares: [num_classes] of the training nodes.
    """
    return [number for number in task.decided(len(shares)) if 0 < shares[number] < RARE]


def decisions(task: ClassTask, outputs: Tensor, worker: Worker) -> Json:
    """Returns rare classes' thresholds, their table, and calibration errors.

    Collective. These are `threshold`, `thresholds` and `calibration` of `Classes`, by
    class number.

    Args:
        task: The task, after `calibrate` or `recall`.
        outputs: [num_owned, num_classes] outputs for this rank's nodes.
        worker: This rank.
    """
    numbers, levels, table = _list_classes(task, outputs.shape[1]), task.levels(outputs.shape[1]), None
    if task.exclusive and numbers:
        splits = {split: _gather_scores(task, split, numbers[0], outputs, worker) for split in ("val", "test")}
        nonempty_splits = {split: rows for split, rows in splits.items() if rows is not None and len(rows)}
        table = worker.comm.share(threshold_table(nonempty_splits, None if levels is None else levels[numbers[0]]))
    return {
        "threshold": None if levels is None else {number: levels[number] for number in numbers},
        "thresholds": {"class": numbers[0], **table} if table else None,
        "calibration": _calibration(task, outputs, worker),
    }


def _list_classes(task: ClassTask, num_classes: int) -> list[int]:
    """Lists the classes whose thresholds are reported."""
    numbers = list(task.decided(num_classes))
    if not task.exclusive and isinstance(task.threshold, float):
        return numbers
    rare = rare_classes(task, task.facts().shares or ())
    return rare or ([task.facts().positive] if task.exclusive and numbers else numbers)


def _gather_scores(
    task: ClassTask, split: str, number: int, outputs: Tensor, worker: Worker
) -> Tensor | None:  # [n, 2]
    """Returns a class's probabilities and labels on the leader. Collective."""
    scores, members = task.scored(split, outputs, worker)
    parts = worker.comm.gather(torch.stack([scores[:, number], members[:, number]], 1))
    return torch.cat(parts) if parts else None


def _calibration(task: ClassTask, outputs: Tensor, worker: Worker) -> Json:
    """Returns the temperature, and errors before and after calibration."""
    scale = task.facts().deviation
    errors: Json = {"temperature": None if scale is None else 1 / scale[0]}
    for split in ("val", "test"):
        logits, labels = rows_of(split, outputs.to(torch.float64), worker)
        pairs = [_verdicts(task, rows, labels) for rows in (task.normalise(logits), task.probabilities(logits))]
        count = pairs[0][0].new_tensor([len(pairs[0][0])])
        totals = worker.comm.all_reduce(torch.cat([*(calibration_sums(*pair) for pair in pairs), count]))
        if (total := float(totals[-1])) > 0:
            errors[f"{split}_error"] = calibration_error(totals[BINS:-1], total)
            errors[f"{split}_error_uncalibrated"] = calibration_error(totals[:BINS], total)
    return errors


def _verdicts(task: ClassTask, probabilities: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # [m] twice
    """Returns the predictions' confidence, and whether they are correct (1 or 0)."""
    if not task.exclusive:
        return probabilities.reshape(-1), labels.reshape(-1)
    confidence, predictions = probabilities.max(1)
    return confidence, predictions == labels
