"""LABOR: nodes of a hop share sources."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler, check_threads


class LaborSampler(NativeSampler):
    """Fewer distinct nodes at the same variance: LABOR-0 (Balin and Catalyurek, NeurIPS 2023).

    A source has one random number per hop, and an edge into a node of degree d is kept iff it is below fanout / d; so
    nodes draw the fanout in expectation only, and the same sources where they can.
    """

    def __init__(
        self,
        fanouts: Sequence[int],  # [num_hops] expected neighbours, from the seeds outward; -1: all neighbours, 0: none
        *,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        self.fanouts = [int(fanout) for fanout in fanouts]
        self.num_hops = len(self.fanouts)
        self.redraw = redraw
        self.edge_ids = edge_ids
        self.importance = importance
        self.threads = check_threads(threads)
        self.native()

    def native(self) -> _core.Sampler:
        return _core.Sampler.labor(self.fanouts, self.redraw, self.importance)
