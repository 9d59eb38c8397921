"""Decisions and metrics per class."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.strategy import Worker
from gnnkit.task.base import LabelFacts, NodeTask, f1, rows_of
from gnnkit.task.decisions import HALF, best_threshold, decisions, fit_temperature, rare_classes
from gnnkit.task.ranking import mean_areas
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import one_of, real, shown

AUTO = "auto"
TEMPERATURE = "temperature"
_NOT_VALIDATED = "the validation split is empty: thresholds are not chosen, and probabilities are not calibrated"
MAX_CLASSES = 100  # maximum for metrics per class and a confusion matrix


class ClassTask(NodeTask):
    """A node task with classes as labels.

    With `threshold=auto`, a rare class is predicted from the probability on that has
    the best F1 on the validation nodes.
    """

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
