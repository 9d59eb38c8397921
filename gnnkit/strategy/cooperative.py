"""Batches drawn by all ranks together, each for its owned nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Rows, Tally
from gnnkit.engine.remote import Lookup, Reach
from gnnkit.engine.remote.owners import Owners, Sent, to_all
from gnnkit.graph import Ids
from gnnkit.graph.times import Occurrences
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.link_seeds import make_seeds
from gnnkit.strategy.on_disk import BackgroundBatches, bytes_of
from gnnkit.strategy.owner_draws import Drawn, OwnerDraws
from gnnkit.strategy.seeds import Deal, OwnedSeeds, Step
from gnnkit.utils.checks import Array


@dataclass(frozen=True, slots=True, eq=False)
class _BatchPart:
    """One rank's part of a batch, before its rows are read."""

    step: Step
    num_seeds: int  # owned seeds of all ranks, the first of `drawn.nodes`
    drawn: Drawn
    reach: Reach | None  # provides the ends of this rank's pairs
    sent: Sent
    here: Ids  # global ids of the batch's owned nodes
    x: Array | None = None  # [num_known, width] their features, if read from disk

    @property
    def num_bytes(self) -> int:
        """Memory of the batch. Routes take as much as the blocks."""
        return 2 * bytes_of(self.drawn.blocks) + self.here.nbytes


class CooperativeBatches(BackgroundBatches[_BatchPart, _BatchPart]):
    """Joint batches, in which each rank holds its owned nodes.

    Implements cooperative minibatching (Balin, LaSalle and Catalyurek, TMLR 2025). All
    ranks draw one batch, which is the same as one rank's batch with the seeds of all.
    Features are not exchanged. Each layer's rows, and the ends of pairs, are received
    from their owners.
    """

    def __init__(self, worker: Worker, model: nn.Module, batch_size: int, tally: Tally, prefetch: int = 2) -> None:
        """Starts the thread. Collective.

        Args:
            worker: This rank, with a shard of a grid with one column and one slice.
            model: The model, with `num_layers` and `self_loops`.
            batch_size: Seeds per worker and step.
            tally: Counter of exchanged rows.
            prefetch: Batches drawn in advance.
        """
        self._model = model
        owners = Owners.of(worker.shard, worker.comm)
        self._draws = OwnerDraws(worker, model, owners, tally)
        seeds = make_seeds(worker, batch_size, lambda: OwnedSeeds(worker, batch_size))
        self._lookup = Lookup(worker.comm, worker.owned, owners.rank_of, tally)
        self._num_layers: int = model.num_layers  # type: ignore[assignment]
        super().__init__(worker, seeds, tally, prefetch, worker.disk)

    def draw(self, deal: Deal, number: int, comm: Communicator) -> _BatchPart:
        """Draws one batch. Collective."""
        sent, owned, reach = Sent.nothing(comm.world_size), self.worker.owned, None
        step = deal(number, comm, sent)
        seeds, of = step.seeds, Occurrences(np.zeros(1, np.int64))
        if step.times is not None:
            of = Occurrences(np.unique(np.concatenate(to_all(comm, np.unique(step.times), sent))))
            seeds = of.codes(seeds, np.searchsorted(of.times, step.times))
        if step.pairs is not None:
            asked = self._lookup.ask(seeds, comm, len(of.times))
            sent.add(comm.rank, [8 * count for count in asked.demand.counts])
            seeds, step = asked.here, replace(step, pairs=replace(step.pairs, rows=asked.place[step.pairs.rows]))
            reach = self._lookup.reach(asked, seeds, comm, self._num_layers)
        positions = of.codes(np.searchsorted(owned, of.nodes(seeds)), of.trees(seeds))
        drawn = self._draws.draw(positions, of, step.draws, comm)
        here = owned[drawn.owned]
        return _BatchPart(step, len(seeds), drawn, reach, sent, here if step.times is None else np.unique(here))

    def with_rows(self, drawn: _BatchPart, read: Array | None, comm: Communicator) -> _BatchPart:
        if read is None or drawn.step.times is None:
            return drawn if read is None else replace(drawn, x=read)
        return replace(drawn, x=read[np.searchsorted(drawn.here, self.worker.owned[drawn.drawn.owned])])

    def batch(self, prepared: _BatchPart) -> Batch:
        worker = self.worker
        prepared.sent.record(self.tally, worker.comm.rank)
        places = prepared.drawn.owned
        nodes = worker.owned[places]
        if prepared.x is None:
            x: Rows = worker.features.input_rows(nodes, self._model)
        else:
            x = worker.features.convert(prepared.x)
        adjacencies = self._draws.adjacencies(prepared.drawn, prepared.step)
        labels = worker.shard.labels[places[: prepared.num_seeds]]
        return prepared.step.batch(x, adjacencies, labels, prepared.reach, nodes=nodes)
