"""Uniform neighbours."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.ranges import switch
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.batching import tree_sizes
from gnnkit.sampler.fanouts import FanoutsLike


class NeighborSampler(NativeSampler):
    """A sampler of uniform in-edges (Hamilton, Ying and Leskovec, NeurIPS 2017).

    The default: the fastest sampler, with a fixed number of draws per node. Draws
    without replacement are exact (Floyd, CACM 30(9), 1987). As in PyG, a node that
    recurs in a later hop keeps the neighbours of its first draw. In DGL, the node draws
    anew, as it does here if `redraw` is true.

    With `replace` or `fill` every node with an in-edge draws exactly the fanout k. With
    `fill` a node of d >= k in-edges draws distinct ones, and another takes each k // d
    times and the rest by lot. In all cases k / d draws of an edge are expected, so
    weights d / k keep sums unbiased. Sums vary less by `fill` than by `replace`.
    """

    def __init__(
        self,
        fanouts: FanoutsLike,
        *,
        replace: bool = False,
        fill: bool = False,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`, and whether counts are equal.

        Args:
            fanouts: [num_hops] draws per node, from the seeds outward. -1 takes all
                in-edges once, 0 none.
            replace: whether draws are with replacement.
            fill: whether nodes of fewer in-edges than the fanout repeat them.
            redraw: whether all nodes found so far draw anew at every hop.
            edge_ids: whether blocks hold positions of edges in the CSC.
            importance: mean, sum or None.
            threads: threads that make one batch. Default: the cores at hand.
        """
        super().__init__(
            fanouts, replace=replace, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads
        )
        self.fill = switch("sampler.fill", fill)
        if replace and fill:
            raise UserError("sampler.fill=true repeats edges of few, sampler.replace=true of all nodes: choose one")

    def native(self) -> _core.Sampler:
        if self.fill:
            return _core.Sampler.equal(self.fanouts.default, self.redraw, self.importance)
        return _core.Sampler.neighbor(self.fanouts.default, self.replace, self.redraw, self.importance)

    def costs(self, graph: CSC, seeds: Ids) -> Floats:  # [num_seeds]
        return tree_sizes(graph, seeds, self.fanouts, replace=self.replace or self.fill)
