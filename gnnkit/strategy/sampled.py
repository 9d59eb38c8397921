"""Batches that the configured sampler draws from the whole graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency, BlockLayers
from gnnkit.engine.dropout import derive
from gnnkit.engine.features import of_bits
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.sampler import LoadedBatch, Loader
from gnnkit.strategy.base import Batch, Worker, weighing_sums


class SampledBatches:
    """The sampled batches of one rank, epoch by epoch.

    The batches of all ranks cover the training nodes once in an epoch. A rank without
    seeds joins a step with an empty batch.
    """

    gathers: ClassVar[bool] = True  # whether a batch brings the features of its nodes

    def __init__(
        self,
        worker: Worker,
        model: nn.Module,
        *,
        batch_size: int,
        batching: str = "plain",
        window: int = 8,
        prefetch: int = 2,
    ) -> None:
        """Starts nothing. Raises `UserError` for a worker without graph or sampler.

        Args:
            worker: This rank, with graph and sampler.
            model: Says whether nodes get loops.
            batch_size: Seeds per worker and step, or groups of seeds.
            batching: "plain" or "balanced".
            window: Steps over which balanced batching evens out.
            prefetch: Batches made ahead.
        """
        if worker.graph is None or worker.sampler is None:
            raise UserError("a strategy that draws needs the whole graph and a sampler")
        self.worker, self.graph = worker, worker.graph
        self.layers = BlockLayers(self.graph, model, worker.dtype, worker.device)
        self.loader = Loader(
            self.graph.csc,
            weighing_sums(worker.sampler),
            np.flatnonzero(self.graph.split == Split.TRAIN),
            batch_size,
            features=self._table() if self.gathers else None,
            rank=worker.comm.rank,
            world_size=worker.comm.world_size,
            batching=batching,
            window=window,
            seed=worker.seed,
            threads=worker.threads,
            prefetch=prefetch,
        )

    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""
        return len(self.loader)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on."""
        self.loader.start_at(epoch, first)
        totals = np.diff(self.loader.plan(epoch).bounds[:, [0, -1]])[:, 0]
        with closing(iter(self.loader)) as made:
            for step, loaded in enumerate(made, first):
                yield self._batch(loaded, derive(self.worker.seed, epoch * len(totals) + step), int(totals[step]))

    def endless(self, first: int) -> Iterator[Batch]:
        """Gives batches of epoch after epoch, from step `first` of all steps on."""
        epoch, step = divmod(first, len(self))
        while True:
            yield from self.epoch(epoch, step)
            epoch, step = epoch + 1, 0

    def _batch(self, loaded: LoadedBatch, key: int, total: int) -> Batch:
        worker = self.worker
        x, adjacencies = self._inputs(loaded, key)
        labels = torch.tensor(self.graph.labels[loaded.seeds].astype(np.int64), device=worker.device)
        return Batch(x, adjacencies, torch.arange(len(loaded.seeds), device=worker.device), labels, total)

    def _inputs(self, loaded: LoadedBatch, key: int) -> tuple[Tensor, Sequence[Adjacency]]:
        """Returns the rows of the first layer's sources, and an adjacency by layer."""
        worker, rows = self.worker, np.asarray(loaded.x)
        x = torch.from_numpy(rows) if worker.rounded is None else of_bits(rows)
        return x.to(worker.device, worker.input_dtype or worker.dtype), self.layers.layers(loaded.blocks, key)

    def _table(self) -> npt.NDArray[Any] | None:
        """Returns the rows that are gathered ahead."""
        return self.worker.features.table if self.worker.rounded is None else self.worker.rounded
