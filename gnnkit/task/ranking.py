"""Ranking metrics of scores. The first column should be the largest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

HITS = (1, 3, 10)


def ranking(scores: Tensor) -> dict[str, float]:
    """Measures scores [k, 1 + negatives] for edges and their negative pairs.

    An edge's rank is 1 plus the number of negative pairs with a higher score. Ties
    count half. ROC AUC and average precision cover all pairs.
    """
    ranks = mid_ranks(scores)
    metrics = {"mrr": float((1 / ranks).mean())}
    hits = {k: (ranks <= k).to(torch.float64).masked_fill(ranks.isnan(), math.nan) for k in HITS}
    metrics |= {f"hits_{k}": float(hit.mean()) for k, hit in hits.items()}
    labels = torch.zeros_like(scores, dtype=torch.int64)
    labels[:, 0] = 1
    metrics["roc_auc"], metrics["average_precision"] = areas(scores.reshape(-1), labels.reshape(-1))
    return metrics


def mid_ranks(scores: Tensor) -> Tensor:  # [k] float64
    """Returns the rank of each row's first score, where ties count half.

    A row with NaN has the rank NaN, so that figures are null.
    """
    positive, negative = scores[:, :1], scores[:, 1:]
    ranks = 1 + ((negative > positive) + 0.5 * (negative == positive)).sum(1).to(torch.float64)
    return ranks.masked_fill(scores.isnan().any(1), math.nan)


def areas(scores: Tensor, labels: Tensor) -> tuple[float, float]:
    """Returns ROC AUC and average precision for scores [k] with `labels` [k].

    Both labels, 0 and 1, must occur. Both figures are NaN if a score is.
    """
    if scores.isnan().any():  # which would sort as the largest
        return math.nan, math.nan
    # Imported here because it imports SciPy, if installed, which job checks do not
    # need.
    from torchmetrics.functional.classification import binary_auroc, binary_average_precision

    # torchmetrics applies a sigmoid to scores outside [0, 1], which may create ties.
    distinct, place = torch.unique(scores, return_inverse=True)
    places = place.to(torch.float64) / max(len(distinct) - 1, 1)
    return float(binary_auroc(places, labels)), float(binary_average_precision(places, labels))


def mean_areas(scores: Tensor, members: Tensor) -> dict[str, float]:
    """Averages ROC AUC and average precision over classes.

    Omits classes that all rows have, or none. Returns an empty mapping if none remain.

    Args:
        scores: [k, num_classes].
        members: [k, num_classes] 1 for a row's classes, else 0.
    """
    columns = torch.nonzero((members == 1).any(0) & (members == 0).any(0))[:, 0].tolist()
    if not columns:
        return {}
    roc, precision = zip(*(areas(scores[:, column], members[:, column].long()) for column in columns), strict=True)
    return {"roc_auc": sum(roc) / len(columns), "average_precision": sum(precision) / len(columns)}


def interleave(parts: Sequence[Tensor], count: int) -> Tensor:  # [count, ...]
    """Interleaves the ranks' rows, of which rank r has r, r + P, ...

    Args:
        parts: Each rank's rows.
        count: Number of rows of all ranks.
    """
    result = parts[0].new_empty((count, *parts[0].shape[1:]))
    for rank, rows in enumerate(parts):
        result[rank :: len(parts)] = rows
    return result
