"""PageRank."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnkit.errors import UserError
from gnnkit.model.program import Nodes, Program


class PageRank(Program):
    """Probability of each node in a random walk that follows an out-edge with probability `damping`, in proportion to its weight,
    and else goes to any node (Page, Brin, Motwani and Winograd, 1999). From a node without out-edges it goes to any node."""

    def __init__(self, damping: float = 0.85, tolerance: float = 1e-6, max_iterations: int = 100) -> None:
        super().__init__(tolerance, max_iterations)
        if not 0 <= damping < 1:
            raise UserError(f"damping={damping} must be at least 0 and below 1")
        self.damping = damping

    def start(self, nodes: Nodes) -> Tensor:  # [num_owned, 1]
        return torch.full_like(nodes.adjacency.out_degree[:, None], 1 / max(nodes.num_nodes, 1))

    def step(self, x: Tensor, nodes: Nodes) -> Tensor:
        degree = nodes.adjacency.out_degree[:, None]
        dangling = degree == 0
        arrived = nodes.adjacency.aggregate(torch.where(dangling, 0, x / degree))
        anywhere = self.damping * nodes.sum(torch.where(dangling, x, 0)) + 1 - self.damping
        return self.damping * arrived + anywhere / nodes.num_nodes
