from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner


class Contiguous(NodePartitioner):
    """Ranges of consecutive node ids. The first n mod P parts get one more.

    Choose this partition if ids follow the graph's locality.
    """

    auto_seconds = 0.0
    reads_edges = False

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        size, rest = divmod(graph.num_nodes, num_parts)
        return np.repeat(np.arange(num_parts, dtype=np.int32), size + (np.arange(num_parts) < rest))
