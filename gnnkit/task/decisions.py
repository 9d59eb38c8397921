"""A classifier's decision figures: thresholds and calibration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gnnkit.strategy import Worker
from gnnkit.task.base import rows_of
from gnnkit.task.calibration import BINS, calibration_error, calibration_sums
from gnnkit.task.threshold import threshold_table
from gnnkit.utils.documents import Json

if TYPE_CHECKING:
    from gnnkit.task.classes import ClassTask

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
