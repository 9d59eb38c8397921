"""Feature rows that are read from disk, with a cache in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit import _core
from gnnkit.engine.remote.features import FeatureStore, RowConverter, TableRows
from gnnkit.errors import UserError
from gnnkit.exchange.tally import Tally
from gnnkit.graph import Features, Ids
from gnnkit.kernels.pieces import RowsInPieces, RowTable
from gnnkit.kernels.product_rows import Rows
from gnnkit.utils.checks import Array
from gnnkit.utils.storage import mapped_file


@dataclass(frozen=True, slots=True)
class OnDisk:
    """How a rank reads rows from disk."""

    cache: int  # bytes of rows that the rank caches
    policy: str = "exact"  # rows that batches need next, or static: those requested first


@dataclass(frozen=True, slots=True)
class ReadCounts:
    """Counters of a rank's disk reads."""

    hits: int = 0  # rows found in memory
    rows: int = 0  # rows read
    bytes: int = 0  # bytes read, including page remainders and gaps between close rows
    reads: int = 0  # system calls

    def __add__(self, other: ReadCounts) -> ReadCounts:
        return ReadCounts(
            self.hits + other.hits, self.rows + other.rows, self.bytes + other.bytes, self.reads + other.reads
        )


class DiskFeatures(TableRows, FeatureStore):
    """Rows of a file, read by position into a batch's memory, in their stored type.

    Batches are announced in the order in which `take` returns their rows, each by one
    thread. `rows` bypasses the cache, for evaluation.
    """

    def __init__(
        self, table: Features, nodes: Ids | None, dtype: torch.dtype, device: torch.device, place: OnDisk
    ) -> None:
        """Opens the file. Raises `UserError` if the table is not stored as dense rows.

        Args:
            table: [num_rows, width] features, dense or packed, mapped from a file.
            nodes: [num_rows] ascending global ids of the rows. If None, row i is node
                i.
            dtype: Type of the rows returned by `rows`.
            device: Device of these rows.
            place: Cache and read options.
        """
        super().__init__(table, nodes)
        rows = self._stored_rows
        source = None if rows is None else mapped_file(rows)
        if rows is None or source is None or not rows.flags.c_contiguous:
            raise UserError(
                "features.place=disk requires a file with one table of dense rows: write the store with "
                "input_rows=dense, or use features.place=mapped"
            )
        self.width, self.dtype = rows.shape[1], rows.dtype
        self.num_rows, self.row_bytes = len(rows), self.width * rows.itemsize
        self.place, self.counts, self._filled = place, ReadCounts(), False
        self.cache_rows = min(place.cache // max(self.row_bytes, 1), self.num_rows)
        self.convert, self.disk = RowConverter(table, dtype, device), self
        self._file = _open(str(source[0]), source[1], self.num_rows, self.row_bytes, place.policy, self.cache_rows)

    def rows(self, ids: Ids) -> Tensor:
        rows = self._empty(len(ids))
        self._file.read(self._places(ids), _as_bytes(rows))
        return self.convert(rows)

    def lasting_rows(self, ids: Ids, model: object, tally: Tally | None = None) -> Rows:
        if not getattr(model, "reads_sparse", False):
            size = len(ids) * self.width * torch.empty(0, dtype=self.convert.dtype).element_size()
            raise UserError(
                f"features.place=disk: the first layer of model={type(model).__name__}, with its options, aggregates before it "
                f"multiplies, so a worker would load all of its rows, {size / 1e6:.3g} MB: use features.place=memory, more "
                f"workers, or a first layer that multiplies first, as gcn, sage and gin do with model.hidden below {self.width}"
            )
        return RowsInPieces(SequentialRows(self.statically_cached, tally or Tally()), ids)

    @cached_property
    def statically_cached(self) -> DiskFeatures:
        """The same rows, with a cache of those requested first.

        No policy reads fewer rows when rows are read repeatedly in the same order.
        """
        place = replace(self.place, policy="static")
        return DiskFeatures(self._table, self._nodes, self.convert.dtype, self.convert.device, place)

    def read(self, ids: Ids, out: npt.NDArray[np.generic]) -> None:
        """ReadCounts rows for training, bypassing the cache."""
        self.counts += ReadCounts(*self._file.read(self._places(ids), _as_bytes(out)))

    def fill(self, ids: Ids) -> None:
        """Fills the cache under policy "static", with at most `cache_rows` rows."""
        self.counts += ReadCounts(*self._file.fill(self._places(np.sort(ids))))

    def fill_once(self, ids: Ids) -> None:
        """Calls `fill` the first time only."""
        if not self._filled:
            self.fill(ids)
            self._filled = True

    def announce(self, batches: Iterable[Ids]) -> None:
        for ids in batches:
            self._file.announce(self._places(ids))

    def forget(self) -> None:
        """Discards announced batches that were not taken."""
        self._file.forget()

    def take(self, count: int) -> Array:  # [count, width]
        """Returns the rows of the first announced batch, which has `count` rows."""
        out = self._empty(count)
        self.counts += ReadCounts(*self._file.take(_as_bytes(out)))
        return out

    def fetch(self, ids: Ids, *, count_reads: bool) -> Array:  # [num_ids] -> [num_ids, width]
        """Returns distinct rows through the cache.

        Args:
            ids: [num_ids] distinct nodes.
            count_reads: Whether to count the reads, as in training.
        """
        before = self.counts
        self.announce([ids])
        rows = self.take(len(ids))
        if not count_reads:
            self.counts = before
        return rows

    def _empty(self, count: int) -> npt.NDArray[np.generic]:
        return np.empty((count, self.width), self.dtype)

    def _places(self, ids: Ids) -> Ids:
        places = super()._places(ids)
        return np.require(places, places.dtype if places.dtype in (np.int32, np.int64) else np.int64, ("C", "A"))


class SequentialRows(RowTable):
    """Rows of a file in order. The next piece is read while one is processed."""

    def __init__(self, features: DiskFeatures, tally: Tally) -> None:
        """Stores the table. Nothing is read yet.

        Args:
            features: The rows, with policy "static".
            tally: Counter of the bytes read.
        """
        self.width, self.dtype, self.device = features.width, features.convert.dtype, features.convert.device
        self._features, self._tally = features, tally

    def pieces(self, ids: Ids, size: int, *, count_reads: bool) -> Iterator[Tensor]:
        features, parts = self._features, [ids[i : i + size] for i in range(0, len(ids), size)] or [ids]
        features.fill_once(ids[: features.cache_rows])
        with ThreadPoolExecutor(1, "rows") as reader:
            coming = reader.submit(features.fetch, parts[0], count_reads=count_reads)
            for part in [*parts[1:], None]:
                rows = coming.result()
                self._tally.bytes_read = features.counts.bytes
                if part is not None:
                    coming = reader.submit(features.fetch, part, count_reads=count_reads)
                yield features.convert(rows)


def _open(path: str, begin: int, num_rows: int, row_bytes: int, policy: str, capacity: int) -> _core.RowFile:
    """Opens a file for io_uring, or for threads where the system forbids it.

    A read with io_uring takes half of the CPU time.
    """
    of_file = path, begin, num_rows, row_bytes
    try:
        return _core.RowFile(*of_file, policy, capacity, False, True)
    except UserError:
        return _core.RowFile(*of_file, policy, capacity, False, False)


def _as_bytes(rows: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:  # [num_bytes]
    return rows.reshape(math.prod(rows.shape)).view(np.uint8)
