"""Classification of edges."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit.task.classes import AUTO
from gnnkit.task.labelled_edges import LabelledEdges
from gnnkit.task.node_classification import NodeClassification


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
        class_weights: str | Sequence[float] | None = AUTO,
        threshold: str | float | None = AUTO,
        calibration: str | None = AUTO,
    ) -> None:
        """Stores the keys, those of `LabelledEdges` and `NodeClassification`."""
        NodeClassification.__init__(self, class_weights, threshold, calibration)
        LabelledEdges.__init__(self, "edge_classification", width, edge_features, relation)
