from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner, hash_ids


class Hash(NodePartitioner):
    """The hash of a node's id, modulo the number of parts.

    Needs no table. Parts are balanced in expectation, whatever the order of ids.
    """

    reads_edges = False

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        return (hash_ids(graph.num_nodes, key=0) % np.uint64(num_parts)).astype(np.int32)
