"""Label propagation."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.model.program import Nodes, Program
from gnnkit.ranges import share


class LabelPropagation(Program):
    """Iterates F <- alpha S F + (1 - alpha) Y from F = Y (Zhou et al., NeurIPS 2003).

    Y is one-hot on the training nodes and zero elsewhere. S = D^-1/2 A D^-1/2 has edge
    weights. A directed graph reads in-edges and divides by the roots of in-degree at
    destinations and out-degree at sources. The norm of S stays at most 1, so the
    iteration converges. Nodes that no training node reaches keep zeros, and are
    predicted to be of class 0.
    """

    classifies = True

    def __init__(self, alpha: float = 0.9, tolerance: float = 1e-6, max_iterations: int = 500) -> None:
        """Keeps the keys.

        Args:
            alpha: Share in [0, 1) of the neighbours' scores in a node's score.
            tolerance: Residual at which the run ends.
            max_iterations: Steps after which the run ends.
        """
        super().__init__(tolerance, max_iterations)
        self.alpha = share("model.alpha", alpha)

    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, num_classes]
        if nodes.labels.dtype != torch.int64:
            raise UserError("model=label_propagation needs one class of each node, dataset has other labels")
        known = _known(nodes)
        if not nodes.sum(known).any():
            raise UserError("dataset: no labelled node is in the training split")
        return known

    def step(self, x: Tensor, nodes: Nodes) -> Tensor:
        adjacency = nodes.adjacency
        neighbours = adjacency.aggregate_normalized(x)
        return self.alpha * neighbours + (1 - self.alpha) * _known(nodes)


def _known(nodes: Nodes) -> Tensor:  # [num_owned, num_classes]
    """Returns the classes of the training nodes, one-hot, and zeros for the others."""
    trained = (nodes.split == Split.TRAIN) & (nodes.labels >= 0)
    classes = F.one_hot(nodes.labels.clamp(min=0), nodes.num_classes)
    return (classes * trained[:, None]).to(nodes.adjacency.in_degree.dtype)
