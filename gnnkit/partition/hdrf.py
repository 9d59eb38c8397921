from __future__ import annotations

from gnnkit.partition.vertex_cut import StreamedEdges
from gnnkit.ranges import real


class Hdrf(StreamedEdges):
    """High-degree replicated first (Petroni et al., CIKM 2015), a vertex-cut.

    Choose this partition where edges must be even to the last percent on graphs with
    hubs. Degrees are the graph's and not the stream's.
    """

    def __init__(self, imbalance: float = 0.1, balance_weight: float = 1.1) -> None:
        """Checks the options.

        Args:
            imbalance: Share from 0.001 to 1 by which a cell may exceed the mean of
                edges, and of nodes.
            balance_weight: Weight of balance against replicas, lambda in the paper.
        """
        super().__init__(imbalance)
        self.balance_weight = real("partition.options.balance_weight", balance_weight, 0)
