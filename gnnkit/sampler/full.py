"""All neighbours."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.checks import whole
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.fanouts import MAX_HOPS, Fanouts


class FullSampler(NativeSampler):
    """A sampler of every in-edge of every node within reach of the seeds.

    Exact, and large. For evaluation and small graphs.
    """

    def __init__(self, num_hops: int = 2, *, edge_ids: bool = True, threads: int | None = None) -> None:
        """Takes `edge_ids` and `threads` as `NativeSampler` does.

        Args:
            num_hops: layers of the model, 1 to 1000.
            edge_ids: whether blocks hold positions of edges in the CSC.
            threads: threads that make one batch. Default: the cores at hand.
        """
        num_hops = whole("sampler.num_hops", num_hops, 1, MAX_HOPS)
        super().__init__(Fanouts.all(num_hops), edge_ids=edge_ids, threads=threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.neighbor(self.fanouts.default, False, False, None)
