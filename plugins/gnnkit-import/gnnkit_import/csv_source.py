"""CSV tables, read as a stream."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.csv
from gnnkit_formats.column_table import check_distinct
from gnnkit_formats.columns import Names, Types
from gnnkit_formats.pieces import WHOLE, TableShare
from gnnkit_formats.table import Table
from gnnkit_formats.table_files import (
    check_encoding,
    check_header,
    check_line_breaks,
    check_utf8,
    damaged_csv,
    header_options,
    infer_column,
    parse_options,
    reading,
    scan_quotes,
)
from gnnkit_formats.values import is_number, is_text

from gnnkit.errors import UserError
from gnnkit.utils.documents import check_regular
from gnnkit_import.sources import FileColumns

_READ_AHEAD = 1 << 20  # bytes read at once
_LEAST_BLOCK = 1 << 16  # minimum bytes per block
_CSV_ROW = 16  # bytes of a short row


class CsvSource(FileColumns):
    """A table in CSV files, which may be compressed."""

    parses = True

    def __init__(
        self,
        files: Sequence[Path],
        root: Path,
        types: Mapping[str, pa.DataType],
        names: Sequence[str] | bool = True,
        rows: Sequence[int] | None = None,
    ) -> None:
        """Reads the header lines and the first rows.

        Args:
            files: The files, all with the same columns.
            root: Messages name files relative to this folder.
            types: Types of some columns. Those of others are inferred.
            names: Names of the columns, or whether the first line has them. False:
                names are f0, f1, ...
            rows: Expected number of rows of each file, checked by reading. If None,
                any.
        """
        super().__init__(files, root)
        self._options = (
            {} if names is True else {"column_names": list(names)} if names else {"autogenerate_column_names": True}
        )
        self._types, self._rows, self._named = dict(types), rows, names is True
        self._header: list[str] = []
        self._checked = set[Path]()  # files with line breaks in cells, which have no stray quotes
        schemas = [self._schema(path) for path in files]
        self._header, self._first_types = schemas[0].names, schemas[0].types
        check_distinct(self._names[files[0]], self._header)
        for path, schema in zip(files, schemas, strict=True):
            if schema.names != self._header:
                raise UserError(
                    f"{self._names[path]} has the columns {', '.join(schema.names)}, but {self._names[files[0]]} has "
                    f"{', '.join(self._header)}; all parts need the same columns in the same order"
                )

    def _schema(self, path: Path) -> pa.Schema:
        check_regular(path)
        with reading(self._names[path]):
            check_encoding(path, self._names[path])
            if self._named:
                check_header(path)
        schema = self._stream(Window(path), _LEAST_BLOCK, {}).schema
        if any(map(pa.types.is_binary, schema.types)):  # pyarrow's type for text that is not UTF-8
            check_utf8(path, self._names[path])
        first = next(self._batches(Window(path), _LEAST_BLOCK, dict.fromkeys(schema.names, pa.string())), None)
        for number, cells in enumerate([] if first is None else first.columns):
            if is_number(schema.field(number).type) and is_text(infer_column(cells).type):
                schema = schema.set(number, schema.field(number).with_type(pa.string()))
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
        return self._inferred_types

    @cached_property
    def _inferred_types(self) -> dict[str, pa.DataType]:
        """Infers one type per column."""
        types = {name: self._types.get(name, pa.null()) for name in self.names}
        unknown = [name for name in self.names if name not in self._types]
        for path in self.files if unknown else ():
            for batch in self._batches(Window(path), None, dict.fromkeys(self.names, pa.string())):
                types |= {name: _common_type(types[name], infer_column(batch.column(name)).type) for name in unknown}
        return types

    def pieces(
        self, rows: int, columns: Names = None, types: Types = None, share: TableShare = WHOLE
    ) -> Iterator[Table]:
        sizes = [path.stat().st_size for path in self.files]
        span, begin = share.range(sum(sizes)), 0
        for number, (path, size) in enumerate(zip(self.files, sizes, strict=True)):
            window = Window.of(path, range(max(span.start - begin, 0), min(span.stop - begin, size)), size)
            begin += size
            first = 0 if window.start == 0 else window.lines_before() - (1 if self._named else 0)
            for batch in self._batches(window, rows, {**self._types, **(types or {})}):
                table = pa.Table.from_batches([batch])
                piece = table if columns is None else table.select(list(columns))
                yield Table(self._names[path], piece, first, self.missing)
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
            if window.path not in self._checked and check_line_breaks(window.path, self._names[window.path], batch):
                self._checked.add(window.path)
            for start in range(0, batch.num_rows, rows or max(batch.num_rows, 1)):
                yield batch.slice(start, rows)

    def _stream(self, window: Window, block: int, types: Mapping[str, pa.DataType]) -> Any:
        try:
            return self._opened(window, block, types, threads=True)
        except (pa.ArrowException, OSError) as error:
            raise self._damaged(window.path, block, types, error) from error

    def _damaged(self, path: Path, block: int, types: Mapping[str, pa.DataType], error: Exception) -> UserError:
        def read() -> None:
            for _ in self._opened(Window(path), block, types, threads=False):
                pass

        return damaged_csv(path, self._names[path], error, read)

    def _opened(self, window: Window, block: int, types: Mapping[str, pa.DataType], *, threads: bool) -> Any:
        names = {"column_names": self._header} if window.start else self._options or header_options(window.path)
        return pyarrow.csv.open_csv(
            window.open(),
            pyarrow.csv.ReadOptions(use_threads=threads, block_size=block, **names),
            parse_options(window.path if self._named else None),
            pyarrow.csv.ConvertOptions(column_types=dict(types)),
        )


@dataclass(frozen=True, slots=True)
class Window:
    """Consecutive complete lines in a file."""

    path: Path
    start: int = 0
    stop: int | None = None  # None: the end of the file

    @classmethod
    def of(cls, path: Path, bytes_: range, size: int) -> Window:
        """Returns the lines that begin within some bytes of a file of `size` bytes."""
        if path.suffix == ".gz":  # can only be read from its start, so the first range gets all
            return cls(path) if 0 in bytes_ or not size else cls(path, 0, 0)
        if (bytes_.start, bytes_.stop) == (0, size):
            return cls(path)
        return cls(path, *(_row_start(path, offset, size) for offset in (bytes_.start, bytes_.stop)))

    @property
    def is_whole(self) -> bool:
        return self.stop is None

    def lines_before(self) -> int:
        """Counts the lines before the window, without line breaks in quotes."""
        lines = at = 0
        with self.path.open("rb") as file:
            for block in _blocks(file, self.start):
                if b'"' in block:
                    break
                lines += block.count(b"\n")
            else:
                return lines
            file.seek(lines := 0)
            for line, quote, _ in scan_quotes(file, parse_options(self.path).delimiter):
                at += len(line)
                lines += not quote
                if at >= self.start:
                    break
        return lines

    def open(self) -> Any:
        """Returns what pyarrow reads: a stream of the window's bytes, or the file."""
        if self.stop is None:
            return self.path
        return pa.OSFile(str(self.path)).get_stream(self.start, self.stop - self.start)


def _row_start(path: Path, offset: int, size: int) -> int:
    """Returns the offset of the first row at or after an offset.

    A line break in a quoted cell begins no row, so quotes are read from the start.
    """
    if offset in (0, size):
        return offset
    with path.open("rb") as file:
        is_plain = all(b'"' not in block for block in _blocks(file, offset - 1))
        if is_plain and b'"' not in file.readline():
            return file.tell()
        file.seek(at := 0)
        for line, quote, _ in scan_quotes(file, parse_options(path).delimiter):
            at += len(line)
            if at >= offset and not quote:
                return at
    return size


def _blocks(file: BinaryIO, rest: int) -> Iterator[bytes]:
    """Reads the next `rest` bytes in pieces."""
    while rest and (block := file.read(min(rest, _READ_AHEAD))):
        yield block
        rest -= len(block)


def _common_type(first: pa.DataType, second: pa.DataType) -> pa.DataType:
    """Returns the type that holds both types' values."""
    if first == second or pa.types.is_null(second):
        return first
    if pa.types.is_null(first):
        return second
    numbers = {pa.int64(), pa.float64()}
    return pa.float64() if {first, second} == numbers else pa.string()
