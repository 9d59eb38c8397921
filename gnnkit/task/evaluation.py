"""Owned nodes' logits, computed from all neighbours without noise."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Survivors
from gnnkit.engine import Engine, Pool, Rows, ShardAdjacency
from gnnkit.engine.in_place import default_dtype, forbid_writes
from gnnkit.engine.remote import FeatureStore, LearnedRows, TableFeatures
from gnnkit.engine.remote.disk import DiskFeatures, OnDisk
from gnnkit.engine.remote.owned_rows import OwnedRows
from gnnkit.engine.remote.owners import MessageCounter, Owners
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS, Features, Floats, Graph, Ids, MiniBatch, SparseFeatures, Split, kept_rows
from gnnkit.graph.times import Times, at_times
from gnnkit.kernels.products import fast_products
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.partition import column_shares
from gnnkit.partition.shard import Shard
from gnnkit.sampler import FullSampler
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import draws_key
from gnnkit.strategy import Worker
from gnnkit.strategy.fetched_batches import Draw
from gnnkit.strategy.seeds import Step
from gnnkit.utils.storage import forget_pages, mapped_file, reserve


def by_node(rows: Tensor, worker: Worker) -> Tensor | None:  # [num_owned, ...] -> [num_nodes, ...]
    """Returns all nodes' rows in the dataset's order on the leader, and None elsewhere.

    Collective. Use it for tables of predictions, which the leader writes.

    Args:
        rows: [num_owned, ...] this rank's rows, in the order of `Worker.owned`.
        worker: This rank's part of the run.
    """
    return _join_rows(rows, worker.owned, worker)


def by_row(rows: Tensor, worker: Worker) -> Tensor | None:  # [num_targets, ...] -> [num_rows, ...]
    """Like `by_node`, for the rows that the task predicts. Collective."""
    return _join_rows(rows, worker.targets.ids, worker)


def _join_rows(rows: Tensor, ids: Ids, worker: Worker) -> Tensor | None:
    numbers = worker.comm.gather(_as_tensor(ids, worker))
    parts = worker.comm.gather(rows)
    return torch.cat(parts)[torch.argsort(torch.cat(numbers))] if parts else None


def columns_by_row(
    rows: Tensor, ids: Ids, worker: Worker
) -> Iterator[tuple[int, Tensor]]:  # [k, width] -> [num_rows] each
    """Yields this rank's columns with their numbers, in the dataset's order of rows.

    Collective, so every rank must read all of its columns. The columns are divided into
    ranges as in slices (`column_shares`). Each rank holds one joined column at a time.

    Args:
        rows: [k, width] values of this rank's rows.
        ids: [k] numbers of these rows.
        worker: This rank.
    """
    comm, shares = worker.comm, column_shares(rows.shape[1], worker.comm.world_size)
    firsts, row_ids = np.cumsum(shares) - shares, _as_tensor(ids, worker)
    counts = comm.all_gather(len(row_ids)).tolist()
    nodes = comm.all_to_all(row_ids.repeat(comm.world_size), [len(row_ids)] * comm.world_size, counts)
    for index in range(shares[0]):
        takes = shares > index  # [world_size] whether a rank takes a column in this round
        columns = rows[:, torch.from_numpy(firsts[takes] + index)].T.reshape(-1)
        values = comm.all_to_all(columns, (takes * len(row_ids)).tolist(), [int(takes[comm.rank]) * n for n in counts])
        if takes[comm.rank]:
            column = torch.empty_like(values)
            column[nodes] = values
            yield int(firsts[comm.rank]) + index, column


def meet(worker: Worker) -> None:
    """Waits for all ranks. Collective."""
    worker.comm.all_reduce(torch.zeros(1, device=worker.device))


def _as_tensor(ids: Ids, worker: Worker) -> Tensor:  # [k] int64
    return torch.tensor(np.asarray(ids, np.int64), device=worker.device)


T = TypeVar("T")
MIB = 2**20
COPIES = 4  # rows in memory per row that a layer reads: input, product, message, output
SOME = 1 << 18  # number of nodes whose costs are computed together
BYTES_PER_EDGE = 64  # ids and weights, in the block and in its kernels


class Evaluation(ABC):
    """Computes exact logits, independently of the training strategy.

    Every node is computed from all of its in-edges, whatever training samples, so
    metrics of different strategies can be compared. Subclasses differ in where the rows
    and edges are.
    """

    worker: Worker  # the rank, with the nodes to evaluate

    @staticmethod
    def of(
        worker: Worker,
        model: nn.Module,
        memory: float,
        scratch: Path | None = None,
        learned_rows: LearnedRows | None = None,
        splits: Collection[str] | None = None,
    ) -> Evaluation:
        """Selects the evaluation for a worker's data. Collective.

        Args:
            worker: The rank. Its shard has edges for a module called with (x,
                edge_index).
            model: The model. Its layers and self-loops are read.
            memory: Maximum MiB per chunk of nodes, if every rank reads one graph.
            scratch: A folder visible to all ranks, for the rows between layers.
            learned_rows: The learned input rows. If None, input rows are features.
            splits: Names of the required splits. The evaluation may omit all other
                nodes, also from `worker`. If None, or if rows are pairs, all nodes are
                required.
        """
        splits = None if worker.rows.pairs else splits
        if worker.samples_by_time:
            return TimedEvaluation(worker, model, memory, splits)
        if worker.graph is None or worker.fetches or isinstance(model, EdgeIndexModel):
            return ShardEvaluation(worker, learned_rows)
        return ChunkEvaluation(worker, worker.graph, model, memory, scratch, learned_rows, splits)

    def read(
        self, model: nn.Module, figures: Callable[[Tensor, Worker], T], splits: Collection[str] | None = None
    ) -> T:
        """Returns metrics for the nodes' logits. Collective.

        Args:
            figures: Called with the logits of a rank's nodes, and the rank. Collective.
            splits: Splits whose nodes suffice. Others are omitted if that is cheaper.
        """
        return figures(self.logits(model), self.worker)

    def logits(self, model: nn.Module) -> Tensor:  # [num_owned, num_classes]
        """Computes the owned nodes' logits, in ascending id order. Collective."""
        with evaluating(model):
            return self._logits(model)

    @abstractmethod
    def _logits(self, model: nn.Module) -> Tensor: ...


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Disables gradients and the model's training mode."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), fast_products():
            yield
    finally:
        model.train(training)


class ShardEvaluation(Evaluation):
    """One pass over the shards, which exchanges rows between ranks."""

    def __init__(self, worker: Worker, learned_rows: LearnedRows | None) -> None:
        self.worker, self._learned_rows = worker, learned_rows

    def _logits(self, model: nn.Module) -> Tensor:
        engine = self.worker.engine(model)
        adjacencies = ShardAdjacency.layers(engine, model.num_layers, 0)  # type: ignore[arg-type]
        x = self._inputs(engine, model)
        with engine.tally.paused(), forbid_writes(model, adjacencies, x=x):
            logits: Tensor = model(x, adjacencies)
        return logits if engine.topology.by_id is None else logits[engine.topology.by_id]

    def _inputs(self, engine: Engine, model: nn.Module) -> Rows:  # [num_owned, width]
        if self._learned_rows is not None:
            return self._learned_rows.input_rows(engine.shard.owned, model)
        rows = engine.fixed.rows
        if rows is not None and rows.dtype == self.worker.dtype:
            return rows  # keeps their cached sums
        features = self.worker.features
        # A model that multiplies its input first gets rows from disk in one read.
        read = features.lasting_rows if getattr(model, "reads_sparse", False) else features.input_rows
        return read(engine.shard.owned, model)


class ChunkEvaluation(Evaluation):
    """Evaluates node chunks with all their in-edges, from one graph for all ranks.

    A model with `layer(index, x, adjacency)` is evaluated layer by layer: each rank
    computes its own nodes' rows, and a file holds the rows between two layers. Memory
    is bounded by the chunk size, independently of the graph size. For other models, a
    chunk includes its neighbourhood over all layers.
    """

    def __init__(
        self,
        worker: Worker,
        graph: Graph,
        model: nn.Module,
        memory: float,
        scratch: Path | None,
        learned_rows: LearnedRows | None,
        splits: Collection[str] | None = None,
    ) -> None:
        self._full_worker, self._graph, self._memory, self._scratch = worker, graph, memory * MIB, scratch
        fits = graph.num_edges * BYTES_PER_EDGE <= self._memory  # omitting nodes would save little
        self._learned_rows, self._all = learned_rows, splits is None or learned_rows is not None or fits
        self.worker = worker if self._all else of_splits(worker, splits or ())
        self._blocks = worker.layers(model)

    def _logits(self, model: nn.Module) -> Tensor:
        if hasattr(model, "layer") and self._scratch is not None:
            return self._by_layer(model, self._scratch)
        return self._by_neighbourhood(model)

    def _by_layer(self, model: nn.Module, scratch: Path) -> Tensor:
        num_layers: int = model.num_layers  # type: ignore[assignment]
        table = self._graph.features
        keeps = isinstance(table, SparseFeatures) or self._full_worker.disk is not None
        features = self._full_worker.features if keeps else self._bounded(table)
        files: list[_RowFile] = []

        def share_rows(parts: Iterable[tuple[Ids, Tensor]]) -> FeatureStore:
            """Writes all ranks' rows to a file, and removes the previous file.

            The file is opened before the ranks meet, because a rank that is ahead
            removes its name.
            """
            files.append(_RowFile(scratch / f".rows-{len(files)}", self._graph.num_nodes))
            for nodes, rows in parts:
                files[-1].write(nodes, rows, self.worker)
            store = self._bounded(files[-1].rows)
            files[-1].share(self.worker)
            for before in files[:-1]:
                before.remove(self.worker)
            return store

        try:
            read = self._read_after(num_layers, scratch)
            if self._learned_rows is not None:
                features = share_rows([(self.worker.owned, self._learned_rows.owned.detach())])
            for layer in range(num_layers - 1):
                features = share_rows(self._layer(model, layer, read[layer], features))
            return _concatenate(self._layer(model, num_layers - 1, read[-1], features), len(read[-1]))
        finally:
            for file in files:
                file.remove(self.worker)

    def _read_after(self, num_layers: int, scratch: Path) -> list[Ids]:  # [num_layers] of [k]
        """Returns this rank's nodes that are needed after each layer. Collective.

        After the last layer these are the worker's nodes. Before that, they include the
        sources of edges to nodes needed later.
        """
        read = [self.worker.owned]
        if self._all:
            return read * num_layers
        for layer in range(num_layers - 1):
            marks = _RowFile(scratch / f".read-{layer}", self._graph.num_nodes)
            try:
                marks.write(read[0], torch.ones(len(read[0]), dtype=torch.bool), self.worker)
                for nodes in self._pieces(read[0], lambda edges: edges * float(BYTES_PER_EDGE)):
                    (block,) = FullSampler(num_hops=1).sample(self._graph.csc, nodes, key=0).blocks
                    marks.write(block.src_nodes, torch.ones(len(block.src_nodes), dtype=torch.bool), self.worker)
                    forget_pages(self._graph.csc.indices)
                marks.share(self.worker)
                read.insert(0, self._full_worker.owned[marks.rows[self._full_worker.owned]])
                marks.share(self.worker)
            finally:
                marks.remove(self.worker)
        return read

    def _layer(self, model: nn.Module, layer: int, nodes: Ids, features: FeatureStore) -> Iterator[tuple[Ids, Tensor]]:
        """Computes rows of this rank's nodes after one layer, chunk by chunk.

        Yields one empty chunk if there are no nodes.
        """
        rows = self._after(
            model, layer, nodes[:1], features
        )  # separately, because only the model determines the rows' width
        yield nodes[:1], rows
        width = max(features.width_held(model), math.prod(rows.shape[1:]))
        bytes_of_row = width * torch.empty(0, dtype=self.worker.dtype).element_size()
        for chunk in self._pieces(nodes[1:], lambda edges: (edges + 1) * (BYTES_PER_EDGE + COPIES * bytes_of_row)):
            yield chunk, self._after(model, layer, chunk, features)

    def _pieces(self, nodes: Ids, cost: Callable[[Floats], Floats]) -> Iterator[Ids]:
        """Splits nodes, if there are any, into chunks that fit the memory limit.

        Args:
            nodes: [num_nodes] ids.
            cost: Estimates bytes per node from in-degrees [k].
        """
        indptr = self._graph.csc.indptr
        for first in range(0, len(nodes), SOME):
            piece = nodes[first : first + SOME]
            yield from chunks(piece, cost((indptr[piece + 1] - indptr[piece]).astype(np.float64)), self._memory)

    def _after(self, model: nn.Module, layer: int, nodes: Ids, features: FeatureStore) -> Tensor:
        """Computes the rows of `nodes` after a layer from all in-neighbours' rows."""
        (block,) = FullSampler(num_hops=1).sample(self._graph.csc, nodes, key=0).blocks
        forget_pages(self._graph.csc.indices)
        (adjacency,) = self._blocks.layers([block], key=0)
        x = features.input_rows(block.src_nodes, model)
        with default_dtype(self.worker.dtype):
            rows: Tensor = model.layer(layer, x, adjacency)  # type: ignore[operator]
        return rows

    def _bounded(self, table: Features) -> FeatureStore:
        """Reads a large file explicitly, because mapped pages stay resident."""
        shared_rows = kept_rows(table)
        if shared_rows.nbytes <= self._memory or mapped_file(shared_rows) is None:
            return TableFeatures(table, None, self.worker.dtype, self.worker.device)
        return DiskFeatures(table, None, self.worker.dtype, self.worker.device, OnDisk(cache=0))

    def _by_neighbourhood(self, model: nn.Module) -> Tensor:
        num_layers: int = model.num_layers  # type: ignore[assignment]
        sampler, owned_ids = FullSampler(num_hops=num_layers), self.worker.owned
        features = self._learned_rows or self._full_worker.features
        rows = np.minimum(sampler.costs(self._graph.csc, owned_ids), self._graph.num_nodes)
        itemsize = torch.empty(0, dtype=self.worker.dtype).element_size()
        parts, row_chunks = [], list(chunks(owned_ids, rows * COPIES * features.width * itemsize, self._memory))
        for nodes in alike(row_chunks, self.worker) if self._learned_rows else row_chunks:
            batch = sampler.sample(self._graph.csc, nodes, key=0)
            parts.append(model(features.rows(batch.input_nodes), self._blocks.layers(batch.blocks, key=0)))
        return torch.cat(parts)


def alike(chunk_rows: list[Ids], worker: Worker) -> list[Ids]:
    """Appends empty chunks, so that all ranks have equally many. Collective.

    Owners send each chunk's rows to all ranks at once.
    """
    num_missing = int(worker.comm.all_gather(len(chunk_rows)).max()) - len(chunk_rows)
    return chunk_rows + [np.zeros(0, np.int64)] * num_missing


def chunks(nodes: Ids, costs: Floats, budget: float) -> Iterator[Ids]:
    """Splits nodes into runs with a total cost within a budget, or of a single node.

    Yields one empty run if there are no nodes.

    Args:
        nodes: [num_nodes] ids.
        costs: [num_nodes] cost of each node.
        budget: Maximum total cost of a run of several nodes.
    """
    start, ends = 0, np.cumsum(costs)
    while start < len(nodes) or start == 0:
        start_cost = ends[start - 1] if start else 0.0
        stop = max(int(np.searchsorted(ends, start_cost + budget, side="right")), start + 1)
        yield nodes[start:stop]
        start = stop


def of_splits(worker: Worker, splits: Collection[str]) -> Worker:
    """Returns the worker restricted to nodes in some splits, without their edges."""
    shard = worker.shard
    positions = np.flatnonzero(np.isin(shard.split, [SPLITS[name] for name in splits]))
    columns = {name: getattr(shard, name)[positions] for name in ("owned", "labels", "split")}
    if shard.node_time is not None:
        columns["node_time"] = shard.node_time[positions]
    return replace(worker, shard=replace(shard, **columns))


def _concatenate(parts: Iterator[tuple[Ids, Tensor]], count: int) -> Tensor:  # [count, ...]
    """Concatenates pieces of rows. The first piece determines their form."""
    _, rows = next(parts)
    result = rows.new_empty((count, *rows.shape[1:]))
    result[: len(rows)] = rows
    end = len(rows)
    for _, rows in parts:
        result[end : end + len(rows)] = rows
        end += len(rows)
    return result


@dataclass(slots=True, eq=False)
class _RowFile:
    """All nodes' rows between two layers, in a file that every rank maps."""

    path: Path
    num_nodes: int
    table: Floats | None = None  # [num_nodes, width]

    def write(self, nodes: Ids, rows: Tensor, worker: Worker) -> None:
        """Writes rows. The first call is collective.

        Args:
            nodes: [k] global ids.
            rows: [k, width].
            worker: The rank.
        """
        values = rows.cpu().numpy()
        if self.table is None:
            if worker.comm.rank == 0:
                self._make(max(self.num_nodes * math.prod(values.shape[1:]) * values.itemsize, 1))
            meet(worker)
            self.table = np.memmap(self.path, values.dtype, "r+", shape=(self.num_nodes, *values.shape[1:]))
        self.table[nodes] = values
        forget_pages(self.table)

    def _make(self, size: int) -> None:
        try:
            with self.path.open("wb") as file:
                file.truncate(size)
            reserve(self.path)
        except OSError as error:
            raise UserError(
                f"{self.path}: {error.strerror}: an evaluation stores {size / 1e6:.3g} MB between two layers there"
            ) from error

    @property
    def rows(self) -> Floats:  # [num_nodes, width]
        """The written rows."""
        assert self.table is not None
        return self.table

    def share(self, worker: Worker) -> None:
        """Waits until all ranks have written. Collective."""
        meet(worker)

    def remove(self, worker: Worker) -> None:
        """Unlinks the file. Ranks that still map it keep the rows."""
        if worker.comm.rank == 0:
            self.path.unlink(missing_ok=True)


class LaterEvaluation(Evaluation):
    """Evaluates validation nodes without the edges of the test period.

    Their score then does not depend on later edges, as for a model that was deployed at
    the border. All other nodes are evaluated on all edges.
    """

    def __init__(self, evaluations: Mapping[str, Evaluation]) -> None:
        """Combines the evaluations of `val` and `test`, which have the same nodes."""
        self._evaluations, self.worker = evaluations, evaluations["test"].worker

    def _logits(self, model: nn.Module) -> Tensor:
        val, test = (self._evaluations[split].logits(model) for split in ("val", "test"))
        is_val = torch.from_numpy(np.asarray(self.worker.shard.split) == Split.VAL).to(test.device)
        return torch.where(is_val.reshape(-1, *[1] * (test.ndim - 1)), val, test)


ROOT = 0


class SurvivorsEvaluation(Evaluation):
    """An evaluation in which rank 0 takes over lost ranks' nodes.

    Metrics therefore cover all nodes. If a rank is lost during an evaluation, the
    remaining ranks repeat it.
    """

    def __init__(
        self,
        worker: Worker,
        comm: Survivors,
        make: Callable[[Worker], Evaluation],
        adopt: Callable[[frozenset[int]], Shard],
    ) -> None:
        """Starts with this rank's nodes.

        Args:
            worker: The rank, which reads the complete graph.
            make: Creates the evaluation for a rank's nodes. Not collective.
            adopt: Returns rank 0's shard extended by other ranks' nodes.
        """
        self.worker, self._comm, self._make, self._adopt = worker, comm, make, adopt
        self._adopted_ranks: frozenset[int] = frozenset()
        self._evaluation = make(worker)

    def read(
        self, model: nn.Module, figures: Callable[[Tensor, Worker], T], splits: Collection[str] | None = None
    ) -> T:
        while True:
            lost_ranks = self._comm.lost
            self._take_over(lost_ranks)
            features = super().read(model, figures)
            if self._comm.lost == lost_ranks:
                return features

    def _take_over(self, lost_ranks: frozenset[int]) -> None:
        if self._comm.rank == ROOT and lost_ranks != self._adopted_ranks:
            self._adopted_ranks = lost_ranks
            self.worker = replace(self.worker, shard=self._adopt(lost_ranks))
            self._evaluation = self._make(self.worker)

    def _logits(self, model: nn.Module) -> Tensor:
        outputs = self._evaluation.logits(model)
        self.worker = self._evaluation.worker
        return outputs


class _NoPool(Pool):
    """Refuses means over rows, which would depend on the other rows of a chunk."""

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:
        raise UserError(
            "sampler.time: the model takes means over all rows of a batch, which have different times: use "
            "gnnkit.nn.BatchNorm or LayerNorm"
        )


def step_at(worker: Worker, nodes: Ids, times: Times) -> Step:
    """Returns the step in which an evaluation samples nodes at times, both [k]."""
    return Step(nodes.astype(np.int64), 0, 0, draws_key(wrap(worker.seed), wrap(-1)), times=times)


class TimedEvaluation(Evaluation):
    """Evaluates each node, or each end of a pair, on edges that it sees.

    They are drawn as in training. If edges are predicted or have labels, figures call
    `Worker.embed` for the outputs of their ends, and there are no outputs of nodes.

    Draws follow from the node, its time and the run's seed. Outputs therefore do not
    depend on other nodes in a chunk, nor on future edges.
    """

    def __init__(self, worker: Worker, model: nn.Module, memory: float, splits: Collection[str] | None = None) -> None:
        """Prepares the draws, with arguments as for `Evaluation`.

        Collective if rows have to be fetched from owners.
        """
        self.worker = worker if splits is None else of_splits(worker, splits)
        self._full_worker, self._memory = replace(worker, input_dtype=None), memory * MIB
        owners = Owners.of(worker.shard, worker.comm) if worker.fetches else None
        self._draw, self._rows = Draw(worker, model, owners, _NoPool()), None
        if owners is not None:
            self._rows = OwnedRows(worker.shard, owners, worker.comm, values=False, disk=worker.disk)

    def read(
        self, model: nn.Module, figures: Callable[[Tensor, Worker], T], splits: Collection[str] | None = None
    ) -> T:
        if splits is None:
            return super().read(model, figures)
        whole, self.worker = self.worker, of_splits(self.worker, splits)
        try:
            return super().read(model, figures)
        finally:
            self.worker = whole

    def _logits(self, model: nn.Module) -> Tensor:
        worker = self.worker
        if not worker.rows.at_own_times:
            return self._at_times(model, worker.owned, worker.seed_times(worker.owned))
        self.worker = replace(worker, embed=partial(self._embed, model))
        return torch.empty((len(worker.owned), 0), dtype=worker.dtype, device=worker.device)

    def _embed(self, model: nn.Module, nodes: Ids, times: Ids) -> Tensor:  # [..., width]
        with evaluating(model):
            outputs = self._at_times(model, nodes, times)
        return outputs.reshape(*nodes.shape, outputs.shape[1])

    def _at_times(self, model: nn.Module, nodes: Ids, times: Ids | None) -> Tensor:  # [k, width]
        """Computes nodes' outputs at times, both with k elements in any shape."""
        assert times is not None, "samples by time"
        nodes, bounds, places = at_times(nodes.reshape(-1), times.reshape(-1))
        costs = self._costs[nodes] * (COPIES * self._width(model) * self._full_worker.dtype.itemsize)
        parts = list(chunks(np.arange(len(nodes)), costs, self._memory))
        if self._rows is not None:  # collective
            parts = alike(parts, self._full_worker)
        outputs = torch.cat([self._outputs(model, nodes[part], bounds[part]) for part in parts])
        return outputs[torch.from_numpy(places).to(outputs.device)]

    @cached_property
    def _costs(self) -> Floats:  # [num_nodes]
        """Expected number of edges of each node's tree, computed once."""
        return self._draw.costs(np.arange(self._full_worker.shard.num_nodes))

    def _width(self, model: nn.Module) -> float:
        """Returns the numbers per row of the inputs as stored, or between layers."""
        between = (min(weight.shape[-2:]) for weight in model.parameters() if weight.dim() > 1)
        return max(self._full_worker.features.width_held(model), *between, 1)

    def _outputs(self, model: nn.Module, nodes: Ids, times: Times) -> Tensor:  # [k, width]
        """Computes some nodes' outputs at times."""
        worker, draw, num_layers = self._full_worker, self._draw, int(model.num_layers)  # type: ignore[arg-type]
        step = step_at(worker, nodes, times)
        sample = draw(
            step, worker.comm, MessageCounter.zeros(worker.comm.world_size), disjoint=not draw.sampler.rank_invariant
        )
        blocks = sample.batch.blocks[len(sample.batch.blocks) - num_layers :]  # without its last layer, it reads fewer
        x = self._inputs(sample.batch, model)[: len(blocks[0].src_nodes)]
        with default_dtype(worker.dtype):
            outputs: Tensor = model(x, draw.layers(sample).layers(blocks, key=0))
        return outputs

    def _inputs(self, batch: MiniBatch, model: nn.Module) -> Rows:
        if self._rows is None:
            return self._full_worker.features.input_rows(batch.input_nodes, model)
        nodes, places = batch.rows_by_node()
        rows = self._rows.fetch(nodes, self._full_worker.comm).rows[places]
        return self._full_worker.fetched_rows(self._rows.features(rows), model)
