"""LABOR: nodes of a hop share sources."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.fanouts import FanoutsLike


class LaborSampler(NativeSampler):
    """A sampler of few distinct nodes: LABOR-0 (Balin and Catalyurek, NeurIPS 2023).

    A source has one random number per hop. An edge into a node of degree d is kept if
    this number is below fanout / d. So nodes draw the fanout in expectation only, and
    share sources. The variance is the same as of uniform draws.
    """

    draws_by_hop = True

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
            fanouts: [num_hops] expected draws per node, from the seeds outward. -1
                takes all neighbours, 0 none.
            redraw: whether all nodes found so far draw anew at every hop.
            edge_ids: whether blocks hold positions of edges in the CSC.
            importance: mean, sum or None.
            threads: threads that make one batch. Default: the cores at hand.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.labor(self.fanouts.default, self.redraw, self.importance)
