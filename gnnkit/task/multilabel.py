"""Multilabel node classification."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.strategy import Worker
from gnnkit.task.base import PredictionColumns, f1, macro, rows_of
from gnnkit.task.classes import ClassTask, areas_of_all
from gnnkit.utils.checks import Array

_BETWEEN = ";"  # separates a node's class names


class Multilabel(ClassTask):
    """Choose this task if a node may have several classes, or none.

    A node's loss is the mean binary cross-entropy over the classes. ROC AUC and average
    precision are means over the classes that some but not all nodes have, computed on
    the leader from all nodes' scores.
    """

    without_learning = "the same classes for every node"
    exclusive = False
    metrics = ("micro_f1", "macro_f1", "roc_auc", "average_precision")

    def read(self, graph: Graph) -> Graph:
        labels = graph.labels
        if labels.dtype.kind == "b":
            return graph
        if labels.dtype.kind == "f" and labels.ndim == 2 and np.isin(labels, (0, 1)).all():
            return graph.evolve(labels=labels.astype(np.bool_))
        if labels.dtype.kind == "f" or graph.class_names is None:
            kind = "floating-point numbers" if labels.dtype.kind == "f" else "one class number per node"
            raise UserError(
                f"task=multilabel needs 0 and 1 of shape [num_nodes, num_classes], but labels are {kind}: pass "
                "two-dimensional labels, or names such as a;b in the column label"
            )
        sets, names = split_names(labels, graph.class_names)
        return graph.evolve(labels=sets, class_names=names)

    @property
    def baseline_metrics(self) -> tuple[str, ...]:
        return ("micro_f1",)

    def constant(self, labels: Tensor, width: int, comm: Communicator) -> Tensor:
        sums = torch.cat([labels.to(torch.float64).sum(0), labels.new_tensor([len(labels)], dtype=torch.float64)])
        totals = comm.all_reduce(sums)
        return totals[:-1] / totals[-1].clamp(min=1) - 0.5

    def chance(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        return super().chance(outputs, worker) | {"train_roc_auc": 0.5}

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, labels.to(outputs.dtype), reduction="none").mean(1)

    def measure(self, outputs: Tensor, worker: Worker) -> dict[str, float]:
        metrics = super().measure(outputs, worker)
        for split in self.splits:
            areas = areas_of_all(*rows_of(split, outputs, worker), worker)
            metrics |= {f"{split}_{name}": value for name, value in areas.items()}
        return metrics

    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [3 num_classes]
        predictions, actual = self.predict(outputs).bool(), labels.to(torch.bool)
        return torch.cat([(predictions & actual).sum(0), predictions.sum(0), actual.sum(0)]).to(torch.float64)

    def figures(self, counts: Tensor) -> dict[str, float]:
        by_class = counts.view(3, -1)
        return {"micro_f1": macro(f1(by_class.sum(1, keepdim=True))), "macro_f1": macro(f1(by_class))}

    def members(self, labels: Tensor, num_classes: int) -> Tensor:  # [k, num_classes] float64
        return labels.to(torch.float64)

    def normalise(self, logits: Tensor) -> Tensor:  # [k, num_classes]
        return logits.sigmoid()

    def columns(self, rows: Array, ids: Array, classes: Sequence[str] | None) -> PredictionColumns:
        names = range(rows.shape[1]) if classes is None else classes
        return {"id": ids, "classes": [[names[i] for i in np.flatnonzero(row).tolist()] for row in rows]}

    def output_names(self, classes: Sequence[str] | None) -> Sequence[str] | None:
        return classes

    def predict(self, outputs: Tensor) -> Tensor:  # [k, num_classes] uint8
        above = self.above(outputs)
        return (outputs > 0 if above is None else above).to(torch.uint8)


def split_names(labels: Ids, class_names: Sequence[str]) -> tuple[npt.NDArray[np.bool_], tuple[str, ...]]:
    """Splits each class name at semicolons into several class names.

    Args:
        labels: [num_nodes] each node's class, -1 for none.
        class_names: Each class's name, such as `a;b`.

    Returns:
        Each node's set of classes [num_nodes, num_names], and the sorted names.
    """
    parts = [{part.strip() for part in name.split(_BETWEEN)} - {""} for name in class_names]
    names = sorted(set().union(*parts))
    table = np.array([[name in members for name in names] for members in [*parts, set()]], np.bool_)
    return table[labels], tuple(names)
