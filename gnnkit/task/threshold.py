"""Decision thresholds on a class's probability."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gnnkit.utils.documents import Json

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
