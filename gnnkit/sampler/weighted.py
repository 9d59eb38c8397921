"""Neighbours in proportion to weights."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np

from gnnkit import _core
from gnnkit.graph import CSC, Floats
from gnnkit.sampler.base import NativeSampler, Reading, check_threads

_OUT_DEGREE: WeakKeyDictionary[CSC, Floats] = WeakKeyDictionary()


class WeightedSampler(NativeSampler):
    """In-edges in proportion to the graph's weights, 1 where it has none. Edges of weight 0 are never drawn.

    Without replacement each draw is in proportion to the weights that are left (Efraimidis and Spirakis, Information
    Processing Letters 97(5), 2006); importance weights then are those of Cohen and Kaplan (PODC 2007). `alpha` > 0 keeps
    hubs from being drawn by everyone: weights are multiplied by the out-degree of the source to the power -alpha.
    """

    def __init__(
        self,
        fanouts: Sequence[int],  # [num_hops] from the seeds outward; -1: all neighbours of positive weight, 0: none
        *,
        replace: bool = False,
        alpha: float = 0.0,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.fanouts = [int(fanout) for fanout in fanouts]
        self.num_hops = len(self.fanouts)
        self.replace = replace
        self.alpha = float(alpha)
        self.redraw = redraw
        self.edge_ids = edge_ids
        self.importance = importance
        self.threads = check_threads(threads)
        if not np.isfinite(self.alpha):
            raise ValueError(f"sampler.alpha={alpha} must be finite")
        self.native()

    def native(self) -> _core.Sampler:
        return _core.Sampler.weighted(self.fanouts, self.replace, self.redraw, self.importance)

    def reading(self, graph: CSC) -> Reading:
        return Reading(graph, wanted=None if self.alpha == 0 else _out_degree(graph) ** -self.alpha)


def _out_degree(graph: CSC) -> Floats:  # [num_sources]
    """Number of out-edges, 1 where there are none; counted once per graph."""
    if graph not in _OUT_DEGREE:
        degree = _core.csc_degrees(graph.indptr, graph.indices, graph.num_sources, None)[1]
        _OUT_DEGREE[graph] = np.maximum(degree, 1)
    return _OUT_DEGREE[graph]
