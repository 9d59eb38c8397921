"""Regression on nodes, and on edges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.strategy import Worker
from gnnkit.task.base import LabelFacts, NodeTask
from gnnkit.task.labelled_edges import LabelledEdges
from gnnkit.utils.ranges import one_of, shown


class Regression(NodeTask):
    """Choose this task if each node has one or several numbers.

    Integers that are read as classes are predicted as numbers, too, except for -1,
    which means unlabelled.

    NaN marks an unknown number, which is ignored by loss and metrics. A node's loss is
    the mean over its known numbers. The labels are standardised by their training mean
    and deviation, so that labels of any scale can be learned. Predictions and metrics
    are in the labels' unit.
    """

    metrics = ("mae", "rmse")
    lower_is_better = True
    least_skill = 0.01  # numbers may be mostly noise
    key, unit_of_outputs = "regression", "numbers to predict"
    without_learning = "the mean for every node"

    def __init__(self, loss: str = "squared", scale: str = "standard") -> None:
        """Stores the keys.

        Args:
            loss: "squared" or "absolute" error.
            scale: "standard": outputs and losses are in training-label deviations.
                "log": in those of the labels' logarithms. "none": in the labels' unit.
        """
        self.loss = one_of("task.loss", loss, ("squared", "absolute"))
        self.scale = one_of("task.scale", scale, ("standard", "log", "none"))
        self._facts: LabelFacts | None = None  # None before `begin`

    def read(self, graph: Graph) -> Graph:
        if graph.labels.dtype.kind == "f":
            return graph
        if graph.labels.ndim == 2:
            raise UserError(
                f"task={self.key} needs numbers as labels, but labels are sets of classes: use task=multilabel, or "
                "floating-point numbers"
            )
        if graph.class_names is not None:
            raise UserError(
                f"task={self.key}: labels must be numbers, but they are names of classes, such as "
                f"{shown(graph.class_names[0])}: use task={self.noun}_classification, or another column of labels"
            )
        return graph.evolve(labels=np.where(graph.labelled, graph.labels, np.nan))

    def facts(self) -> LabelFacts:
        return self._facts or LabelFacts()

    def recall(self, facts: LabelFacts) -> None:
        self._facts = facts

    def begin(self, worker: Worker) -> None:
        if self._facts is not None or self.scale == "none":
            return
        targets = worker.targets
        rows = targets.label[targets.of_split(Split.TRAIN)].astype(np.float64)
        labels = self._read(torch.from_numpy(rows.reshape(len(rows), math.prod(rows.shape[1:])))).to(worker.device)
        is_known = ~labels.isnan()
        count = worker.comm.all_reduce(is_known.sum(0).to(torch.float64)).clamp(min=1)
        mean = worker.comm.all_reduce(labels.nansum(0)) / count
        variance = worker.comm.all_reduce((labels - mean).square().nansum(0)) / count
        deviation = torch.where(variance > 0, variance.sqrt(), 1.0)
        logarithm = (1.0,) if self.scale == "log" else None
        self._facts = LabelFacts(mean=tuple(mean.tolist()), deviation=tuple(deviation.tolist()), logarithm=logarithm)

    def _read(self, labels: Tensor) -> Tensor:
        """Returns the labels, or signed logarithms of 1 plus their sizes."""
        return labels.sign() * labels.abs().log1p() if self.scale == "log" else labels

    def _scale(self, outputs: Tensor) -> tuple[Tensor, Tensor]:  # [width] twice
        """Returns the labels' mean and deviation, or 0 and 1 without scaling."""
        facts = self.facts()
        if facts.mean is None or facts.deviation is None:
            return outputs.new_zeros(1), outputs.new_ones(1)
        return outputs.new_tensor(facts.mean), outputs.new_tensor(facts.deviation)

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        mean, deviation = self._scale(outputs)
        targets = ((self._read(labels.reshape(outputs.shape)) - mean.double()) / deviation.double()).to(outputs.dtype)
        error, is_known = _errors(outputs, targets)
        size = error.square() if self.loss == "squared" else error.abs()
        return size.sum(1) / is_known.sum(1).clamp(min=1)

    @property
    def baseline_metrics(self) -> tuple[str, ...]:
        return ("rmse",) if self.loss == "squared" else ("mae",)

    def constant(self, labels: Tensor, width: int, comm: Communicator) -> Tensor:
        rows = self._read(labels.to(torch.float64).reshape(len(labels), width))
        sums = torch.cat([rows.nansum(0), (~rows.isnan()).sum(0)])
        total, counts = comm.all_reduce(sums).chunk(2)
        mean, deviation = self._scale(total)
        return (total / counts.clamp(min=1) - mean) / deviation

    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [3]
        error, is_known = _errors(self.facts().in_unit(outputs.to(torch.float64)), labels)
        return torch.stack([error.abs().sum(), error.square().sum(), is_known.sum().to(torch.float64)])

    def figures(self, counts: Tensor) -> dict[str, float]:
        absolute_sum, squared_sum, count = counts.tolist()
        return {"mae": absolute_sum / count, "rmse": (squared_sum / count) ** 0.5}

    def predict(self, outputs: Tensor) -> Tensor:  # [k], or [k, numbers] of several
        outputs = self.facts().in_unit(outputs)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs


class EdgeRegression(LabelledEdges, Regression):
    """Choose this task if each edge has one or several numbers, such as a rating.

    Loss, scale and metrics are those of `Regression`.
    """

    without_learning = "the mean for every edge"

    def __init__(
        self,
        width: int = 64,
        edge_features: bool = True,
        relation: str | Sequence[str] | None = None,
        label_delay: int | str | None = None,
        loss: str = "squared",
        scale: str = "standard",
    ) -> None:
        """Stores the keys, those of `LabelledEdges` and `Regression`."""
        Regression.__init__(self, loss, scale)
        LabelledEdges.__init__(self, "edge_regression", width, edge_features, relation, label_delay)


def _errors(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # [k, numbers] twice
    """Returns the errors (0 if unknown), and a mask of known numbers."""
    targets = labels.to(outputs.dtype).view(outputs.shape)
    is_known = ~targets.isnan()
    return torch.where(is_known, outputs - targets.nan_to_num(), 0), is_known
