"""Batches whose rows, and usually draws, are received from nodes' owners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Pool, Tally
from gnnkit.engine.block import LayerValues
from gnnkit.engine.remote.fetched import Fetched, FetchedLayers, RowRequest
from gnnkit.engine.remote.frontier import Frontier
from gnnkit.engine.remote.owners import Owners, Sent
from gnnkit.engine.remote.row_cache import RowCache
from gnnkit.engine.remote.tier import KeptRows
from gnnkit.graph import Ids, MiniBatch
from gnnkit.sampler import Fanouts, Sampler
from gnnkit.sampler.links import Links
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.on_disk import BackgroundBatches, bytes_of
from gnnkit.strategy.seeds import Deal, Seeds, Step, drawing
from gnnkit.utils.checks import Array

Edges = npt.NDArray[Any]  # [num_edges] records of `Frontier`


class Draw:
    """Draws one rank's batches, at the owners or from the complete topology."""

    def __init__(self, worker: Worker, sampler: Sampler, owners: Owners, model: nn.Module) -> None:
        """Prepares the draws. Collective.

        Args:
            worker: The rank, with or without the topology.
            sampler: The sampler.
            owners: Every node's owner.
            model: The model, which may read relations.
        """
        self._sample: Callable[..., MiniBatch] | None = None
        if worker.graph is not None:
            self._sample = partial(sampler.sample, worker.drawn(model))  # type: ignore[arg-type]
            return
        frontier = (worker.shard, owners, sampler, worker.comm, worker.threads)
        types = isinstance(worker.links, Links) and worker.links.relation is not None
        self._frontier = Frontier(*frontier, relations=worker.relations_for(model), types=types)

    def __call__(self, seeds: Ids, key: int, comm: Communicator, sent: Sent) -> tuple[MiniBatch, Edges | None]:
        """Draws one batch. Collective if owners draw.

        Args:
            seeds: [num_seeds] distinct global ids.
            key: The batch's key, the same on all ranks.
            comm: The ranks.
            sent: Counter of messages.

        Returns:
            The batch, and the drawn edges unless this rank has the topology.
        """
        if self._sample is None:
            return self._frontier.sample(seeds, key, comm, sent)
        return self._sample(seeds, key=key), None


@dataclass(frozen=True, eq=False)
class RequestedBatch:
    """One batch before its rows are read, and the rows that ranks request."""

    step: Step
    batch: MiniBatch
    edges: Edges | None
    asked: RowRequest
    sent: Sent

    @cached_property
    def here(self) -> Ids:  # ascending
        return self.asked.here

    @property
    def num_bytes(self) -> int:
        return bytes_of(self.batch.blocks) + self.asked.num_bytes + (0 if self.edges is None else self.edges.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class FetchedBatch:
    """One batch with its rows."""

    step: Step
    batch: MiniBatch
    edges: Edges | None
    fetched: Fetched
    sent: Sent


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
        sampler = drawing(worker)
        self.pool = Pool(worker.comm, tally)
        self._whole = None if worker.graph is None else worker.layers(model, self.pool)
        self.draws = Draw(worker, sampler, self.rows.owners, model)
        fanouts = Fanouts.all(sampler.num_hops) if sampler.fanouts is None else Fanouts.parse(sampler.fanouts)
        if (filled := cache.begin(fanouts, seeds.chance)) is not None:
            self.rows.record(*filled, tally, worker.comm.rank)
        self.fetched_rows = self.hits = 0  # rows of other ranks read by batches: fetched, and found in the cache
        super().__init__(worker, seeds, tally, prefetch, self.rows.disk)

    def begin_epoch(self, deal: Deal, steps: range) -> None:
        if self.rows.cache.policy != "exact":
            return

        def fill(comm: Communicator) -> tuple[Fetched, Sent]:
            sent = Sent.nothing(comm.world_size)
            drawn = (deal(number, comm, sent) for number in steps)
            batches = [self.draws(step.seeds, step.draws, comm, sent)[0].input_nodes for step in drawn]
            return self.cache.announce(batches, comm, sent)

        self._record(*self._background.submit(fill).result())

    def draw(self, deal: Deal, number: int, comm: Communicator) -> RequestedBatch:
        """Draws one batch, and requests its rows. Collective."""
        sent = Sent.nothing(comm.world_size)
        step = deal(number, comm, sent)
        batch, edges = self.draws(step.seeds, step.draws, comm, sent)
        return RequestedBatch(step, batch, edges, self.rows.ask(batch.input_nodes, comm, sent), sent)

    def with_rows(self, drawn: RequestedBatch, read: Array | None, comm: Communicator) -> FetchedBatch:
        tier = None if read is None else KeptRows.of(drawn.here, read)
        fetched = self.rows.answer(drawn.asked, comm, drawn.sent, tier)
        return FetchedBatch(drawn.step, drawn.batch, drawn.edges, fetched, drawn.sent)

    def batch(self, prepared: FetchedBatch) -> Batch:
        self._record(prepared.fetched, prepared.sent)
        self.fetched_rows += int(prepared.fetched.received.sum())
        self.hits += prepared.fetched.hits
        step, rows = prepared.step, prepared.fetched.rows
        x = self.worker.fetched_rows(self.rows.features(rows), self.model)
        layers = self._layers(prepared)
        adjacencies = layers.layers(step.kept(prepared.batch.blocks, layers), step.key)
        return step.batch(x, adjacencies, rows["label"][: len(step.seeds)], nodes=prepared.batch.input_nodes)

    def _record(self, fetched: Fetched, sent: Sent) -> None:
        self.rows.record(fetched, sent, self.tally, self.worker.comm.rank)

    def _layers(self, prepared: FetchedBatch) -> LayerValues:
        worker = self.worker
        if self._whole is not None or prepared.edges is None:
            assert self._whole is not None
            return self._whole
        nodes = (prepared.batch.input_nodes.astype(np.int64), prepared.fetched.rows)
        values = (worker.shard, self.model, worker.dtype, worker.device, nodes, prepared.edges, self.pool)
        return FetchedLayers(*values, inverse_edges=worker.inverse_edges)
