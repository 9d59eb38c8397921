"""Finds and reads table files: CSV, Parquet and .npy."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from gnnkit.errors import UserError
from gnnkit.graph.ids import narrow_text
from gnnkit.utils.checks import one_line
from gnnkit.utils.documents import check_regular
from gnnkit.utils.storage import read_npy
from gnnkit_formats.column_table import NO_HEADER
from gnnkit_formats.encoding import check_encoding, check_utf8, open_bytes
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text

_MAX_COLUMNS = 16_384  # per table; wider features belong in features.npy
_MAX_HEADER = 1 << 24  # bytes of a CSV header that are checked
PART_NAME = re.compile(r"(part[-._]|data_)\d.*\.parquet")  # part names of Spark, Dask and DuckDB
PARTS_MARKER = "_SUCCESS"  # marker that Spark writes into a folder of parts
_LIST = "comma_separated_list_of_features"  # last name of a header, for all further cells of a row
CSV_FORMS = ("csv", "csv.gz", "tsv", "tsv.gz")
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
    try:
        if parts := parts_of(path):
            table = pa.concat_tables(map(_read_parquet, parts), promote_options="permissive")
        else:
            check_regular(path)
            other = {"parquet": _read_parquet, "npy": _read_array}.get(form_of(path))
            table = _read_csv(path, ids, label, narrow=narrow) if other is None else other(path)
        return Table(path.name, table, missing=missing)
    except MemoryError:
        raise
    except (pa.ArrowException, OSError, EOFError) as error:
        raise UserError(f"{path.name}: {one_line(error)}{explain_comment(path)}") from error


def explain_comment(path: Path) -> str:
    """Returns the remedy if a file that cannot be parsed begins with a comment."""
    if form_of(path) not in CSV_FORMS:
        return ""
    with suppress(OSError, EOFError), open_bytes(path) as file:
        return NO_HEADER if file.read(1) in (b"#", b"%") else ""
    return ""


def find_table(folder: Path, name: str, suffixes: tuple[str, ...]) -> Path | None:
    """Returns a table's file, or the folder of its parts.

    Raises `UserError` if there are two.
    """
    paths = [path for suffix in suffixes if file_exists(path := folder / f"{name}.{suffix}")]
    if parts_of(folder / name):
        paths.append(folder / name)
    if len(paths) > 1:
        raise UserError(f"holds both {paths[0].name} and {paths[1].name}")
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
    """Raises `UserError` for a CSV header with too many columns, or not in UTF-8."""
    with open_bytes(path) as file:
        names = file.readline(_MAX_HEADER)
    check_width(path.name, names.count(parse_options(path).delimiter.encode()) + 1)
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
    header = pyarrow.csv.ReadOptions(**header_options(path))
    types = dict.fromkeys([*ids, *filter(None, [label])], pa.string())
    try:
        options = pyarrow.csv.ConvertOptions(column_types=types)
        table = pyarrow.csv.read_csv(path, header, parse_options(path), options)
    except pa.ArrowException:
        check_utf8(path, path.name)
        raise
    if any(map(pa.types.is_binary, table.schema.types)):  # pyarrow's type for text that is not UTF-8
        check_utf8(path, path.name)
    for name in types:
        if table.column_names.count(name) != 1:
            continue
        column = table.column(name)
        if name not in ids:
            inferred = infer_column(column)
            column = column if are_classes(inferred.type) else inferred
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


def infer_column(text: pa.Array | pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts a CSV column from text to the type that pyarrow infers."""
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(pa.table({"column": text}), sink)
    return pyarrow.csv.read_csv(sink.getvalue(), parse_options=parse_options()).column(0)


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
