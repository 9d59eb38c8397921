"""Streaming node partitioners."""

from __future__ import annotations

from typing import ClassVar, Literal

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner
from gnnkit.utils.ranges import MAX_COUNT, one_of, real, whole

Order = Literal["id", "random", "bfs"]


class Streaming(NodePartitioner):
    """Assigns each node to the best-scoring part with most of its neighbours.

    Neighbours are the sources of a node's in-edges. A part's nodes and in-edges do not
    exceed the bound, unless no part has room. Takes linear time and a few bytes per
    node.
    """

    score: ClassVar[str]  # name of the score in the native core
    streams = True

    def __init__(self, order: Order = "id", seed: int | None = None, imbalance: float = 0.1, passes: int = 1) -> None:
        """Checks the options.

        Args:
            order: Order of the nodes: "id", "random" or "bfs". Default: "id".
            seed: Random order's seed. None: 0 for "random".
            imbalance: Maximum excess of a part over the mean, of nodes and of in-edges,
                from 0.001 to 1. Default: 0.1.
            passes: Number of passes over the nodes. Each pass reassigns all nodes
                (restreaming, Nishimura & Ugander, KDD 2013). Default: 1.
        """
        self.order = one_of("partition.options.order", order, ("id", "random", "bfs"))
        self.seed = read_seed(seed, used=order == "random", reader="partition.options.order=random")
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)
        self.passes = whole("partition.options.passes", passes, 1, 1000)

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        csc, bound = graph.csc, 1 + self.imbalance
        return _core.stream_nodes(
            csc.indptr, csc.indices, num_parts, self.score, self.order, self.seed, bound, self.passes
        )


def read_seed(seed: int | None, *, used: bool, reader: str) -> int:
    """Returns a random order's seed.

    Raises `UserError` for a seed that is not used.

    Args:
        seed: The configured seed. None: 0.
        used: Whether the order is random.
        reader: Key and value that use the seed.
    """
    if seed is None:
        return 0
    if not used:
        raise UserError(f"partition.options.seed={seed} must be null without {reader}")
    return whole("partition.options.seed", seed, 0, MAX_COUNT)
