"""Classification of nodes, and of edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.graph.labels import check_one_hot, why_numbers
from gnnkit.strategy import Worker
from gnnkit.task.base import LabelFacts, PredictionColumns, f1, macro, rows_of
from gnnkit.task.classes import AUTO, RARE, ClassTask, areas_of_all
from gnnkit.task.labelled_edges import LabelledEdges
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import real, shown, shown_names

BALANCED = "balanced"
AVERAGE_PRECISION = "average_precision"
UNEVEN = 0.3  # share of the training nodes below which the smaller of two classes is ranked


class NodeClassification(ClassTask):
    """Choose this task if each node has one class. The loss is the cross-entropy.

    With two classes, ROC AUC and average precision are also measured, exactly, on the
    leader from all nodes' scores. Average precision is that of the second class, or of
    the first one if it has under `UNEVEN` of the training nodes.
    """

    metrics = ("accuracy", "macro_f1")
    metrics_of_some = ("roc_auc", AVERAGE_PRECISION)
    key = "node_classification"
    without_learning = "the most frequent class for every node"
    exclusive = True

    def __init__(
        self,
        class_weights: str | Sequence[float] | None = AUTO,
        threshold: str | float | None = AUTO,
        calibration: str | None = AUTO,
    ) -> None:
        """Stores the keys.

        Args:
            class_weights: Factor for each class's loss, in class order. "balanced": n /
                (num_classes * nodes of the class) over the n training nodes, so that
                all classes have equal weight. "auto": their square roots if one of two
                classes is rare, otherwise none. If None, no factors.
            threshold: Lowest probability at which `LabelFacts.positive` of two
                classes is predicted, as in `ClassTask`.
            calibration: How probabilities are calibrated, as in `ClassTask`. If a
                threshold is chosen, the factors of the losses are removed from
                probabilities.
        """
        super().__init__(threshold, calibration)
        self.class_weights = _weights(class_weights)
        self._factors: Tensor | None = None  # [num_classes], None before `begin`
        self._is_recalled = False  # whether the training data determine the factors
        self._ranking: str | None = None  # metric of two uneven classes
        self._is_rare = False  # whether validation has a rare one of two classes

    def read(self, graph: Graph) -> Graph:
        if graph.labels.ndim == 2 and graph.labels.dtype.kind == "b":
            raise UserError(
                f"task={self.key} needs one class per {self.noun}, but labels are sets of classes: use task=multilabel "
                "for nodes"
            )
        if graph.labels.dtype.kind == "f":
            graph = _as_classes(graph, self.key, self.noun)
        if isinstance(self.class_weights, tuple) and len(self.class_weights) < graph.num_classes:
            raise UserError(self._wrong_length(graph.num_classes, graph.class_names or ()))
        if isinstance(self.threshold, float) and graph.num_classes > 2:
            raise UserError(
                f"task.threshold={self.threshold} decides between two classes, and there are {graph.num_classes}: leave it out"
            )
        joint_name = None if graph.class_names is None else _find_joint_name(graph.class_names)
        if joint_name is not None:
            raise UserError(
                f"task={self.key} needs one class per {self.noun}, but the name {joint_name!r} combines several: use "
                "task=multilabel, or names without semicolons"
            )
        return graph

    def recall(self, facts: LabelFacts) -> None:
        super().recall(facts)
        self._is_recalled = True
        if isinstance(self.class_weights, str) and facts.class_weights is not None:
            self._factors = torch.tensor(facts.class_weights, dtype=torch.float64)

    def begin(self, worker: Worker) -> None:
        counts, val_counts = _class_counts(worker, Split.TRAIN, Split.VAL)
        self._ranking = ranking_metric(counts.tolist(), val_counts.tolist())
        self._is_rare = self._ranking == AVERAGE_PRECISION
        if not self._is_recalled and (shares := uneven_shares(counts.tolist())) is not None:
            self._facts = replace(self._facts, shares=shares)
        if self._factors is None and not self._is_recalled:
            self._factors = self._make_factors(counts)
        if self._factors is not None:
            self._factors = self._factors.to(worker.device)
            self._facts = replace(self._facts, class_weights=tuple(self._factors.tolist()))

    def _make_factors(self, counts: Tensor) -> Tensor | None:
        """Returns the factor of each class's loss, or None.

        Args:
            counts: [num_classes] number of training nodes.
        """
        if isinstance(self.class_weights, tuple):
            return torch.tensor(self.class_weights, dtype=torch.float64)
        if self.class_weights is None or (self.class_weights == AUTO and not self._is_rare):
            return None
        present = counts > 0
        # In other splits, a class without training nodes has weight 1.
        factors = torch.where(present, counts.sum() / (present.sum() * counts.clamp(min=1)), 1.0)
        return factors if self.class_weights == BALANCED else factors.sqrt()

    def label_warnings(self, worker: Worker, classes: Sequence[str] | None) -> list[str]:
        (counts,) = _class_counts(worker, Split.TRAIN).tolist()
        names = [str(number) for number in range(len(counts))] if classes is None else classes
        present = [name for name, count in zip(names, counts, strict=True) if count]
        absent = [name for name, count in zip(names, counts, strict=True) if not count]
        if len(present) == 1:
            return [
                f"labels: all {sum(counts):,.0f} training {self.noun}s have the class {present[0]!r}, so there is nothing to learn"
            ]
        if not present or not absent:
            return []
        return [
            (
                f"labels: no training {self.noun} has the class {shown_names(absent)} ({len(absent)} of {len(counts)} classes): the "
                "model cannot learn to predict it"
            )
        ]

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        factors = self._factors
        if factors is not None:  # new data may not have the model's last classes
            if len(factors) > outputs.shape[1]:
                raise UserError(self._wrong_length(outputs.shape[1]))
            factors = F.pad(factors.to(outputs.dtype), (0, outputs.shape[1] - len(factors)), value=1.0)
        return F.cross_entropy(outputs, labels, weight=factors, reduction="none")

    def _wrong_length(self, num_classes: int, names: Sequence[str] = ()) -> str:
        assert isinstance(self.class_weights, tuple)
        class_list = f" ({shown_names(names)})" if names else ""
        return (
            f"task.class_weights={shown(list(self.class_weights))} has {len(self.class_weights)} numbers, expected one "
            f"for each of {num_classes} classes{class_list}"
        )

    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        metrics = super().measure(outputs, worker)
        for split in self.splits if outputs.shape[1] == 2 else ():
            logits, labels = rows_of(split, outputs, worker)
            positive = self._facts.positive
            scores = logits[:, [positive]] - logits[:, [1 - positive]]
            areas = areas_of_all(scores, (labels == positive)[:, None], worker)
            metrics |= {f"{split}_{name}": value for name, value in areas.items()}
        return metrics

    @property
    def baseline_metrics(self) -> tuple[str, ...]:
        return ("accuracy",) if self.class_weights in (None, AUTO) else ("macro_f1",)

    @property
    def progress(self) -> str:
        """The main validation metric, which ranks nodes if two classes are uneven.

        Accuracy is high without any prediction of the smaller class.
        """
        return f"val_{self._ranking or self.baseline_metrics[0]}"

    def constant(self, labels: Tensor, width: int, comm: Communicator) -> Tensor:
        return comm.all_reduce(torch.bincount(labels, minlength=width).to(torch.float64))

    def chance(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        areas = {"train_roc_auc": 0.5} if outputs.shape[1] == 2 else {}  # accuracy says little for rare classes
        return super().chance(outputs, worker) | areas

    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [3 num_classes]
        predictions, width = self.predict(outputs), outputs.shape[1]
        parts = (labels[predictions == labels], predictions, labels)
        return torch.cat([torch.bincount(part, minlength=width) for part in parts]).to(torch.float64)

    def confusions(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [num_classes, num_classes]
        width = outputs.shape[1]
        return torch.bincount(labels * width + self.predict(outputs), minlength=width**2).view(width, width)

    def figures(self, counts: Tensor) -> dict[str, float]:
        hits, _, actual = by_class = counts.view(3, -1)
        return {"accuracy": float(hits.sum() / actual.sum()), "macro_f1": macro(f1(by_class))}

    def members(self, labels: Tensor, num_classes: int) -> Tensor:  # [k, num_classes] float64
        return F.one_hot(labels, num_classes).to(torch.float64)

    def normalise(self, logits: Tensor) -> Tensor:  # [k, num_classes]
        return logits.softmax(1)

    def offsets(self) -> Tensor:
        factors = self._facts.class_weights
        return super().offsets() if factors is None else -torch.tensor(factors, dtype=torch.float64).log()

    def columns(self, rows: Array, ids: Array, classes: Sequence[str] | None) -> PredictionColumns:
        return {"id": ids, "class": rows if classes is None else np.array(classes, np.str_)[rows]}

    def output_names(self, classes: Sequence[str] | None) -> Sequence[str] | None:
        return classes

    def predict(self, outputs: Tensor) -> Tensor:  # [k] int64
        above = self.above(outputs)
        return outputs.argmax(1) if above is None else above[:, 1].long()


class EdgeClassification(LabelledEdges, NodeClassification):
    """Choose this task if each edge has one class, such as fraud or not.

    Loss, class weights, thresholds and metrics are those of `NodeClassification`.
    """

    without_learning = "the most frequent class for every edge"

    def __init__(
        self,
        width: int = 64,
        edge_features: bool = True,
        relation: str | Sequence[str] | None = None,
        label_delay: int | str | None = None,
        class_weights: str | Sequence[float] | None = AUTO,
        threshold: str | float | None = AUTO,
        calibration: str | None = AUTO,
    ) -> None:
        """Stores the keys, those of `LabelledEdges` and `NodeClassification`."""
        NodeClassification.__init__(self, class_weights, threshold, calibration)
        LabelledEdges.__init__(self, "edge_classification", width, edge_features, relation, label_delay)


def _as_classes(graph: Graph, task: str, noun: str) -> Graph:
    """Converts integral floating-point labels to classes.

    Numbers that `settle_labels` does not read as classes become names of classes.
    """
    numbers = graph.labels[graph.labelled]
    check_one_hot(numbers)
    if numbers.ndim > 1 or not (numbers == np.floor(numbers)).all():
        raise UserError(
            f"task={task} needs classes 0, 1, ..., but labels are floating-point numbers: use "
            f"task={'' if noun == 'node' else f'{noun}_'}regression, or whole numbers, in pandas by astype('Int64') if some "
            "are missing"
        )
    values, places = np.unique(numbers.astype(np.int64), return_inverse=True)
    is_named, labels = bool(why_numbers(values, graph.num_nodes)), np.full(graph.num_nodes, -1)
    labels[graph.labelled] = places if is_named else numbers
    return graph.evolve(labels=labels, class_names=tuple(map(str, values.tolist())) if is_named else None)


def _class_counts(worker: Worker, *splits: Split) -> Tensor:  # [num_splits, num_classes] float64
    """Counts the nodes of splits per class over all ranks. Collective."""
    targets = worker.targets
    parts = [targets.label[targets.of_split(split)] for split in splits]
    counts = torch.from_numpy(np.stack([np.bincount(labels, minlength=targets.num_classes) for labels in parts]))
    return worker.comm.all_reduce(counts.to(worker.device, torch.float64))


def uneven_shares(counts: Sequence[float]) -> tuple[float, ...] | None:
    """Returns the shares of two classes [num_classes] if the smaller one is ranked."""
    if len(counts) != 2 or min(counts) >= UNEVEN * sum(counts):
        return None
    return tuple(count / sum(counts) for count in counts)


def ranking_metric(train: Sequence[float], val: Sequence[float]) -> str | None:
    """Returns the metric for two uneven classes, if validation can measure it.

    It is the average precision of a rare class, and otherwise ROC AUC.

    Args:
        train: [num_classes] number of training nodes per class.
        val: [num_classes] number of validation nodes per class.
    """
    if uneven_shares(train) is None or not all(val):
        return None
    return AVERAGE_PRECISION if min(train) < RARE * sum(train) else "roc_auc"


def _weights(value: object) -> str | tuple[float, ...] | None:
    """Reads the key `task.class_weights`."""
    if value in (None, AUTO, BALANCED):
        return value
    if not isinstance(value, list | tuple) or not value:
        raise UserError(f"task.class_weights={shown(value)} must be null, {AUTO}, {BALANCED} or a list of numbers")
    return tuple(real("task.class_weights", weight, above=0, high=1e6) for weight in value)


def _find_joint_name(names: Sequence[str]) -> str | None:
    """Returns a name with semicolons that shares a part with another name."""
    parts = {name: {part.strip() for part in name.split(";")} for name in names}
    counts = Counter(part for members in parts.values() for part in members)
    return next(
        (name for name, members in parts.items() if len(members) > 1 and any(counts[part] > 1 for part in members)),
        None,
    )
