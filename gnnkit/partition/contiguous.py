from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner


class Contiguous(NodePartitioner):
    """Ranges of consecutive node ids. The first n mod P parts get one more.

    Choose this partition if ids follow the graph's locality. Each node type is divided
    separately, so that all parts hold nodes of all types, and training nodes.
    """

    auto_seconds = 0.0
    reads_edges = False

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        parts, sizes = np.arange(num_parts, dtype=np.int32), graph.type_sizes or (graph.num_nodes,)
        ranges = [np.repeat(parts, count // num_parts + (parts < count % num_parts)) for count in sizes]
        return np.concatenate(ranges)
