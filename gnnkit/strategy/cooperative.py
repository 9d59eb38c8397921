"""Batches drawn by all ranks together, each for its owned nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import Rows, Tally
from gnnkit.engine.remote import Lookup, Reach
from gnnkit.engine.remote.owners import MessageCounter, Owners, to_all
from gnnkit.graph import Ids
from gnnkit.graph.times import Occurrences
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.link_seeds import make_seeds
from gnnkit.strategy.on_disk import BackgroundBatches, bytes_of
from gnnkit.strategy.owner_draws import JointDraws, OwnerDraws
from gnnkit.strategy.seeds import MakeStep, OwnedSeeds, Step
from gnnkit.utils.checks import Array


@dataclass(frozen=True, slots=True, eq=False)
class _BatchPart:
    """One rank's part of a batch, before its rows are read."""

    step: Step
    num_seeds: int  # owned seeds of all ranks, the first of `draws.nodes`
    draws: JointDraws
    reach: Reach | None  # provides the ends of this rank's pairs
    counter: MessageCounter
    local_nodes: Ids  # global ids of the batch's owned nodes
    x: Array | None = None  # [num_known, width] their features, if read from disk

    @property
    def num_bytes(self) -> int:
        """Memory of the batch. Routes take as much as the blocks."""
        return 2 * bytes_of(self.draws.blocks) + self.local_nodes.nbytes


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

    def draw(self, make_step: MakeStep, number: int, comm: Communicator) -> _BatchPart:
        """Draws one batch. Collective."""
        counter, owned_nodes, reach = MessageCounter.zeros(comm.world_size), self.worker.owned, None
        step = make_step(number, comm, counter)
        seeds, of = step.seeds, Occurrences(np.zeros(1, np.int64))
        if step.times is not None:
            of = Occurrences(np.unique(np.concatenate(to_all(comm, np.unique(step.times), counter))))
            seeds = of.codes(seeds, np.searchsorted(of.times, step.times))
        if step.pairs is not None:
            request = self._lookup.ask(seeds, comm, len(of.times))
            counter.add(comm.rank, [8 * count for count in request.demand.counts])
            step = replace(step, pairs=replace(step.pairs, rows=request.place[step.pairs.rows]))
            seeds = request.local_nodes
            reach = self._lookup.reach(request, seeds, comm, self._num_layers)
        positions = of.codes(np.searchsorted(owned_nodes, of.nodes(seeds)), of.trees(seeds))
        draws = self._draws.draw(positions, of, step.draws, comm)
        local_nodes = owned_nodes[draws.owned]
        return _BatchPart(
            step, len(seeds), draws, reach, counter, local_nodes if step.times is None else np.unique(local_nodes)
        )

    def with_rows(self, sample: _BatchPart, read: Array | None, comm: Communicator) -> _BatchPart:
        if read is None or sample.step.times is None:
            return sample if read is None else replace(sample, x=read)
        return replace(sample, x=read[np.searchsorted(sample.local_nodes, self.worker.owned[sample.draws.owned])])

    def batch(self, sample: _BatchPart) -> Batch:
        worker = self.worker
        sample.counter.record(self.tally, worker.comm.rank)
        places = sample.draws.owned
        nodes = worker.owned[places]
        if sample.x is None:
            x: Rows = worker.features.input_rows(nodes, self._model)
        else:
            x = worker.features.convert(sample.x)
        adjacencies = self._draws.adjacencies(sample.draws, sample.step)
        labels = worker.shard.labels[places[: sample.num_seeds]]
        return sample.step.batch(x, adjacencies, labels, sample.reach, nodes=nodes)
