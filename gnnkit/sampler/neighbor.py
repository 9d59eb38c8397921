"""Uniform neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler


class NeighborSampler(NativeSampler):
    """A sampler of uniform in-edges (Hamilton, Ying and Leskovec, NeurIPS 2017).

    The default: the fastest sampler, with a fixed number of draws per node. Draws
    without replacement are exact (Floyd, CACM 30(9), 1987). Unlike in PyG, a node that
    recurs in a later hop keeps the neighbours of the first draw. Unlike in DGL, the
    node does not draw anew, unless `redraw` is true.
    """

    def __init__(
        self,
        fanouts: Sequence[int],
        *,
        replace: bool = False,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`.

        Args:
            fanouts: [num_hops] draws per node, from the seeds outward. -1 takes all
                neighbours, 0 none.
            replace: whether draws are with replacement.
            redraw: whether all nodes found so far draw anew at every hop.
            edge_ids: whether blocks hold positions of edges in the CSC.
            importance: mean, sum or None.
            threads: threads that make one batch. Default: the cores at hand.
        """
        super().__init__(
            fanouts, replace=replace, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads
        )

    def native(self) -> _core.Sampler:
        return _core.Sampler.neighbor(self.fanouts, self.replace, self.redraw, self.importance)
