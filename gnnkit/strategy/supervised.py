"""The rows that the loss reads in full-graph training: nodes or node pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import Engine
from gnnkit.engine.remote import Lookup, Reach
from gnnkit.graph import Ids, Split
from gnnkit.kernels.dropout import derive
from gnnkit.partition.shard import Shard
from gnnkit.sampler.links import links_of, supervised_pairs
from gnnkit.strategy.base import Worker, tensor_of

_EDGES, _NEGATIVES = 1, 2  # purposes of random keys


@dataclass(frozen=True, slots=True, eq=False)
class Supervised:
    """The rows whose loss one rank computes in an epoch, and the epoch's graph."""

    engine: Engine
    rows: Tensor  # [k] output rows, or [k, 2] pairs
    labels: Tensor  # [k, ...]
    total: int  # sum of k over the ranks
    reach: Reach | None = None  # as in `Batch`
    pair_features: Tensor | None = None  # as in `Batch`


class Supervision(ABC):
    """Selects the rows of each epoch."""

    @staticmethod
    def of(worker: Worker, engine: Engine, num_layers: int) -> Supervision:
        """Creates a supervision by edges for link tasks, or by nodes. Collective.

        Args:
            worker: This rank.
            engine: The engine over the shards.
            num_layers: The model's number of layers.
        """
        return (KeyedEdges if worker.rows.drawn else TrainingRows)(worker, engine, num_layers)

    @abstractmethod
    def epoch(self, epoch: int) -> Supervised:
        """Returns an epoch's rows. Collective."""


class TrainingRows(Supervision):
    """This rank's training nodes or labelled pairs, in every epoch.

    The graph keeps the edges of pairs, because only their labels are predicted.
    """

    def __init__(self, worker: Worker, engine: Engine, num_layers: int) -> None:
        targets = worker.rows.of_rank(engine.shard)
        places, reach = targets.of_split(Split.TRAIN), None
        train, rows = targets.take(places), torch.from_numpy(places).to(worker.device)
        if worker.rows.pairs:
            lookup = Lookup(worker.comm, engine.shard.owned, worker.owner, engine.tally)
            reach, rows = lookup.find(train.rows, num_layers)
        labels, features = (tensor_of(values, worker.device) for values in (train.label, train.features))
        assert labels is not None
        total = int(worker.comm.all_reduce(torch.tensor([len(rows)], device=worker.device)).item())
        self._supervised = Supervised(engine, rows, labels, total, reach, features)

    def epoch(self, epoch: int) -> Supervised:
        return self._supervised


class KeyedEdges(Supervision):
    """A random share of the edges, drawn in each epoch and removed from its graph.

    An edge and its reverse edge are drawn together, so no layer reads an edge that the
    loss predicts. If one relation is predicted, edges of other relations remain, except
    those of reverse relations. Degrees are those of the remaining edges. A rank
    predicts edges that it holds, and fetches both ends' rows from their owners.
    """

    def __init__(self, worker: Worker, engine: Engine, num_layers: int) -> None:
        """Collects the held edges. Collective.

        Args:
            worker: This rank. Its links draw the edges and negative pairs.
            engine: The engine over the shards.
            num_layers: The model's number of layers, for counting rows.
        """
        self._worker, self._engine, self._num_layers = worker, engine, num_layers
        self._links = links = links_of(worker.rows)
        shard = engine.shard  # includes added self-loops
        self._lookup = Lookup(worker.comm, shard.owned, worker.owner, engine.tally)
        destinations = np.repeat(shard.targets, np.diff(shard.csc.indptr))
        self._pairs = np.stack([shard.sources[shard.csc.indices], destinations], 1)  # [held edges, 2]
        types = _types_of(worker.shard, shard.edge_ids)
        self._is_predicted, self._hidden = links.predicts(types), links.hides(types)

    def epoch(self, epoch: int) -> Supervised:
        worker, shard, links = self._worker, self._engine.shard, self._links
        is_supervised = links.draw_supervised(self._pairs, derive(worker.seed, epoch, _EDGES), worker.threads)
        # A cell's slice ranks hold the same edges, and each predicts a part of them.
        shared_edges = np.flatnonzero(
            is_supervised & self._is_predicted & (shard.edge_ids % shard.grid.slices == shard.slice)
        )
        key = derive(worker.seed, epoch, _NEGATIVES)
        pairs, labels, events = supervised_pairs(
            links, self._pairs[shared_edges], shard.edge_ids[shared_edges], key, threads=worker.threads
        )
        reach, rows = self._lookup.find(pairs, self._num_layers)
        count = worker.comm.all_reduce(torch.tensor([len(pairs)], device=worker.device))
        relations = None if links.relation is None else links.relation.hidden
        engine = self._engine.select_edges(np.flatnonzero(~(is_supervised & self._hidden)), relations)
        rows_read = rows, torch.from_numpy(labels).to(worker.device), int(count.item())
        return Supervised(engine, *rows_read, reach, tensor_of(events, worker.device))


def _types_of(shard: Shard, edge_ids: Ids) -> Ids | None:  # [num_edges]
    """Returns the relations of edges, -1 for added self-loops, or None without types.

    Args:
        shard: The rank's shard, without added self-loops.
        edge_ids: [num_edges] ids of its edges in any order, and of self-loops.
    """
    if shard.edge_types is None:
        return None
    types = np.full(len(edge_ids), -1, np.int64)
    is_loop = edge_ids >= shard.num_edges
    order = np.argsort(shard.edge_ids)
    places = np.searchsorted(shard.edge_ids, edge_ids[~is_loop], sorter=order)
    types[~is_loop] = shard.edge_types[order[places]]
    return types
