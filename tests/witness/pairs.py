"""Edge pairs as Python sets."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gnnkit.graph import Graph

NodePair = tuple[int, int]  # source and destination


@dataclass(frozen=True, slots=True)
class EdgeSets:
    """The training edges, and all edges."""

    training: frozenset[NodePair]
    every: frozenset[NodePair]

    @classmethod
    def of(cls, graph: Graph, held_out: Iterable[NodePair]) -> EdgeSets:
        """Reads the sets from the user's graph.

        An edge is held out together with its reverse. If all other edges have a
        reverse, the reverse of a held-out edge is an edge too.

        Args:
            graph: The graph, before edges are held out.
            held_out: Validation and test edges.
        """
        indptr, sources = graph.csc.indptr.tolist(), graph.csc.indices.tolist()
        edges = {
            (source, destination)
            for destination in range(graph.num_nodes)
            for source in sources[indptr[destination] : indptr[destination + 1]]
        }
        test_pairs = set(held_out)
        reverse = {(destination, source) for source, destination in test_pairs}
        training = edges - test_pairs - reverse
        is_undirected = all((destination, source) in training for source, destination in training)
        return cls(frozenset(training), frozenset(edges | test_pairs | (reverse if is_undirected else set())))

    def count_wrong(self, pairs: Iterable[NodePair], *, evaluates: bool) -> int:
        """Counts the pairs that are not negatives: loops and known edges."""
        edges = self.every if evaluates else self.training
        return sum(pair[0] == pair[1] or pair in edges for pair in pairs)

    def count_held_out(self, pairs: Iterable[NodePair]) -> int:
        """Counts the pairs that are held-out edges."""
        return sum(pair in self.every and pair not in self.training for pair in pairs)
