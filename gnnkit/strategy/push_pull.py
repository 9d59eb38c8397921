"""Each rank's batches, whose first layer is computed by all ranks, by columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, BlockAdjacency, Rows, Tally
from gnnkit.engine.block import LayerValues
from gnnkit.engine.columns import ColumnAdjacency, demand_of_blocks, join_blocks, pack_block, unpack_block
from gnnkit.engine.remote import TableFeatures
from gnnkit.engine.remote.fetched import FetchedLayers, OwnedRows
from gnnkit.engine.remote.owners import Owners, as_bytes, swap, to_all
from gnnkit.engine.remote.row_cache import RowCache
from gnnkit.errors import UserError
from gnnkit.exchange.route import Peers, Route, from_all
from gnnkit.exchange.schedule import Passes
from gnnkit.exchange.wire import Wire
from gnnkit.graph import CSC, Block, Floats, SparseFeatures
from gnnkit.kernels.dropout import derive
from gnnkit.partition.traffic import column_shares
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.fetched import FetchedBatch, FetchedBatches
from gnnkit.strategy.link_seeds import LinkSeeds
from gnnkit.strategy.sampled import SampledBatches
from gnnkit.strategy.seeds import NodeSeeds, Seeds


class Columns:
    """The feature columns of all nodes that one rank holds.

    Each rank's first block is sent to all ranks, which push the products of their
    columns back to the rank (P3: Gandhi and Iyer, OSDI 2021).
    """

    def __init__(
        self, worker: Worker, model: nn.Module, table: Floats | SparseFeatures, columns: slice, tally: Tally
    ) -> None:
        """Stores the columns.

        Args:
            worker: This rank.
            model: The model.
            table: [num_nodes, columns of this rank] features. Sparse features have all
                columns, but values in this rank's columns only.
            columns: Input columns that this rank holds.
            tally: Counter of exchanged rows.
        """
        self._model = model
        self._comm, self._tally, self._columns = worker.comm, tally, columns
        self._plane = Peers(Wire(worker.comm, range(worker.comm.world_size), tally), Passes())
        self._features = TableFeatures(table, None, worker.dtype, worker.device)

    def inputs(self, blocks: Sequence[Block], layers: LayerValues, key: int) -> tuple[Rows, Sequence[Adjacency]]:
        """Returns the input rows of the first layer, and one adjacency per layer.

        Collective.

        Args:
            blocks: [num_layers] blocks of this rank's batch.
            layers: Node and edge values of all ranks' first blocks.
            key: The step's key.
        """
        comm, (first, *others) = self._comm, blocks
        numbers, counts = from_all(pack_block(first, comm.device), comm, self._tally)
        firsts = [unpack_block(part.cpu().numpy()) for part in torch.split(numbers, counts)]
        route = Route("reduce", demand_of_blocks(firsts, comm), first.src_nodes[: first.num_dst], self._plane)
        block = join_blocks(firsts)
        adjacency = ColumnAdjacency(layers, block, route, self._columns, derive(key, 0))
        rest = (BlockAdjacency(layers, other, derive(key, layer)) for layer, other in enumerate(others, 1))
        return self._features.input_rows(block.src_nodes, self._model), (adjacency, *rest)


class PushPullBatches(SampledBatches):
    """Sampled batches of a complete graph, without exchange of features."""

    gathers = False

    def __init__(self, worker: Worker, model: nn.Module, batch_size: int, tally: Tally, prefetch: int = 2) -> None:
        """Reads this rank's columns.

        Args:
            worker: This rank, with graph and sampler.
            model: The model, whose first layer reads an adjacency's `columns`.
            batch_size: Seeds per worker and step.
            tally: Counter of exchanged rows.
            prefetch: Batches drawn in advance.
        """
        _check_model(model)
        super().__init__(worker, model, tally, batch_size=batch_size, prefetch=prefetch)
        features, width = self.graph.features, self.graph.features.shape[1]
        columns = _columns(width, worker.comm.world_size)[worker.comm.rank]
        if isinstance(features, SparseFeatures):
            self._columns = Columns(worker, model, features.within(columns), slice(0, width), tally)
        else:
            self._columns = Columns(
                worker, model, np.ascontiguousarray(np.asarray(features[:, columns])), columns, tally
            )

    def close(self) -> None:
        """Does nothing, because sampling ends with an epoch."""

    def _inputs(
        self, blocks: Sequence[Block], x: npt.NDArray[Any] | None, key: int
    ) -> tuple[Rows, Sequence[Adjacency]]:
        return self._columns.inputs(blocks, self.layers, key)


class PushPullShards(FetchedBatches):
    """The same batches for a distributed graph, sampled at owners.

    Owners send each rank its feature columns once. Degrees and labels are fetched with
    each batch, and sent to all ranks with the drawn edges.
    """

    def __init__(self, worker: Worker, model: nn.Module, batch_size: int, tally: Tally, prefetch: int = 2) -> None:
        """Fetches this rank's columns, and starts the thread. Collective.

        Args:
            worker: This rank, with a shard and a sampler.
            model: The model, whose first layer reads an adjacency's `columns`.
            batch_size: Seeds per worker and step.
            tally: Counter of exchanged rows.
            prefetch: Batches drawn in advance.
        """
        _check_model(model)
        shard, comm = worker.shard, worker.comm
        owners = Owners.of(shard, comm)
        seeds: Seeds = NodeSeeds(worker, batch_size) if worker.links is None else LinkSeeds(worker, batch_size)
        none = np.empty((len(shard.owned), 0), np.float32)
        rows = OwnedRows(replace(shard, features=none), owners, comm, values=True)
        super().__init__(worker, model, tally, seeds, RowCache("none", None, rows, comm), prefetch)
        columns, width = _columns(shard.features.shape[1], comm.world_size), shard.features.shape[1]
        own_columns, place = columns[comm.rank], np.argsort(np.argsort(owners.rank_of, kind="stable"))
        if isinstance(shard.features, SparseFeatures):
            table = _sparse_columns(shard.features, columns, comm)[place]
            self._columns = Columns(worker, model, table, slice(0, width), tally)
        else:
            received = swap(comm, [as_bytes(np.asarray(shard.features[:, part])) for part in columns])
            dense = (
                np.concatenate(received)
                .view(shard.features.dtype)
                .reshape(shard.num_nodes, own_columns.stop - own_columns.start)
            )
            self._columns = Columns(worker, model, dense[place], own_columns, tally)

    def _batch(self, prepared: FetchedBatch) -> Batch:
        worker, step, comm = self.worker, prepared.step, self.worker.comm
        assert prepared.edges is not None
        with self.tally.timed():
            values = (prepared.batch.input_nodes.astype(np.int64), prepared.fetched.rows, prepared.edges)
            ids, rows, edges = (np.concatenate(to_all(comm, part)) for part in values)
        layers = FetchedLayers(worker.shard, self.model, worker.dtype, worker.device, (ids, rows), edges, self.pool)
        x, adjacencies = self._columns.inputs(step.kept(prepared.batch.blocks, layers), layers, step.key)
        return step.batch(x, adjacencies, prepared.fetched.rows["label"][: len(step.seeds)])


def _columns(width: int, num_ranks: int) -> list[slice]:
    """Returns the columns of each rank."""
    ends = np.cumsum([0, *column_shares(width, num_ranks)]).tolist()
    return [slice(first, last) for first, last in pairwise(ends)]


def _sparse_columns(features: SparseFeatures, columns: Sequence[slice], comm: Communicator) -> SparseFeatures:
    """Fetches a rank's columns of all nodes, sorted by owner. Collective."""
    parts = [features.within(part_columns) for part_columns in columns]
    kinds = [(np.diff(part.csr.indptr), part.csr.indices, part.values) for part in parts]
    received = (
        np.concatenate(swap(comm, [as_bytes(array) for array in kind])).view(kind[0].dtype)
        for kind in zip(*kinds, strict=True)
    )
    counts, indices, values = received
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return SparseFeatures(CSC(indptr, indices, values, features.shape[1]))


def _check_model(model: nn.Module) -> None:
    if not getattr(model, "reads_columns", False):
        raise UserError(
            f"strategy.mode=push_pull sums products of columns, so the first layer must be linear before the "
            f"sum over in-edges, but {type(model).__name__} is not: use model=gcn, model=gin, model=sage with "
            "model.aggregator=mean, or strategy.mode=cooperative"
        )
