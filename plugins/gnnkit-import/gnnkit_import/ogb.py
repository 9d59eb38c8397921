"""OGB folders, read in pieces. Labels and splits are read at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from gnnkit_formats.npz import Arrays
from gnnkit_formats.ogb import OgbGraph
from gnnkit_formats.pieces import Rows

from gnnkit.graph.cells import numbers_of
from gnnkit.utils.checks import Array
from gnnkit_import.arrays import ZippedArrays
from gnnkit_import.csv_source import CsvSource


class OgbPieces(OgbGraph):
    """An OGB folder whose edges and features are streamed."""

    opens = ZippedArrays

    def array_ends(self, data: Arrays, step: int) -> Iterator[tuple[Array, Array]]:
        assert isinstance(data, ZippedArrays)
        ends = data.rows("edge_index")
        count = ends.shape[1]
        if ends.by_column:  # source and destination of an edge are adjacent
            return ((pairs[::2], pairs[1::2]) for pairs in ends.flat(2 * step))
        return zip(ends.flat(step, 0, count), ends.flat(step, count, 2 * count), strict=True)

    def numbers(self, path: Path) -> Rows:
        return NumberSource(path, self.root)


class NumberSource:
    """A numeric CSV without header, possibly compressed, read in pieces."""

    def __init__(self, path: Path, root: Path) -> None:
        self._source = CsvSource([path], root, {}, names=False)
        self.shape = (-1, len(self._source.names))  # the number of rows is unknown

    @cached_property
    def _is_integer(self) -> bool:
        """Whether all numbers are integers. Reads the file unless its start decides."""
        starts = all(map(pa.types.is_integer, self._source.first_types))
        return starts and all(map(pa.types.is_integer, self._source.types().values()))

    def pieces(self, step: int) -> Iterator[Array]:  # [step, columns] int64 or float32
        """Yields all rows, `step` at a time, in the dtypes of `Graph.from_ogb`."""
        kind = pa.int64() if self._is_integer else pa.float64()
        rest: list[Array] = []
        for table in self._source.pieces(step, None, dict.fromkeys(self._source.names, kind)):
            columns = [numbers_of(table.plain(name)) for name in table.names]
            rest.append(np.stack(columns, 1).astype(np.int64 if self._is_integer else np.float32, copy=False))
            while sum(map(len, rest)) >= step:
                rows = np.concatenate(rest)
                yield rows[:step]
                rest = [rows[step:]]
        if sum(map(len, rest)):
            yield np.concatenate(rest)
