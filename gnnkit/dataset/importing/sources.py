"""Tables that are read in pieces, in the order of their rows."""

from __future__ import annotations

import io
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gnnkit.checks import Array, one_line
from gnnkit.dataset.edges import LEFT_OUT, check_header, check_shape, check_width
from gnnkit.dataset.encoding import check_encoding, check_utf8
from gnnkit.dataset.pieces import WHOLE, Share
from gnnkit.documents import check_regular
from gnnkit.errors import UserError
from gnnkit.graph.arrow import numbers_of
from gnnkit.graph.ids import counts_on, narrowed
from gnnkit.graph.index_columns import index_columns
from gnnkit.graph.missing import MISSING
from gnnkit.graph.table import Table
from gnnkit.graph.values import is_text
from gnnkit.storage import npy_header

_READ_AHEAD = 1 << 20  # bytes of a column of Parquet
_INDEX_ROWS = 1 << 16  # rows of a column that are looked at together
_LEAST_BLOCK = 1 << 16  # bytes of a CSV
_CSV_ROW = 16  # bytes of a short row of a CSV
_CSV_LINE = re.compile(r"Row #(\d+): ")  # in a message about a damaged row


class Source(ABC):
    """A table of one file or of several, one behind the other."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        """Keeps the files. Messages name these as `root` sees them."""
        self.files = list(files)
        self.title = files[0].relative_to(root).parts[0]  # of all files, for messages
        self._names = {path: path.relative_to(root).as_posix() for path in self.files}
        self.ignored: tuple[str, ...] = ()  # columns that nobody reads
        self.missing: Sequence[str] = MISSING  # words for missing values

    @property
    def kept(self) -> list[str]:
        """The names of the columns that are read."""
        return [name for name in self.names if name not in self.ignored]

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The names of the columns."""

    @property
    def num_rows(self) -> int | None:
        """The number of rows, or None where only reading tells."""
        return None

    def empty(self) -> Table:
        """Returns the table without rows."""
        return Table(self.title, pa.schema(list(self.types().items())).empty_table(), 0, LEFT_OUT, self.missing)

    def index_columns(self, known: Collection[str]) -> list[str]:
        """Lists the columns but the known ones that hold the index of a data frame."""
        return index_columns(self.schema, [name for name in self.kept if name not in known], self._counts_rows)

    @property
    def schema(self) -> pa.Schema:
        """What the first file says of its columns, nothing for a CSV."""
        return pa.schema([])

    def _counts_rows(self, name: str) -> bool:
        """Returns whether a column is 0, 1, ..., up to the first other number."""
        row = 0
        for piece in self.pieces(_INDEX_ROWS, [name], {name: pa.string()}):
            column = pa.chunked_array([piece.plain(name)])
            if not counts_on((narrowed(column) if is_text(column.type) else column).combine_chunks(), row):
                return False
            row += len(column)
        return True

    @abstractmethod
    def types(self) -> dict[str, pa.DataType]:
        """Returns the type of each column. May read the whole file."""

    @property
    def first_types(self) -> list[pa.DataType]:
        """The types of the columns as the first rows have them."""
        return list(self.types().values())

    @abstractmethod
    def pieces(
        self,
        rows: int,
        columns: Sequence[str] | None = None,
        types: Mapping[str, pa.DataType] | None = None,
        share: Share = WHOLE,
    ) -> Iterator[Table]:
        """Yields all rows in order, in tables of at most `rows` rows, or a few more.

        Raises `UserError` that names file and place.

        Args:
            rows: Rows of a piece.
            columns: The columns that are read. Default: all.
            types: Types of columns of a CSV.
            share: The rows that are read. Shares 0, 1, ... together are all rows in
                order.
        """


class ArraySource(Source):
    """Edges in an .npy: [2, num_edges], [num_edges, 2] or named fields.

    Reads bytes, and maps nothing.
    """

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
        self,
        rows: int,
        columns: Sequence[str] | None = None,
        types: Mapping[str, pa.DataType] | None = None,
        share: Share = WHOLE,
    ) -> Iterator[Table]:
        del types
        names, (path,) = columns or self.names, self.files
        own = share.range(self.num_rows)
        with path.open("rb") as file:
            for first in own[::rows]:
                count = min(rows, own.stop - first)
                found = self._read(file, first, count)
                yield Table(
                    self._names[path], pa.table({name: found[name] for name in names}), first, LEFT_OUT, self.missing
                )

    def _read(self, file: Any, first: int, count: int) -> dict[str, Array]:
        if self._dtype.names:
            some = self._at(file, first, count)
            return {
                name: np.ascontiguousarray(some[name]).astype(some[name].dtype.newbyteorder("=")) for name in self.names
            }
        if self._by_end:
            ends = [self._at(file, end * self.num_rows + first, count) for end in (0, 1)]
        else:
            both = self._at(file, 2 * first, 2 * count).reshape(-1, 2)
            ends = [both[:, 0], both[:, 1]]
        return dict(
            zip(("src", "dst"), (np.ascontiguousarray(end, end.dtype.newbyteorder("=")) for end in ends), strict=True)
        )

    def _at(self, file: Any, first: int, count: int) -> Array:
        file.seek(self._offset + first * self._dtype.itemsize)
        found = np.frombuffer(file.read(count * self._dtype.itemsize), self._dtype)
        if len(found) < count:
            raise UserError(f"{self._names[self.files[0]]} is shorter than it was: it changes while it is read")
        return found


class PartSource(Source):
    """A table whose files know their types: one file, or parts of other programs."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        super().__init__(files, root)
        found = {path: self._look(path) for path in files}
        self._schemas = {path: schema for path, (schema, _) in found.items()}
        self._counts = {path: count for path, (_, count) in found.items()}
        self._check_parts()

    @abstractmethod
    def _look(self, path: Path) -> tuple[pa.Schema, int]:
        """Reads the columns of a file, and the number of rows."""

    @abstractmethod
    def _read(self, path: Path, rows: int, names: Sequence[str], wanted: range) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Yields batches of at most `rows` rows of a file, with the first row's number.

        May leave out batches without rows of `wanted`.
        """

    def pieces(
        self,
        rows: int,
        columns: Sequence[str] | None = None,
        types: Mapping[str, pa.DataType] | None = None,
        share: Share = WHOLE,
    ) -> Iterator[Table]:
        del types
        own, begin = share.range(self.num_rows), 0
        for path, count in self._counts.items():
            wanted = range(max(own.start - begin, 0), min(own.stop - begin, count))
            begin += count
            if not wanted:
                continue
            for first, batch in self._read(path, rows, list(columns or self.names), wanted):
                low, high = max(wanted.start - first, 0), min(wanted.stop - first, batch.num_rows)
                if low < high:
                    piece = pa.Table.from_batches([batch.slice(low, high - low)])
                    yield Table(self._names[path], piece, first + low, LEFT_OUT, self.missing)

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
        return dict(zip(self.schema.names, self.schema.types, strict=True))

    def _check_parts(self) -> None:
        """Raises `UserError` for parts with other columns, or other kinds of these."""
        first, *others = self.files
        schema = self._schemas[first]
        for path in others:
            own = self._schemas[path]
            if set(own.names) != set(schema.names):
                raise UserError(
                    f"{self._names[path]} has the columns {', '.join(own.names)}, and {self._names[first]} has "
                    f"{', '.join(schema.names)}: all parts need the same"
                )
            for name in schema.names:
                here, there = own.field(name).type, schema.field(name).type
                if kind_of(here) != kind_of(there):
                    raise UserError(
                        f"{self._names[path]}, column {name!r} holds {here}, and {self._names[first]} has {there}: all "
                        "parts need the same"
                    )


class ParquetSource(PartSource):
    """A table of Parquet, read by row groups."""

    def _look(self, path: Path) -> tuple[pa.Schema, int]:
        opened = self._opened(path)
        return opened.schema_arrow, opened.metadata.num_rows

    def _read(self, path: Path, rows: int, names: Sequence[str], wanted: range) -> Iterator[tuple[int, pa.RecordBatch]]:
        first, opened = 0, self._opened(path)
        for group in range(opened.num_row_groups):
            count = opened.metadata.row_group(group).num_rows
            if wanted.start < first + count and first < wanted.stop:
                at = first
                try:
                    for batch in opened.iter_batches(rows, [group], names):
                        yield at, batch
                        at += batch.num_rows
                except (pa.ArrowException, OSError) as error:
                    raise UserError(f"{self._names[path]}, row group {group}: {one_line(error)}") from error
            first += count

    def _opened(self, path: Path) -> pyarrow.parquet.ParquetFile:
        check_regular(path)
        try:
            opened = pyarrow.parquet.ParquetFile(path, buffer_size=_READ_AHEAD, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self._names[path]}: {one_line(error)}") from error
        check_width(self._names[path], opened.metadata.num_columns)
        return opened


class CsvSource(Source):
    """A table of CSV, read as a stream."""

    def __init__(
        self,
        files: Sequence[Path],
        root: Path,
        given: Mapping[str, pa.DataType],
        names: Sequence[str] | bool = True,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Reads the lines of names, and the first rows.

        Args:
            files: The files, of which all have the same columns.
            root: Messages name files as seen from here.
            given: Types of some columns. The types of others are found out.
            names: Names of the columns, or whether the first line has these. False:
                names are f0, f1, ...
            rows: Rows of each file, which reading checks. None: any.
        """
        super().__init__(files, root)
        self._options = (
            {} if names is True else {"column_names": list(names)} if names else {"autogenerate_column_names": True}
        )
        self._given, self._rows, self._named = dict(given), rows, names is True
        self._header: list[str] = []
        self._found: dict[str, pa.DataType] | None = None
        schemas = [self._schema(path) for path in files]
        self._header, self._first_types = schemas[0].names, schemas[0].types
        for path, schema in zip(files, schemas, strict=True):
            if schema.names != self._header:
                raise UserError(
                    f"{self._names[path]} has the columns {', '.join(schema.names)}, and {self._names[files[0]]} has "
                    f"{', '.join(self._header)}: all parts need the same, in one order"
                )

    def _schema(self, path: Path) -> pa.Schema:
        check_regular(path)
        try:
            check_encoding(path, self._names[path])
            if self._named:
                check_header(path)
        except (OSError, EOFError) as error:
            raise UserError(f"{self._names[path]}: {one_line(error)}") from error
        schema = self._stream(Window(path), _LEAST_BLOCK, {}).schema
        if any(map(pa.types.is_binary, schema.types)):  # which pyarrow makes of text that is not UTF-8
            check_utf8(path, self._names[path])
        return schema

    @property
    def names(self) -> list[str]:
        return list(self._header)

    @property
    def num_rows(self) -> int | None:
        return None if self._rows is None else sum(self._rows)

    @property
    def first_types(self) -> list[pa.DataType]:
        return list(self._first_types)

    def types(self) -> dict[str, pa.DataType]:
        """Finds one type for all values of each column."""
        if self._found is None:
            found = {name: self._given.get(name, pa.null()) for name in self.names}
            asked = [name for name in self.names if name not in self._given]
            for path in self.files if asked else ():
                for batch in self._batches(Window(path), None, dict.fromkeys(self.names, pa.string())):
                    found |= {name: _joined(found[name], _inferred(batch.column(name))) for name in asked}
            self._found = found
        return self._found

    def pieces(
        self,
        rows: int,
        columns: Sequence[str] | None = None,
        types: Mapping[str, pa.DataType] | None = None,
        share: Share = WHOLE,
    ) -> Iterator[Table]:
        sizes = [path.stat().st_size for path in self.files]
        own, begin = share.range(sum(sizes)), 0
        for number, (path, size) in enumerate(zip(self.files, sizes, strict=True)):
            window = Window.of(path, range(max(own.start - begin, 0), min(own.stop - begin, size)), size)
            begin += size
            first = 0 if window.start == 0 else window.lines_before() - (1 if self._named else 0)
            for batch in self._batches(window, rows, {**self._given, **(types or {})}):
                table = pa.Table.from_batches([batch])
                some = table if columns is None else table.select(list(columns))
                yield Table(self._names[path], some, first, LEFT_OUT, self.missing)
                first += batch.num_rows
            if self._rows is not None and window.is_whole and first != self._rows[number]:
                raise UserError(f"{self._names[path]} has {first} rows, expected {self._rows[number]}")

    def _batches(self, window: Window, rows: int | None, types: Mapping[str, pa.DataType]) -> Iterator[Any]:
        if not window.is_whole and window.start == window.stop:
            return
        block = _READ_AHEAD if rows is None else min(max(rows * _CSV_ROW, _LEAST_BLOCK), 16 * _READ_AHEAD)
        stream = self._stream(window, block, types)
        while True:
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                raise self._damaged(window.path, block, types, error) from error
            for start in range(0, batch.num_rows, rows or max(batch.num_rows, 1)):
                yield batch.slice(start, rows)

    def _stream(self, window: Window, block: int, types: Mapping[str, pa.DataType]) -> Any:
        try:
            return self._opened(window, block, types, threads=True)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(window.path, block, types, error) from error

    def _damaged(self, path: Path, block: int, types: Mapping[str, pa.DataType], error: Exception) -> UserError:
        """Reads a damaged file once more, and returns the error with the line.

        Several threads do not know lines, and one thread is slower.
        """
        check_utf8(path, self._names[path])
        try:
            for _ in self._opened(Window(path), block, types, threads=False):
                pass
        except (pa.ArrowException, OSError) as slow:
            error = slow
        told = one_line(error)
        line = _CSV_LINE.search(told)
        place = "" if line is None else f", line {line[1]}"
        return UserError(f"{self._names[path]}{place}: {_CSV_LINE.sub('', told)}")

    def _opened(self, window: Window, block: int, types: Mapping[str, pa.DataType], *, threads: bool) -> Any:
        names = self._options if window.start == 0 else {"column_names": self._header}
        return pyarrow.csv.open_csv(
            window.path if window.is_whole else pa.PythonFile(window.open(), "r"),
            pyarrow.csv.ReadOptions(use_threads=threads, block_size=block, **names),
            convert_options=pyarrow.csv.ConvertOptions(column_types=dict(types)),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Whole lines of a file."""

    path: Path
    start: int = 0
    stop: int | None = None  # None: the end of the file

    @classmethod
    def of(cls, path: Path, bytes_: range, size: int) -> Window:
        """Returns the lines that begin within some bytes of a file of `size` bytes."""
        if path.suffix == ".gz":  # is read from its begin only, so who has the first byte has all
            return cls(path) if 0 in bytes_ or not size else cls(path, 0, 0)
        if (bytes_.start, bytes_.stop) == (0, size):
            return cls(path)
        with path.open("rb") as file:
            start, stop = (_line_from(file, at, size) for at in (bytes_.start, max(bytes_.stop, bytes_.start)))
        return cls(path, start, stop)

    @property
    def is_whole(self) -> bool:
        return self.stop is None

    def lines_before(self) -> int:
        """Counts the lines of the file before the window."""
        found, rest = 0, self.start
        with self.path.open("rb") as file:
            while rest and (block := file.read(min(rest, _READ_AHEAD))):
                found, rest = found + block.count(b"\n"), rest - len(block)
        return found

    def open(self) -> io.RawIOBase:
        """Opens a file of the window's bytes alone."""
        assert self.stop is not None
        return _Bytes(self.path, self.start, self.stop)


class _Bytes(io.RawIOBase):
    """Some bytes of a file as a file."""

    def __init__(self, path: Path, start: int, stop: int) -> None:
        self._file, self._left = path.open("rb", buffering=0), stop - start
        self._file.seek(start)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        read = self._file.readinto(memoryview(buffer)[: self._left])
        self._left -= read
        return read

    def close(self) -> None:
        self._file.close()
        super().close()


def _line_from(file: BinaryIO, at: int, size: int) -> int:
    """Returns where the first line begins at or behind a place."""
    if at <= 0 or at >= size:
        return max(min(at, size), 0)
    file.seek(at - 1)
    file.readline()
    return file.tell()


def kind_of(kind: pa.DataType) -> str:
    """Names the kind of numbers or text that a column holds."""
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    kinds = {
        "whole numbers": pa.types.is_integer,
        "decimal fractions": pa.types.is_floating,
        "text": is_text,
    }
    return next((name for name, fits in kinds.items() if fits(kind)), str(kind))


def _inferred(text: pa.Array) -> pa.DataType:
    """Finds the type that a CSV's column of text has, as a whole file would have it."""
    lines = pa.table({"column": text})
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(lines, sink)
    return pyarrow.csv.read_csv(sink.getvalue()).schema.types[0]


def _joined(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Returns the type that holds the values of both types."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    numbers = {pa.int64(), pa.float64()}
    return pa.float64() if {first, second} == numbers else pa.string()


class NumberSource:
    """A CSV of numbers without a line of names, also compressed, read in pieces."""

    def __init__(self, path: Path, root: Path) -> None:
        self._source = CsvSource([path], root, {}, names=False)
        self.width = len(self._source.names)

    @cached_property
    def _whole(self) -> bool:
        """Whether all numbers are whole. Reads the file up to the first that is not."""
        whole = all(map(pa.types.is_integer, self._source.first_types))
        return whole and all(map(pa.types.is_integer, self._source.types().values()))

    def pieces(self, step: int) -> Iterator[Array]:  # [step, columns] int64 or float32
        """Yields all rows, `step` at once, as `Graph.from_ogb` reads a whole table."""
        kind = pa.int64() if self._whole else pa.float64()
        left: list[Array] = []
        for table in self._source.pieces(step, None, dict.fromkeys(self._source.names, kind)):
            columns = [numbers_of(table.plain(name)) for name in table.names]
            left.append(np.stack(columns, 1).astype(np.int64 if self._whole else np.float32, copy=False))
            while sum(map(len, left)) >= step:
                rows = np.concatenate(left)
                yield rows[:step]
                left = [rows[step:]]
        if sum(map(len, left)):
            yield np.concatenate(left)
