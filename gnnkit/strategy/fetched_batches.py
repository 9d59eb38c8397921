"""Batches whose rows, and usually draws, are received from nodes' owners."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Pool, Tally
from gnnkit.engine.block import LayerValues, ValuesById
from gnnkit.engine.remote.frontier import Frontier
from gnnkit.engine.remote.owned_rows import FetchedLayers, FetchedRows, RowCache, RowRequest
from gnnkit.engine.remote.owners import MessageCounter, Owners
from gnnkit.engine.remote.tier import KeptRows
from gnnkit.engine.remote.visible_values import VisibleValues
from gnnkit.engine.visible import TimedLayers
from gnnkit.graph import Floats, Ids, MiniBatch
from gnnkit.graph.times import latest_visible
from gnnkit.sampler import Fanouts
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.on_disk import BackgroundBatches, bytes_of
from gnnkit.strategy.seeds import MakeStep, Seeds, Step, drawing, sample_step
from gnnkit.utils.checks import Array

Edges = npt.NDArray[np.void]  # [num_edges] records of `Frontier`


class Draw:
    """Draws one rank's batches, at the owners or from the complete topology."""

    def __init__(self, worker: Worker, model: nn.Module, owners: Owners | None, pool: Pool) -> None:
        """Prepares the draws. Collective if owners draw.

        Args:
            worker: The rank, with or without the topology.
            model: The model, which may read relations.
            owners: Every node's owner. If None, the rank has the topology.
            pool: The ranks whose rows enter batch statistics.
        """
        self._worker, self._model, self._pool, self.sampler = worker, model, pool, drawing(worker)
        self._graph = self._layers = self._visible_values = None
        if worker.graph is not None:
            self._graph, self._layers = worker.edges_to_sample(model), worker.layers(model, pool)
            return
        assert owners is not None, "owners draw"
        timed_edges, relations = worker.timed_edges(model, owners), worker.relations_for(model)
        self._visible_values = None if timed_edges is None else VisibleValues(worker.shard, owners, timed_edges)
        frontier = (worker.shard, owners, self.sampler, worker.comm, worker.threads)
        types = worker.rows.drawn and worker.rows.relation is not None
        self._frontier = Frontier(*frontier, relations=relations, types=types, timed_edges=timed_edges)

    def __call__(
        self, step: Step, comm: Communicator, counter: MessageCounter, *, disjoint: bool = False
    ) -> DrawnBatch:
        """Draws one batch. Collective if owners draw.

        Args:
            step: The step, with its key and this rank's seeds.
            comm: The ranks.
            counter: Counter of messages.
            disjoint: As for `NativeSampler.sample`.
        """
        if self._graph is not None:
            return DrawnBatch(sample_step(self.sampler, self._graph, step, disjoint=disjoint))
        batch, edges = self._frontier.sample(step.seeds, step.draws, comm, counter, step.times, disjoint=disjoint)
        if self._visible_values is None:
            return DrawnBatch(batch, edges)
        assert batch.times is not None
        bounds = latest_visible(batch.times, self.sampler.time)
        return DrawnBatch(batch, edges, self._visible_values.fetch(batch.input_nodes, bounds, comm, counter))

    def costs(self, seeds: Ids) -> Floats:  # [num_seeds]
        """Estimates how many edges seeds draw, by mean degree at owners."""
        if self._graph is not None:
            return self.sampler.costs(self._graph, seeds)
        shard, fanouts = self._worker.shard, Fanouts.parse(self.sampler.fanouts or ())
        degree, names = shard.num_edges / max(shard.num_nodes, 1), self._worker.relations_for(self._model) or ("",)
        draws = [sum(degree if count < 0 else count for count in counts) for counts in fanouts.by_hop(names)]
        return np.full(len(seeds), float(np.cumprod(draws).sum()))

    def layers(self, sample: DrawnBatch, rows: npt.NDArray[np.void] | None = None) -> LayerValues:
        """Returns a batch's node and edge values.

        Args:
            sample: The batch.
            rows: [num_input_nodes] records of `OwnedRows` for its input nodes. None:
                the batch has all `values`.
        """
        worker, batch = self._worker, sample.batch
        if self._layers is not None:
            return worker.layers_of(batch, self._layers)
        assert sample.edges is not None
        ids = batch.input_nodes.astype(np.int64) if batch.nodes is None else np.arange(len(batch.nodes))
        rows = rows if sample.values is None else sample.values
        assert rows is not None
        nodes = ids, rows
        values = (worker.shard, self._model, worker.dtype, worker.device, nodes, sample.edges, self._pool)
        layers = FetchedLayers(*values, inverse_edges=worker.inverse_edges)
        if batch.nodes is None:
            return layers
        assert self._visible_values is not None, "owners know the nodes' edges by time"
        layers.newest_time = self._visible_values.newest
        if "relation_degree" in (sample.edges.dtype.names or ()):
            layers.relation_degree = self._relation_degrees(batch, sample.edges)
        return TimedLayers.of(layers, None, batch, self.sampler)

    def _relation_degrees(self, batch: MiniBatch, edges: Edges) -> ValuesById:
        """Indexes the drawn edges' degrees, which may be drawn at several times."""
        blocks = batch.blocks[::-1] if self.sampler.redraw else batch.blocks[:1]
        targets = np.concatenate([np.repeat(np.arange(block.num_dst), np.diff(block.indptr)) for block in blocks])
        return ValuesById(targets * self._worker.shard.num_relations + edges["relation"], edges["relation_degree"])


@dataclass(frozen=True, slots=True, eq=False)
class DrawnBatch:
    """One batch without its rows."""

    batch: MiniBatch
    edges: Edges | None = None  # drawn by owners. None: this rank has the topology
    values: npt.NDArray[np.void] | None = None  # [num_input_nodes] records of `VisibleValues`, if owners draw by time

    @property
    def num_bytes(self) -> int:
        arrays = [array for array in (self.edges, self.values) if array is not None]
        return bytes_of(self.batch.blocks) + sum(array.nbytes for array in arrays)


@dataclass(frozen=True, eq=False)
class RequestedBatch:
    """One batch before its rows are read, and the rows that ranks request."""

    step: Step
    draws: DrawnBatch
    request: RowRequest
    counter: MessageCounter

    @cached_property
    def local_nodes(self) -> Ids:  # ascending
        return self.request.local_nodes

    @property
    def num_bytes(self) -> int:
        return self.draws.num_bytes + self.request.num_bytes


@dataclass(frozen=True, slots=True, eq=False)
class FetchedBatch:
    """One batch with its rows."""

    step: Step
    draws: DrawnBatch
    rows_read: FetchedRows
    counter: MessageCounter

    @property
    def rows(self) -> npt.NDArray[np.void]:  # [num_input_nodes]
        """Records of `OwnedRows` for the batch's input nodes."""
        return self.rows_read.rows[self.draws.batch.rows_by_node()[1]]


class FetchedBatches(BackgroundBatches[RequestedBatch, FetchedBatch]):
    """One rank's batches, drawn and fetched in the background.

    They are bit-identical to those of `SampledBatches`.
    """

    def __init__(
        self, worker: Worker, model: nn.Module, tally: Tally, seeds: Seeds, cache: RowCache, prefetch: int = 2
    ) -> None:
        """Starts the thread. Collective.

        Args:
            worker: This rank, with a shard and a sampler, and optionally the topology.
            model: The model, optionally with `self_loops`.
            tally: Record of the batches' exchanges.
            seeds: The seeds of all ranks.
            cache: The cache of other ranks' rows.
            prefetch: Batches made in advance.
        """
        self.model, self.cache, self.rows = model, cache, cache.owned
        self.draws = Draw(worker, model, self.rows.owners, Pool(worker.comm, tally))
        sampler = self.draws.sampler
        fanouts = Fanouts.all(sampler.num_hops) if sampler.fanouts is None else Fanouts.parse(sampler.fanouts)
        if (initial_rows := cache.begin(fanouts, seeds.chance)) is not None:
            self.rows.record(*initial_rows, tally, worker.comm.rank)
        self.fetched_rows = self.hits = 0  # rows of other ranks read by batches: fetched, and found in the cache
        super().__init__(worker, seeds, tally, prefetch, self.rows.disk)

    def begin_epoch(self, make_step: MakeStep, steps: range) -> None:
        if self.rows.cache.policy != "exact":
            return

        def fill(comm: Communicator) -> tuple[FetchedRows, MessageCounter]:
            counter = MessageCounter.zeros(comm.world_size)
            epoch_steps = (make_step(number, comm, counter) for number in steps)
            batches = [self.draws(step, comm, counter).batch.rows_by_node()[0] for step in epoch_steps]
            return self.cache.announce(batches, comm, counter)

        self._record(*self._background.submit(fill).result())

    def draw(self, make_step: MakeStep, number: int, comm: Communicator) -> RequestedBatch:
        """Draws one batch, and requests its rows. Collective."""
        counter = MessageCounter.zeros(comm.world_size)
        step = make_step(number, comm, counter)
        draws = self.draws(step, comm, counter)
        return RequestedBatch(step, draws, self.rows.ask(draws.batch.rows_by_node()[0], comm, counter), counter)

    def with_rows(self, sample: RequestedBatch, read: Array | None, comm: Communicator) -> FetchedBatch:
        tier = None if read is None else KeptRows.of(sample.local_nodes, read)
        rows = self.rows.answer(sample.request, comm, sample.counter, tier)
        return FetchedBatch(sample.step, sample.draws, rows, sample.counter)

    def batch(self, sample: FetchedBatch) -> Batch:
        self._record(sample.rows_read, sample.counter)
        self.fetched_rows += int(sample.rows_read.num_received.sum())
        self.hits += sample.rows_read.hits
        step, batch, rows = sample.step, sample.draws.batch, sample.rows
        x = self.worker.fetched_rows(self.rows.features(rows), self.model)
        layers = self.draws.layers(sample.draws, rows)
        adjacencies = layers.layers(step.without_pairs(batch.blocks, layers), step.key)
        return step.batch(x, adjacencies, rows["label"][: len(step.seeds)], nodes=batch.input_nodes)

    def _record(self, rows: FetchedRows, counter: MessageCounter) -> None:
        self.rows.record(rows, counter, self.tally, self.worker.comm.rank)
