"""Label propagation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.model.base import Nodes, Program
from gnnkit.utils.ranges import share


class LabelPropagation(Program):
    """Iterates F <- alpha S F + (1 - alpha) Y from F = Y (Zhou et al., NeurIPS 2003).

    Y is one-hot on training nodes and zero elsewhere. S = D^-1/2 A D^-1/2 includes edge
    weights. On directed graphs, S uses in-edges, the destination's in-degree and the
    source's out-degree. The norm of S is at most 1, so the iteration converges. Nodes
    that cannot be reached from a training node stay zero and are predicted as class 0.
    """

    classifies = True

    def __init__(self, alpha: float = 0.9, tolerance: float = 1e-6, max_iterations: int = 500) -> None:
        """Stores the keys.

        Args:
            alpha: Weight of the neighbours' scores in a node's score, in [0, 1).
            tolerance: Residual at which the iteration stops.
            max_iterations: Maximum number of steps.
        """
        super().__init__(tolerance, max_iterations)
        self.alpha = share("model.alpha", alpha)

    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, num_classes]
        if nodes.labels.dtype != torch.int64:
            raise UserError("model=label_propagation needs one class of each node, dataset has other labels")
        labels = _train_labels(nodes)
        if not nodes.sum(labels).any():
            raise UserError("dataset: no labelled node is in the training split")
        return labels

    def step(self, x: Tensor, nodes: Nodes) -> Tensor:
        adjacency = nodes.adjacency
        neighbours = adjacency.aggregate_normalized(x)
        return self.alpha * neighbours + (1 - self.alpha) * _train_labels(nodes)


def _train_labels(nodes: Nodes) -> Tensor:  # [num_owned, num_classes]
    """Returns the training nodes' one-hot classes, and zeros for other nodes."""
    is_train = (nodes.split == Split.TRAIN) & (nodes.labels >= 0)
    classes = F.one_hot(nodes.labels.clamp(min=0), nodes.num_classes)
    return (classes * is_train[:, None]).to(nodes.adjacency.in_degree.dtype)
