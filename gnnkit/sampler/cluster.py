"""Whole clusters with the edges between them."""

from __future__ import annotations

from pathlib import Path

import numpy.typing as npt

from gnnkit import _core
from gnnkit.graph import CSC, Floats, Ids
from gnnkit.sampler.base import NativeSampler, Reading, Sampler, as_ids, check_threads
from gnnkit.storage import read_npy


class ClusterSampler(NativeSampler):
    """Cluster-GCN (Chiang et al., KDD 2019): all edges between the clusters of the seeds, and none from elsewhere.

    Its batches are the seeds of whole clusters, `batch_size` clusters each. Other nodes of these
    clusters are in the batch as far as they reach a seed within `num_hops`; the rest could not change a result.
    """

    by_node = False

    def __init__(
        self,
        clusters: npt.ArrayLike | str,  # [num_nodes] cluster of each node, or an .npy file of it
        num_hops: int = 2,
        *,
        edge_ids: bool = True,
        threads: int | None = None,
    ) -> None:
        if num_hops < 1:
            raise ValueError(f"sampler.num_hops={num_hops} must be at least 1")
        self.clusters = as_ids("sampler.clusters", _load(clusters) if isinstance(clusters, str) else clusters)
        self.num_hops = num_hops
        self.edge_ids = edge_ids
        self.threads = check_threads(threads)

    def native(self) -> _core.Sampler:
        return _core.Sampler.cluster(self.num_hops)

    def reading(self, graph: CSC) -> Reading:
        self._check(graph)
        return Reading(graph, cluster=self.clusters)

    def groups(self, graph: CSC, seeds: Ids) -> Ids:  # [num_seeds]
        self._check(graph)
        return self.clusters[seeds]

    def costs(self, graph: CSC, seeds: Ids) -> Floats:  # [num_seeds]
        return Sampler.costs(self, graph, seeds)

    def _check(self, graph: CSC) -> None:
        if len(self.clusters) != graph.num_sources:
            raise ValueError(f"sampler.clusters has {len(self.clusters)} entries, the graph {graph.num_sources} nodes")


def _load(path: str) -> Ids:
    try:
        return read_npy(Path(path))
    except ValueError as error:
        raise ValueError(f"sampler.clusters={path} cannot be read: {error}") from None
