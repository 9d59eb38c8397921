"""Whole clusters with the edges between them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import CSC, Ids
from gnnkit.sampler.base import NativeSampler, Reading, as_ids


class ClusterSampler(NativeSampler):
    """Cluster-GCN (Chiang et al., KDD 2019): all edges between the clusters of the seeds, and none from elsewhere.

    Meant for seeds that are all (training) nodes of a few clusters, as `seeds` gives them. Other nodes of these
    clusters are in the batch as far as they reach a seed within `num_hops`; the rest could not change a result.
    """

    def __init__(
        self,
        clusters: npt.ArrayLike | str,  # [num_nodes] cluster of each node, or an .npy file of it
        num_hops: int = 2,
        *,
        edge_ids: bool = True,
    ) -> None:
        if num_hops < 1:
            raise ValueError(f"sampler.num_hops={num_hops} must be at least 1")
        self.clusters = as_ids("sampler.clusters", _load(clusters) if isinstance(clusters, str) else clusters)
        self.num_hops = num_hops
        self.edge_ids = edge_ids

    def native(self) -> _core.Sampler:
        return _core.Sampler.cluster(self.num_hops)

    def reading(self, graph: CSC) -> Reading:
        if len(self.clusters) != graph.num_sources:
            raise ValueError(f"sampler.clusters has {len(self.clusters)} entries, the graph {graph.num_sources} nodes")
        return Reading(graph, cluster=self.clusters)

    def seeds(self, nodes: Ids, per_batch: int, *, key: int) -> list[Ids]:
        """A shuffled cover of `nodes` by those of `per_batch` clusters each, for an epoch of this key."""
        present = np.unique(self.clusters[nodes])
        order = np.random.default_rng(key).permutation(present)
        groups = [order[first : first + per_batch] for first in range(0, len(order), per_batch)]
        return [nodes[np.isin(self.clusters[nodes], group)] for group in groups]


def _load(path: str) -> Ids:
    try:
        clusters: Ids = np.load(Path(path), allow_pickle=False)
    except (OSError, ValueError) as error:
        raise ValueError(f"sampler.clusters={path} cannot be read: {error}") from None
    return clusters
