"""A rank's workload: the inputs of each step of an epoch."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.engine import BlockLayers, Pool, Rows, Tally
from gnnkit.graph import Graph, Ids, Split
from gnnkit.kernels.dropout import derive
from gnnkit.partition import Grid, Partitioner
from gnnkit.strategy.base import Worker
from gnnkit.strategy.coverage import partner, weigh
from gnnkit.strategy.share import HeldShare, StepInputs, WorkerShare


class Workload(ABC):
    """One rank's steps. All ranks have equally many steps per epoch."""

    num_steps: int = 1  # number of steps per epoch
    num_train: int  # number of all ranks' training nodes, which an epoch reads once
    num_own: int  # number of this rank's training nodes

    @abstractmethod
    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        """Returns a step's inputs.

        Args:
            epoch: Number of the epoch.
            step: Number of the step within the epoch.
            key: The step's random key.
        """

    def rows_between(self, first: int, last: int) -> int:
        """Counts the rows that all ranks' losses read in steps `first` to `last` - 1.

        Steps are counted from the start of the run.
        """
        return self._rows_before(last) - self._rows_before(first)

    def _rows_before(self, step: int) -> int:
        return step * self.num_train


@dataclass(frozen=True, slots=True, eq=False)
class Reader:
    """Reads the complete graph to build shares."""

    worker: Worker
    model: nn.Module
    graph: Graph
    layers: BlockLayers
    num_layers: int  # of the model
    local_degrees: bool  # whether a share is treated as a graph of its own
    tally: Tally  # counts the rows that are read

    @classmethod
    def of(cls, worker: Worker, model: nn.Module, tally: Tally, *, local_degrees: bool) -> Reader:
        """Stores the graph.

        Args:
            worker: This rank.
            model: The model, with `num_layers` and `self_loops`.
            tally: Counts seconds spent waiting for other ranks, and bytes read from
                disk.
            local_degrees: Whether a share is treated as a graph of its own.
        """
        assert worker.graph is not None, "needs the whole graph"
        layers = worker.layers(model, Pool(worker.comm, tally))
        num_layers: int = model.num_layers  # type: ignore[assignment]
        return cls(worker, model, worker.graph, layers, num_layers, local_degrees, tally)

    def rows(self, nodes: Ids) -> Rows:  # [num_nodes, width]
        """Reads nodes' features, or returns lazy rows if they are sparse or on disk."""
        return self.worker.lasting_rows(nodes, self.model, self.tally)

    def hold(self, share: WorkerShare, x: Rows | None = None) -> HeldShare:
        """Prepares a share for computation.

        Args:
            share: Nodes and edges.
            x: [num_nodes, width] features of the nodes. None: reads them.
        """
        x = self.rows(share.block.src_nodes) if x is None else x
        if not self.local_degrees:
            return HeldShare(share, x, self.layers, self.num_layers)
        unweighted = replace(share, block=replace(share.block, weight=np.ones(len(share.block.indices))))
        return HeldShare(unweighted, x, self.layers.of_part(share.block), self.num_layers)


class OneShare(Workload):
    """One step per epoch over the complete share, which is built once."""

    def __init__(self, reader: Reader, nodes: Ids, halo: Ids | None = None) -> None:
        """Builds the share.

        Args:
            reader: This rank.
            nodes: [num_own] this rank's nodes, ascending.
            halo: [num_halo] additional nodes of the share. None: none.
        """
        graph = reader.graph
        share = WorkerShare.of(graph, nodes, halo)
        self.num_train, self.num_own = int(np.count_nonzero(graph.split == Split.TRAIN)), share.num_seeds
        self._held = reader.hold(share)

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        return self._held.inputs(key)


class Clusters(Workload):
    """Some clusters of the share per step, with the edges between them.

    Cluster-GCN (Chiang et al., KDD 2019). A partitioner cuts the share into clusters.
    An epoch uses each cluster once, in an order derived from seed, epoch and rank.
    """

    def __init__(self, reader: Reader, nodes: Ids, *, clusters: int, per_batch: int, cutter: Partitioner) -> None:
        """Builds and clusters the share. Collective.

        Args:
            reader: This rank.
            nodes: [num_own] this rank's nodes, ascending.
            clusters: Number of clusters per rank.
            per_batch: Number of clusters per batch.
            cutter: Partitioner applied to the share, as a graph without features.
        """
        comm = reader.worker.comm
        self._reader, self._clusters, self._per_batch = reader, clusters, per_batch
        self.num_steps = -(-clusters // per_batch)
        self._share = WorkerShare.of(reader.graph, nodes)
        self._cluster = cutter.assign(self._share.graph(reader.graph), Grid(clusters, 1, 1)).node_rank  # [num_own]
        cluster_counts = np.bincount(self._cluster[: self._share.num_seeds], minlength=clusters)
        counts = torch.zeros(comm.world_size, clusters, dtype=torch.int64, device=comm.device)
        counts[comm.rank] = torch.from_numpy(cluster_counts)
        self._counts = comm.all_reduce(counts).cpu().numpy()  # number of training nodes by rank and cluster
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
        return self._reader.hold(self._share.part(nodes), x).inputs(key)

    def _rows_before(self, step: int) -> int:
        epoch, place = divmod(step, self.num_steps)
        return epoch * self.num_train + sum(self._rows(epoch)[:place])

    def _count_rows(self, epoch: int) -> list[int]:  # [num_steps]
        """Counts all ranks' rows in each step of an epoch."""
        orders = np.stack([self.chosen(epoch, rank) for rank in range(len(self._counts))])
        rows = np.take_along_axis(self._counts, orders, axis=1).sum(0)
        return [int(part.sum()) for part in np.split(rows, range(self._per_batch, len(rows), self._per_batch))]


class Covered(Workload):
    """The rank's own chunk and, in each rotation, one other, weighted by coverage."""

    def __init__(self, reader: Reader, owner: Ids, *, every: int) -> None:
        """Stores the chunks.

        Args:
            reader: This rank.
            owner: [num_nodes] rank of each node. A rank's nodes are its chunk.
            every: Number of epochs per rotation.
        """
        self._reader, self._owner, self._every, self._rotation = reader, owner, every, -1
        trains = reader.graph.split == Split.TRAIN
        self.num_train = int(np.count_nonzero(trains))
        self.num_own = int(np.count_nonzero(trains[owner == reader.worker.comm.rank]))

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        if epoch // self._every != self._rotation:
            self._rotation = epoch // self._every
            self._build(self._rotation)
        return self._held.inputs(key, self._coverage)

    def _build(self, rotation: int) -> None:
        worker, graph = self._reader.worker, self._reader.graph
        rank, num_ranks = worker.comm.rank, worker.comm.world_size
        other = partner(rank, num_ranks, rotation)
        halo = None if other == rank else np.flatnonzero(self._owner == other)
        share = WorkerShare.of(graph, np.flatnonzero(self._owner == rank), halo)
        nodes = share.block.src_nodes
        degree = graph.csc.indptr[nodes + 1] - graph.csc.indptr[nodes]
        block, coverage = weigh(share.block, self._owner[nodes], degree, num_ranks - 1)
        self._held = self._reader.hold(replace(share, block=block))
        self._coverage = torch.tensor(coverage[: share.num_seeds], dtype=worker.dtype, device=worker.device)
