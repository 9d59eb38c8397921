"""Batches that all ranks draw together, each rank for the nodes that it owns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Rows, Tally
from gnnkit.exchange.background import Background
from gnnkit.graph import Floats, Ids
from gnnkit.remote import Lookup, Reach
from gnnkit.remote.owners import Owners, Sent
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.link_seeds import LinkSeeds
from gnnkit.strategy.on_disk import Ahead, DrawnTogether, bytes_of
from gnnkit.strategy.owner_draws import Drawn, OwnerDraws
from gnnkit.strategy.seeds import Deal, OwnedSeeds, Seeds, Step


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """One rank's part of a batch, before its rows are read."""

    step: Step
    own: Ids  # [num_seeds] positions of the owned seeds of all ranks in `Shard.owned`
    drawn: Drawn
    reach: Reach | None  # brings the ends of this rank's pairs
    sent: Sent
    nodes: Ids  # [num_known] global ids of the owned nodes of the batch
    x: Floats | None = None  # [num_known, width] their features, where these were read from disk

    @property
    def num_bytes(self) -> int:
        """Memory of the batch, of which routes take as much as the blocks."""
        return 2 * bytes_of(self.drawn.blocks) + self.nodes.nbytes


class CooperativeBatches:
    """The batches of all ranks, of which each holds the nodes that it owns.

    Cooperative minibatching (Balin, LaSalle and Catalyurek, TMLR 2025). All ranks draw
    one batch, the batch of one rank with the seeds of all. Features stay with their
    owner. The rows of each layer come from their owners, and so do the ends of pairs.
    One thread draws ahead, over a communicator of its own.
    """

    def __init__(self, worker: Worker, model: nn.Module, batch_size: int, tally: Tally, prefetch: int = 2) -> None:
        """Starts the thread. Collective.

        Args:
            worker: This rank, with a shard of a grid with one column and one slice.
            model: Says `num_layers` and `self_loops`.
            batch_size: Seeds of a step, divided by the number of ranks.
            tally: Counts the rows moved.
            prefetch: Batches drawn ahead.
        """
        self._worker, self._model, self._tally, self._prefetch = worker, model, tally, prefetch
        owners = Owners.of(worker.shard, worker.comm)
        self._draws = OwnerDraws(worker, model, owners, tally)
        self._seeds: Seeds = OwnedSeeds(worker, batch_size) if worker.links is None else LinkSeeds(worker, batch_size)
        self._lookup = Lookup(worker.comm, worker.owned, owners.rank_of, tally)
        self._num_layers: int = model.num_layers  # type: ignore[assignment]
        self._disk = worker.disk
        self._background = Background(worker.comm)
        self._ahead = None
        if worker.disk is not None:
            self._ahead = DrawnTogether(worker.disk, self._seeds, self._background, self._make, _nodes_of)

    def __len__(self) -> int:
        """Counts the steps of an epoch."""
        return len(self._seeds)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on. Collective."""
        sent = Sent.nothing(self._worker.comm.world_size)
        deal = self._background.submit(lambda comm: self._seeds.epoch(epoch, comm, sent)).result()
        sent.record(self._tally, self._worker.comm.rank)
        disk, steps = self._disk, range(first, len(self))
        ahead = self._ahead
        make = partial(self._make, deal) if ahead is None else partial(self._read, deal, ahead.ahead(steps))
        try:
            for made in self._background.ahead((partial(make, step) for step in steps), self._prefetch):
                self._tally.bytes_read = 0 if disk is None else disk.counts.bytes
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

    def _make(self, deal: Deal, number: int, comm: Communicator) -> _Made:
        """Draws one batch. Collective."""
        sent, owned, reach = Sent.nothing(comm.world_size), self._worker.owned, None
        step = deal(number, comm, sent)
        seeds = step.seeds
        if step.pairs is not None:
            asked = self._lookup.ask(seeds, comm)
            sent.add(comm.rank, [8 * count for count in asked.demand.counts])
            seeds, step = asked.here, replace(step, pairs=replace(step.pairs, rows=asked.place[step.pairs.rows]))
            reach = self._lookup.reach(asked, seeds, comm, self._num_layers)
        own = np.searchsorted(owned, seeds)
        drawn = self._draws.draw(own, step.draws, comm)
        return _Made(step, own, drawn, reach, sent, owned[drawn.nodes])

    def _read(self, deal: Deal, batches: Ahead[_Made], number: int, comm: Communicator) -> _Made:
        """Draws ahead, and reads the rows of one batch from disk. Collective."""
        assert self._disk is not None
        assert self._ahead is not None
        made = self._ahead.next(batches, deal, comm)
        return replace(made, x=self._disk.take(len(made.nodes)))

    def _batch(self, made: _Made) -> Batch:
        worker = self._worker
        made.sent.record(self._tally, worker.comm.rank)
        if made.x is None:
            x: Rows = worker.features.input_rows(made.nodes, self._model)
        else:
            x = worker.features.opening(made.x)
        adjacencies = made.drawn.adjacencies(self._draws.layers, made.step)
        return made.step.batch(x, adjacencies, worker.shard.labels[made.own], made.reach, nodes=made.nodes)


def _nodes_of(made: _Made) -> Ids:
    return made.nodes
