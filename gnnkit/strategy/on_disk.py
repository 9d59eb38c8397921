"""Prefetched batches, which are drawn before their rows are read from disk."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch

from gnnkit.comm import Communicator
from gnnkit.engine import Tally
from gnnkit.engine.remote.disk import DiskFeatures, ReadCounts
from gnnkit.engine.remote.owners import MessageCounter, to_all
from gnnkit.exchange.background import Background
from gnnkit.graph import Block, Ids
from gnnkit.strategy.base import Batch, Worker
from gnnkit.strategy.seeds import MakeStep, Seeds
from gnnkit.utils.checks import Array

T = TypeVar("T")
MIN_AHEAD, MAX_AHEAD = 2, 256  # minimum and maximum number of batches drawn in advance
CACHE_SHARE = 8  # drawn batches may take 1/CACHE_SHARE of the cache size, in addition to the cache


def batches_ahead(features: DiskFeatures, batch_bytes: int) -> int:
    """Returns how many batches to draw in advance.

    Args:
        features: The rows.
        batch_bytes: Memory of a drawn batch.
    """
    return min(
        max(features.cache_rows * features.row_bytes // CACHE_SHARE // max(batch_bytes, 1), MIN_AHEAD), MAX_AHEAD
    )


def bytes_of(blocks: Sequence[Block]) -> int:
    """Returns the memory of a drawn batch."""
    arrays = [getattr(block, name) for block in blocks for name in Block.__dataclass_fields__]
    return sum(array.nbytes for array in arrays if array is not None)


def prepare_window(
    features: DiskFeatures,
    batches: Iterable[T],
    size: Callable[[T], int],
    comm: Communicator | None = None,
) -> int:
    """Returns how many batches to draw in advance.

    Collective if ranks draw together.

    Args:
        features: The rows.
        batches: Iterator that draws an epoch's batches.
        size: Returns a drawn batch's memory.
        comm: The ranks, if they draw together.
    """
    window = next((batches_ahead(features, size(batch)) for batch in batches), MIN_AHEAD)
    return window if comm is None else min(int(part[0]) for part in to_all(comm, np.array([window])))


class AnnouncedBatches(Generic[T]):
    """Iterates over an epoch's batches, and announces the next ones.

    In the k-th step, counting from 0, at most k + 2 batches are drawn in advance, so
    the first step does not wait for a full window. Numbers of batches depend on the
    draws only.
    """

    def __init__(self, features: DiskFeatures, steps: range, needs: Callable[[T], Ids], window: int) -> None:
        """Starts before the first step.

        Args:
            features: The rows.
            steps: The steps.
            needs: Returns a batch's distinct rows.
            window: Maximum number of batches drawn in advance.
        """
        self._features, self._steps, self._needs, self._window = features, steps, needs, window
        self._waiting: deque[T] = deque()
        self._num_drawn, self._num_taken = 0, 0

    def next(self, draw: Callable[[int], T]) -> T:
        """Returns the next batch, whose rows `DiskFeatures.take` returns.

        Args:
            draw: Draws the batch of a step. Called in order of step.
        """
        target = self._num_taken + 1 + min(self._window, self._num_taken + MIN_AHEAD)
        while self._num_drawn < min(target, len(self._steps)):
            batch = draw(self._steps[self._num_drawn])
            self._features.announce([self._needs(batch)])
            self._waiting.append(batch)
            self._num_drawn += 1
        self._num_taken += 1
        return self._waiting.popleft()


class DrawnBatch(Protocol):
    """A drawn batch, before its rows are read."""

    @property
    def num_bytes(self) -> int:
        """Memory of the batch."""

    @property
    def local_nodes(self) -> Ids:
        """Distinct nodes whose rows this rank reads."""


D = TypeVar("D", bound=DrawnBatch)
M = TypeVar("M")  # a batch with its rows


class BackgroundBatches(ABC, Generic[D, M]):
    """Batches that all ranks draw together, prefetched on one thread.

    The thread has a separate communicator. All ranks request the same number of batches
    in the same order, so a rank waits only for other ranks' batches. If rows are on
    disk, batches are also drawn before the reads.
    """

    def __init__(self, worker: Worker, seeds: Seeds, tally: Tally, prefetch: int, disk: DiskFeatures | None) -> None:
        """Starts the thread. Collective.

        Args:
            worker: This rank.
            seeds: The seeds of all ranks.
            tally: Record of the batches' exchanges.
            prefetch: Batches made in advance.
            disk: This rank's rows on disk, or None.
        """
        self.worker, self.seeds, self.tally, self.disk, self._prefetch = worker, seeds, tally, disk, prefetch
        self.window: int | None = None  # batches drawn before the reads, computed in the first epoch
        self._background = Background(worker.comm)

    @abstractmethod
    def draw(self, make_step: MakeStep, number: int, comm: Communicator) -> D:
        """Draws the batch of a step. Collective."""

    @abstractmethod
    def with_rows(self, sample: D, read: Array | None, comm: Communicator) -> M:
        """Adds the rows of a batch. Collective.

        Args:
            sample: The batch.
            read: [len(sample.local_nodes), width] features from disk, or None.
            comm: The ranks.
        """

    @abstractmethod
    def batch(self, sample: M) -> Batch:
        """Creates the training batch, on the training thread."""

    def begin_epoch(self, make_step: MakeStep, steps: range) -> None:
        """Selects the rows to cache for an epoch. Collective."""

    def __len__(self) -> int:
        """Returns the number of steps per epoch, the same on every rank."""
        return len(self.seeds)

    def epoch(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        """Yields the batches of an epoch, starting at step `first`. Collective."""
        counter = MessageCounter.zeros(self.worker.comm.world_size)
        make_step = self._background.submit(lambda comm: self.seeds.epoch(epoch, comm, counter)).result()
        counter.record(self.tally, self.worker.comm.rank)
        steps, disk = range(first, len(self)), self.disk
        self.begin_epoch(make_step, steps)
        ahead = None if disk is None else self._ahead(disk, steps)

        def make(step: int, comm: Communicator) -> M:
            if disk is None or ahead is None:
                return self.with_rows(self.draw(make_step, step, comm), None, comm)
            sample = ahead.next(lambda later: self.draw(make_step, later, comm))
            return self.with_rows(sample, disk.take(len(sample.local_nodes)), comm)

        try:
            for sample in self._background.ahead((partial(make, step) for step in steps), self._prefetch):
                self.tally.bytes_read = 0 if disk is None else disk.counts.bytes
                yield self.batch(sample)
        finally:
            if disk is not None:
                self._background.submit(lambda comm: disk.forget())  # after the pending reads

    def close(self) -> None:
        """Stops the thread, after the requested batches."""
        self._background.close()

    def _ahead(self, disk: DiskFeatures, steps: range) -> AnnouncedBatches[D]:
        """Starts drawing before the reads. Collective on the first call."""

        def begin_with_first_epoch(comm: Communicator) -> int:
            make_step = self.seeds.epoch(0, comm, MessageCounter.zeros(comm.world_size))
            batches = (self.draw(make_step, number, comm) for number in range(len(self)))
            return prepare_window(disk, batches, lambda batch: batch.num_bytes, comm)

        if self.window is None:
            self.window = self._background.submit(begin_with_first_epoch).result()
        return AnnouncedBatches(disk, steps, lambda sample: sample.local_nodes, self.window)


class DiskReads:
    """The disk reads of all workers, by epoch."""

    def __init__(self, features: DiskFeatures, comm: Communicator) -> None:
        """Starts counting.

        Args:
            features: This rank's rows.
            comm: The ranks.
        """
        self._features, self._comm, self._before = features, comm, ReadCounts()
        self._epochs: list[ReadCounts] = []  # totals of all ranks
        self._window: int | None = None

    @classmethod
    def lasting(cls, features: DiskFeatures | None, comm: Communicator) -> DiskReads | None:
        """Starts counting reads of `lasting_rows`, or returns None without a disk."""
        return None if features is None else cls(features.statically_cached, comm)

    def end_epoch(self, window: int | None) -> None:
        """Adds the counts of an epoch. Collective.

        Args:
            window: Maximum number of batches drawn in advance.
        """
        self._window = window
        now, before = self._features.counts, self._before
        self._before = now
        counts = [getattr(now, name) - getattr(before, name) for name in ReadCounts.__dataclass_fields__]
        self._epochs.append(ReadCounts(*self._comm.all_reduce(torch.tensor(counts, device=self._comm.device)).tolist()))

    def figures(self) -> dict[str, object]:
        """Returns the counts of all workers, with lists by epoch."""
        total = sum(self._epochs, ReadCounts())
        place = self._features.place
        return {
            "policy": place.policy,
            "cache_rows": self._features.cache_rows,  # on this worker
            "window": self._window,
            "rows": total.rows,
            "hit_rate": total.hits / max(total.hits + total.rows, 1),
            "bytes": total.bytes,
            "reads": total.reads,
            "bytes_by_epoch": [reads.bytes for reads in self._epochs],
            "rows_by_epoch": [reads.rows for reads in self._epochs],
        }
