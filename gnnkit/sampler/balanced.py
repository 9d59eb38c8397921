"""Sampling with a fixed number of edges per hop."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.fanouts import FanoutsLike


class BalancedSampler(NativeSampler):
    """Samples hops with a fixed number of edges, for any degree distribution.

    The n nodes that draw in a hop share a budget of n times the fanout. Low-degree
    nodes leave part of their share to the others: node v of degree d_v draws min(d_v,
    level) times, and the remainder goes, one each, to the first nodes with more
    neighbours. Each node draws uniformly without replacement, and its number of draws
    depends on the hop's other nodes. If nodes draw by relation, the nodes of a hop with
    in-edges of a relation share that relation's budget.
    """

    by_node = False

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`.

        Args:
            fanouts: [num_hops] mean number of draws per node, from the seeds outward.
                -1 takes all neighbours.
            redraw: Whether all nodes of the batch draw again at every hop.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.balanced(self.fanouts.default, self.redraw, self.importance)
