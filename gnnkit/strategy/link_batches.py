"""Sampled batches of edges to predict, and of pairs without an edge."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch
from torch import nn

from gnnkit.engine import BlockLayers
from gnnkit.engine.dropout import derive
from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.sampler.batching import Epoch, Schedule
from gnnkit.sampler.links import pairs_of, supervised, unordered, without_pairs
from gnnkit.strategy.base import Batch, Worker, weighing_sums

_ORDER, _DRAWS = 1, 2  # purposes of keys


class LinkBatches:
    """The batches of one rank, epoch by epoch. Seeds are the ends of pairs.

    The batches of all ranks cover the edges of the graph once in an epoch. No block of
    a step has an edge that any rank predicts in this step, or its reverse edge.
    """

    def __init__(self, worker: Worker, model: nn.Module, *, batch_size: int, prefetch: int) -> None:
        """Starts nothing.

        Args:
            worker: This rank, with graph, sampler and links.
            model: Says whether nodes get loops.
            batch_size: Edges to predict per worker and step.
            prefetch: Batches made ahead.
        """
        if worker.graph is None or worker.sampler is None or worker.links is None:
            raise UserError("a strategy that draws needs the whole graph and a sampler")
        self.worker, self.graph, self.links, self.prefetch = worker, worker.graph, worker.links, prefetch
        self.layers = BlockLayers(self.graph, model, worker.dtype, worker.device)
        self.sampler = copy.copy(weighing_sums(worker.sampler))
        if hasattr(self.sampler, "threads"):
            self.sampler.threads = worker.threads
        pairs = pairs_of(self.graph.csc)
        edges = np.flatnonzero(pairs[:, 0] != pairs[:, 1])
        self.edges = edges.astype(np.int64)  # [num_edges] edges to predict
        self.schedule = Schedule(self.edges, batch_size, worker.comm.world_size)

    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""
        return self.schedule.num_steps

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on."""
        plan = self.schedule.epoch(derive(self.worker.seed, epoch, _ORDER), None)

        def make(step: int) -> Batch:
            return self._batch(plan, step, derive(self.worker.seed, epoch * len(self) + step))

        return ahead(make, range(first, len(self)), self.prefetch)

    def _batch(self, plan: Epoch, step: int, key: int) -> Batch:
        worker, csc, num_nodes = self.worker, self.graph.csc, self.graph.num_nodes
        everyones = self.edges[plan.order[plan.bounds[step, 0] : plan.bounds[step, -1]]]
        own = self.edges[plan.batch(step, worker.comm.rank)]
        pairs, labels = supervised(self.links, pairs_of(csc, own), own, key, threads=worker.threads)
        seeds, rows = np.unique(pairs, return_inverse=True)
        drawn = self.sampler.sample(csc, seeds, key=derive(key, _DRAWS))
        excluded = np.unique(unordered(pairs_of(csc, everyones), num_nodes))
        blocks = [without_pairs(b, self._degree(b.src_nodes[: b.num_dst]), excluded, num_nodes) for b in drawn.blocks]
        return Batch(
            worker.features.rows(drawn.input_nodes),
            self.layers.layers(blocks, key),
            torch.from_numpy(rows.reshape(-1, 2)).to(worker.device),
            torch.from_numpy(labels).to(worker.device),
            len(everyones) * (1 + self.links.negatives),
        )

    def _degree(self, nodes: Ids) -> Ids:  # [k]
        nodes = nodes.astype(np.int64)
        return np.asarray(self.graph.csc.indptr[nodes + 1] - self.graph.csc.indptr[nodes])


def ahead(make: Callable[[int], Batch], steps: range, count: int) -> Iterator[Batch]:
    """Gives `make(step)` of all steps in order, of which a thread makes some ahead.

    Args:
        make: Makes the batch of a step.
        steps: The steps.
        count: Batches made ahead.
    """
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[Batch]] = deque(pool.submit(make, step) for step in steps[:count])
        try:
            for step in steps:
                batch = waiting.popleft().result()
                if step + count in steps:
                    waiting.append(pool.submit(make, step + count))
                yield batch
        finally:
            for future in waiting:
                future.cancel()
