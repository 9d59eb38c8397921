"""Finds and reads table files: CSV, Parquet and .npy."""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from gnnkit.errors import UserError
from gnnkit.graph.cells import missing_cells, narrow_text
from gnnkit.utils.checks import one_line
from gnnkit.utils.documents import check_regular
from gnnkit.utils.storage import read_npy
from gnnkit_formats.column_table import CSV_FORMS, check_distinct, explain_line, explain_names
from gnnkit_formats.table import Table
from gnnkit_formats.values import Style, is_text, matches

_BLOCK = 1 << 20  # bytes decoded at once
_LOOKED_AT = 1 << 12  # bytes checked at the start of a file
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)  # the byte order marks of UTF-32 start or end with these


def open_bytes(path: Path) -> BinaryIO:
    """Opens a file, and decompresses it if its name ends in `.gz`."""
    return cast(BinaryIO, gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def check_encoding(path: Path, name: str) -> None:
    """Raises `UserError` if the first bytes look like UTF-16.

    Args:
        path: The CSV file.
        name: Name of the file in the message.
    """
    with open_bytes(path) as file:
        first = file.read(_LOOKED_AT)
    if first.startswith(_MARKS) or 4 * first.count(b"\0") > len(first):
        raise _not_utf8(name, "is UTF-16, or not text", "UTF-16")


def check_utf8(path: Path, name: str) -> None:
    """Raises `UserError` with the line of the first byte that is not UTF-8.

    Reads the entire file, so call it only after parsing has failed.

    Args:
        path: The CSV file.
        name: Name of the file in the message.
    """
    decoder, line = codecs.getincrementaldecoder("utf-8")(), 1
    with open_bytes(path) as file, suppress(OSError, EOFError):  # the caller reports damaged files
        while block := file.read(_BLOCK):
            try:
                line += decoder.decode(block).count("\n")
            except UnicodeDecodeError as error:
                line += error.object[: error.start].count(b"\n")
                byte = f"byte 0x{error.object[error.start]:02x} in line {line}"
                raise _not_utf8(name, f"is not UTF-8 text ({byte})", "WINDOWS-1252") from error


def holds_bytes(path: Path, parts: Sequence[bytes]) -> bool:
    """Returns whether a file contains one of some two bytes."""
    last = b""
    with open_bytes(path) as file:
        while block := file.read(_BLOCK):
            if any(part in last + block for part in parts):
                return True
            last = block[-1:]
    return False


def check_quotes(path: Path, name: str, mark: str) -> None:
    """Raises `UserError` with the line of a stray quote that merges rows into one cell.

    Reads the entire file, so call it only if a cell contains a line break, or after
    parsing has failed.

    Args:
        path: The CSV file.
        name: Name of the file in the message.
        mark: What divides cells.
    """
    with open_bytes(path) as file, suppress(OSError, EOFError):
        if line := next((stray for _, _, stray in scan_quotes(file, mark) if stray), 0):
            raise UserError(
                f"{name}, line {line}: a cell begins with a quote that no quote at the end of a cell closes, so it would "
                'contain the next lines; remove the quote, or write a cell with a quote as "5"" pipe"'
            )


def scan_quotes(file: BinaryIO, mark: str) -> Iterator[tuple[bytes, int, int]]:
    """Yields each line of a CSV, and where the quoted cell begins that it leaves open.

    A quote within other text, such as 5", is part of the cell, as for pyarrow.

    Args:
        file: The CSV, at its beginning.
        mark: What divides cells.

    Returns:
        The line, the number of the line in which the open cell begins, or 0, and that
        number if the line closes the cell, but not at the cell's end, or else 0. A last
        empty line stands for a cell that is never closed.
    """
    ends = f"{mark}\r\n".encode()
    quoted = re.compile(rb'(?<![^%b])"[^"]*(?:""[^"]*)*("?)([^%b]*)' % (ends, ends))
    begin = 0
    for number, line in enumerate(file, 1):
        stray, cells = 0, line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
        for cell in quoted.finditer(b'"' * bool(begin) + cells) if b'"' in line else ():
            first, is_closed = begin or number, bool(cell[1])
            begin = 0 if is_closed else first
            if is_closed and first < number and cell[2].strip():
                stray = stray or first
        yield line, begin, stray
    if begin:
        yield b"", begin, begin


def _not_utf8(name: str, what: str, encoding: str) -> UserError:
    """Returns the error for a file in another encoding."""
    return UserError(
        f"{name} {what}, expected UTF-8; convert the file, for example with iconv -f {encoding} -t UTF-8 {name} > NEW"
    )


_MAX_COLUMNS = 16_384  # per table; wider features belong in features.npy
_MAX_HEADER = 1 << 24  # bytes of a CSV header that are checked
PART_NAME = re.compile(r"(part[-._]|data_)\d.*\.parquet")  # part names of Spark, Dask and DuckDB
PARTS_MARKER = "_SUCCESS"  # marker that Spark writes into a folder of parts
_EMPTY = "; write names of columns in a first line, or remove the file"
_LIST = "comma_separated_list_of_features"  # last name of a header, for all further cells of a row
_ROW = re.compile(r"Row #(\d+): ")  # in pyarrow's message about a damaged row
_UNSUPPORTED = re.compile(r".*\.(csv\.\w+|tsv\.\w+|txt|jsonl?|feather|arrow|orc|xlsx|npy)(\.\w+)?")  # other formats


def form_of(path: Path) -> str:
    """Returns a table's file ending, such as `csv` or `csv.gz`."""
    return next((form for form in CSV_FORMS if path.name.endswith(f".{form}")), path.suffix[1:])


def is_unsupported(path: Path, forms: Sequence[str]) -> bool:
    """Returns whether a file is a table in an unsupported format."""
    return form_of(path) not in forms and _UNSUPPORTED.fullmatch(path.name) is not None


def read_table(
    path: Path, ids: Sequence[str], missing: Sequence[str], *, narrow: bool, label: str | None = None
) -> Table:
    """Reads a file, or a folder of parts.

    Args:
        path: The file.
        ids: Id columns, which are read as text from a CSV.
        missing: Words for missing values.
        narrow: Convert an id column to integers if all its values are numbers.
        label: Column of labels, whose classes in a CSV are read as text.
    """
    with reading(path.name):
        if parts := parts_of(path):
            table = pa.concat_tables(map(_read_parquet, parts), promote_options="permissive")
        else:
            check_regular(path)
            other = {"parquet": _read_parquet, "npy": _read_array}.get(form_of(path))
            table = _read_csv(path, ids, label, narrow=narrow) if other is None else other(path)
    return Table(path.name, table, missing=missing)


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Raises `UserError` for damage, with the name of the file or of its part."""
    try:
        yield
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        is_form = name.endswith(".parquet") and getattr(error, "errno", None) is None
        cure = ": the file is damaged or no Parquet file" * is_form
        raise UserError(f"{name}: {one_line(error)}{cure}") from error


def damaged_csv(path: Path, name: str, error: Exception, read: Callable[[], object]) -> UserError:
    """Returns the error for a CSV that cannot be parsed, with the line.

    Args:
        path: The file.
        name: Name of the file in the message.
        error: pyarrow's error.
        read: Reads the file with a single thread, with which pyarrow reports lines.
    """
    check_utf8(path, name)
    check_quotes(path, name, parse_options(path).delimiter)
    try:
        read()
    except (pa.ArrowException, OSError) as slow:
        error = slow
    message, cure = one_line(error), ""
    line = _ROW.search(message)
    with suppress(OSError, EOFError), open_bytes(path) as file:
        first = file.readline(_MAX_HEADER).decode(errors="replace").strip()
        cure = explain_line(first) + explain_names([first]) if first else _EMPTY
    return UserError(f"{name}{f', line {line[1]}' if line else ''}: {_ROW.sub('', message)}{cure}")


def check_line_breaks(path: Path, name: str, rows: pa.Table | pa.RecordBatch) -> bool:
    """Returns whether a CSV's cells contain line breaks.

    Raises `UserError` if they do because of a stray quote.
    """
    texts = [column for column in rows.columns if is_text(column.type)]
    if not any(pc.any(pc.match_substring(text, "\n")).as_py() for text in texts):
        return False
    check_quotes(path, name, parse_options(path).delimiter)
    return True


def find_table(folder: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    """Returns a table's file, or the folder of its parts.

    Raises `UserError` if there are two.
    """
    paths = [path for suffix in suffixes if file_exists(path := folder / f"{name}.{suffix}")]
    if parts_of(folder / name):
        paths.append(folder / name)
    if len(paths) > 1:
        raise UserError(f"holds both {paths[0].name} and {paths[1].name}: remove or rename one of them")
    return paths[0] if paths else None


def parts_of(path: Path) -> list[Path]:
    """Lists a table's parts, in the order of the numbers in their names.

    The list is empty for a file and for a folder of relations. Raises `UserError` for
    a folder that is divided by a column, which its parts then lack.
    """
    if not path.is_dir() or path.suffix not in ("", ".parquet"):
        return []
    parts = [part for part in path.iterdir() if part.suffix == ".parquet" and part.name[0] not in "._"]
    if not parts and (divided := sorted(part.name for part in path.iterdir() if "=" in part.name and part.is_dir())):
        raise UserError(
            f"{path.name} is divided into folders such as {divided[0]}, which are not read; write one table, for example "
            f"with pandas.read_parquet({str(path)!r}).to_parquet({path.name.removesuffix('.parquet') + '-all.parquet'!r})"
        )
    named = (
        path.suffix == ".parquet"
        or (path / PARTS_MARKER).exists()
        or all(PART_NAME.fullmatch(part.name) for part in parts)
    )
    return sorted(parts, key=_number_key) if named else []


def _number_key(path: Path) -> list[tuple[int, str]]:
    """Returns a sort key that puts `part.2` before `part.10`."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", path.name)]


def file_exists(path: Path) -> bool:
    """Returns whether a file or link of this name exists, even a broken link."""
    return path.exists() or path.is_symlink()


def check_width(name: str, num_columns: int) -> None:
    """Raises `UserError` for a table with too many columns to read."""
    if num_columns > _MAX_COLUMNS:
        raise UserError(
            f"{name} has {num_columns} or more columns, but the limit is {_MAX_COLUMNS}; use features.npy for wide "
            "features"
        )


def parse_options(path: Path | None = None) -> pyarrow.csv.ParseOptions:
    """Returns how a CSV is divided: by commas, or else tabs or semicolons.

    The header decides, without its quoted names. Quoted cells may contain line breaks.
    """
    header = b""
    if path is not None:
        with open_bytes(path) as file:
            header = re.sub(b'"[^"]*"', b"", file.readline(_MAX_HEADER))
    mark = "\t" if path is not None and form_of(path).startswith("tsv") else ","
    mark = next((mark for mark in (mark, ",", "\t", ";") if mark.encode() in header), mark)
    return pyarrow.csv.ParseOptions(delimiter=mark, newlines_in_values=True)


def check_header(path: Path) -> None:
    """Raises `UserError` for a CSV header with too many columns, or not in UTF-8.

    And for a last line without a line break that may end within quotes.
    """
    mark = parse_options(path).delimiter
    with open_bytes(path) as file:
        names = file.readline(_MAX_HEADER)
    check_width(path.name, names.count(mark.encode()) + 1)
    if path.suffix != ".gz":  # can only be read from its start
        with path.open("rb") as file:
            file.seek(-min(path.stat().st_size, 1 << 16), os.SEEK_END)
            if b'"' in file.read().rpartition(b"\n")[2]:
                check_quotes(path, path.name, mark)
    try:
        names.decode()
    except UnicodeDecodeError:
        check_utf8(path, path.name)


def check_shape(name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """Returns whether an array has a row of sources and a row of destinations.

    False: one row per edge, or named fields. Raises `UserError` for other shapes.
    """
    if dtype.names and len(shape) == 1:
        return False
    if dtype.names or len(shape) != 2 or 2 not in shape:
        raise UserError(f"{name} has shape {list(shape)}, expected [2, num_edges], [num_edges, 2] or named fields")
    return shape[0] == 2


def _read_csv(path: Path, ids: Sequence[str], label: str | None, *, narrow: bool) -> pa.Table:
    check_encoding(path, path.name)
    check_header(path)
    header = header_options(path)
    types = dict.fromkeys([*ids, *filter(None, [label])], pa.string())

    def read(*, threads: bool) -> pa.Table:
        options = pyarrow.csv.ReadOptions(use_threads=threads, **header)
        convert = pyarrow.csv.ConvertOptions(column_types=types)
        return pyarrow.csv.read_csv(path, options, parse_options(path), convert)

    try:
        table = read(threads=True)
    except pa.ArrowException as error:
        raise damaged_csv(path, path.name, error, lambda: read(threads=False)) from error
    if any(map(pa.types.is_binary, table.schema.types)):  # pyarrow's type for text that is not UTF-8
        check_utf8(path, path.name)
    check_distinct(path.name, table.column_names)
    check_line_breaks(path, path.name, table)
    if unclear := [name for name in _unclear_columns(path, table, header) if name not in types]:
        types |= dict.fromkeys(unclear, pa.string())
        table = read(threads=True)
    for name in types:
        if name not in table.column_names:
            continue
        column = table.column(name)
        if name not in ids:
            inferred = infer_column(column)
            column = column if name == label and are_classes(inferred.type) else inferred
        elif narrow:
            column = narrow_text(column)
        table = table.set_column(table.column_names.index(name), name, column)
    return table


def header_options(path: Path) -> dict[str, Any]:
    """Returns `ReadOptions` for a header whose last name stands for further cells.

    So are the events of JODIE and of the Temporal Graph Benchmark written.
    """
    names, cells = list[str](), list[str]()
    with open_bytes(path) as file, suppress(csv.Error, EOFError):  # pyarrow reports damaged files
        text = io.TextIOWrapper(file, "utf-8-sig", "replace")
        rows = csv.reader(iter(lambda: text.readline(_MAX_HEADER), ""), delimiter=parse_options(path).delimiter)
        names = [name.strip() for name in next(rows, [])]
        cells = next(filter(None, rows), []) if names[-1:] == [_LIST] else []
    if not cells:
        return {}
    check_width(path.name, len(cells))
    features = [f"feature_{number}" for number in range(len(cells) - len(names) + 1)]
    return {"column_names": [*names[:-1], *features], "skip_rows": 1}


def _unclear_columns(path: Path, table: pa.Table, header: Mapping[str, Any]) -> list[str]:
    """Lists columns of numbers that `infer_column` may leave as text."""
    kinds = dict(zip(table.column_names, table.schema.types, strict=True))
    integers = [name for name, kind in kinds.items() if pa.types.is_integer(kind)]
    floats = [name for name, kind in kinds.items() if pa.types.is_floating(kind)]
    if integers and not holds_bytes(path, (b"0x", b"0X")):
        integers = []
    if floats:
        convert = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(floats, pa.string()))
        with suppress(pa.ArrowException):  # a row longer than a block
            options = pyarrow.csv.ReadOptions(**header)
            first = pyarrow.csv.open_csv(path, options, parse_options(path), convert).read_next_batch()
            floats = [name for name in floats if _may_have_thousands(first.column(name))]
    return [*integers, *floats]


def infer_column(text: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Converts a CSV column from text to the type that pyarrow infers.

    It remains text if numbers would not tell how they are written, so that `Survey`
    reads it like text in other tables: 0x10, and 2.101, which may be 2101.
    """
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.table({"column": text}), sink)
    column = pyarrow.csv.read_csv(sink.getvalue(), parse_options=parse_options()).column(0)
    if pa.types.is_integer(column.type):
        is_unclear = any(pc.any(pc.match_substring(text, mark)).as_py() for mark in "xX")
    else:
        is_unclear = pa.types.is_floating(column.type) and _may_have_thousands(text)
    return text if is_unclear else column


def _may_have_thousands(text: pa.Array | pa.ChunkedArray) -> bool:
    """Returns whether all numbers in text fit a decimal comma, and points thousands."""
    text = pc.unique(pc.utf8_trim_whitespace(text))
    return bool(matches(text.filter(pa.array(~missing_cells(text))), Style(True).pattern()).all())


def are_classes(kind: pa.DataType) -> bool:
    """Returns whether a CSV's labels of this inferred type are read as text."""
    return bool(pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_text(kind))


def _read_parquet(path: Path) -> pa.Table:
    check_width(path.name, pyarrow.parquet.read_metadata(path).num_columns)
    return pyarrow.parquet.read_table(path, partitioning=None)  # a folder x=y above is no column


def _read_array(path: Path) -> pa.Table:
    array = read_npy(path)
    two_rows = check_shape(path.name, array.shape, array.dtype)
    if array.dtype.names:
        return pa.table({name: np.ascontiguousarray(array[name]) for name in array.dtype.names})
    array = array if two_rows else array.T
    return pa.table({"src": np.ascontiguousarray(array[0]), "dst": np.ascontiguousarray(array[1])})
