"""Regression on edges."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit.task.labelled_edges import LabelledEdges
from gnnkit.task.regression import Regression


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
        loss: str = "squared",
        scale: str = "standard",
    ) -> None:
        """Stores the keys, those of `LabelledEdges` and `Regression`."""
        Regression.__init__(self, loss, scale)
        LabelledEdges.__init__(self, "edge_regression", width, edge_features, relation)
