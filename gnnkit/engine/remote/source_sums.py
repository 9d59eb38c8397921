"""Sums over nodes' out-edges, which are distributed over ranks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.comm import Communicator
from gnnkit.engine.remote.owners import Owners, swap_rows
from gnnkit.graph import Floats, Ids
from gnnkit.partition.shard import Shard
from gnnkit.sampler import Fanouts


class SourceSums:
    """Exchanges values between the sources of held edges and their owners.

    Every method is collective.
    """

    def __init__(self, shard: Shard, owners: Owners, comm: Communicator) -> None:
        """Sends every owner the sources that this rank holds.

        Args:
            shard: This rank's nodes and edges, in a grid with one column.
            owners: Every node's owner.
            comm: The ranks.
        """
        self.shard, self.comm = shard, comm
        self._split = owners.split(shard.sources.astype(np.int64), comm.world_size)
        self._places = [np.searchsorted(shard.owned, part) for part in swap_rows(comm, self._split.parts())]

    def collect(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:  # [num_sources] -> [num_owned]
        """Sums the values of every owned node, in order of rank."""
        total = np.zeros(len(self.shard.owned), values.dtype)
        for places, part in zip(self._places, swap_rows(self.comm, self._split.parts_of(values)), strict=True):
            total[places] += part  # a rank lists a source only once
        return total

    def spread(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:  # [num_owned] -> [num_sources]
        """Returns the owners' values for the held sources."""
        return self._split.restore_order(
            np.concatenate(swap_rows(self.comm, [values[places] for places in self._places]))
        )

    def out_edges(self) -> Ids:  # [num_owned] int64
        """Counts the owned nodes' out-edges."""
        counts = np.bincount(self.shard.csc.indices, minlength=len(self.shard.sources))
        return self.collect(counts.astype(np.int64))

    def inclusion(self, fanouts: Fanouts, first: Floats) -> Floats:  # [num_owned] float64
        """Estimates the probability that a node is in a batch (SALIENT++, MLSys 2023).

        If draws are independent, node v is in hop h with probability p_h(v) = 1 - prod
        over the edges v -> u of (1 - min(1, k_h / d_u) p_{h-1}(u)).

        Args:
            fanouts: [num_hops] draws k_h.
            first: [num_owned] probability p_0 of each owned node to be a seed.
        """
        csc, hop_prob = self.shard.csc, first.astype(np.float64)
        degree = self.shard.num_in_edges
        absent = np.log1p(-np.minimum(hop_prob, _MAX_PROBABILITY))
        for fanout in fanouts:
            draw_prob = np.minimum(1, (degree if fanout < 0 else fanout) / np.maximum(degree, 1)) * hop_prob
            log_miss = np.repeat(np.log1p(-np.minimum(draw_prob, _MAX_PROBABILITY)), degree)
            log_miss = self.collect(np.bincount(csc.indices, log_miss, len(self.shard.sources)).astype(np.float64))
            hop_prob, absent = -np.expm1(log_miss), absent + log_miss
        return -np.expm1(absent)


_MAX_PROBABILITY = 1 - 1e-12  # largest probability p for which log(1 - p) is computed
