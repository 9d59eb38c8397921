"""Sampling of complete clusters, with the edges between them."""

from __future__ import annotations

import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Ids, RelationGroups
from gnnkit.sampler.base import NativeSampler, Reading, Sampler
from gnnkit.sampler.fanouts import MAX_HOPS, Fanouts
from gnnkit.utils.checks import int64s, whole
from gnnkit.utils.storage import array_or_file


class ClusterSampler(NativeSampler):
    """Samples complete clusters: Cluster-GCN (Chiang et al., KDD 2019).

    Takes all edges within and between the seeds' clusters, and drops edges from other
    clusters. A `Loader` builds batches from `batch_size` clusters each. Other nodes of
    these clusters are included if they reach a seed within `num_hops` edges, because
    more distant nodes do not affect the result.

    Choose it for deep models on graphs with clear clusters, because a batch does not
    grow with the number of hops. The loss of a batch omits the messages between
    clusters of different batches, so it is biased.
    """

    by_node = False
    by_relation = False

    def __init__(
        self, clusters: npt.ArrayLike | str, num_hops: int = 2, *, edge_ids: bool = True, threads: int | None = None
    ) -> None:
        """Reads the clusters. Raises `UserError` unless they are integers.

        Args:
            clusters: [num_nodes] integer cluster of each node, or path of an .npy file.
            num_hops: Number of model layers, 1 to 1000.
            edge_ids: Whether blocks contain edge positions in the CSC.
            threads: Threads per batch. Default: all available cores.
        """
        num_hops = whole("sampler.num_hops", num_hops, 1, MAX_HOPS)
        super().__init__(Fanouts.all(num_hops), edge_ids=edge_ids, threads=threads)
        self.clusters = int64s("sampler.clusters", array_or_file("sampler.clusters", clusters))

    def native(self) -> _core.Sampler:
        return _core.Sampler.cluster(self.num_hops)

    def reading(self, graph: CSC) -> Reading:
        self._check(graph)
        return Reading(graph, cluster=self.clusters)

    def groups(self, graph: CSC, seeds: Ids) -> Ids:  # [num_seeds]
        self._check(graph)
        return self.clusters[seeds]

    def costs(self, graph: CSC | RelationGroups, seeds: Ids) -> Floats:  # [num_seeds]
        return Sampler.costs(self, graph if isinstance(graph, CSC) else graph.csc, seeds)

    def _check(self, graph: CSC) -> None:
        if len(self.clusters) != graph.num_sources:
            raise UserError(
                f"sampler.clusters has {len(self.clusters)} entries, but the graph has {graph.num_sources} nodes"
            )
