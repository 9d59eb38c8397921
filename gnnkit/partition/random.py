from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner, hash_ids


class Random(NodePartitioner):
    """A random permutation cut into equal parts. The first n mod P parts get one more.

    Its nodes are balanced best. Use it as a baseline.
    """

    reads_edges = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        size, remainder = divmod(graph.num_nodes, num_parts)
        ranks = np.empty(graph.num_nodes, np.int32)
        order = np.argsort(hash_ids(graph.num_nodes, key=self.seed + 1), kind="stable")
        ranks[order] = np.repeat(np.arange(num_parts, dtype=np.int32), size + (np.arange(num_parts) < remainder))
        return ranks
