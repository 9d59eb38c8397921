from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner, hash_ids


class Hash(NodePartitioner):
    """A hash of the node id, modulo the number of parts.

    Parts are balanced in expectation, for any order of ids. Owners follow from ids
    alone, so no table is read and any process can compute them. Choose it if ids have
    no locality.
    """

    reads_edges = False

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        return (hash_ids(graph.num_nodes, key=0) % np.uint64(num_parts)).astype(np.int32)
