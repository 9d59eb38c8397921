"""Sampling of all neighbours."""

from __future__ import annotations

from gnnkit import _core
from gnnkit.sampler.base import NativeSampler
from gnnkit.sampler.fanouts import MAX_HOPS, Fanouts
from gnnkit.utils.checks import whole


class FullSampler(NativeSampler):
    """Samples every in-edge of every node within `num_hops` of the seeds.

    The outputs of the seeds are exact, but a batch grows with the degrees to the power
    of the number of hops, up to the complete graph. Use it for evaluation, prediction
    and small graphs.

    Examples:
        >>> import numpy
        >>> from gnnkit.graph import CSC
        >>> from gnnkit.sampler import FullSampler
        >>> csc = CSC.from_edges([1, 2, 3, 0], [0, 0, 1, 3], 4)
        >>> FullSampler(2).sample(csc, numpy.array([0]), key=1).input_nodes.tolist()
        [0, 1, 2, 3]
    """

    def __init__(
        self,
        num_hops: int = 2,
        *,
        edge_ids: bool = True,
        threads: int | None = None,
        time: str = "none",
        window: int | None = None,
        time_bound: str = "seed",
    ) -> None:
        """Takes `edge_ids` and `threads` like `NativeSampler`.

        Args:
            num_hops: Number of model layers, 1 to 1000.
            edge_ids: Whether blocks contain edge positions in the CSC.
            threads: Threads per batch. Default: all available cores.
            time: As for `NeighborSampler`.
            window: As for `NeighborSampler`.
            time_bound: As for `NeighborSampler`.
        """
        num_hops = whole("sampler.num_hops", num_hops, 1, MAX_HOPS)
        super().__init__(Fanouts.all(num_hops), edge_ids=edge_ids, threads=threads)
        self.by_time(time, window=window, time_bound=time_bound)

    def native(self) -> _core.Sampler:
        return _core.Sampler.neighbor(self.fanouts.default, False, False, None)
