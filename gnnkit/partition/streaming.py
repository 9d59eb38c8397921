"""Streaming node partitioners."""

from __future__ import annotations

from typing import ClassVar, Literal

from gnnkit import _core
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner
from gnnkit.utils.ranges import one_of, real, whole

Order = Literal["id", "random", "bfs"]


class Streaming(NodePartitioner):
    """Assigns each node to the best-scoring part with most of its neighbours.

    Neighbours are the sources of a node's in-edges. A part's nodes and in-edges do not
    exceed the bound, unless no part has room. Takes linear time and a few bytes per
    node.
    """

    score: ClassVar[str]  # name of the score in the native core
    streams = True

    def __init__(self, order: Order = "id", imbalance: float = 0.1, passes: int = 1) -> None:
        """Checks the options.

        Args:
            order: Order of the nodes: "id", "random" or "bfs". Default: "id".
            imbalance: Maximum excess of a part over the mean, of nodes and of in-edges,
                from 0.001 to 1. Default: 0.1.
            passes: Number of passes over the nodes. Each pass reassigns all nodes
                (restreaming, Nishimura & Ugander, KDD 2013). Default: 1.
        """
        self.order = one_of("partition.options.order", order, ("id", "random", "bfs"))
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)
        self.passes = whole("partition.options.passes", passes, 1, 1000)

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        csc, bound = graph.csc, 1 + self.imbalance
        return _core.stream_nodes(csc.indptr, csc.indices, num_parts, self.score, self.order, 0, bound, self.passes)
