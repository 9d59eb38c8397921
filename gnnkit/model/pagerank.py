"""PageRank."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnkit.model.program import Nodes, Program
from gnnkit.ranges import share


class PageRank(Program):
    """Computes the probability of each node in a random walk (Page et al., 1999).

    The walk follows an out-edge with probability `damping`, in proportion to its
    weight, and otherwise goes to any node. From a node without out-edges it goes to any
    node.
    """

    def __init__(self, damping: float = 0.85, tolerance: float = 1e-6, max_iterations: int = 100) -> None:
        """Keeps the keys.

        Args:
            damping: Probability in [0, 1) of following an out-edge.
            tolerance: Residual at which the run ends.
            max_iterations: Steps after which the run ends.
        """
        super().__init__(tolerance, max_iterations)
        self.damping = share("model.damping", damping)

    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, 1]
        return torch.full_like(nodes.adjacency.out_degree[:, None], 1 / max(nodes.num_nodes, 1))

    def step(self, x: Tensor, nodes: Nodes) -> Tensor:
        degree = nodes.adjacency.out_degree[:, None]
        dangling = degree == 0
        arrived = nodes.adjacency.aggregate(torch.where(dangling, 0, x / degree))
        anywhere = self.damping * nodes.sum(torch.where(dangling, x, 0)) + 1 - self.damping
        return self.damping * arrived + anywhere / nodes.num_nodes
