"""Workloads whose steps predict edges of the rank's share, or their labels."""

from __future__ import annotations

import functools
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.errors import UserError
from gnnkit.graph import Block, Ids, Split
from gnnkit.graph.types import take
from gnnkit.kernels.dropout import derive
from gnnkit.sampler.links import links_of, pairs_of, supervised_pairs
from gnnkit.sampler.targets import targets_of
from gnnkit.strategy.base import tensor_of
from gnnkit.strategy.share import StepInputs, WorkerShare, in_neighbours, induced_block
from gnnkit.strategy.workload import Reader, Workload

_EDGES, _NEGATIVES = 1, 2  # purposes of random keys


class LinkedShare(Workload):
    """One step per epoch, on the share's edges into the rank's nodes.

    In each epoch, a random share of all edges is predicted and does not carry messages.
    An edge and its reverse are selected together. Negative pairs connect nodes of the
    share.
    """

    def __init__(self, reader: Reader, nodes: Ids, *, one_hop: bool) -> None:
        """Builds the share. Collective.

        Args:
            reader: This rank.
            nodes: [k] ascending global ids of the nodes that this rank computes.
            one_hop: Whether the share includes in-neighbours of the rank's nodes.
        """
        graph, links, owner = reader.graph, links_of(reader.worker.rows), reader.worker.rank_of(nodes)
        halo = in_neighbours(graph.csc, nodes) if one_hop else nodes[:0]
        self._reader, self._links, self._owner, self._one_hop = reader, links, owner, one_hop
        self._block = induced_block(graph.csc, np.concatenate([nodes, halo]))
        self._x = reader.rows(self._block.src_nodes)
        assert self._block.edge_ids is not None
        self._pairs = pairs_of(graph.csc, self._block.edge_ids)
        types = take(graph.edge_types, self._block.edge_ids)
        self._is_predicted, self._hidden = links.predicts(types), links.hides(types)
        self._check_negatives()
        self._place = np.full(graph.num_nodes, -1)
        self._place[self._block.src_nodes] = np.arange(len(self._block.src_nodes))
        self.num_own = len(nodes)
        self._count = functools.lru_cache(maxsize=64)(self._count_pairs)

    def _check_negatives(self) -> None:
        """Raises `UserError` if a predicted edge's destination cannot be replaced."""
        relation, nodes = self._links.relation, self._block.src_nodes
        if relation is None or relation.ends is None or not self._is_predicted.any():
            return
        first, end = relation.ends[2:]
        if np.count_nonzero((nodes >= first) & (nodes < end)) < 2:
            raise UserError(
                f"task.relation: worker {self._reader.worker.comm.rank} has a single destination node, so its training "
                "negatives would not differ in the destination: use strategy.halo=one_hop, fewer workers, another "
                "partition, or strategy=individual_sample"
            )

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        block, worker = self._block, self._reader.worker
        assert block.edge_ids is not None
        is_supervised = self._links.draw_supervised(self._pairs, derive(worker.seed, epoch, _EDGES))
        is_own = is_supervised & self._is_predicted & (self._owner[self._pairs[:, 1]] == worker.comm.rank)
        negatives_key = derive(worker.seed, epoch, _NEGATIVES)
        pairs, labels, events = supervised_pairs(
            self._links, self._pairs[is_own], block.edge_ids[is_own], negatives_key, block.src_nodes
        )
        share = WorkerShare(_without(block, is_supervised & self._hidden), len(block.src_nodes))
        rows = torch.from_numpy(self._place[pairs]).to(worker.device)
        share_inputs = self._reader.hold(share, self._x).inputs(key)
        values = {"labels": tensor_of(labels, worker.device), "pair_features": tensor_of(events, worker.device)}
        return replace(share_inputs, rows=rows, **values)  # type: ignore[arg-type]

    def rows_between(self, first: int, last: int) -> int:
        return sum(self._count(epoch) for epoch in range(first, last))  # an epoch has one step

    def _count_pairs(self, epoch: int) -> int:
        """Counts the pairs of all ranks in an epoch."""
        pairs, owner = pairs_of(self._reader.graph.csc), self._owner
        is_supervised = self._links.draw_supervised(pairs, derive(self._reader.worker.seed, epoch, _EDGES))
        is_supervised &= self._links.predicts(self._reader.graph.edge_types)
        if not self._one_hop:
            is_supervised &= owner[pairs[:, 0]] == owner[pairs[:, 1]]
        return int(is_supervised.sum()) * (1 + self._links.negatives)


class LabelledShare(Workload):
    """One step per epoch, on the share's labelled pairs into the rank's nodes.

    Pairs with an end outside the share are left out.
    """

    def __init__(self, reader: Reader, nodes: Ids, *, one_hop: bool) -> None:
        """Builds the share. Collective.

        Args:
            reader: This rank.
            nodes: [k] ascending global ids of the nodes that this rank computes.
            one_hop: Whether the share includes in-neighbours of the rank's nodes.
        """
        graph, worker = reader.graph, reader.worker
        halo = in_neighbours(graph.csc, nodes) if one_hop else nodes[:0]
        block = induced_block(graph.csc, np.concatenate([nodes, halo]))
        place = np.full(graph.num_nodes, -1)
        place[block.src_nodes] = np.arange(len(block.src_nodes))
        targets = targets_of(worker.rows)
        train = targets.take(targets.of_split(Split.TRAIN))
        ends = place[train.rows]
        positions = np.flatnonzero((ends[:, 0] >= 0) & (ends[:, 1] >= 0) & (ends[:, 1] < len(nodes)))
        values = (ends[positions], train.label[positions], take(train.features, positions))
        self._rows, self._labels, self._features = (tensor_of(array, worker.device) for array in values)
        self.num_own = len(positions)
        self.num_train = int(worker.comm.all_reduce(torch.tensor([len(positions)], device=worker.device)).item())
        self._held = reader.hold(WorkerShare(block, len(block.src_nodes)))

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        assert self._rows is not None
        assert self._labels is not None
        rows = {"rows": self._rows, "labels": self._labels, "pair_features": self._features}
        return replace(self._held.inputs(key), **rows)  # type: ignore[arg-type]


def _without(block: Block, mask: npt.NDArray[np.bool_]) -> Block:
    """Removes the edges of a block in a mask [num_edges]."""
    edges = np.flatnonzero(~mask)
    return block.with_edges(np.searchsorted(edges, block.indptr), edges)
