"""One class of each node."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.checks import Array
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
        joined = None if graph.class_names is None else _joined(graph.class_names)
        if joined is not None:
            raise UserError(
                f"task=node_classification needs one class of each node, and the name {joined!r} joins several: choose "
                "task=multilabel, or spell names without semicolons"
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

    def columns(self, rows: Array, ids: Array, classes: Sequence[str] | None) -> dict[str, Any]:
        return {"id": ids, "class": rows if classes is None else np.array(classes, np.str_)[rows]}

    def output_names(self, classes: Sequence[str] | None) -> Sequence[str] | None:
        return classes

    def predict(self, outputs: Tensor) -> Tensor:  # [k] int64
        return outputs.argmax(1)


def _joined(names: Sequence[str]) -> str | None:
    """Finds a name with semicolons, a part of which is in another name too."""
    parts = {name: {part.strip() for part in name.split(";")} for name in names}
    counts = Counter(part for each in parts.values() for part in each)
    return next((name for name, own in parts.items() if len(own) > 1 and any(counts[part] > 1 for part in own)), None)
