"""Streaming node partitioners."""

from __future__ import annotations

from typing import ClassVar, Literal

from gnnkit import _core
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner
from gnnkit.utils.ranges import one_of, real, whole

Order = Literal["id", "random", "bfs"]


class Streaming(NodePartitioner):
    """Assigns each node, in turn, to the part with the highest score.

    The score grows with the number of the node's neighbours in the part, and falls with
    the part's load. Neighbours are the sources of a node's in-edges. The excess of a
    part's nodes and in-edges stays within `imbalance`, unless no part has room. Takes
    linear time and a few bytes per node.
    """

    score: ClassVar[str]  # name of the score in the native core
    streams = True

    def __init__(self, order: Order = "id", imbalance: float = 0.1, passes: int = 1) -> None:
        """Checks the options.

        Args:
            order: Order of the nodes: "id", "random" (a fixed permutation) or "bfs".
                Default: "id".
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


class Ldg(Streaming):
    """Linear deterministic greedy (Stanton & Kliot, KDD 2012).

    Choose this partition for graphs too large for a multilevel method. A part's score
    is its number of neighbours times its remaining capacity. With
    `partition.border=cover`, few rows are sent on skewed graphs.
    """

    auto_seconds = 0.03
    score = "ldg"


class Fennel(Streaming):
    """Fennel (Tsourakakis, Gkantsidis, Radunovic & Vojnovic, WSDM 2014).

    Choose this partition for graphs too large for a multilevel method. A part's score
    is its number of neighbours minus the marginal cost of its load, with gamma = 1.5.
    The load is the mean of nodes and in-edges, as in PowerLyra (Chen et al., EuroSys
    2015), because the number of nodes alone is misleading for skewed degrees.
    """

    score = "fennel"


class Buffered(NodePartitioner):
    """Buffered streaming, as in HeiStream (Faraj & Schulz, ACM JEA 2022).

    Choose this partition for graphs too large for a multilevel method, if ids have some
    locality or a buffer holds a good share of the graph. For each buffer of nodes and
    their edges, label propagation finds clusters, clusters are placed by LDG's score,
    and nodes are then moved to better parts. HeiStream uses several levels of clusters.
    """

    auto_seconds = 0.2
    streams = True

    def __init__(self, buffer: int = 262_144, imbalance: float = 0.1, passes: int = 1) -> None:
        """Checks the options.

        Args:
            buffer: Number of nodes per buffer, reduced if they have more than 32
                in-edges on average. Larger buffers cut fewer edges, and take 200 bytes
                per node. Default: 262,144.
            imbalance: Maximum excess of a part over the mean, of nodes and of in-edges,
                from 0.001 to 1. Default: 0.1.
            passes: Number of passes over the nodes. All but the first only move nodes.
                Default: 1.
        """
        self.buffer = whole("partition.options.buffer", buffer, 1, 1 << 30)
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)
        self.passes = whole("partition.options.passes", passes, 1, 1000)

    def stream_bytes(self, num_nodes: int) -> int:
        return super().stream_bytes(num_nodes) + 200 * min(self.buffer, num_nodes)  # per node with its edges

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        csc, bound = graph.csc, 1 + self.imbalance
        return _core.buffer_nodes(csc.indptr, csc.indices, num_parts, self.buffer, bound, self.passes)
