"""Batches drawn ahead of the one whose rows are read from disk."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch

from gnnkit.comm import Communicator
from gnnkit.engine.disk import DiskFeatures, Reads
from gnnkit.engine.owners import to_all
from gnnkit.graph import Block, Ids

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
