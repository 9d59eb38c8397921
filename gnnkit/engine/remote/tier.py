"""Storage of rows by global id: memory, files, and caches of other ranks' rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.graph import Ids


class RowTier(ABC):
    """Some rows by global id, in one storage.

    Tiers form a hierarchy: a batch reads the rows that the nearest tier `has`, and the
    others from the next one. A policy selects the rows a tier stores: "static" (a fixed
    set), "lru" (the most recently read) or "exact" (what the announced batches read).
    """

    @abstractmethod
    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:  # [num_ids]
        """Returns a mask of the rows stored in this tier."""

    @abstractmethod
    def read(self, ids: Ids, out: npt.NDArray[np.generic]) -> None:
        """Copies rows of this tier.

        Args:
            ids: [num_ids] global ids, possibly repeated.
            out: [num_ids, ...] C-contiguous, of the rows' type.
        """

    def announce(self, batches: Iterable[Ids]) -> None:  # noqa: B027
        """Announces the rows of the next batches, in order. Ignored by default.

        Args:
            batches: [num_rows] distinct global ids of each batch.
        """


class KeptRows(RowTier):
    """At most `num_rows` rows in memory.

    Under policy "lru", rows passed to `add` replace the least recently read ones. Under
    other policies, only `fill` replaces rows.
    """

    def __init__(self, num_rows: int, row: np.dtype[Any], policy: str = "static") -> None:
        """Creates an empty tier.

        Args:
            num_rows: Maximum number of rows.
            row: Type of a row.
            policy: "static", "lru" or "exact".
        """
        self.num_rows, self.policy = num_rows, policy
        self.ids: Ids = np.empty(0, np.int64)  # ascending
        self._rows = np.empty(0, row)
        self._last_read: Ids = np.empty(0, np.int64)  # batch that last read each row
        self._batch = 0

    @classmethod
    def of(cls, ids: Ids, rows: npt.NDArray[Any]) -> KeptRows:
        """Stores rows [num_ids, ...] of ascending ids [num_ids]."""
        tier = cls(len(ids), rows.dtype)
        tier.ids, tier._rows, tier._last_read = ids, rows, np.zeros(len(ids), np.int64)
        return tier

    def has(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return self._find(ids)[1]

    def read(self, ids: Ids, out: npt.NDArray[np.generic]) -> None:
        places, is_present = self._find(ids)
        assert is_present.all(), "a row is not in this tier"
        self._last_read[places] = self._batch
        np.take(self._rows, places, axis=0, out=out, mode="clip")  # "clip" writes without a buffer

    def add(self, ids: Ids, rows: npt.NDArray[np.generic]) -> None:
        """Ends a batch that fetched `rows` [k] of new `ids` [k]."""
        if self.policy == "lru" and self.num_rows:
            all_ids = np.concatenate([self.ids, ids])
            last_read = np.concatenate([self._last_read, np.full(len(ids), self._batch)])
            newest = np.lexsort((all_ids, -last_read))[: self.num_rows]
            self._keep(all_ids[newest], np.concatenate([self._rows, rows])[newest], last_read[newest])
        self._batch += 1

    def fill(self, ids: Ids, rows: npt.NDArray[np.generic]) -> None:
        """Replaces all rows.

        Args:
            ids: [k] distinct ids, at most `num_rows`.
            rows: [k] their rows.
        """
        assert len(ids) <= self.num_rows
        self._keep(ids, rows, np.zeros(len(ids), np.int64))

    def _keep(self, ids: Ids, rows: npt.NDArray[np.generic], last_read: Ids) -> None:
        order = np.argsort(ids)
        self.ids, self._rows, self._last_read = ids[order].astype(np.int64), rows[order], last_read[order]

    def _find(self, ids: Ids) -> tuple[Ids, npt.NDArray[np.bool_]]:
        """Returns a position for each id, and whether it has the id's row."""
        if not len(self.ids):
            return np.zeros(len(ids), np.int64), np.zeros(len(ids), bool)
        places = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        return places, self.ids[places] == ids


def most_read(batches: Iterable[Ids], num_ids: int, num_rows: int, *, times: int = 1) -> Ids:  # [at most num_rows]
    """Selects the rows that batches read most often, with ties to the lowest ids.

    Args:
        batches: Distinct ids of each batch.
        num_ids: Exclusive upper bound of ids.
        num_rows: Maximum number of selected rows.
        times: Minimum number of batches that read a selected row.
    """
    reads = np.zeros(num_ids, np.int32)
    for ids in batches:
        reads[ids] += 1
    read = np.flatnonzero(reads >= times)
    return read[np.argsort(-reads[read], kind="stable")[:num_rows]]
