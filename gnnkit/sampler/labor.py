"""LABOR: nodes of a hop share sources."""

from __future__ import annotations

from collections.abc import Sequence

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler


class LaborSampler(NativeSampler):
    """Finds fewer distinct nodes at the same variance: LABOR-0 (Balin and Catalyurek,
    NeurIPS 2023).

    A source has one random number per hop. An edge into a node of degree d is kept if
    that number is below fanout / d. So nodes draw the fanout in expectation only, and
    share sources.
    """

    draws_by_hop = True

    def __init__(
        self,
        fanouts: Sequence[int],  # [num_hops] expected neighbours, from the seeds outward; -1: all neighbours, 0: none
        *,
        redraw: bool = False,
        edge_ids: bool = True,
        importance: str | None = None,
        threads: int | None = None,
    ) -> None:
        """Takes the arguments of `NativeSampler`.

        `fanouts` are expected numbers of draws.
        """
        super().__init__(fanouts, redraw=redraw, edge_ids=edge_ids, importance=importance, threads=threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.labor(self.fanouts, self.redraw, self.importance)
