from __future__ import annotations

from gnnkit import _core
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner
from gnnkit.ranges import real, whole

_BYTES = 200  # of a node of a buffer, with its edges


class Buffered(NodePartitioner):
    """Buffers of nodes, as in HeiStream (Faraj & Schulz, ACM JEA 2022).

    Choose this partition for graphs too large for a multilevel method, where ids have
    some locality, or a buffer holds a good share of the graph. Each buffer is read with
    its edges, label propagation finds clusters, clusters are placed by the score of
    LDG, and nodes then move to better parts. HeiStream has several levels of clusters.
    """

    auto_seconds = 0.2
    streams = True

    def __init__(self, buffer: int = 262_144, imbalance: float = 0.1, passes: int = 1) -> None:
        """Checks the options.

        Args:
            buffer: Nodes of a buffer. A buffer has fewer where these have more than 32
                in-edges on average. More cut fewer edges, and take 200 bytes each.
                Default: 262,144.
            imbalance: Share from 0.001 to 1 by which a part may exceed the mean of
                nodes, and of in-edges. Default: 0.1.
            passes: Passes over the nodes. From the second on, nodes only move.
                Default: 1.
        """
        self.buffer = whole("partition.options.buffer", buffer, 1, 1 << 30)
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)
        self.passes = whole("partition.options.passes", passes, 1, 1000)

    def stream_bytes(self, num_nodes: int) -> int:
        return super().stream_bytes(num_nodes) + _BYTES * min(self.buffer, num_nodes)

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        csc, bound = graph.csc, 1 + self.imbalance
        return _core.buffer_nodes(csc.indptr, csc.indices, num_parts, self.buffer, bound, self.passes)
