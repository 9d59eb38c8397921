"""Batches whose rows, and mostly draws, come from the owners of the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import BlockLayers, Pool, Tally
from gnnkit.engine.block import LayerValues
from gnnkit.exchange.background import Background
from gnnkit.graph import CSC, Ids, MiniBatch
from gnnkit.remote.fetched import Asked, Fetched, FetchedLayers, Read
from gnnkit.remote.frontier import Frontier
from gnnkit.remote.owners import Owners, Sent
from gnnkit.sampler import Fanouts, Sampler
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.on_disk import Ahead, DrawnTogether, bytes_of
from gnnkit.strategy.row_cache import RowCache
from gnnkit.strategy.seeds import Deal, Seeds, Step, drawing

Edges = npt.NDArray[Any]  # [num_edges] records of `Frontier`


class Draw:
    """Draws batches of one rank, at the owners or from the whole topology."""

    def __init__(self, worker: Worker, sampler: Sampler, owners: Owners) -> None:
        """Prepares the draws. Collective.

        Args:
            worker: The rank, with the topology or without.
            sampler: Draws.
            owners: The owner of every node.
        """
        self.csc: CSC | None = None if worker.graph is None else worker.graph.csc
        self.sampler = sampler
        if self.csc is None:
            self._frontier = Frontier(worker.shard, owners, sampler, worker.comm, worker.threads)

    def __call__(self, seeds: Ids, key: int, comm: Communicator, sent: Sent) -> tuple[MiniBatch, Edges | None]:
        """Draws one batch. Collective where owners draw.

        Args:
            seeds: [num_seeds] distinct global ids.
            key: Key of the batch, equal on all ranks.
            comm: The ranks.
            sent: Counts the messages.

        Returns:
            The batch, and the drawn edges unless the topology is at hand.
        """
        if self.csc is None:
            return self._frontier.sample(seeds, key, comm, sent)
        return self.sampler.sample(self.csc, seeds, key=key), None


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """One batch before its rows are read, and the rows that ranks ask for."""

    step: Step
    batch: MiniBatch
    edges: Edges | None
    asked: Asked
    sent: Sent

    @property
    def num_bytes(self) -> int:
        """Memory of the batch."""
        return bytes_of(self.batch.blocks) + self.asked.num_bytes + (0 if self.edges is None else self.edges.nbytes)


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """One batch with its rows."""

    step: Step
    batch: MiniBatch
    edges: Edges | None
    fetched: Fetched
    sent: Sent


class FetchedBatches:
    """The batches of one rank, drawn and fetched ahead in the background.

    The same batches as `SampledBatches` has, to the bit. One thread draws and fetches,
    over a communicator of its own, in the same order on all ranks. All ranks ask for
    the same number of batches, so a rank waits for batches of others at most.
    """

    def __init__(
        self, worker: Worker, model: nn.Module, tally: Tally, seeds: Seeds, cache: RowCache, prefetch: int = 2
    ) -> None:
        """Starts the thread. Collective.

        Args:
            worker: This rank, with a shard and a sampler, and the topology or not.
            model: Says whether nodes get loops.
            tally: Counts what the batches move.
            seeds: The seeds of all ranks.
            cache: The rows of other ranks that this rank keeps.
            prefetch: Batches made ahead.
        """
        self.worker, self.model, self.tally, self.prefetch = worker, model, tally, prefetch
        self.seeds, self.cache, self.rows = seeds, cache, cache.owned
        sampler = drawing(worker)
        self.draw = Draw(worker, sampler, self.rows.owners)
        self.pool, graph = Pool(worker.comm, tally), worker.graph
        self._whole = None
        if graph is not None:
            self._whole = BlockLayers(graph, model, worker.dtype, worker.device, self.pool)
        fanouts = Fanouts.all(sampler.num_hops) if sampler.fanouts is None else Fanouts.parse(sampler.fanouts)
        filled = cache.begin(fanouts, seeds)
        if filled is not None:
            self._record(*filled)
        self.fetched_rows = self.hits = 0  # rows of other ranks that batches read, by origin
        self._background = Background(worker.comm)
        self._ahead = None
        if self.rows.disk is not None:
            self._ahead = DrawnTogether(self.rows.disk, seeds, self._background, self._drawn, _here)

    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""
        return len(self.seeds)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on."""
        sent = Sent.nothing(self.worker.comm.world_size)
        deal = self._background.submit(lambda comm: self.seeds.epoch(epoch, comm, sent)).result()
        sent.record(self.tally, self.worker.comm.rank)
        steps = range(first, len(self))
        if self.cache.counts_ahead:
            self._record(*self._background.submit(partial(self._fill, deal, steps)).result())
        disk, ahead = self.rows.disk, self._ahead
        make = partial(self._make, deal) if ahead is None else partial(self._read, deal, ahead.ahead(steps))
        try:
            for made in self._background.ahead((partial(make, step) for step in steps), self.prefetch):
                self._record(made.fetched, made.sent)
                self.fetched_rows += int(made.fetched.received.sum())
                self.hits += made.fetched.hits
                self.tally.bytes_read = 0 if disk is None else disk.counts.bytes
                yield self._batch(made)
        finally:
            if ahead is not None:
                ahead.forget()

    def foresee(self, epoch: int) -> None:
        """Counts what an epoch will read from disk, without a read. Collective."""
        assert self._ahead is not None
        self._ahead.foresee(epoch)

    @property
    def window(self) -> int | None:
        """Batches drawn ahead of those whose rows are read from disk, once counted."""
        return None if self._ahead is None else self._ahead.window

    def close(self) -> None:
        """Ends the thread, after the batches that were asked for."""
        self._background.close()

    def _make(self, deal: Deal, number: int, comm: Communicator) -> Made:
        """Draws and fetches one batch. Collective."""
        return self._fetched(self._drawn(deal, number, comm), comm)

    def _drawn(self, deal: Deal, number: int, comm: Communicator) -> Drawn:
        """Draws one batch, and asks for its rows. Collective."""
        sent = Sent.nothing(comm.world_size)
        step = deal(number, comm, sent)
        batch, edges = self.draw(step.seeds, step.draws, comm, sent)
        return Drawn(step, batch, edges, self.rows.ask(batch.input_nodes, self.cache.rows, comm, sent), sent)

    def _fetched(self, drawn: Drawn, comm: Communicator, read: Read | None = None) -> Made:
        """Fetches the rows of a batch. Collective."""
        fetched = self.rows.answer(drawn.asked, self.cache.rows, comm, drawn.sent, read)
        return Made(drawn.step, drawn.batch, drawn.edges, fetched, drawn.sent)

    def _read(self, deal: Deal, batches: Ahead[Drawn], number: int, comm: Communicator) -> Made:
        """Draws ahead, and fetches one batch, with rows from disk. Collective."""
        assert self.rows.disk is not None
        assert self._ahead is not None
        drawn = self._ahead.next(batches, deal, comm)
        here = drawn.asked.here
        return self._fetched(drawn, comm, (here, self.rows.disk.take(len(here))))

    def _fill(self, deal: Deal, steps: range, comm: Communicator) -> tuple[Fetched, Sent]:
        """Counts the rows that some steps need, and keeps the best. Collective."""
        sent, needed = Sent.nothing(comm.world_size), [np.empty(0, np.int64)]
        for number in steps:
            step = deal(number, comm, sent)
            needed.append(self.draw(step.seeds, step.draws, comm, sent)[0].input_nodes.astype(np.int64))
        return self.cache.keep_most_read(np.concatenate(needed), comm, sent)

    def _record(self, fetched: Fetched, sent: Sent) -> None:
        self.rows.record(fetched, sent, self.tally, self.worker.comm.rank)

    def _batch(self, made: Made) -> Batch:
        step, rows = made.step, made.fetched.rows
        x = self.worker.fetched_rows(self.rows.features(rows), self.model)
        layers = self._layers(made)
        adjacencies = layers.layers(step.kept(made.batch.blocks, layers), step.key)
        return step.batch(x, adjacencies, rows["label"][: len(step.seeds)], nodes=made.batch.input_nodes)

    def _layers(self, made: Made) -> LayerValues:
        worker = self.worker
        if self._whole is not None or made.edges is None:
            assert self._whole is not None
            return self._whole
        nodes = (made.batch.input_nodes.astype(np.int64), made.fetched.rows)
        return FetchedLayers(worker.shard, self.model, worker.dtype, worker.device, nodes, made.edges, self.pool)


def _here(drawn: Drawn) -> Ids:
    return drawn.asked.here
