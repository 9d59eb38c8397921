"""Numbers of neighbours per node as equal as degrees allow."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.checks import int64s, whole
from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.fanouts import FanoutsLike

_MOST = 2**62  # neighbours


class BalancedSampler(NativeSampler):
    """A sampler of hops with a fixed number of edges, however degrees are spread.

    The n nodes that draw in a hop share a budget of n times the fanout. Nodes of low
    degree leave a part of the budget to the others (`water_fill`). Each node draws
    uniformly without replacement. The number of draws of a node depends on the other
    nodes of the hop.
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
        """Takes the arguments of `NativeSampler`, and limits for each node.

        Args:
            fanouts: [num_hops] mean number of draws per node, from the seeds outward.
                -1 takes all neighbours.
            least: draws that a node gets in any case, if the degree allows.
            most: draws that a node gets at most. Default: no limit.
            redraw: whether all nodes found so far draw anew at every hop.
            edge_ids: whether blocks hold positions of edges in the CSC.
            importance: mean, sum or None.
            threads: threads that make one batch. Default: the cores at hand.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)
        self.least, self.most = _limits(least, most)

    def native(self) -> _core.Sampler:
        return _core.Sampler.balanced(self.fanouts.default, self.least, self.most, self.redraw, self.importance)


def water_fill(degrees: Ids, budget: int, *, least: int = 0, most: int | None = None) -> npt.NDArray[np.int64]:
    """Spreads a budget over nodes as evenly as degrees allow.

    Node v gets s_v = min(d_v, most, level). The rest is spread one each over the first
    nodes that have more neighbours. `least` is reached if degrees allow, even beyond
    the budget. The counts [num_nodes] sum to less than the budget if all nodes are
    full.

    Args:
        degrees: [num_nodes] neighbours d_v of each node.
        budget: sum of all draws.
        least: draws that a node gets in any case, if the degree allows.
        most: draws that a node gets at most. Default: no limit.
    """
    least, most = _limits(least, most)
    return _core.water_fill(int64s("degrees", degrees), whole("budget", budget, 0, _MOST), least, most)


def _limits(least: int, most: int | None) -> tuple[int, int | None]:
    least = whole("sampler.least", least, 0, _MOST)
    most = None if most is None else whole("sampler.most", most, 0, _MOST)
    if most is not None and most < least:
        raise UserError(f"sampler.least={least}, sampler.most={most} must satisfy 0 <= least <= most")
    return least, most
