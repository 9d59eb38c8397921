"""Neighbour sampling in proportion to weights."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import numpy as np

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.sampler.base import NativeSampler, Reading
from gnnkit.sampler.fanouts import FanoutsLike
from gnnkit.utils.checks import finite

_OUT_DEGREE: WeakKeyDictionary[CSC, Floats] = WeakKeyDictionary()


class WeightedSampler(NativeSampler):
    """Samples in-edges in proportion to the graph's weights, 1 by default.

    Edges of weight 0 are never drawn. Without replacement, each draw is in proportion
    to the remaining weights (Efraimidis and Spirakis, Information Processing Letters
    97(5), 2006). Importance weights then follow Cohen and Kaplan (PODC 2007).

    Choose it if weights express how much a neighbour matters, such as counts of
    interactions, or to draw hubs less often with `alpha`.
    """

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        replace: bool = False,
        alpha: float = 0.0,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
        time: str = "none",
        pick: str = "uniform",
        window: int | None = None,
        time_bound: str = "seed",
    ) -> None:
        """Takes the arguments of `NativeSampler`, and an exponent against hubs.

        Args:
            fanouts: [num_hops] draws per node, from the seeds outward. -1 takes all
                neighbours of positive weight, 0 none.
            replace: Whether draws are with replacement.
            alpha: Weights are multiplied by the source's out-degree to the power
                -alpha. Above 0, hubs are drawn less often.
            redraw: Whether all nodes of the batch draw again at every hop.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
            time: As for `NeighborSampler`.
            pick: As for `NeighborSampler`.
            window: As for `NeighborSampler`.
            time_bound: As for `NeighborSampler`.
        """
        super().__init__(
            fanouts, replace=replace, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads
        )
        self.alpha = finite("sampler.options.alpha", alpha)
        self.by_time(time, pick, window, time_bound)
        if self.alpha and time != "none":
            raise UserError(
                f"sampler.time={time}: sampler.options.alpha={self.alpha:g} counts out-edges of all times, future ones included: "
                "use alpha=0"
            )

    def native(self) -> _core.Sampler:
        return _core.Sampler.weighted(self.fanouts.default, self.replace, self.redraw, self.importance)

    def reading(self, graph: CSC) -> Reading:
        return Reading(graph, wanted=None if self.alpha == 0 else _out_degree(graph) ** -self.alpha)

    @property
    def reads_out_edges(self) -> bool:
        return self.alpha != 0

    def part(self, csc: CSC, rows: Ids, sources: Ids, out_edges: Ids | None) -> Reading:
        preference = None if out_edges is None else np.maximum(out_edges.astype(np.float64), 1) ** -self.alpha
        return Reading(csc, wanted=preference, rows=rows, sources=sources)


def _out_degree(graph: CSC) -> Floats:  # [num_sources]
    """Counts out-edges, at least 1 per node, once per graph."""
    if graph not in _OUT_DEGREE:
        degree = _core.csc_degrees(graph.indptr, graph.indices, graph.num_sources, None)[1]
        _OUT_DEGREE[graph] = np.maximum(degree, 1)
    return _OUT_DEGREE[graph]
