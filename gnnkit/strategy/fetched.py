"""Batches whose rows, and mostly draws, come from the owners of the nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from gnnkit.comm import Communicator
from gnnkit.engine import BlockLayers, Tally, derive
from gnnkit.engine.background import Background
from gnnkit.engine.block import LayerValues
from gnnkit.engine.fetched import Fetched, FetchedLayers, OwnedRows
from gnnkit.engine.frontier import Frontier
from gnnkit.engine.owners import Owners, Sent, to_all
from gnnkit.graph import CSC, Ids, MiniBatch, Split
from gnnkit.sampler import Sampler
from gnnkit.sampler.base import wrap
from gnnkit.sampler.batching import Epoch, Schedule, draws_key, order_key
from gnnkit.strategy.base import Batch, Worker, weighing_sums
from gnnkit.strategy.row_cache import RowCache

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
class _Made:
    """One batch with its rows."""

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
        self,
        worker: Worker,
        model: nn.Module,
        tally: Tally,
        *,
        batch_size: int,
        batching: str = "plain",
        window: int = 8,
        prefetch: int = 2,
        cache: str = "none",
        cache_rows: int | None = None,
    ) -> None:
        """Starts the thread. Collective.

        Args:
            worker: This rank, with a shard and a sampler, and the topology or not.
            model: Says whether nodes get loops.
            tally: Counts what the batches move.
            batch_size: Seeds per worker and step, or groups of seeds.
            batching: "plain", or "balanced" where the topology is at hand.
            window: Steps over which balanced batching evens out.
            prefetch: Batches made ahead.
            cache: One of `row_cache.CACHES`.
            cache_rows: Rows kept. None: a tenth of the nodes.
        """
        assert worker.sampler is not None, "a strategy that draws needs a sampler"
        self.worker, self.model, self.tally, self.prefetch = worker, model, tally, prefetch
        sampler, shard, comm = weighing_sums(worker.sampler), worker.shard, worker.comm
        owners = Owners.of(shard, comm)
        self.draw = Draw(worker, sampler, owners)
        self._whole = None if worker.graph is None else BlockLayers(worker.graph, model, worker.dtype, worker.device)
        train = shard.owned[shard.split == Split.TRAIN].astype(np.int64)
        self.seeds = np.sort(np.concatenate(to_all(comm, train)))
        csc = self.draw.csc
        groups = None if csc is None else sampler.groups(csc, self.seeds)
        self.schedule = Schedule(self.seeds, batch_size, comm.world_size, batching, window, groups=groups)
        self._costs = sampler.costs(csc, self.seeds) if csc is not None and batching == "balanced" else None
        self.rows = OwnedRows(shard, owners, values=csc is None)
        self.cache = RowCache(cache, cache_rows, self.rows, comm)
        share = min(batch_size * comm.world_size / max(len(self.seeds), 1), 1) / comm.world_size
        filled = self.cache.begin(list(getattr(sampler, "fanouts", [-1] * sampler.num_hops)), share)
        if filled is not None:
            self._record(*filled)
        self.fetched_rows = self.hits = 0  # rows of other ranks that batches read, by origin
        self._background = Background(comm)

    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""
        return self.schedule.num_steps

    def plan(self, epoch: int) -> Epoch:
        """Cuts the seeds of all ranks into the batches of `epoch`."""
        return self.schedule.epoch(order_key(wrap(self.worker.seed), epoch), self._costs)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on."""
        plan = self.plan(epoch)
        totals = np.diff(plan.bounds[:, [0, -1]])[:, 0]
        work = [partial(self._make, plan, epoch, step) for step in range(first, len(self))]
        if self.cache.counts_ahead:
            filled = self._background.submit(partial(self._fill, plan, epoch, first)).result()
            self._record(*filled)
        for step, made in enumerate(self._ahead(work), first):
            self._record(made.fetched, made.sent)
            self.fetched_rows += int(made.fetched.received.sum())
            self.hits += made.fetched.hits
            yield self._batch(made, derive(self.worker.seed, epoch * len(totals) + step), int(totals[step]))

    def close(self) -> None:
        """Ends the thread, after the batches that were asked for."""
        self._background.close()

    def _ahead(self, work: Sequence[Callable[[Communicator], _Made]]) -> Iterator[_Made]:
        """Gives results in order. At most `prefetch` more are under way."""
        pending: deque[Future[_Made]] = deque()
        for carry in work:
            pending.append(self._background.submit(carry))
            if len(pending) > self.prefetch:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()

    def _seeds(self, plan: Epoch, step: int) -> Ids:
        return self.seeds[plan.batch(step, self.worker.comm.rank)]

    def _make(self, plan: Epoch, epoch: int, step: int, comm: Communicator) -> _Made:
        """Draws and fetches one batch. Collective."""
        sent = Sent.nothing(comm.world_size)
        key = derive(draws_key(wrap(self.worker.seed), epoch), step)
        batch, edges = self.draw(self._seeds(plan, step), key, comm, sent)
        return _Made(batch, edges, self.rows.fetch(batch.input_nodes, self.cache.rows, comm, sent), sent)

    def _fill(self, plan: Epoch, epoch: int, first: int, comm: Communicator) -> tuple[Fetched, Sent]:
        """Counts the rows that the steps from `first` on need, and keeps the best.

        Collective.
        """
        sent, needed = Sent.nothing(comm.world_size), [np.empty(0, np.int64)]
        for step in range(first, len(self)):
            key = derive(draws_key(wrap(self.worker.seed), epoch), step)
            needed.append(self.draw(self._seeds(plan, step), key, comm, sent)[0].input_nodes.astype(np.int64))
        return self.cache.keep_most_read(np.concatenate(needed), comm, sent)

    def _record(self, fetched: Fetched, sent: Sent) -> None:
        self.rows.record(fetched, sent, self.tally, self.worker.comm.rank)

    def _batch(self, made: _Made, key: int, total: int) -> Batch:
        worker, seeds, rows = self.worker, made.batch.seeds, made.fetched.rows
        features = rows["features"] if "features" in (rows.dtype.names or ()) else np.empty((len(rows), 0), np.float32)
        x = torch.from_numpy(np.array(features, order="C")).to(worker.device, worker.input_dtype or worker.dtype)
        labels = torch.tensor(np.array(rows["label"][: len(seeds)], order="C"), device=worker.device)
        layers = self._layers(made).layers(made.batch.blocks, key)
        return Batch(x, layers, torch.arange(len(seeds), device=worker.device), labels, total)

    def _layers(self, made: _Made) -> LayerValues:
        worker = self.worker
        if self._whole is not None or made.edges is None:
            assert self._whole is not None
            return self._whole
        nodes = (made.batch.input_nodes.astype(np.int64), made.fetched.rows)
        return FetchedLayers(worker.shard, self.model, worker.dtype, worker.device, nodes, made.edges)
