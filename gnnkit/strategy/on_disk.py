"""Batches drawn ahead of the one whose rows are read from disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from gnnkit.comm import Communicator
from gnnkit.exchange.background import Background
from gnnkit.graph import Block, Ids
from gnnkit.remote.disk import DiskFeatures, Reads
from gnnkit.remote.owners import Sent, to_all
from gnnkit.strategy.seeds import Deal, Seeds

T = TypeVar("T")
LEAST, MOST = 2, 256  # batches that are drawn ahead
SHARE = 8  # one part of so many of the cache is the memory of these batches, beside the cache


def batches_ahead(features: DiskFeatures, batch_bytes: int) -> int:
    """Returns how many batches are drawn ahead. Only policy "exact" looks at these.

    Args:
        features: The rows.
        batch_bytes: Memory of a drawn batch.
    """
    if features.place.policy != "exact":
        return 0
    return min(max(features.cache_rows * features.row_bytes // SHARE // max(batch_bytes, 1), LEAST), MOST)


def bytes_of(blocks: Sequence[Block]) -> int:
    """Counts the memory of a drawn batch."""
    arrays = [getattr(block, name) for block in blocks for name in Block.__dataclass_fields__]
    return sum(array.nbytes for array in arrays if array is not None)


def begin(
    features: DiskFeatures,
    drawn: Iterable[T],
    needs: Callable[[T], Ids],
    size: Callable[[T], int],
    comm: Communicator | None = None,
) -> int:
    """Reads the rows that stay, and returns how many batches are drawn ahead.

    Collective where ranks draw together.

    Args:
        features: The rows.
        drawn: Draws the batches of an epoch, one after the other.
        needs: Lists the rows of a batch, each once.
        size: Counts the memory of a drawn batch.
        comm: The ranks, where these draw together.
    """
    if features.place.policy == "static":
        features.fill(features.most_read(map(needs, drawn)))
        return 0
    own = next((batches_ahead(features, size(batch)) for batch in drawn), LEAST)
    return own if comm is None else min(int(part[0]) for part in to_all(comm, np.array([own])))


class Ahead(Generic[T]):
    """The batches of an epoch in order, of which the next ones are announced.

    In the k-th step, from 0, at most k + 2 batches are drawn ahead. So the first step
    does not wait for a whole window. The counts follow from the draws alone.
    """

    def __init__(self, features: DiskFeatures, steps: range, needs: Callable[[T], Ids], window: int) -> None:
        """Begins before the first step.

        Args:
            features: The rows.
            steps: The steps.
            needs: Lists the rows of a batch, each once.
            window: Most batches that are drawn ahead.
        """
        self._features, self._steps, self._needs, self._window = features, steps, needs, window
        self._waiting: deque[T] = deque()
        self._drawn, self._taken = 0, 0

    def next(self, draw: Callable[[int], T]) -> T:
        """Returns the next batch, whose rows `DiskFeatures.take` brings.

        Args:
            draw: Draws the batch of a step. Called in the order of the steps.
        """
        wanted = self._taken + 1 + min(self._window, self._taken + LEAST)
        while self._drawn < min(wanted, len(self._steps)):
            batch = draw(self._steps[self._drawn])
            self._features.announce(self._needs(batch))
            self._waiting.append(batch)
            self._drawn += 1
        self._taken += 1
        return self._waiting.popleft()


class Sized(Protocol):
    """A drawn batch."""

    @property
    def num_bytes(self) -> int:
        """Memory of the batch."""


S = TypeVar("S", bound=Sized)


class DrawnTogether(Generic[S]):
    """Batches that ranks draw together, ahead of the reads of their rows."""

    def __init__(
        self,
        disk: DiskFeatures,
        seeds: Seeds,
        background: Background,
        draw: Callable[[Deal, int, Communicator], S],
        needs: Callable[[S], Ids],
    ) -> None:
        """Draws nothing yet.

        Args:
            disk: The rows of this rank.
            seeds: The seeds of all ranks.
            background: Draws, in order.
            draw: Draws the batch of a step. Collective.
            needs: Lists the rows of a batch, each once.
        """
        self._disk, self._seeds, self._background, self._draw, self._needs = disk, seeds, background, draw, needs
        self.window: int | None = None  # batches drawn ahead, once counted

    def ahead(self, steps: range) -> Ahead[S]:
        """Begins to draw ahead of the reads. Collective at the first call."""
        if self.window is None:
            self.window = self._background.submit(self._begin).result()
        return Ahead(self._disk, steps, self._needs, self.window)

    def next(self, batches: Ahead[S], deal: Deal, comm: Communicator) -> S:
        """Returns the next batch, whose rows `DiskFeatures.take` brings. Collective."""
        return batches.next(lambda step: self._draw(deal, step, comm))

    def foresee(self, epoch: int) -> None:
        """Counts what an epoch will read from disk, without a read. Collective."""
        steps = range(len(self._seeds))
        batches = self.ahead(steps)

        def count(comm: Communicator) -> None:
            deal = self._seeds.epoch(epoch, comm, Sent.nothing(comm.world_size))
            for _ in steps:
                self.next(batches, deal, comm)
                self._disk.foresee()

        self._background.submit(count).result()

    def forget(self) -> None:
        """Forgets batches that nobody takes, after those that are under way."""
        self._background.submit(lambda comm: self._disk.forget())

    def _begin(self, comm: Communicator) -> int:
        """Draws batches of the first epoch for `begin`. Collective."""
        deal = self._seeds.epoch(0, comm, Sent.nothing(comm.world_size))
        drawn = (self._draw(deal, number, comm) for number in range(len(self._seeds)))
        return begin(self._disk, drawn, self._needs, lambda batch: batch.num_bytes, comm)


class DiskReads:
    """What all workers read from disk, by epoch."""

    def __init__(self, features: DiskFeatures, comm: Communicator) -> None:
        """Begins to count.

        Args:
            features: The rows of this rank.
            comm: The ranks.
        """
        self._features, self._comm, self._before = features, comm, Reads()
        self._epochs: list[Reads] = []  # of all ranks
        self._window: int | None = None

    @classmethod
    def lasting(cls, features: DiskFeatures | None, comm: Communicator) -> DiskReads | None:
        """Begins to count reads of `lasting_rows`. None where no rows are on disk."""
        return None if features is None else cls(features.kept_first, comm)

    def end_epoch(self, window: int | None) -> None:
        """Adds the counts of an epoch. Collective.

        Args:
            window: Batches that were drawn ahead at most.
        """
        self._window = window
        now, before = self._features.counts, self._before
        self._before = now
        counts = [getattr(now, name) - getattr(before, name) for name in Reads.__dataclass_fields__]
        self._epochs.append(Reads(*self._comm.all_reduce(torch.tensor(counts, device=self._comm.device)).tolist()))

    def figures(self) -> dict[str, Any]:
        """Returns the counts of all workers. Lists are by epoch."""
        total = sum(self._epochs, Reads())
        place = self._features.place
        return {
            "policy": place.policy,
            "cache_rows": self._features.cache_rows,  # of this worker
            "window": self._window,
            "rows": total.rows,
            "hit_rate": total.hits / max(total.hits + total.rows, 1),
            "bytes": total.bytes,
            "reads": total.reads,
            "bytes_by_epoch": [each.bytes for each in self._epochs],
            "rows_by_epoch": [each.rows for each in self._epochs],
        }
