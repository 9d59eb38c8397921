"""Preset workloads with clusters, moving chunks, or steps on sampled batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.strategy import Batch, EdgeTask, LastingRows, Measured, Worker
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.sampled_batches import SampledBatches
from gnnkit.strategy.workload import Workload
from gnnkit.utils.ranges import MAX_COUNT, whole
from gnnkit_preset.chunks import Chunks
from gnnkit_preset.clusters import ClusterKeys, Clusters

_CORRECTED = "also draws batches, whose rows are read one by one: use another strategy"


class Cluster(PresetWorkload):
    """Each step reads some clusters of the worker's nodes, and the edges between them.

    Choose this strategy if a share is too large for one step and few edges are cut
    (Cluster-GCN; Chiang et al., KDD 2019).

    Args:
        clusters: Number of clusters per worker.
        clusters_per_batch: Number of clusters per step.
        clusters_by: Name of the partitioner that cuts clusters, with its defaults.
        sync_every: Number of steps between synchronisations, or "epoch". If None, 1, or
            epoch if parameters are averaged.
        average: As for `PresetWorkload`, as is `degrees`.
    """

    def __init__(
        self,
        clusters: int = 32,
        clusters_per_batch: int = 4,
        clusters_by: str = "buffered",
        sync_every: int | str | None = None,
        average: str = "gradients",
        degrees: str | None = None,
    ) -> None:
        self.clusters = ClusterKeys.of(clusters, clusters_per_batch, clusters_by)
        self.num_steps = self.clusters.num_steps
        super().__init__(None, degrees, 1 if sync_every is None and average != "parameters" else sync_every, average)
        self.approximation = "strategy=cluster", "a step lacks the edges to other clusters"

    def workload(self, nodes: Ids) -> Workload:
        return Clusters(self.reader, nodes, self.clusters)


class Dynamic(PresetWorkload):
    """Slower workers hand chunks of nodes over to faster ones, between epochs.

    Choose this strategy if workers differ in speed. Results depend on measured times.

    Args:
        chunks: Number of chunks per worker.
        resplit_every: Number of epochs between two splits.
        halo: As for `PresetWorkload`, as are `average` and `degrees`.
        sync_every: "epoch" or 1.
    """

    def __init__(
        self,
        chunks: int = 16,
        resplit_every: int = 1,
        halo: str = "one_hop",
        sync_every: int | str | None = None,
        average: str = "gradients",
        degrees: str | None = None,
    ) -> None:
        self.chunks_per_rank = whole("strategy.chunks", chunks, 1, MAX_COUNT)
        self.resplit_every = whole("strategy.resplit_every", resplit_every, 1, MAX_COUNT)
        super().__init__(halo, degrees, sync_every, average)
        if self.keys.sync_every not in ("epoch", 1):
            raise UserError(
                f"strategy.sync_every={sync_every} does not go with moving chunks: workers synchronise before they move, "
                "choose strategy.sync_every=epoch"
            )
        self.steps = replace(self.steps, keep_state=True)

    def setup(self, worker: Worker, model: nn.Module) -> None:
        super().setup(worker, model)
        self.chunks = Chunks(worker, self.chunks_per_rank)

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        super().end_epoch(epoch, measured, model)
        if not self.phases.is_exact(epoch) and (epoch + 1) % self.resplit_every == 0:
            self._assign(self.chunks.moved(measured.seconds_compute))

    def state_dict(self) -> dict[str, Any]:
        return {"chunk_rank": torch.from_numpy(self.chunks.ranks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._assign(state["chunk_rank"].numpy())

    def _assign(self, ranks: Ids) -> None:
        """Assigns chunks to ranks, and rebuilds shares if one has moved. Collective."""
        if not np.array_equal(ranks, self.chunks.ranks):
            self.chunks.ranks = ranks
            self.work = self.workload(self.chunks.nodes())


class Llcg(PresetWorkload):
    """Corrects averages of parameters by steps on batches of the complete graph.

    Choose this strategy if labels depend on nodes of other workers (Ramezani et al.,
    ICLR 2022). The configured sampler draws the batches, including edges between
    shares.

    Args:
        correction_steps: Number of steps after each average.
        correction_batch_size: Seeds per worker in such a step.
        halo: As for `PresetWorkload`, as are `degrees` and `control_variates`.
        sync_every: Number of steps between averages, or "epoch". If None, epoch.
    """

    def __init__(
        self,
        correction_steps: int = 2,
        correction_batch_size: int = 1024,
        halo: str = "one_hop",
        sync_every: int | str | None = None,
        degrees: str | None = None,
        control_variates: bool | None = None,
    ) -> None:
        self.correction_steps = whole("strategy.correction_steps", correction_steps, 1, MAX_COUNT)
        self.batch_size = whole("strategy.correction_batch_size", correction_batch_size, 1, MAX_COUNT)
        super().__init__(halo, degrees, sync_every, "parameters", control_variates)
        self.approximation = "strategy=llcg", "workers step alone between two averages"
        self.reads = replace(self.reads, sampler=True)
        abilities = [ability for ability in self.supports if not isinstance(ability, LastingRows | EdgeTask)]
        self.supports = (*abilities, LastingRows(but=_CORRECTED))

    def setup(self, worker: Worker, model: nn.Module) -> None:
        super().setup(worker, model)
        self._sampled = SampledBatches(worker, model, self.tally, batch_size=self.batch_size)

    def num_batches(self, epoch: int) -> int:
        averages = (epoch + 1) // self.keys.period - epoch // self.keys.period
        return 1 if self.phases.is_exact(epoch) else 1 + self.correction_steps * averages

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        yield from super().batches(epoch, first)
        done, phase = divmod(epoch + 1, self.keys.period)
        if phase or self.phases.is_exact(epoch):
            return
        skipped = max(first - 1, 0)
        sampled_batches = _endless(self._sampled, (done - 1) * self.correction_steps + skipped)
        for batch in islice(sampled_batches, self.correction_steps - skipped):
            yield replace(batch, update="correct")


def _endless(batches: SampledBatches, first: int) -> Iterator[Batch]:
    """Yields batches of consecutive epochs, starting at global step `first`."""
    epoch, step = divmod(first, len(batches))
    while True:
        yield from batches.epoch(epoch, step)
        epoch, step = epoch + 1, 0
