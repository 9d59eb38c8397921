from __future__ import annotations

from gnnkit.partition.vertex_cut import StreamedEdges
from gnnkit.utils.ranges import real


class Hdrf(StreamedEdges):
    """High-degree replicated first (Petroni et al., CIKM 2015), a vertex-cut.

    Choose this partition if edges must be balanced to the percent on graphs with hubs.
    It uses the graph's degrees instead of partial degrees.
    """

    def __init__(self, imbalance: float = 0.1, balance_weight: float = 1.1) -> None:
        """Checks the options.

        Args:
            imbalance: Maximum excess of a cell over the mean, of edges and of nodes,
                from 0.001 to 1.
            balance_weight: Weight of balance against replication, lambda in the paper.
        """
        super().__init__(imbalance)
        self.balance_weight = real("partition.options.balance_weight", balance_weight, 0)
