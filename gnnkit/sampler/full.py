"""All neighbours."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler, check_threads


class FullSampler(NativeSampler):
    """Every in-edge of every node within `num_hops` of the seeds: exact, and large. For evaluation and small graphs."""

    def __init__(self, num_hops: int = 2, *, edge_ids: bool = True, threads: int | None = None) -> None:
        if num_hops < 1:
            raise ValueError(f"sampler.num_hops={num_hops} must be at least 1")
        self.num_hops = num_hops
        self.fanouts = [-1] * num_hops
        self.edge_ids = edge_ids
        self.threads = check_threads(threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.neighbor(self.fanouts, False, False, None)
