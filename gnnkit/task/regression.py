"""Numbers of each node."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.ranges import one_of
from gnnkit.task.base import NodeTask


class Regression(NodeTask):
    """Choose this task where each node has a number, or several numbers.

    A number that is NaN is not known, and counts neither in the loss nor in a metric.
    The loss of a node is the mean over its known numbers.
    """

    metrics = ("mae", "rmse")
    lower_is_better = True

    def __init__(self, loss: str = "squared") -> None:
        """Keeps the keys.

        Args:
            loss: Error that is made small: "squared" or "absolute".
        """
        self.loss = one_of("task.loss", loss, ("squared", "absolute"))

    def read(self, graph: Graph) -> Graph:
        if graph.labels.dtype.kind != "f":
            kind = "sets of classes" if graph.labels.ndim == 2 else "whole numbers, which stand for classes"
            better = "multilabel" if graph.labels.ndim == 2 else "node_classification"
            raise UserError(
                f"task=regression needs floating-point labels, labels are {kind}: choose task={better}, or give "
                "floating-point numbers, such as 3.0"
            )
        return graph

    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        error, known = _errors(outputs, labels)
        size = error.square() if self.loss == "squared" else error.abs()
        return size.sum(1) / known.sum(1).clamp(min=1)

    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:  # [3]
        error, known = _errors(outputs.to(torch.float64), labels)
        return torch.stack([error.abs().sum(), error.square().sum(), known.sum().to(torch.float64)])

    def figures(self, counts: Tensor) -> dict[str, float]:
        absolute, squared, count = counts.tolist()
        return {"mae": absolute / count, "rmse": (squared / count) ** 0.5}

    def predict(self, outputs: Tensor) -> Tensor:  # [k], or [k, numbers] of several
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs


def _errors(outputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:  # [k, numbers] twice
    """Returns the errors, 0 where the number is not known, and which are known."""
    wanted = labels.to(outputs.dtype).view(outputs.shape)
    known = ~wanted.isnan()
    return torch.where(known, outputs - wanted.nan_to_num(), 0), known
