"""Neighbourhoods of random walks that do not favour hubs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import CSC, Ids
from gnnkit.sampler.base import NativeSampler, Reading, as_ids, check_threads, wrap

_SYMMETRIC: WeakKeyDictionary[CSC, CSC | None] = WeakKeyDictionary()  # None: the graph itself


class MetropolisHastingsSampler(NativeSampler):
    """The nodes that random walks visit most, wherever they are: reaches beyond neighbours, and hubs no more than others.

    At u a neighbour v is proposed uniformly and accepted with probability min(1, target(v) / target(u) (d(u) / d(v))^alpha)
    (Metropolis et al., 1953; Hastings, 1970); otherwise the walk stays and u counts again. So each component is visited
    in proportion to target d^(1 - alpha), uniformly by default. As PinSAGE (Ying et al., KDD 2018) a node takes the
    `fanout` nodes that its walks visit most as its neighbourhood, itself left out; importance weights are the visits, as
    counts (sum) or shares (mean). Edges are walked in both directions, parallel ones count once; blocks have no edge ids.
    """

    draws_edges = False

    def __init__(
        self,
        fanouts: Sequence[int],  # [num_hops] from the seeds outward; -1: all nodes visited, 0: none
        *,
        walk_length: int = 10,
        num_walks: int = 10,
        alpha: float = 1.0,
        target: npt.ArrayLike | None = None,  # [num_nodes] not negative
        redraw: bool = False,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.fanouts = [int(fanout) for fanout in fanouts]
        self.num_hops = len(self.fanouts)
        self.walk_length = walk_length
        self.num_walks = num_walks
        self.alpha = float(alpha)
        self.target = None if target is None else np.ascontiguousarray(target, np.float64)
        self.redraw = redraw
        self.importance = importance
        self.threads = check_threads(threads)
        if walk_length < 1 or num_walks < 1:
            raise ValueError(f"sampler.walk_length={walk_length} and sampler.num_walks={num_walks} must be at least 1")
        if not np.isfinite(self.alpha):
            raise ValueError(f"sampler.alpha={alpha} must be finite")
        self.native()

    def native(self) -> _core.Sampler:
        return _core.Sampler.metropolis_hastings(self.fanouts, self._walks(), self.redraw, self.importance)

    def reading(self, graph: CSC) -> Reading:
        return Reading(_symmetric(graph), wanted=self.target)

    def walk(self, graph: CSC, starts: Ids, *, key: int) -> Ids:  # [num_starts, num_walks, walk_length + 1]
        """The nodes that the walks from each start stand on, the start first: those that `draw` counts."""
        ids = as_ids("starts", starts)
        visited = _core.visited(self.reading(graph), ids, self._walks(), wrap(key))
        return visited.reshape(len(ids), self.num_walks, self.walk_length + 1)

    def _walks(self) -> tuple[int, int, float]:
        return self.walk_length, self.num_walks, self.alpha


def _symmetric(graph: CSC) -> CSC:
    """The distinct neighbours of every node, in both directions; made once per graph."""
    if graph not in _SYMMETRIC:
        both, _ = graph.symmetrize()
        if both.num_edges != graph.num_edges:
            message = "metropolis_hastings walks the edges of this directed graph in both directions"
            warnings.warn(message, stacklevel=5)
        simple = _without_parallel_edges(both)
        _SYMMETRIC[graph] = simple if simple.num_edges != graph.num_edges else None
    return _SYMMETRIC[graph] or graph


def _without_parallel_edges(graph: CSC) -> CSC:
    """Each edge once, of a graph in which the in-edges of a node are ordered by source."""
    first = np.ones(graph.num_edges + 1, np.bool_)
    first[1:-1] = graph.indices[1:] != graph.indices[:-1]
    first[graph.indptr] = True
    if first.all():
        return graph
    before = np.concatenate([[0], np.cumsum(first[:-1])])
    return CSC(before[graph.indptr], graph.indices[first[:-1]])
