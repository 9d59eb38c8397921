"""Sampling with a fixed number of edges per hop."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.fanouts import FanoutsLike
from gnnkit.utils.checks import whole

_MAX_NEIGHBOURS = 2**62


class BalancedSampler(NativeSampler):
    """Samples hops with a fixed number of edges, for any degree distribution.

    The n nodes that draw in a hop share a budget of n times the fanout. Low-degree
    nodes leave part of their share to the others: node v of degree d_v draws min(d_v,
    most, level) times, and the remainder goes, one each, to the first nodes with more
    neighbours. Each node draws uniformly without replacement, and its number of draws
    depends on the hop's other nodes. If nodes draw by relation, the nodes of a hop with
    in-edges of a relation share that relation's budget.
    """

    by_node = False

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        least: int = 0,
        most: int | None = None,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`, and limits per node.

        Args:
            fanouts: [num_hops] mean number of draws per node, from the seeds outward.
                -1 takes all neighbours.
            least: Minimum number of draws per node, as far as its degree allows.
            most: Maximum number of draws per node. Default: no limit.
            redraw: Whether all nodes of the batch draw again at every hop.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)
        self.least, self.most = _limits(least, most)

    def native(self) -> _core.Sampler:
        return _core.Sampler.balanced(self.fanouts.default, self.least, self.most, self.redraw, self.importance)


def _limits(least: int, most: int | None) -> tuple[int, int | None]:
    least = whole("sampler.least", least, 0, _MAX_NEIGHBOURS)
    most = None if most is None else whole("sampler.most", most, 0, _MAX_NEIGHBOURS)
    if most is not None and most < least:
        raise UserError(f"sampler.least={least}, sampler.most={most} must satisfy 0 <= least <= most")
    return least, most
