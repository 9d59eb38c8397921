"""Preset workloads with clusters, moving chunks, and steps on sampled batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
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
from gnnkit.utils.ranges import MAX_COUNT, one_of, whole
from gnnkit_preset.chunks import ChunkKeys, Chunks
from gnnkit_preset.clusters import ClusterKeys, Clusters

_HALOS = ("one_hop", "none", "cluster")
_CORRECTED = "also draws batches, whose rows are read one by one: use another strategy"


@dataclass(frozen=True, slots=True)
class Corrections:
    """Steps on sampled batches of the complete graph, after each average."""

    steps: int
    batch_size: int  # seeds per worker

    def __post_init__(self) -> None:
        whole("strategy.correction_steps", self.steps, 1, MAX_COUNT)
        whole("strategy.correction_batch_size", self.batch_size, 1, MAX_COUNT)


class Variant(PresetWorkload):
    """A preset workload with clusters, moving chunks and correction steps.

    Each of them is optional, and any two go together.
    """

    def __init__(
        self,
        halo: str | None,
        clusters: ClusterKeys | None,
        chunks: ChunkKeys | None = None,
        corrections: Corrections | None = None,
        *,
        sync_every: int | str | None,
        degrees: str | None,
        average: str | None,
        control_variates: bool | None,
    ) -> None:
        self.clusters, self.chunk_keys, self.corrections = clusters, chunks, corrections
        self.num_steps = 1 if clusters is None else clusters.num_steps
        if clusters is not None and sync_every is None and average != "parameters":
            sync_every = 1
        super().__init__(None if clusters else halo, degrees, sync_every, average, control_variates)
        if clusters is not None:
            self._explain("a step lacks the edges to other clusters")
        if chunks is not None:
            _check_meets(self.keys.sync_every)
            self.steps = replace(self.steps, keep_state=True)
        if corrections is not None:
            self._explain("workers step alone between two averages")
            self.reads = replace(self.reads, sampler=True)
            abilities = [ability for ability in self.supports if not isinstance(ability, LastingRows | EdgeTask)]
            self.supports = (*abilities, LastingRows(but=_CORRECTED))

    def _explain(self, reason: str) -> None:
        """Names this strategy as the key that makes steps approximate."""
        self.approximation = f"strategy={type(self).__name__.lower()}", reason

    @property
    def builds_own_workload(self) -> bool:
        return self.clusters is not None

    def setup(self, worker: Worker, model: nn.Module) -> None:
        super().setup(worker, model)
        if self.chunk_keys is not None:
            self.chunks = Chunks(worker, self.chunk_keys.per_rank)
        if self.corrections is not None:
            self._sampled = SampledBatches(worker, model, self.tally, batch_size=self.corrections.batch_size)

    def workload(self, nodes: Ids) -> Workload:
        return super().workload(nodes) if self.clusters is None else Clusters(self.reader, nodes, self.clusters)

    def num_batches(self, epoch: int) -> int:
        count = super().num_batches(epoch)
        if self.corrections is None or self.phases.is_exact(epoch):
            return count
        first, last = (place * self.num_steps // self.keys.period for place in (epoch, epoch + 1))
        return count + self.corrections.steps * (last - first)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if self.corrections is None or self.phases.is_exact(epoch):
            yield from super().batches(epoch, first)
            return
        sampled_batches: Iterator[Batch] | None = None
        for step, correction in islice(self._steps(epoch, self.corrections.steps), first, None):
            if correction is None:
                yield self.batch(epoch, step)
            else:
                sampled_batches = sampled_batches or _endless(self._sampled, correction)
                yield replace(next(sampled_batches), update="correct")

    def _steps(self, epoch: int, num_corrections: int) -> Iterator[tuple[int, int | None]]:
        """Yields each step of an epoch, with the number of its correction or None."""
        for step in range(self.num_steps):
            yield step, None
            done, phase = divmod(epoch * self.num_steps + step + 1, self.keys.period)
            if phase == 0:
                yield from ((step, (done - 1) * num_corrections + i) for i in range(num_corrections))

    def end_epoch(self, epoch: int, measured: Measured, model: nn.Module) -> None:
        super().end_epoch(epoch, measured, model)
        keys = self.chunk_keys
        if keys is not None and not self.phases.is_exact(epoch) and (epoch + 1) % keys.every == 0:
            self._assign(self.chunks.moved(measured.seconds_compute))

    def state_dict(self) -> dict[str, Any]:
        return {} if self.chunk_keys is None else {"chunk_rank": torch.from_numpy(self.chunks.ranks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.chunk_keys is not None:
            self._assign(state["chunk_rank"].numpy())

    def _assign(self, ranks: Ids) -> None:
        """Assigns chunks to ranks, and rebuilds shares if one has moved. Collective."""
        if not np.array_equal(ranks, self.chunks.ranks):
            self.chunks.ranks = ranks
            self.work = self.workload(self.chunks.nodes())


class Cluster(Variant):
    """Each step reads some clusters of the worker's nodes, and the edges between them.

    Choose this strategy if a share is too large for one step and few edges are cut
    (Cluster-GCN; Chiang et al., KDD 2019).

    Args:
        clusters: Number of clusters per worker.
        clusters_per_batch: Number of clusters per step.
        clusters_by: Name of the partitioner that cuts clusters, with its defaults.
        sync_every: Number of steps between synchronisations, or "epoch". If None, 1, or
            epoch if parameters are averaged.
        average: As for `PresetWorkload`, as are `degrees` and `control_variates`.
    """

    def __init__(
        self,
        clusters: int = 32,
        clusters_per_batch: int = 4,
        clusters_by: str = "buffered",
        sync_every: int | str | None = None,
        average: str = "gradients",
        degrees: str | None = None,
        control_variates: bool | None = None,
    ) -> None:
        super().__init__(
            None,
            ClusterKeys.of(clusters, clusters_per_batch, clusters_by),
            sync_every=sync_every,
            degrees=degrees,
            average=average,
            control_variates=control_variates,
        )


class Dynamic(Variant):
    """Slower workers hand chunks of nodes over to faster ones, between epochs.

    Choose this strategy if workers differ in speed. Results depend on measured times.

    Args:
        chunks: Number of chunks per worker.
        resplit_every: Number of epochs between two splits.
        halo: As for `PresetWorkload`, or "cluster": as `Cluster`.
        clusters: As for `Cluster`, with halo "cluster" only.
        sync_every: "epoch" or 1.
        average: As for `PresetWorkload`, as are `degrees` and `control_variates`.
    """

    def __init__(
        self,
        chunks: int = 16,
        resplit_every: int = 1,
        halo: str = "one_hop",
        clusters: int | None = None,
        clusters_per_batch: int | None = None,
        clusters_by: str | None = None,
        sync_every: int | str | None = None,
        average: str = "gradients",
        degrees: str | None = None,
        control_variates: bool | None = None,
    ) -> None:
        super().__init__(
            halo,
            _clusters(halo, clusters, clusters_per_batch, clusters_by),
            ChunkKeys.of(chunks, resplit_every),
            sync_every=sync_every,
            degrees=degrees,
            average=average,
            control_variates=control_variates,
        )


class Llcg(Variant):
    """Corrects averages of parameters by steps on batches of the complete graph.

    Choose this strategy if labels depend on nodes of other workers (Ramezani et al.,
    ICLR 2022). The configured sampler draws the batches, including edges between
    shares.

    Args:
        correction_steps: Number of steps after each average.
        correction_batch_size: Seeds per worker in such a step.
        halo: As for `Dynamic`, as are the keys of clusters.
        split: "fixed", or "dynamic": as `Dynamic`.
        chunks: As for `Dynamic`, with a dynamic split only. If None, 16.
        resplit_every: As for `Dynamic`, with a dynamic split only. If None, 1.
        sync_every: Number of steps between averages, or "epoch". If None, epoch.
        degrees: As for `PresetWorkload`, as is `control_variates`.
    """

    def __init__(
        self,
        correction_steps: int = 2,
        correction_batch_size: int = 1024,
        halo: str = "one_hop",
        clusters: int | None = None,
        clusters_per_batch: int | None = None,
        clusters_by: str | None = None,
        split: str = "fixed",
        chunks: int | None = None,
        resplit_every: int | None = None,
        sync_every: int | str | None = None,
        degrees: str | None = None,
        control_variates: bool | None = None,
    ) -> None:
        moves = one_of("strategy.split", split, ("fixed", "dynamic")) == "dynamic"
        if not moves:
            _check_unset("split=dynamic", chunks=chunks, resplit_every=resplit_every)
        super().__init__(
            halo,
            _clusters(halo, clusters, clusters_per_batch, clusters_by),
            ChunkKeys.of(chunks, resplit_every) if moves else None,
            Corrections(correction_steps, correction_batch_size),
            sync_every=sync_every,
            degrees=degrees,
            average="parameters",
            control_variates=control_variates,
        )


def _clusters(halo: str, clusters: int | None, per_batch: int | None, by: str | None) -> ClusterKeys | None:
    """Returns the keys of clusters with halo "cluster". Refuses them with others."""
    if one_of("strategy.halo", halo, _HALOS) == "cluster":
        return ClusterKeys.of(clusters, per_batch, by)
    _check_unset("halo=cluster", clusters=clusters, clusters_per_batch=per_batch, clusters_by=by)
    return None


def _check_unset(choice: str, **keys: object) -> None:
    """Raises `UserError` for keys that only have an effect with another choice."""
    for name, value in keys.items():
        if value is not None:
            raise UserError(f"strategy.{name}={value} is read with strategy.{choice} only: leave the key out")


def _check_meets(sync_every: int | str) -> None:
    """Raises `UserError` if workers may not have met when chunks move."""
    if sync_every not in ("epoch", 1):
        raise UserError(
            f"strategy.sync_every={sync_every} does not go with moving chunks: workers synchronise before they move, "
            "choose strategy.sync_every=epoch"
        )


def _endless(batches: SampledBatches, first: int) -> Iterator[Batch]:
    """Yields batches of consecutive epochs, starting at global step `first`."""
    epoch, step = divmod(first, len(batches))
    while True:
        yield from batches.epoch(epoch, step)
        epoch, step = epoch + 1, 0
