"""Tables that are read in pieces, in the order of their rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import yaml

from gnnkit.checks import Array, one_line
from gnnkit.dataset.edges import LEFT_OUT, check_header, check_shape, check_width
from gnnkit.errors import UserError
from gnnkit.graph.table import Table, is_text
from gnnkit.storage import check_regular, npy_header

_READ_AHEAD = 1 << 20  # bytes of a column of Parquet
_LEAST_BLOCK = 1 << 16  # bytes of a CSV
_CSV_ROW = 16  # bytes of a short row of a CSV


class Source(ABC):
    """A table of one file or of several, one behind the other."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        """Keeps the files. Messages name these as `root` sees them."""
        self.files = list(files)
        self.title = files[0].relative_to(root).parts[0]  # of all files, for messages
        self._names = {path: path.relative_to(root).as_posix() for path in self.files}
        self.ignored: tuple[str, ...] = ()  # columns that nobody reads

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
        return Table(self.title, pa.schema(list(self.types().items())).empty_table())

    @abstractmethod
    def types(self) -> dict[str, pa.DataType]:
        """Returns the type of each column. May read the whole file."""

    @property
    def first_types(self) -> list[pa.DataType]:
        """The types of the columns as the first rows have them."""
        return list(self.types().values())

    @abstractmethod
    def pieces(
        self, rows: int, columns: Sequence[str] | None = None, types: Mapping[str, pa.DataType] | None = None
    ) -> Iterator[Table]:
        """Yields all rows in order, in tables of at most `rows` rows, or a few more.

        Raises `UserError` that names file and place.

        Args:
            rows: Rows of a piece.
            columns: The columns that are read. Default: all.
            types: Types of columns of a CSV.
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
        self, rows: int, columns: Sequence[str] | None = None, types: Mapping[str, pa.DataType] | None = None
    ) -> Iterator[Table]:
        del types
        names, (path,) = columns or self.names, self.files
        with path.open("rb") as file:
            for first in range(0, self.num_rows, rows):
                count = min(rows, self.num_rows - first)
                found = self._read(file, first, count)
                yield Table(self._names[path], pa.table({name: found[name] for name in names}), first, LEFT_OUT)

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


class ParquetSource(Source):
    """A table of Parquet in one file, or in parts as other programs write it."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        super().__init__(files, root)
        self._schemas = {path: self._opened(path).schema_arrow for path in files}
        self._check_parts()

    @property
    def names(self) -> list[str]:
        return list(self._schemas[self.files[0]].names)

    @property
    def num_rows(self) -> int:
        return sum(self._opened(path).metadata.num_rows for path in self.files)

    def types(self) -> dict[str, pa.DataType]:
        schema = self._schemas[self.files[0]]
        return dict(zip(schema.names, schema.types, strict=True))

    def pieces(
        self, rows: int, columns: Sequence[str] | None = None, types: Mapping[str, pa.DataType] | None = None
    ) -> Iterator[Table]:
        del types
        names = list(columns or self.names)
        for path in self.files:
            first, opened = 0, self._opened(path)
            for group in range(opened.num_row_groups):
                try:
                    for batch in opened.iter_batches(rows, [group], names):
                        yield Table(self._names[path], pa.Table.from_batches([batch]), first, LEFT_OUT)
                        first += batch.num_rows
                except (pa.ArrowException, OSError) as error:
                    raise UserError(f"{self._names[path]}, row group {group}: {one_line(error)}") from error

    def _opened(self, path: Path) -> pyarrow.parquet.ParquetFile:
        check_regular(path)
        try:
            opened = pyarrow.parquet.ParquetFile(path, buffer_size=_READ_AHEAD, pre_buffer=False)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self._names[path]}: {one_line(error)}") from error
        check_width(self._names[path], opened.metadata.num_columns)
        return opened

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


class CsvSource(Source):
    """A CSV, read as a stream."""

    def __init__(
        self, path: Path, root: Path, given: Mapping[str, pa.DataType], names: Sequence[str] | bool = True
    ) -> None:
        """Reads the line of names, and the first rows.

        Args:
            path: The file.
            root: Messages name the file as seen from here.
            given: Types of some columns. The types of others are found out.
            names: Names of the columns, or whether the first line has these. False:
                names are f0, f1, ...
        """
        super().__init__([path], root)
        check_regular(path)
        self._options = (
            {} if names is True else {"column_names": list(names)} if names else {"autogenerate_column_names": True}
        )
        if names is True:
            check_header(path)
        self._given = dict(given)
        self._found: dict[str, pa.DataType] | None = None
        schema = self._stream(_LEAST_BLOCK, {}).schema
        self._header = schema.names
        self._first_types: list[pa.DataType] = schema.types

    @property
    def names(self) -> list[str]:
        return list(self._header)

    @property
    def first_types(self) -> list[pa.DataType]:
        return self._first_types

    def types(self) -> dict[str, pa.DataType]:
        """Finds one type for all values of each column."""
        if self._found is None:
            found = {name: self._given.get(name, pa.null()) for name in self.names}
            for batch in self._batches(None, dict.fromkeys(self.names, pa.string())):
                for name in self.names:
                    if name not in self._given:
                        found[name] = _joined(found[name], _inferred(batch.column(name)))
            self._found = found
        return self._found

    def pieces(
        self, rows: int, columns: Sequence[str] | None = None, types: Mapping[str, pa.DataType] | None = None
    ) -> Iterator[Table]:
        (path,), first = self.files, 0
        for batch in self._batches(rows, {**self._given, **(types or {})}):
            table = pa.Table.from_batches([batch])
            yield Table(self._names[path], table if columns is None else table.select(list(columns)), first, LEFT_OUT)
            first += batch.num_rows

    def _batches(self, rows: int | None, types: Mapping[str, pa.DataType]) -> Iterator[Any]:
        block = _READ_AHEAD if rows is None else min(max(rows * _CSV_ROW, _LEAST_BLOCK), 16 * _READ_AHEAD)
        (path,), read = self.files, 0
        stream = self._stream(block, types)
        while True:
            try:
                batch = stream.read_next_batch()
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                raise UserError(f"{self._names[path]}, after row {read}: {one_line(error)}") from error
            for start in range(0, batch.num_rows, rows or max(batch.num_rows, 1)):
                yield batch.slice(start, rows)
            read += batch.num_rows

    def _stream(self, block: int, types: Mapping[str, pa.DataType]) -> Any:
        (path,) = self.files
        try:
            return pyarrow.csv.open_csv(
                path,
                pyarrow.csv.ReadOptions(block_size=block, **self._options),
                convert_options=pyarrow.csv.ConvertOptions(column_types=dict(types)),
            )
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{self._names[path]}: {one_line(error)}") from error


def read_yaml(path: Path) -> dict[str, Any]:
    """Reads a file of keys. Raises `UserError` that names it."""
    check_regular(path)
    try:
        found = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, OSError, RecursionError) as error:
        raise UserError(f"{path.name} cannot be read: {one_line(error)}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path.name} holds no keys")
    return found


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
        self._source = CsvSource(path, root, {}, names=False)
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
            columns = [table.plain(name).to_numpy(zero_copy_only=False) for name in table.names]
            left.append(np.stack(columns, 1).astype(np.int64 if self._whole else np.float32, copy=False))
            while sum(map(len, left)) >= step:
                rows = np.concatenate(left)
                yield rows[:step]
                left = [rows[step:]]
        if sum(map(len, left)):
            yield np.concatenate(left)
