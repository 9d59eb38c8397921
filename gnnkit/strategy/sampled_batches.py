"""Batches that the configured sampler draws from the complete graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from gnnkit.engine import Adjacency, BlockLayers, Pool, Rows, Tally
from gnnkit.engine.remote.disk import DiskFeatures
from gnnkit.engine.remote.features import of_bits
from gnnkit.engine.remote.owners import MessageCounter
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Ids, MiniBatch, RelationGroups, Split
from gnnkit.kernels.dropout import derive
from gnnkit.sampler import FullSampler, Loader, gather_rows
from gnnkit.sampler.base import TIME_ARGUMENTS
from gnnkit.strategy.base import Batch, Worker, weighing_sums
from gnnkit.strategy.on_disk import AnnouncedBatches, bytes_of, prepare_window
from gnnkit.strategy.seeds import MakeStep, NodeSeeds, Seeds, Step, drawing, make_seeds, sample_step
from gnnkit.utils.spans import active, span

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Prefetched:
    """A prefetched batch."""

    step: Step
    batch: MiniBatch
    x: npt.NDArray[Any] | None  # [num_input_nodes, width] features, if they are prefetched


def whole_steps(worker: Worker, model: nn.Module) -> tuple[Worker, int]:
    """Returns a worker and a batch size for one exact step per epoch.

    The step has all training rows, and its sampler takes all neighbours.
    """
    by_time = {} if worker.sampler is None else {name: getattr(worker.sampler, name) for name in TIME_ARGUMENTS}
    sampler = FullSampler(model.num_layers, threads=worker.threads, **by_time)  # type: ignore[arg-type]
    num_nodes = worker.shard.num_nodes
    return replace(worker, sampler=sampler), max(num_nodes, worker.rows.num_rows(num_nodes), 1)


class SampledBatches:
    """One rank's sampled batches, epoch by epoch.

    Together, all ranks' batches cover the training nodes, or the edges to predict, once
    per epoch. A rank without seeds takes part with an empty batch.

    Args:
        worker: This rank, with graph and sampler.
        model: The model, with `self_loops`.
        tally: Counts the seconds spent waiting for other ranks.
        batch_size: Seeds, groups of seeds, or edges per worker and step.
        batching: "plain" or "balanced".
        window: Number of steps over which balanced batching evens out work.
        prefetch: Number of prefetched batches.
        seeds: The seeds of all ranks. If None, training nodes, or pairs to predict.
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
        seeds: Seeds | None = None,
    ) -> None:
        if worker.graph is None or worker.sampler is None:
            raise UserError("a strategy that draws needs the whole graph and a sampler")
        self.worker, self.graph, self.model = worker, worker.graph, model
        self.layers = worker.layers(model, Pool(worker.comm, tally))
        self._in_edges = worker.edges_to_sample(model)
        self._source: _Nodes | _StepBatches
        self._tally, self._disk, self._prefetch = tally, worker.disk, prefetch
        self.window: int | None = None  # number of batches sampled in advance, once known
        if seeds is None and (worker.rows.pairs or worker.samples_by_time):
            seeds = make_seeds(worker, batch_size, lambda: NodeSeeds(worker, batch_size, model=model))
        if seeds is not None:
            self._source = _StepBatches(worker, self.layers, self._in_edges, seeds, prefetch)
            return
        loader = _loader(
            worker, self._in_edges, batch_size=batch_size, batching=batching, window=window, prefetch=prefetch
        )
        self._source = _Nodes(loader)

    def __len__(self) -> int:
        """Returns the number of steps per epoch, equal on every rank."""
        return len(self._source)

    def deal(self, shares: Sequence[float]) -> None:
        """Distributes each step's training nodes by shares [world_size] of sum 1."""
        self._source.deal(shares)

    def close(self) -> None:
        """Does nothing: threads end with an epoch."""

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yields an epoch's batches, starting at step `first`."""
        with closing(self._epoch(epoch, first)) as drawn_batches:
            for sample in drawn_batches:
                x, adjacencies = self._inputs(sample.batch, sample.x, sample.step.key)
                yield sample.step.batch(
                    x, adjacencies, self.graph.labels[sample.step.seeds], nodes=sample.batch.input_nodes
                )

    def _epoch(self, epoch: int, first: int) -> Generator[_Prefetched, None, None]:
        """Samples an epoch's batches, including their rows unless these are sparse."""
        if self._disk is None:
            return self._source.epoch(epoch, first)
        window = self._find_window(self._disk)
        return self._read(self._disk, self._source.epoch(epoch, first), range(first, len(self)), window)

    def _find_window(self, disk: DiskFeatures) -> int:
        """Returns the number of batches sampled in advance (`prepare_window`)."""
        if self.window is None:
            with closing(self._source.epoch(0, 0)) as samples:
                self.window = prepare_window(disk, samples, lambda sample: bytes_of(sample.batch.blocks))
        return self.window

    def _read(
        self, disk: DiskFeatures, samples: Generator[_Prefetched, None, None], steps: range, window: int
    ) -> Generator[_Prefetched, None, None]:
        """Reads batches' rows from disk, while the previous batch is computed."""
        batches = AnnouncedBatches(disk, steps, _nodes_of, window)

        def make(step: int) -> _Prefetched:
            batch = batches.next(lambda _: next(samples))
            nodes, places = batch.batch.rows_by_node()
            return replace(batch, x=disk.take(len(nodes))[places])

        try:
            with closing(ahead(make, steps, self._prefetch)) as read_batches:
                for drawn_batch in read_batches:
                    self._tally.bytes_read = disk.counts.bytes
                    yield drawn_batch
        finally:
            samples.close()
            disk.forget()

    def _inputs(self, batch: MiniBatch, x: npt.NDArray[Any] | None, key: int) -> tuple[Rows, Sequence[Adjacency]]:
        """Returns the first layer's input rows, and one adjacency per layer.

        Args:
            batch: The batch.
            x: [num_input_nodes, width] features as stored, if they were prefetched.
            key: Random key of the step.
        """
        worker = self.worker
        adjacencies = worker.layers_of(batch, self.layers).layers(batch.blocks, key)
        if x is None:  # sparse features are not prefetched
            return worker.input_rows(batch.input_nodes, self.model), adjacencies
        rows = np.asarray(x)
        if worker.rounded is None:
            opened_rows = worker.features.convert(rows, worker.input_dtype)
        else:
            opened_rows = of_bits(rows).to(worker.device, worker.input_dtype or worker.dtype)
        return opened_rows, adjacencies


def _loader(worker: Worker, in_edges: CSC | RelationGroups, **options: Any) -> Loader:
    """Creates the loader for a rank's training nodes, with options for `Loader`."""
    graph, sampler = worker.graph, worker.sampler
    assert graph is not None, "needs the complete graph"
    assert sampler is not None, "draws"
    sampler = weighing_sums(sampler)
    if sampler.reads_features:
        sampler = sampler.with_features(np.asarray(graph.features))
    options |= {"features": _table(worker), "rank": worker.comm.rank, "world_size": worker.comm.world_size}
    options |= {"seed": worker.seed, "threads": worker.threads, "repeat": False}
    return Loader(in_edges, sampler, np.flatnonzero(graph.split == Split.TRAIN), **options)


def _nodes_of(sample: _Prefetched) -> Ids:
    """Returns the distinct nodes of a batch's input rows."""
    return sample.batch.rows_by_node()[0]


class _Nodes:
    """Batches of training nodes, prefetched by native threads."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def deal(self, shares: Sequence[float]) -> None:
        self._loader.deal(shares)

    def epoch(self, epoch: int, first: int) -> Generator[_Prefetched, None, None]:
        loader = self._loader
        loader.start_at(epoch, first)
        totals = np.diff(loader.plan(epoch).bounds[:, [0, -1]])[:, 0]
        with closing(iter(loader)) as batch_iterator:
            for number, batch in enumerate(batch_iterator, first):
                key = derive(loader.seed, epoch * len(totals) + number)
                yield _Prefetched(Step(batch.seeds, int(totals[number]), key), batch.minibatch, batch.x)


class _StepBatches:
    """Batches of pairs, or of nodes at their times, prefetched by one thread."""

    def __init__(
        self,
        worker: Worker,
        layers: BlockLayers,
        in_edges: CSC | RelationGroups,
        seeds: Seeds,
        prefetch: int,
    ) -> None:
        """Stores the arguments.

        Args:
            worker: This rank, with graph and sampler.
            layers: Layer values of the complete graph.
            in_edges: The in-edges that the sampler reads.
            seeds: The seeds of all ranks.
            prefetch: Number of prefetched batches.
        """
        self._worker, self._layers, self._in_edges, self._prefetch = worker, layers, in_edges, prefetch
        self._table, self._sampler, self._seeds = _table(worker), drawing(worker), seeds

    def __len__(self) -> int:
        return len(self._seeds)

    def deal(self, shares: Sequence[float]) -> None:
        assert isinstance(self._seeds, NodeSeeds), "only seeds that are nodes have shares"
        self._seeds.deal(shares)

    def epoch(self, epoch: int, first: int) -> Generator[_Prefetched, None, None]:
        make_step = self._seeds.epoch(epoch, self._worker.comm, MessageCounter.zeros(self._worker.comm.world_size))
        return ahead(partial(self._make, make_step), range(first, len(self)), self._prefetch)

    def _make(self, make_step: MakeStep, number: int) -> _Prefetched:
        worker, layers = self._worker, self._layers
        step = make_step(number, worker.comm, MessageCounter.zeros(1))
        batch = sample_step(self._sampler, self._in_edges, step)
        x = None if self._table is None else gather_rows(self._table, batch.input_nodes, threads=worker.threads)
        if step.pairs is not None:
            batch = replace(batch, blocks=step.without_pairs(batch.blocks, worker.layers_of(batch, layers)))
        return _Prefetched(step, batch, x)


def _table(worker: Worker) -> npt.NDArray[np.generic] | None:
    """Returns the feature rows that batches gather."""
    return worker.features.table if worker.rounded is None else worker.rounded


def ahead(make: Callable[[int], T], steps: range, count: int) -> Generator[T, None, None]:
    """Yields `make(step)` of all steps in order, computed in advance by a thread.

    Args:
        make: Computes a step's result.
        steps: The steps.
        count: Number of results computed in advance.
    """
    spans = active()

    def record_span(step: int) -> T:
        with span(spans, "sampling", "make a batch"):
            return make(step)

    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[T]] = deque(pool.submit(record_span, step) for step in steps[:count])
        try:
            for step in steps:
                result = waiting.popleft().result()
                if step + count in steps:
                    waiting.append(pool.submit(record_span, step + count))
                yield result
        finally:
            for future in waiting:
                future.cancel()
