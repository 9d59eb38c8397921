"""One class of each node."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.task.base import f1, macro
from gnnkit.task.classes import ClassTask


class NodeClassification(ClassTask):
    """Choose this task where each node has one class. The loss is the cross-entropy."""

    metrics = ("accuracy", "macro_f1")

    def read(self, graph: Graph) -> Graph:
        if graph.labels.ndim == 2 and graph.labels.dtype.kind == "b":
            raise UserError(
                "task=node_classification needs one class of each node, labels are sets of classes: "
                "choose task=multilabel"
            )
        if graph.labels.dtype.kind == "f":
            raise UserError(
                "task=node_classification needs classes 0, 1, ..., labels are floating-point numbers: "
                "choose task=regression, or give whole numbers"
            )
        return graph

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(outputs, labels, reduction="none")

    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [3 num_classes]
        found, width = outputs.argmax(1), outputs.shape[1]
        parts = (labels[found == labels], found, labels)
        return torch.cat([torch.bincount(part, minlength=width) for part in parts]).to(torch.float64)

    def confusions(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [num_classes, num_classes]
        width = outputs.shape[1]
        return torch.bincount(labels * width + outputs.argmax(1), minlength=width**2).view(width, width)

    def figures(self, counts: Tensor) -> dict[str, float]:
        hits, _, actual = by_class = counts.view(3, -1)
        return {"accuracy": float(hits.sum() / actual.sum()), "macro_f1": macro(f1(by_class))}

    def probabilities(self, outputs: Tensor) -> Tensor:  # [k, num_classes]
        return outputs.softmax(1)

    def predict(self, outputs: Tensor) -> Tensor:  # [k] int64
        return outputs.argmax(1)
