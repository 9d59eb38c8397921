"""Batches that all ranks draw together, each rank for the nodes that it owns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Lookup, Reach, Tally
from gnnkit.engine.background import Background
from gnnkit.engine.owners import Owners, Sent
from gnnkit.graph import Ids
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.link_seeds import LinkSeeds
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
        self._background = Background(worker.comm)

    def __len__(self) -> int:
        """Counts the steps of an epoch."""
        return len(self._seeds)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on. Collective."""
        sent = Sent.nothing(self._worker.comm.world_size)
        deal = self._background.submit(lambda comm: self._seeds.epoch(epoch, comm, sent)).result()
        sent.record(self._tally, self._worker.comm.rank)
        work = (partial(self._make, deal, step) for step in range(first, len(self)))
        for made in self._background.ahead(work, self._prefetch):
            yield self._batch(made)

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
        return _Made(step, own, self._draws.draw(own, step.draws, comm), reach, sent)

    def _batch(self, made: _Made) -> Batch:
        worker, drawn = self._worker, made.drawn
        made.sent.record(self._tally, worker.comm.rank)
        nodes = worker.owned[drawn.nodes]
        x = worker.features.input_rows(nodes, self._model)
        adjacencies = drawn.adjacencies(self._draws.layers, made.step)
        return made.step.batch(x, adjacencies, worker.shard.labels[made.own], made.reach, nodes=nodes)
