"""Batches that all ranks draw together, each rank for the nodes that it owns."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from gnnkit.engine import Tally
from gnnkit.engine.dropout import derive
from gnnkit.engine.exchange import from_all
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import Schedule, draws_key, order_key
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.owner_draws import OwnerDraws


class CooperativeBatches:
    """The batches of all ranks, of which each holds the nodes that it owns.

    Cooperative minibatching (Balin, LaSalle and Catalyurek, TMLR 2025). All ranks draw
    one batch, the batch of one rank with the seeds of all. Features stay with their
    owner. The rows of each layer come from their owners.
    """

    def __init__(self, worker: Worker, model: nn.Module, batch_size: int, tally: Tally) -> None:
        """Tells all ranks the training nodes. Collective.

        Args:
            worker: This rank, with a shard of a grid with one column and one slice.
            model: Says `num_layers` and `self_loops`.
            batch_size: Seeds of a step, divided by the number of ranks.
            tally: Counts the rows moved.
        """
        shard, comm = worker.shard, worker.comm
        if worker.sampler is None:
            raise UserError("a strategy that draws needs a sampler")
        if shard.grid.cols != 1 or shard.grid.slices != 1:
            raise UserError(
                f"partition.grid={shard.grid}: strategy.mode=cooperative draws the in-edges of a node at its owner, "
                "which holds them all with partition.grid=1d only"
            )
        self._worker = worker
        self._draws = OwnerDraws(worker, model, tally)
        own = shard.owned[shard.split == Split.TRAIN].astype(np.int64)
        self._seeds = np.sort(from_all(torch.from_numpy(own).to(comm.device), comm, tally)[0].cpu().numpy())
        self._schedule = Schedule(self._seeds, batch_size, comm.world_size)
        self._labels = torch.from_numpy(np.array(shard.labels)).to(worker.device)

    def __len__(self) -> int:
        """Counts the steps of an epoch."""
        return self._schedule.num_steps

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on. Collective."""
        seed, owned = self._worker.seed, self._worker.owned
        plan = self._schedule.epoch(order_key(wrap(seed), epoch), None)
        draws = draws_key(wrap(seed), epoch)
        for step in range(first, plan.num_steps):
            seeds = self._seeds[plan.order[plan.bounds[step, 0] : plan.bounds[step, -1]]]
            own = np.searchsorted(owned, seeds[np.isin(seeds, owned)])
            drawn = self._draws.draw(own, derive(draws, step))
            adjacencies = drawn.adjacencies(self._draws.layers, derive(seed, epoch * plan.num_steps + step))
            rows = torch.from_numpy(own).to(self._worker.device)
            nodes = owned[drawn.nodes]
            x, wanted = self._worker.features.rows(nodes), torch.arange(len(own), device=self._worker.device)
            yield Batch(x, adjacencies, wanted, self._labels[rows], len(seeds), nodes=nodes)
