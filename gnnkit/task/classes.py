"""Decisions and metrics of classifiers: per class, thresholds, calibration."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.strategy import Worker
from gnnkit.task.base import CLASSES, LabelFacts, NodeTask, f1, rows_of
from gnnkit.task.ranking import mean_areas
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import one_of, real, shown

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


AUTO = "auto"
TEMPERATURE = "temperature"
_NOT_VALIDATED = "the validation split is empty: thresholds are not chosen, and probabilities are not calibrated"
MAX_CLASSES = 100  # maximum for metrics per class and a confusion matrix


class ClassTask(NodeTask):
    """A node task with classes as labels.

    With `threshold=auto`, a rare class is predicted from the probability on that has
    the best F1 on the validation nodes.
    """

    unit_of_outputs = CLASSES
    exclusive: ClassVar[bool]  # whether a node has one class

    def __init__(self, threshold: str | float | None = AUTO, calibration: str | None = AUTO) -> None:
        """Stores the keys.

        Args:
            threshold: Lowest probability at which `LabelFacts.positive` of two classes,
                or each of several classes of a node, is predicted. "auto": the best F1
                on the validation nodes, for classes with under `RARE` of the training
                nodes. If None, 0.5.
            calibration: "temperature": probabilities are calibrated on the validation
                nodes. "auto": if a threshold is chosen. If None, they are not.
        """
        self.threshold = _threshold(threshold)
        if calibration is not None:
            one_of("task.calibration", calibration, (AUTO, TEMPERATURE))
        self.calibration = calibration
        self._facts = LabelFacts()

    @abstractmethod
    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [3 num_classes]
        """Counts each class's true positives, predictions and labels."""

    @abstractmethod
    def members(self, labels: Tensor, num_classes: int) -> Tensor:  # [k, num_classes] float64
        """Returns a 0/1 matrix of each row's classes."""

    @abstractmethod
    def normalise(self, logits: Tensor) -> Tensor:  # [k, num_classes]
        """Converts calibrated logits to probabilities."""

    def offsets(self) -> Tensor:  # [num_classes] or [1] float64
        """Returns the offsets of the logits if a threshold decides. Default: 0."""
        return torch.zeros(1, dtype=torch.float64)

    def confusions(self, outputs: Tensor, labels: Tensor) -> Tensor | None:  # [num_classes, num_classes]
        """Returns the confusion matrix, with a row per true class.

        Returns None if a node may have several classes.
        """
        return None

    def facts(self) -> LabelFacts:
        return self._facts

    def recall(self, facts: LabelFacts) -> None:
        self._facts = facts

    def probabilities(self, outputs: Tensor) -> Tensor:  # [k, num_classes]
        return self.normalise(self._facts.in_unit(outputs))

    def decided(self, num_classes: int) -> range:
        """Returns the classes that a threshold may decide."""
        return range(0 if self.exclusive and num_classes != 2 else num_classes)

    def levels(self, num_classes: int) -> tuple[float, ...] | None:
        """Returns each class's threshold, if there are any."""
        numbers = self.decided(num_classes)
        if isinstance(self.threshold, float) and numbers:
            classes = [self._facts.positive] if self.exclusive else numbers
            return _as_levels(num_classes, dict.fromkeys(classes, self.threshold), exclusive=self.exclusive)
        return None if self.threshold is None else self._facts.thresholds

    def above(self, outputs: Tensor) -> Tensor | None:  # [k, num_classes] bool
        """Returns whether probabilities reach the thresholds, if there are any."""
        levels = self.levels(outputs.shape[1])
        if levels is None:
            return None
        probabilities = self.probabilities(outputs.to(torch.float64))
        return probabilities >= probabilities.new_tensor(levels)

    def calibrate(self, outputs: Tensor, worker: Worker) -> list[str]:
        train, val, num_train, num_val = _count_members(self, outputs, worker)
        shares = tuple(count / max(num_train, 1) for count in train)
        rare = rare_classes(self, shares)
        self._facts = replace(self._facts, shares=shares if rare else self._facts.shares)
        self._facts = replace(self._facts, thresholds=self.levels(outputs.shape[1]))
        candidates = [number for number in rare if val[number] > 0]
        fits = self.calibration == TEMPERATURE or (self.calibration == AUTO and bool(candidates))
        if num_val == 0:
            return [_NOT_VALIDATED] if fits or (rare and AUTO in (self.threshold, self.calibration)) else []
        if fits:
            decides = bool(candidates) and self.threshold is not None
            self._facts = _with_temperature(self, outputs, worker, decides=decides)
        if self.threshold == AUTO and candidates:
            self._facts = _with_thresholds(self, outputs, worker, candidates)
        return []

    def scored(self, split: str, outputs: Tensor, worker: Worker) -> tuple[Tensor, Tensor]:  # [k, num_classes] twice
        """Returns probabilities and members for this rank's rows in a split."""
        logits, labels = rows_of(split, outputs, worker)
        return self.probabilities(logits.to(torch.float64)), self.members(labels, outputs.shape[1])

    def details(self, outputs: Tensor, worker: Worker) -> Json:
        if outputs.shape[1] > MAX_CLASSES:
            return {"per_class": None, "confusion": None}
        tables: Json = {"per_class": {}, "confusion": {}}
        for split in self.splits:
            logits, labels = rows_of(split, outputs, worker)
            counts = worker.comm.all_reduce(self.counts(logits, labels).to(torch.float64)).view(3, -1)
            if counts[2].any():
                tables["per_class"][split] = _of_classes(counts)
            matrix = self.confusions(logits, labels)
            if matrix is not None and worker.comm.all_reduce(matrix).any():
                tables["confusion"][split] = matrix.tolist()
        tables |= {} if tables["confusion"] else {"confusion": None}
        return tables | decisions(self, outputs, worker)


def _count_members(task: ClassTask, outputs: Tensor, worker: Worker) -> tuple[list[float], list[float], float, float]:
    """Counts train's and val's members of each class, and their rows. Collective."""
    width = outputs.shape[1]
    labels = [rows_of(split, outputs, worker)[1] for split in ("train", "val")]
    sums = [task.members(part, width).sum(0) for part in labels]
    rows = [sums[0].new_tensor([len(part)]) for part in labels]
    *totals, num_train, num_val = worker.comm.all_reduce(torch.cat([*sums, *rows])).tolist()
    return totals[:width], totals[width:], num_train, num_val


def _with_temperature(task: ClassTask, outputs: Tensor, worker: Worker, *, decides: bool) -> LabelFacts:
    """Fits the temperature to the validation nodes. Collective."""
    logits, labels = rows_of("val", outputs, worker)
    offsets = task.offsets().to(worker.device) if decides else logits.new_zeros(1, dtype=torch.float64)
    members = task.members(labels, outputs.shape[1])
    temperature = fit_temperature(logits.to(torch.float64) + offsets, members, task.normalise, worker.comm)
    return replace(task.facts(), mean=tuple((offsets / temperature).tolist()), deviation=(1 / temperature,))


def _with_thresholds(task: ClassTask, outputs: Tensor, worker: Worker, numbers: list[int]) -> LabelFacts:
    """Chooses rare classes' thresholds, exactly, on the leader. Collective."""
    scores, members = task.scored("val", outputs, worker)
    parts = worker.comm.gather(torch.cat([scores[:, numbers], members[:, numbers]], 1))
    columns = zip(numbers, *(half.t() for half in torch.cat(parts).chunk(2, 1)), strict=True) if parts else ()
    best = worker.comm.share([[number, best_threshold(score, labels)] for number, score, labels in columns])
    levels = _as_levels(outputs.shape[1], dict(best), exclusive=task.exclusive)
    return replace(task.facts(), thresholds=levels)


def _as_levels(num_classes: int, thresholds: Mapping[int, float], *, exclusive: bool) -> tuple[float, ...]:
    """Returns all classes' thresholds. Two classes' thresholds add up to 1."""
    if exclusive:
        ((number, threshold),) = thresholds.items()
        return (threshold, 1 - threshold) if number == 0 else (1 - threshold, threshold)
    return tuple(thresholds.get(number, HALF) for number in range(num_classes))


def _threshold(value: object) -> str | float | None:
    """Reads the key `task.threshold`."""
    if value is None or value == AUTO:
        return AUTO if value else None
    if isinstance(value, str):
        raise UserError(f"task.threshold={shown(value)} must be null, {AUTO} or a number between 0 and 1")
    return real("task.threshold", value, above=0, below=1)


def areas_of_all(scores: Tensor, members: Tensor, worker: Worker) -> dict[str, float]:
    """Returns ROC AUC and average precision over all ranks' rows. Collective.

    Both are exact, because the leader computes them from all scores. Classes that all
    rows have, or none, are omitted.

    Args:
        scores: [k, num_classes] this rank's scores.
        members: [k, num_classes] 1 for a row's classes, else 0.
    """
    parts = worker.comm.gather(torch.cat([scores.to(torch.float64), members.to(torch.float64)], 1))
    areas: dict[str, float] = worker.comm.share(mean_areas(*torch.cat(parts).chunk(2, 1)) if parts else {})
    return areas


def _of_classes(counts: Tensor) -> list[dict[str, float]]:
    """Computes each class's metrics. A quotient with divisor 0 is 0.

    Args:
        counts: [3, num_classes] true positives, predictions and labels per class.
    """
    hits, predictions, actual = counts
    parts = [hits / predictions, hits / actual, f1(counts)]
    rows = torch.stack([*(part.nan_to_num(0.0) for part in parts), actual]).t().tolist()
    return [{"precision": p, "recall": r, "f1": f, "support": int(n)} for p, r, f, n in rows]
