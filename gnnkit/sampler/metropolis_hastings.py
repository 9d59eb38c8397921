"""Neighbourhoods of random walks that do not favour hubs."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.checks import finite, floats, int64s, whole
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids
from gnnkit.sampler.base import NativeSampler, Reading, wrap

_MAX_WALKS = 2**16
_MAX_STEPS = 2**24  # of all walks of a node
_SYMMETRIC: WeakKeyDictionary[CSC, CSC | None] = WeakKeyDictionary()  # None: the graph itself


class MetropolisHastingsSampler(NativeSampler):
    """A sampler of the nodes that random walks visit most, without preference for hubs.

    At u a neighbour v is proposed uniformly and accepted with probability
    min(1, target(v) / target(u) (d(u) / d(v))^alpha) (Metropolis et al., 1953, and
    Hastings, 1970). Otherwise the walk stays and u counts again. So each component is
    visited in proportion to target d^(1 - alpha), uniformly by default.

    As in PinSAGE (Ying et al., KDD 2018) the neighbourhood of a node is the `fanout`
    other nodes that walks from the node visit most. Importance weights are the visits,
    as counts (sum) or shares (mean). Edges are walked in both directions. Parallel
    edges count once. Blocks have no edge ids.
    """

    draws_edges = False

    def __init__(
        self,
        fanouts: Sequence[int],
        *,
        walk_length: int = 10,
        num_walks: int = 10,
        alpha: float = 1.0,
        target: npt.ArrayLike | None = None,
        redraw: bool = False,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`, and the law of the walks.

        Args:
            fanouts: [num_hops] most visited nodes kept per node, from the seeds
                outward. -1 keeps all nodes visited, 0 none.
            walk_length: steps of a walk, 1 to 65536.
            num_walks: walks from every node, 1 to 65536. All together make at most 2^24
                steps.
            alpha: exponent on the ratio of degrees. 0 is a plain walk.
            target: [num_nodes] how often each node is wanted, not negative. Default:
                all alike.
            redraw: whether all nodes found so far walk anew at every hop.
            importance: mean, sum or None.
            threads: threads that make one batch. Default: the cores at hand.
        """
        super().__init__(fanouts, redraw=redraw, importance=importance, threads=threads)
        self.walk_length = whole("sampler.walk_length", walk_length, 1, _MAX_WALKS)
        self.num_walks = whole("sampler.num_walks", num_walks, 1, _MAX_WALKS)
        self.alpha = finite("sampler.alpha", alpha)
        self.target = None if target is None else _target(target)
        if self.walk_length * self.num_walks > _MAX_STEPS:
            steps = f"sampler.num_walks={num_walks} times sampler.walk_length={walk_length}"
            raise UserError(f"{steps} must be at most {_MAX_STEPS} steps a node")

    def native(self) -> _core.Sampler:
        return _core.Sampler.metropolis_hastings(self.fanouts, self._walks(), self.redraw, self.importance)

    def reading(self, graph: CSC) -> Reading:
        return Reading(_symmetric(graph), wanted=self.target)

    def walk(self, graph: CSC, starts: Ids, *, key: int) -> Ids:  # [num_starts, num_walks, walk_length + 1]
        """Returns the nodes on the walks from each start, the start first.

        `draw` counts these nodes.

        Args:
            graph: The graph. Edges are walked in both directions.
            starts: [num_starts] node ids.
            key: any whole number, modulo 2^64.
        """
        ids = int64s("starts", starts)
        visited = _core.visited(self.reading(graph), ids, self._walks(), wrap(key))
        return visited.reshape(len(ids), self.num_walks, self.walk_length + 1)

    def _walks(self) -> tuple[int, int, float]:
        return self.walk_length, self.num_walks, self.alpha


def _target(values: npt.ArrayLike) -> npt.NDArray[np.float64]:  # [num_nodes]
    target = np.ascontiguousarray(floats("sampler.target", values, (None,)), np.float64)
    negative = np.flatnonzero(target < 0)
    if len(negative):
        raise UserError(f"sampler.target[{negative[0]}] = {target[negative[0]]} is negative")
    return target


def _symmetric(graph: CSC) -> CSC:
    """Finds the distinct neighbours of every node, both ways, once per graph."""
    if graph not in _SYMMETRIC:
        both, _ = graph.symmetrize()
        if both.num_edges != graph.num_edges:
            message = "metropolis_hastings walks the edges of this directed graph in both directions"
            warnings.warn(message, stacklevel=5)
        simple = _without_parallel_edges(both)
        _SYMMETRIC[graph] = simple if simple.num_edges != graph.num_edges else None
    return _SYMMETRIC[graph] or graph


def _without_parallel_edges(graph: CSC) -> CSC:
    """Keeps each edge once. The in-edges of a node must be ordered by source."""
    first = np.ones(graph.num_edges + 1, np.bool_)
    first[1:-1] = graph.indices[1:] != graph.indices[:-1]
    first[graph.indptr] = True
    if first.all():
        return graph
    before = np.concatenate([[0], np.cumsum(first[:-1])])
    return CSC(before[graph.indptr], graph.indices[first[:-1]])
