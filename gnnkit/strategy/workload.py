"""A rank's preset workload: the inputs of each step, from a share of the graph."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency, BlockAdjacency, BlockLayers, Pool, Rows, ShardAdjacency, Tally
from gnnkit.errors import UserError
from gnnkit.exchange import ForwardPass, ForwardPasses, RowExchange
from gnnkit.graph import CSC, Block, Graph, Ids, Split
from gnnkit.graph.types import take
from gnnkit.kernels.dropout import derive
from gnnkit.sampler.links import links_of, pairs_of, supervised_pairs
from gnnkit.sampler.targets import targets_of
from gnnkit.strategy.base import Worker, tensor_of


@dataclass(frozen=True, slots=True, eq=False)
class WorkerShare:
    """Nodes and edges that a worker processes, training nodes first."""

    block: Block  # all nodes are computed: num_dst = num_src
    num_seeds: int  # nodes whose loss is read, the block's first nodes

    @classmethod
    def of(cls, graph: Graph, nodes: Ids, halo: Ids | None = None) -> WorkerShare:
        """Selects some nodes with all edges between them.

        Args:
            graph: The complete graph.
            nodes: [num_nodes] ascending global ids. Their training nodes are seeds.
            halo: [num_halo] further nodes, without seeds, or None.
        """
        trains = graph.split[nodes] == Split.TRAIN
        non_seeds = [nodes[~trains]] if halo is None else [nodes[~trains], halo]
        return cls(induced_block(graph.csc, np.concatenate([nodes[trains], *non_seeds])), int(trains.sum()))

    @property
    def seeds(self) -> Block:
        """The seeds' rows only, as computed by the last layer."""
        indptr = self.block.indptr[: self.num_seeds + 1]
        return self.block.with_edges(indptr, slice(0, int(indptr[-1])))


def induced_block(csc: CSC, nodes: Ids) -> Block:
    """Selects some nodes with all edges between them, in the order of `csc`.

    Args:
        csc: The edges of the graph.
        nodes: [num_nodes] distinct nodes.
    """
    place = np.full(csc.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    edges, degree = csc.in_edges(nodes)
    source = place[csc.indices[edges]]
    is_inside = source >= 0
    row = np.repeat(np.arange(len(nodes)), degree)[is_inside]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row, minlength=len(nodes)))])
    return Block(indptr, source[is_inside], nodes, edges[is_inside])


def in_neighbours(csc: CSC, nodes: Ids) -> Ids:  # [num_halo] ascending
    """Returns the sources of edges into some nodes, except these nodes."""
    is_halo = np.zeros(csc.num_nodes, bool)
    is_halo[csc.indices[csc.in_edges(nodes)[0]]] = True
    is_halo[nodes] = False
    return np.flatnonzero(is_halo)


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """The rows and edges of one step, without the strategy's update."""

    x: Rows  # [num_src, width]
    adjacencies: Sequence[Adjacency]  # one per layer
    rows: Tensor  # [k] int64
    labels: Tensor  # [k, ...]
    row_weights: Tensor | None = None  # [k] factor of each row's loss. None: 1 each
    pair_features: Tensor | None = None  # as in `Batch`


class HeldShare:
    """A share with its input rows and adjacencies, reusable for many steps."""

    def __init__(self, share: WorkerShare, x: Rows, layers: BlockLayers, num_layers: int) -> None:
        """Creates the adjacencies.

        Args:
            share: Nodes and edges.
            x: [num_nodes, width] features of the nodes.
            layers: Node and edge values of the blocks.
            num_layers: Number of model layers.
        """
        seeds = share.block.src_nodes[: share.num_seeds]
        self.x, self.rows = x, torch.arange(share.num_seeds, device=x.device)
        self.labels = torch.from_numpy(layers.graph.labels[seeds]).to(x.device)
        hidden = [BlockAdjacency(layers, share.block, 0)] * (num_layers - 1) if num_layers > 1 else []
        self._layers = [*hidden, BlockAdjacency(layers, share.seeds, 0)]

    def inputs(self, key: int) -> StepInputs:
        """Returns the inputs of the step with a random key."""
        self._layers = [adjacency.with_key(derive(key, layer)) for layer, adjacency in enumerate(self._layers)]
        return StepInputs(self.x, tuple(self._layers), self.rows, self.labels)


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
    local_degrees: bool  # whether a share is treated as a separate graph
    tally: Tally  # counts the rows that are read

    @classmethod
    def of(cls, worker: Worker, model: nn.Module, tally: Tally, *, local_degrees: bool) -> Reader:
        """Stores the graph.

        Args:
            worker: This rank.
            model: The model, with `num_layers` and `self_loops`.
            tally: Counts seconds spent waiting for other ranks, and bytes read from
                disk.
            local_degrees: Whether a share is treated as a separate graph.
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
            x: [num_nodes, width] features of the nodes. If None, reads them.
        """
        x = self.rows(share.block.src_nodes) if x is None else x
        if not self.local_degrees:
            return HeldShare(share, x, self.layers, self.num_layers)
        unit_share = replace(share, block=replace(share.block, weight=np.ones(len(share.block.indices))))
        return HeldShare(unit_share, x, self.layers.of_part(share.block), self.num_layers)


class OneShare(Workload):
    """One step per epoch over the complete share, which is built once."""

    def __init__(self, reader: Reader, nodes: Ids, halo: Ids | None = None) -> None:
        """Builds the share.

        Args:
            reader: This rank.
            nodes: [num_own] this rank's nodes, ascending.
            halo: [num_halo] additional nodes of the share. If None, none.
        """
        graph = reader.graph
        share = WorkerShare.of(graph, nodes, halo)
        self.num_train, self.num_own = int(np.count_nonzero(graph.split == Split.TRAIN)), share.num_seeds
        self._held = reader.hold(share)

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        return self._held.inputs(key)


class Exchanged(Workload):
    """All in-edges of the owned nodes, with rows exchanged every few epochs.

    In other epochs, the rows last received are constants.
    """

    def __init__(self, worker: Worker, model: nn.Module, every: int, exchange: RowExchange) -> None:
        """Sets up the exchange. Collective.

        Args:
            worker: This rank.
            model: The model, with `num_layers` and `self_loops`.
            every: Number of epochs between exchanges.
            exchange: How rows are exchanged.
        """
        self._engine, self._every, self._device = worker.engine(model), every, worker.device
        self._passes = ForwardPasses(exchange, self._engine.topology, pauses=every > 1)
        self.tally = self._engine.tally
        self._num_layers: int = model.num_layers  # type: ignore[assignment]
        shard, device = self._engine.shard, worker.device
        self._x = worker.lasting_rows(shard.owned, model, self.tally)
        self._rows = torch.from_numpy(np.flatnonzero(shard.split == Split.TRAIN)).to(device)
        self._labels = torch.from_numpy(np.array(shard.labels)).to(device)[self._rows]
        self.num_own = len(self._rows)
        self.num_train = int(worker.comm.all_reduce(torch.tensor([self.num_own], device=device)).item())

    def state_dict(self) -> dict[str, object]:
        """Returns the schedule's stored rows."""
        return self._passes.state_dict()

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restores the schedule's rows."""
        self._passes.load_state_dict(state, self._device)

    def inputs(self, epoch: int, step: int, key: int) -> StepInputs:
        return self._over(key, self._passes.step(key, exchanges=epoch % self._every == 0))

    def exact_inputs(self, key: int) -> StepInputs:
        """Returns the rows and edges of a step with current rows of all nodes."""
        return self._over(key, ForwardPass())

    def _over(self, key: int, forward: ForwardPass) -> StepInputs:
        adjacencies = ShardAdjacency.layers(self._engine, self._num_layers, key, forward)
        return StepInputs(self._x, adjacencies, self._rows, self._labels)


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
        return int(is_supervised.sum()) * (1 + self._links.training.count)


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
