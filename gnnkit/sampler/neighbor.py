"""Uniform neighbours."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler


class NeighborSampler(NativeSampler):
    """A sampler of uniform in-edges (Hamilton, Ying and Leskovec, NeurIPS 2017).

    The default: the fastest sampler, with a fixed number of draws per node. Draws
    without replacement are exact (Floyd, CACM 30(9), 1987). Unlike in PyG, a node that
    recurs in a later hop keeps the neighbours of the first draw. Unlike in DGL, the
    node does not draw anew, unless `redraw` is true.
    """

    def native(self) -> _core.Sampler:
        return _core.Sampler.neighbor(self.fanouts, self.replace, self.redraw, self.importance)
