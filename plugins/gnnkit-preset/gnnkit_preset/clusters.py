"""Clusters of a worker's share, some of which a step reads."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit import plugins
from gnnkit.engine import derive
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Graph, Ids
from gnnkit.partition import Grid, Partitioner
from gnnkit.strategy.workload import Reader, StepInputs, WorkerShare, Workload, induced_block
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole


@dataclass(frozen=True, slots=True)
class ClusterKeys:
    """How many clusters a worker's share has, how many a step reads, what cuts them."""

    clusters: int
    per_batch: int
    cutter: Partitioner

    @classmethod
    def of(cls, clusters: int, clusters_per_batch: int, clusters_by: str) -> ClusterKeys:
        """Checks the keys."""
        count = whole("strategy.clusters", clusters, 1, MAX_COUNT)
        per_batch = whole("strategy.clusters_per_batch", clusters_per_batch, 1, MAX_COUNT)
        if per_batch > count:
            raise UserError(f"strategy.clusters_per_batch={per_batch} must be at most strategy.clusters={count}")
        return cls(count, per_batch, _partitioner(clusters_by))

    @property
    def num_steps(self) -> int:
        """Number of steps per epoch."""
        return -(-self.clusters // self.per_batch)


def _partitioner(name: str) -> Partitioner:
    """Creates a partitioner. Raises `UserError` if it requires arguments."""
    cls = plugins.load("partition", one_of("strategy.clusters_by", name, plugins.names("partition")))
    for key, parameter in inspect.signature(cls).parameters.items():
        if parameter.default is parameter.empty and parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
            raise UserError(f"strategy.clusters_by={name} wants {key}: choose a partitioner that needs no argument")
    partitioner: Partitioner = cls()
    return partitioner


class Clusters(Workload):
    """Some clusters of the share per step, with the edges between them.

    Cluster-GCN (Chiang et al., KDD 2019). A partitioner cuts the share into clusters.
    An epoch uses each cluster once, in an order derived from seed, epoch and rank.
    """

    def __init__(self, reader: Reader, nodes: Ids, keys: ClusterKeys) -> None:
        """Builds and clusters the share. Collective.

        Args:
            reader: This rank.
            nodes: [num_own] this rank's nodes, ascending.
            keys: The numbers of clusters. The partitioner cuts the share, as a graph
                without features.
        """
        comm = reader.worker.comm
        self._reader, self._clusters, self._per_batch = reader, keys.clusters, keys.per_batch
        self.num_steps = keys.num_steps
        self._share = WorkerShare.of(reader.graph, nodes)
        self._cluster = keys.cutter.assign(_as_graph(self._share, reader.graph), Grid(keys.clusters, 1, 1)).node_rank
        cluster_counts = np.bincount(self._cluster[: self._share.num_seeds], minlength=keys.clusters)
        self._counts = comm.all_gather(cluster_counts).cpu().numpy()  # number of training nodes by rank and cluster
        self.num_train, self.num_own = int(self._counts.sum()), self._share.num_seeds
        self._x = reader.rows(self._share.block.src_nodes)
        self._rows = functools.lru_cache(maxsize=4)(self._count_rows)

    def chosen(self, epoch: int, rank: int) -> Ids:  # [clusters]
        """Returns a rank's clusters in the order of steps."""
        return np.random.default_rng(derive(self._reader.worker.seed, epoch, rank)).permutation(self._clusters)

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        order = self.chosen(epoch, self._reader.worker.comm.rank)
        clusters = order[step * self._per_batch : (step + 1) * self._per_batch]
        nodes = np.flatnonzero(np.isin(self._cluster, clusters))
        cached_rows = self._x
        x = (
            cached_rows[torch.from_numpy(nodes).to(cached_rows.device)]
            if isinstance(cached_rows, Tensor)
            else cached_rows.take(nodes)
        )
        return self._reader.hold(_part(self._share, nodes), x).inputs(key)

    def _rows_before(self, step: int) -> int:
        epoch, place = divmod(step, self.num_steps)
        return epoch * self.num_train + sum(self._rows(epoch)[:place])

    def _count_rows(self, epoch: int) -> list[int]:  # [num_steps]
        """Counts all ranks' rows in each step of an epoch."""
        orders = np.stack([self.chosen(epoch, rank) for rank in range(len(self._counts))])
        rows = np.take_along_axis(self._counts, orders, axis=1).sum(0)
        return [int(part.sum()) for part in np.split(rows, range(self._per_batch, len(rows), self._per_batch))]


def _as_graph(share: WorkerShare, graph: Graph) -> Graph:
    """Returns a share of the complete `graph` as a graph without features."""
    block, nodes = share.block, share.block.src_nodes
    coordinates = None if graph.coordinates is None else graph.coordinates[nodes]
    none = np.empty((len(nodes), 0), np.float32)
    return Graph(CSC(block.indptr, block.indices), none, graph.labels[nodes], graph.split[nodes], None, coordinates)


def _part(share: WorkerShare, positions: Ids) -> WorkerShare:
    """Selects nodes at ascending positions [k], with the edges between them."""
    block = share.block
    inner = induced_block(CSC(block.indptr, block.indices), positions)
    assert block.edge_ids is not None
    assert inner.edge_ids is not None
    nodes, edge_ids = block.src_nodes[positions], block.edge_ids[inner.edge_ids]
    return WorkerShare(
        Block(inner.indptr, inner.indices, nodes, edge_ids), int(np.searchsorted(positions, share.num_seeds))
    )
