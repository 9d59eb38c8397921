"""Data frames and Python objects as tables of Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import pyarrow as pa

from gnnkit.checks import one_line
from gnnkit.errors import UserError
from gnnkit.graph.missing import MISSING
from gnnkit.graph.table import Table

_LAZY = ("collect", "compute", "toPandas")  # what makes a table of a frame of polars, Dask and Spark


def table_of(name: str, frame: Any, cure: str = "", missing: Sequence[str] = MISSING) -> Table:
    """Reads a table of pyarrow, or a data frame of pandas or polars.

    Raises `UserError` for anything else, and for columns that mix types. `cure` and
    `missing` are those of `Table`.
    """
    if isinstance(frame, pa.Table):
        return Table(name, frame, cure=cure, missing=missing)
    if method := next((each for each in _LAZY if hasattr(type(frame), each)), None):
        raise UserError(f"{name} is a {type(frame).__name__}, which holds no rows yet: give {name}.{method}()")
    if not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        raise UserError(f"{name} is a {type(frame).__name__}, expected a table of pandas, polars or pyarrow")
    columns = list(frame.columns)
    for column in columns:
        if not isinstance(column, str):
            raise UserError(f"{name} has a column {column!r}, names of columns must be text")
    arrays = [_array(f"{name}, column {column!r}", frame[column], missing) for column in _once(name, columns)]
    return Table(name, pa.table(dict(zip(columns, arrays, strict=True))), cure=cure, missing=missing)


def _once(name: str, columns: list[str]) -> list[str]:
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise UserError(f"{name} has two columns {twice!r}")
    return columns


def _array(place: str, series: Any, missing: Sequence[str]) -> pa.ChunkedArray:
    """Reads one column of a frame."""
    kind = str(series.dtype)
    if kind.startswith("Sparse["):  # of pandas, which Arrow does not read
        series = series.sparse.to_dense()
    try:
        if kind == "Object":  # of polars, which would give addresses
            made = values_as_arrow(place, list(series), missing)
        else:
            made = series.to_arrow() if hasattr(series, "to_arrow") else pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        made = values_as_arrow(place, list(series), missing)
    inner = made.type.value_type if pa.types.is_dictionary(made.type) else made.type
    if str(getattr(inner, "extension_name", "")).startswith("pandas."):  # intervals, as of pd.cut, and periods
        values = series.astype(object).where(series.notna(), None)
        made = pa.array([None if value is None else str(value) for value in values], pa.string())
    return made if isinstance(made, pa.ChunkedArray) else pa.chunked_array([made])


def values_as_arrow(place: str, values: Sequence[Any], missing: Sequence[str] = MISSING) -> pa.Array:
    """Reads Python objects. Values without a type of Arrow become text.

    Words for "missing" among values of another type are empty cells. Raises `UserError`
    for values of several types otherwise.

    Args:
        place: name of the column, for the message.
        values: [n] values, None for none.
        missing: words for "missing", in lower case.
    """
    others = {type(value) for value in values if value is not None and not isinstance(value, str)}
    if others and all(value.strip().lower() in missing for value in values if isinstance(value, str)):
        values = [None if isinstance(value, str) else value for value in values]
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return as_text(place, values, error)


def as_text(place: str, values: Sequence[Any], error: BaseException | None = None) -> pa.Array:
    """Spells values of one type as text, None as null.

    Raises `UserError` for values of several types.

    Args:
        place: name of the column, for the message.
        values: [n] values.
        error: the reason why they cannot be read as they are.
    """
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UserError(f"{place} mixes {names}: give all values one type") from error
    if kinds == {int}:
        raise UserError(
            f"{place} holds whole numbers beyond 64 bits: give ids as text, and features as floating-point numbers"
        ) from error
    if any(not _has_text(kind) for kind in kinds):
        raise UserError(f"{place} cannot be read: {one_line(error or 'no text stands for the values')}") from error
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _has_text(kind: type) -> bool:
    """Says whether values of a type have a text of their own, as UUIDs do."""
    own = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return own and not issubclass(kind, list | dict | set | Number)
