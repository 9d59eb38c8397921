"""PageRank."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnkit.model.base import Nodes, Program
from gnnkit.utils.ranges import share


class PageRank(Program):
    """Computes each node's probability in a random walk (Page et al., 1999).

    With probability `damping`, the walk follows an out-edge, chosen in proportion to
    its weight. Otherwise, and at nodes without out-edges, it jumps to a random node.
    """

    def __init__(self, damping: float = 0.85, tolerance: float = 1e-6, max_iterations: int = 100) -> None:
        """Stores the keys.

        Args:
            damping: Probability of following an out-edge, in [0, 1).
            tolerance: Residual at which the iteration stops.
            max_iterations: Maximum number of steps.
        """
        super().__init__(tolerance, max_iterations)
        self.damping = share("model.damping", damping)

    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, 1]
        return torch.full_like(nodes.adjacency.out_degree[:, None], 1 / max(nodes.num_nodes, 1))

    def step(self, x: Tensor, nodes: Nodes) -> Tensor:
        degree = nodes.adjacency.out_degree[:, None]
        dangling = degree == 0
        inflow = nodes.adjacency.aggregate(torch.where(dangling, 0, x / degree))
        anywhere = self.damping * nodes.sum(torch.where(dangling, x, 0)) + 1 - self.damping
        return self.damping * inflow + anywhere / nodes.num_nodes
