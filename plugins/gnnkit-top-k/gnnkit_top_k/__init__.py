"""A sampler by the heaviest in-edges, whose law is a Rust crate of its own."""

from __future__ import annotations

import sys

from gnnkit.graph import CSC, Ids
from gnnkit.sampler import Hop, Sampler
from gnnkit.sampler.fanouts import Fanouts
from gnnkit.utils.ranges import num_cores


class TopKSampler(Sampler):
    """Each node reads its in-edges of largest weight, the first ones of equal weight.

    Nothing is random. Weights must be at least 0. Without weights, nodes read their
    first in-edges.
    """

    by_relation = True

    def __init__(self, fanouts: list[int], threads: int | None = None) -> None:
        """Creates the sampler.

        Args:
            fanouts: [num_hops] in-edges per node, from the seeds outward. -1: all, 0:
                none.
            threads: Threads per hop. Default: all available cores.
        """
        self.fanouts = self._counts = Fanouts.parse(fanouts).default
        self.num_hops = len(self._counts)
        self.threads = num_cores() if threads is None else threads

    @property
    def draws_at_owners(self) -> bool:
        return True

    @property
    def rank_invariant(self) -> bool:
        return len(set(self._counts)) == 1

    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        from gnnkit_top_k import _law

        count = self._counts[hop] if self._counts[hop] >= 0 else sys.maxsize
        nodes = nodes.astype(graph.indices.dtype)
        drawn = _law.draw(graph.indptr, graph.indices, graph.weight, graph.num_sources, nodes, count, self.threads)
        return Hop(*drawn)
