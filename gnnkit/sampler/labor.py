"""LABOR sampling, in which the nodes of a hop share sources."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.fanouts import FanoutsLike


class LaborSampler(NativeSampler):
    """Samples few distinct nodes: LABOR-0 (Balin and Catalyurek, NeurIPS 2023).

    Each source has one random number per hop. An edge into a node of degree d is kept
    if this number is below fanout / d. Nodes thus share sources, and draw the fanout
    only in expectation. The variance is the same as with uniform draws. If nodes draw
    by relation, d is the degree within the relation, and relations share the numbers.

    Choose it over `NeighborSampler` if batches are large and loading features is the
    bottleneck, because it reads fewer rows for the same variance.
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
            redraw: Whether all nodes of the batch draw again at every hop.
            edge_ids: Whether blocks contain edge positions in the CSC.
            importance: mean, sum or None.
            threads: Threads per batch. Default: all available cores.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.labor(self.fanouts.default, self.redraw, self.importance)
