"""Uniform neighbours."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler, check_threads


class NeighborSampler(NativeSampler):
    """Every in-edge equally likely (Hamilton, Ying and Leskovec, NeurIPS 2017). The default: fastest, fixed batch size.

    Draws without replacement are exact (Floyd, CACM 30(9), 1987). Unlike PyG a node that recurs in a later hop has the
    neighbours that it drew first; unlike DGL it does not draw anew, unless `redraw` is true.
    """

    def __init__(
        self,
        fanouts: Sequence[int],  # [num_hops] from the seeds outward; -1: all neighbours, 0: none
        *,
        replace: bool = False,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.fanouts = [int(fanout) for fanout in fanouts]
        self.num_hops = len(self.fanouts)
        self.replace = replace
        self.redraw = redraw
        self.edge_ids = edge_ids
        self.importance = importance
        self.threads = check_threads(threads)
        self.native()

    def native(self) -> _core.Sampler:
        return _core.Sampler.neighbor(self.fanouts, self.replace, self.redraw, self.importance)
