"""As equal a number of neighbours per node as degrees allow."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import Ids
from gnnkit.sampler.base import NativeSampler, as_ids, check_threads


class BalancedSampler(NativeSampler):
    """The nodes that draw in a hop share a budget of fanout times their number, as evenly as their degrees allow.

    What nodes of low degree leave goes to the others (`water_fill`), so a hop has the same number of edges however
    degrees are spread; each node draws uniformly without replacement. What a node draws depends on the others in its hop.
    """

    by_node = False

    def __init__(
        self,
        fanouts: Sequence[int],  # [num_hops] mean number of draws per node, from the seeds outward; -1: all neighbours
        *,
        least: int = 0,
        most: int | None = None,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.fanouts = [int(fanout) for fanout in fanouts]
        self.num_hops = len(self.fanouts)
        self.least = least
        self.most = most
        self.redraw = redraw
        self.edge_ids = edge_ids
        self.importance = importance
        self.threads = check_threads(threads)
        _check_limits(least, most)
        self.native()

    def native(self) -> _core.Sampler:
        return _core.Sampler.balanced(self.fanouts, self.least, self.most, self.redraw, self.importance)


def water_fill(degrees: Ids, budget: int, *, least: int = 0, most: int | None = None) -> npt.NDArray[np.int64]:
    """Counts s_v <= min(d_v, most) [num_nodes] that sum to `budget` with the least variance, or to less if all are full.

    s_v = min(d_v, most, level), and what then remains is spread one each over the first nodes that have more. `least`
    is reached as far as degrees allow, even beyond the budget.
    """
    _check_limits(least, most)
    if budget < 0:
        raise ValueError(f"budget={budget} must be at least 0")
    return _core.water_fill(as_ids("degrees", degrees), budget, least, most)


def _check_limits(least: int, most: int | None) -> None:
    if least < 0 or (most is not None and most < least):
        raise ValueError(f"sampler.least={least}, sampler.most={most} must satisfy 0 <= least <= most")
