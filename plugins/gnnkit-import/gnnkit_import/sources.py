""".npy and Parquet tables, which declare their types."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from gnnkit_formats.columns import Columns, Names, Types
from gnnkit_formats.pieces import WHOLE, TableShare
from gnnkit_formats.table import Table
from gnnkit_formats.table_files import check_shape, check_width, reading

from gnnkit.errors import UserError
from gnnkit.utils.checks import Array
from gnnkit.utils.documents import check_regular
from gnnkit.utils.storage import npy_header

_READ_AHEAD = 1 << 20  # bytes of a column of Parquet


class FileColumns(Columns):
    """A table in one or more files, which are concatenated."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        """Stores the files. Messages name them relative to `root`."""
        super().__init__(files[0].relative_to(root).parts[0], files)
        self._names = {path: path.relative_to(root).as_posix() for path in self.files}


class ArraySource(FileColumns):
    """Edges in an .npy: [2, num_edges], [num_edges, 2] or named fields. Not mapped."""

    def __init__(self, path: Path, root: Path) -> None:
        super().__init__([path], root)
        check_regular(path)
        self._shape, self._fortran, self._dtype, self._offset = npy_header(path)
        two_rows = check_shape(self._names[path], self._shape, self._dtype)
        self._by_end = two_rows != self._fortran  # in the file: all sources, then all destinations
        self._num_rows = self._shape[1 if two_rows else 0]

    @property
    def names(self) -> list[str]:
        return list(self._dtype.names or ("src", "dst"))

    @property
    def num_rows(self) -> int:
        return self._num_rows

    def types(self) -> dict[str, pa.DataType]:
        return {
            name: pa.from_numpy_dtype(self._dtype[name] if self._dtype.names else self._dtype) for name in self.names
        }

    def pieces(
        self, rows: int, columns: Names = None, types: Types = None, share: TableShare = WHOLE
    ) -> Iterator[Table]:
        del types
        (path,), span = self.files, share.range(self.num_rows)
        for first in span[::rows]:
            read = self._read(first, min(rows, span.stop - first))
            native = {
                name: np.ascontiguousarray(read[name], read[name].dtype.newbyteorder("=")) for name in columns or read
            }
            yield Table(self._names[path], pa.table(native), first, self.missing)

    def _read(self, first: int, count: int) -> Mapping[str, Array]:
        """Reads some rows, by column."""
        if self._dtype.names:
            records = self._at(first, count)
            return {name: records[name] for name in self.names}
        if self._by_end:
            ends = [self._at(end * self.num_rows + first, count) for end in (0, 1)]
        else:
            ends = list(self._at(2 * first, 2 * count).reshape(-1, 2).T)
        return dict(zip(self.names, ends, strict=True))

    def _at(self, first: int, count: int) -> Array:
        (path,), offset = self.files, self._offset + first * self._dtype.itemsize
        values: Array = np.fromfile(path, self._dtype, count, offset=offset)
        if len(values) < count:
            raise UserError(f"{self._names[path]} was truncated while it was read")
        return values


class PartSource(FileColumns):
    """A table in files that declare column types: one file, or parts."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        super().__init__(files, root)
        described = {path: self._look(path) for path in files}
        self._schemas = {path: schema for path, (schema, _) in described.items()}
        self._counts = {path: count for path, (_, count) in described.items()}
        self._types = self._common_types()

    @abstractmethod
    def _look(self, path: Path) -> tuple[pa.Schema, int]:
        """Reads a file's columns and row count."""

    @abstractmethod
    def _read(self, path: Path, rows: int, names: Sequence[str], wanted: range) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields up to `rows` rows at a time, with the first row's number.

        May leave out batches without `wanted` rows.
        """

    def pieces(
        self, rows: int, columns: Names = None, types: Types = None, share: TableShare = WHOLE
    ) -> Iterator[Table]:
        del types
        span, begin = share.range(self.num_rows), 0
        for path, count in self._counts.items():
            wanted = range(max(span.start - begin, 0), min(span.stop - begin, count))
            begin += count
            if not wanted:
                continue
            for first, batch in self._read(path, rows, list(columns or self.names), wanted):
                low, high = max(wanted.start - first, 0), min(wanted.stop - first, batch.num_rows)
                if low < high:
                    piece = pa.Table.from_batches([batch.slice(low, high - low)])
                    yield Table(self._names[path], self._as_common(path, piece), first + low, self.missing)

    def _as_common(self, path: Path, piece: pa.Table) -> pa.Table:
        """Converts columns that have another type in other parts."""
        schema = pa.schema([(name, self._types[name]) for name in piece.column_names])
        with reading(self._names[path]):
            return piece if piece.schema.types == schema.types else piece.cast(schema)

    @property
    def num_rows(self) -> int:
        return sum(self._counts.values())

    @property
    def names(self) -> list[str]:
        return list(self._schemas[self.files[0]].names)

    @property
    def schema(self) -> pa.Schema:
        return self._schemas[self.files[0]]

    def types(self) -> dict[str, pa.DataType]:
        return dict(self._types)

    def _common_types(self) -> dict[str, pa.DataType]:
        """Returns each column's type in all parts, such as decimals if some have these.

        Raises `UserError` for parts with different columns, or numbers and text.
        """
        first, *others = self.files
        schema = self._schemas[first]
        types = dict(zip(schema.names, schema.types, strict=True))
        for path in others:
            other = self._schemas[path]
            if set(other.names) != set(schema.names):
                raise UserError(
                    f"{self._names[path]} has the columns {', '.join(other.names)}, but {self._names[first]} has "
                    f"{', '.join(schema.names)}; all parts need the same columns"
                )
            types = {name: self._common_type(path, name, there) for name, there in types.items()}
        return types

    def _common_type(self, path: Path, name: str, there: pa.DataType) -> pa.DataType:
        here = self._schemas[path].field(name).type
        if here == there:
            return here
        here, there = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (here, there))
        parts = [pa.schema([(name, kind)]) for kind in (there, here)]
        try:
            return pa.unify_schemas(parts, promote_options="permissive").field(name).type
        except pa.ArrowException as error:
            raise UserError(
                f"{self._names[path]}, column {name!r} holds {here}, but {self._names[self.files[0]]} has {there}; "
                "all parts need the same type"
            ) from error


class ParquetSource(PartSource):
    """A Parquet table, read by row groups."""

    def _look(self, path: Path) -> tuple[pa.Schema, int]:
        opened = self._opened(path)
        return opened.schema_arrow, opened.metadata.num_rows

    def _read(self, path: Path, rows: int, names: Sequence[str], wanted: range) -> Iterator[tuple[int, pa.RecordBatch]]:
        first, opened = 0, self._opened(path)
        for group in range(opened.num_row_groups):
            count = opened.metadata.row_group(group).num_rows
            if wanted.start < first + count and first < wanted.stop:
                at = first
                with reading(f"{self._names[path]}, row group {group}"):
                    for batch in opened.iter_batches(rows, [group], names):
                        yield at, batch
                        at += batch.num_rows
            first += count

    def _opened(self, path: Path) -> pyarrow.parquet.ParquetFile:
        check_regular(path)
        with reading(self._names[path]):
            opened = pyarrow.parquet.ParquetFile(path, buffer_size=_READ_AHEAD, pre_buffer=False)
        check_width(self._names[path], opened.metadata.num_columns)
        return opened
