"""Batches that the configured sampler draws from the whole graph."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from gnnkit.engine import Adjacency, BlockLayers, Pool, Rows, Tally
from gnnkit.errors import UserError
from gnnkit.graph import Block, Ids, Split
from gnnkit.kernels.dropout import derive
from gnnkit.remote.disk import DiskFeatures
from gnnkit.remote.features import of_bits
from gnnkit.remote.owners import Sent
from gnnkit.sampler import Loader, gather_rows
from gnnkit.spans import active, span
from gnnkit.strategy.base import Batch, Worker, weighing_sums
from gnnkit.strategy.link_seeds import LinkSeeds
from gnnkit.strategy.on_disk import Ahead, begin, bytes_of
from gnnkit.strategy.seeds import Deal, Step, drawing

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """One batch, drawn ahead."""

    step: Step
    blocks: Sequence[Block]
    x: npt.NDArray[Any] | None  # [num_input_nodes, width] features, where a batch brings these


class SampledBatches:
    """The sampled batches of one rank, epoch by epoch.

    The batches of all ranks cover the training nodes once in an epoch, or the edges to
    predict. A rank without seeds joins a step with an empty batch.
    """

    gathers: ClassVar[bool] = True  # whether a batch brings the features of its nodes

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
    ) -> None:
        """Starts nothing. Raises `UserError` for a worker without graph or sampler.

        Args:
            worker: This rank, with graph and sampler.
            model: Says whether nodes get loops.
            tally: Counts the seconds of waiting for other ranks.
            batch_size: Seeds per worker and step, or groups of seeds, or edges.
            batching: "plain" or "balanced".
            window: Steps over which balanced batching evens out.
            prefetch: Batches made ahead.
        """
        if worker.graph is None or worker.sampler is None:
            raise UserError("a strategy that draws needs the whole graph and a sampler")
        self.worker, self.graph, self.model = worker, worker.graph, model
        self.layers = BlockLayers(self.graph, model, worker.dtype, worker.device, Pool(worker.comm, tally))
        self._source: _Nodes | _Links
        self._tally, self._disk, self._prefetch = tally, worker.disk if self.gathers else None, prefetch
        self.window: int | None = None  # batches drawn ahead, once counted
        if worker.links is not None:
            self._source = _Links(worker, self.layers, batch_size, prefetch, gathers=self.gathers)
            return
        sampler = weighing_sums(worker.sampler)
        self._source = _Nodes(
            Loader(
                self.graph.csc,
                sampler.with_features(np.asarray(self.graph.features)) if sampler.reads_features else sampler,
                np.flatnonzero(self.graph.split == Split.TRAIN),
                batch_size,
                features=_table(worker) if self.gathers else None,
                rank=worker.comm.rank,
                world_size=worker.comm.world_size,
                batching=batching,
                window=window,
                seed=worker.seed,
                threads=worker.threads,
                prefetch=prefetch,
                repeat=False,
            )
        )

    def __len__(self) -> int:
        """Counts the steps of an epoch, the same on every rank."""
        return len(self._source)

    def deal(self, shares: Sequence[float]) -> None:
        """Deals out the training nodes of a step in shares, [world_size] with sum 1."""
        assert isinstance(self._source, _Nodes), "only seeds that are nodes have shares"
        self._source.deal(shares)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Gives the batches of an epoch, from step `first` on."""
        with closing(self._epoch(epoch, first)) as made:
            for each in made:
                x, adjacencies = self._inputs(each.blocks, each.x, each.step.key)
                nodes = each.blocks[0].src_nodes if self.gathers else None
                yield each.step.batch(x, adjacencies, self.graph.labels[each.step.seeds], nodes=nodes)

    def _epoch(self, epoch: int, first: int) -> Generator[_Made, None, None]:
        """Draws the batches of an epoch, with their rows unless these are sparse."""
        if self._disk is None:
            return self._source.epoch(epoch, first)
        window = self._begun(self._disk)
        return self._read(self._disk, self._source.epoch(epoch, first), range(first, len(self)), window)

    def foresee(self, epoch: int) -> None:
        """Counts what an epoch will read from disk, without a read of its rows."""
        assert self._disk is not None
        window, steps = self._begun(self._disk), range(len(self))
        with closing(self._source.epoch(epoch, 0)) as drawn:
            batches = Ahead(self._disk, steps, _nodes_of, window)
            for _ in steps:
                batches.next(lambda _: next(drawn))
                self._disk.foresee()

    def _begun(self, disk: DiskFeatures) -> int:
        """Returns how many batches are drawn ahead, after `on_disk.begin`."""
        if self.window is None:
            with closing(self._source.epoch(0, 0)) as drawn:
                self.window = begin(disk, drawn, _nodes_of, lambda made: bytes_of(made.blocks))
        return self.window

    def _read(
        self, disk: DiskFeatures, drawn: Generator[_Made, None, None], steps: range, window: int
    ) -> Generator[_Made, None, None]:
        """Reads the rows of batches from disk, while the batch before is computed."""
        batches = Ahead(disk, steps, _nodes_of, window)

        def make(step: int) -> _Made:
            made = batches.next(lambda _: next(drawn))
            return replace(made, x=disk.take(len(_nodes_of(made))))

        try:
            with closing(ahead(make, steps, self._prefetch)) as made:
                for each in made:
                    self._tally.bytes_read = disk.counts.bytes
                    yield each
        finally:
            drawn.close()
            disk.forget()

    def endless(self, first: int) -> Iterator[Batch]:
        """Gives batches of epoch after epoch, from step `first` of all steps on."""
        epoch, step = divmod(first, len(self))
        while True:
            yield from self.epoch(epoch, step)
            epoch, step = epoch + 1, 0

    def _inputs(
        self, blocks: Sequence[Block], x: npt.NDArray[Any] | None, key: int
    ) -> tuple[Rows, Sequence[Adjacency]]:
        """Returns the rows of the first layer's sources, and an adjacency by layer.

        Args:
            blocks: [num_layers] blocks of the batch.
            x: [num_input_nodes, width] features as kept, where a batch brings these.
            key: Key of the step.
        """
        worker = self.worker
        if x is None:  # features are kept without zeros
            return worker.input_rows(blocks[0].src_nodes, self.model), self.layers.layers(blocks, key)
        rows = np.asarray(x)
        if worker.rounded is None:
            given = worker.features.opening(rows, worker.input_dtype)
        else:
            given = of_bits(rows).to(worker.device, worker.input_dtype or worker.dtype)
        return given, self.layers.layers(blocks, key)


def _nodes_of(made: _Made) -> Ids:
    return made.blocks[0].src_nodes


class _Nodes:
    """Batches of training nodes, which native threads make ahead."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def deal(self, shares: Sequence[float]) -> None:
        self._loader.deal(shares)

    def epoch(self, epoch: int, first: int) -> Generator[_Made, None, None]:
        loader = self._loader
        loader.start_at(epoch, first)
        totals = np.diff(loader.plan(epoch).bounds[:, [0, -1]])[:, 0]
        with closing(iter(loader)) as made:
            for number, loaded in enumerate(made, first):
                key = derive(loader.seed, epoch * len(totals) + number)
                yield _Made(Step(loaded.seeds, int(totals[number]), key), loaded.blocks, loaded.x)


class _Links:
    """Batches of edges to predict, which one thread makes ahead."""

    def __init__(self, worker: Worker, layers: BlockLayers, batch_size: int, prefetch: int, *, gathers: bool) -> None:
        """Starts nothing.

        Args:
            worker: This rank, with graph, sampler and links.
            layers: Values of the whole graph.
            batch_size: Edges per worker and step.
            prefetch: Batches made ahead.
            gathers: Whether a batch brings the features of its nodes.
        """
        self._worker, self._layers, self._prefetch = worker, layers, prefetch
        self._table = _table(worker) if gathers else None
        self._sampler, self._seeds = drawing(worker), LinkSeeds(worker, batch_size)

    def __len__(self) -> int:
        return len(self._seeds)

    def epoch(self, epoch: int, first: int) -> Generator[_Made, None, None]:
        deal = self._seeds.epoch(epoch, self._worker.comm, Sent.nothing(1))
        return ahead(partial(self._make, deal), range(first, len(self)), self._prefetch)

    def _make(self, deal: Deal, number: int) -> _Made:
        worker, layers = self._worker, self._layers
        step = deal(number, worker.comm, Sent.nothing(1))
        drawn = self._sampler.sample(layers.graph.csc, step.seeds, key=step.draws)
        x = None if self._table is None else gather_rows(self._table, drawn.input_nodes, threads=worker.threads)
        return _Made(step, step.kept(drawn.blocks, layers), x)


def _table(worker: Worker) -> npt.NDArray[Any] | None:
    """Returns the rows that batches gather."""
    return worker.features.table if worker.rounded is None else worker.rounded


def ahead(make: Callable[[int], T], steps: range, count: int) -> Generator[T, None, None]:
    """Gives `make(step)` of all steps in order, of which a thread makes some ahead.

    Args:
        make: Makes the result of a step.
        steps: The steps.
        count: Results made ahead.
    """
    spans = active()

    def recorded(step: int) -> T:
        with span(spans, "sampling", "make a batch"):
            return make(step)

    with ThreadPoolExecutor(1) as pool:
        waiting: deque[Future[T]] = deque(pool.submit(recorded, step) for step in steps[:count])
        try:
            for step in steps:
                result = waiting.popleft().result()
                if step + count in steps:
                    waiting.append(pool.submit(recorded, step + count))
                yield result
        finally:
            for future in waiting:
                future.cancel()
