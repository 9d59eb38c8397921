"""Individual-sample mini-batches: every rank draws seeds and neighbourhoods."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn

from gnnkit.engine import BlockLayers, Tally
from gnnkit.engine.dropout import derive
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.ranges import MAX_COUNT, one_of, whole
from gnnkit.sampler import LoadedBatch, Loader, Sampler
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker, weighing_sums


class IndividualSample(ExecutionStrategy):
    """Sampled mini-batch training (individual-sample-based in Lin et al., Proc. IEEE
    2023).

    Choose this strategy where activations of all nodes do not fit, or where many steps
    an epoch reach an accuracy sooner. The batches of an epoch cover the training nodes
    once. Native threads sample and gather ahead while the batch before is computed. A
    rank without seeds joins a step with an empty batch.
    """

    samples = True
    reads_graph = True

    def __init__(
        self,
        batch_size: int = 1024,
        batching: str = "plain",
        window: int = 8,
        prefetch: int = 2,
        topology: str = "shared",
    ) -> None:
        """Keeps the sizes.

        Args:
            batch_size: Seeds per worker and step. Groups of seeds, where the sampler
                has groups.
            batching: "plain", or "balanced" to even out the expected work of the
                workers.
            window: Steps over which balanced batching evens out.
            prefetch: Batches made ahead.
            topology: "shared": one mapped copy of the graph for all workers of a host.
        """
        for name, value in (("batch_size", batch_size), ("window", window), ("prefetch", prefetch)):
            whole(f"strategy.{name}", value, 1, MAX_COUNT)
        one_of("strategy.batching", batching, ("plain", "balanced"))
        one_of("strategy.topology", topology, ("shared",))
        self.batch_size, self.batching, self.window, self.prefetch = batch_size, batching, window, prefetch

    def on_one_rank(self, world_size: int, sampler: Sampler | None) -> ExecutionStrategy | None:
        if sampler is None or not sampler.rank_invariant or self.batching != "plain":
            return None
        alone = copy.copy(self)
        alone.batch_size = self.batch_size * world_size
        return alone

    def setup(self, worker: Worker, model: nn.Module) -> None:
        if worker.graph is None or worker.sampler is None:
            raise UserError("strategy=individual_sample needs the whole graph and a sampler")
        graph = worker.graph
        self.tally = Tally()
        self.worker, self.graph = worker, graph
        self.layers = BlockLayers(graph, model, worker.dtype, worker.device)
        self.loader = Loader(
            graph.csc,
            weighing_sums(worker.sampler),
            np.flatnonzero(graph.split == Split.TRAIN),
            self.batch_size,
            features=worker.features.table,
            rank=worker.comm.rank,
            world_size=worker.comm.world_size,
            batching=self.batching,
            window=self.window,
            seed=worker.seed,
            threads=worker.threads,
            prefetch=self.prefetch,
        )

    def num_batches(self, epoch: int) -> int:
        return len(self.loader)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        self.loader.start_at(epoch, first)
        totals = np.diff(self.loader.plan(epoch).bounds[:, [0, -1]])[:, 0]
        for step, loaded in enumerate(self.loader, first):
            yield self._batch(loaded, derive(self.worker.seed, epoch * len(totals) + step), int(totals[step]))

    def _batch(self, loaded: LoadedBatch, key: int, total: int) -> Batch:
        worker = self.worker
        x = torch.from_numpy(np.asarray(loaded.x)).to(worker.device, worker.dtype)
        labels = torch.tensor(self.graph.labels[loaded.seeds].astype(np.int64), device=worker.device)
        rows = torch.arange(len(loaded.seeds), device=worker.device)
        return Batch(x, self.layers.layers(loaded.blocks, key), rows, labels, total)
