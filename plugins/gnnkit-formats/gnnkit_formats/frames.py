"""Conversion of data frames and Python objects to Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from typing import Any

import pyarrow as pa

from gnnkit.errors import UserError
from gnnkit.graph.missing import MISSING
from gnnkit.utils.checks import one_line
from gnnkit_formats.table import Table

_LAZY = ("collect", "compute", "toPandas")  # methods that materialise lazy frames of polars, Dask and Spark


def table_of(name: str, frame: Any, missing: Sequence[str] = MISSING) -> Table:
    """Converts a pyarrow table, or a pandas or polars data frame.

    Raises `UserError` for other types, and for columns of mixed types. `missing` is the
    argument of `ColumnTable`.
    """
    if isinstance(frame, pa.Table):
        return Table(name, frame, missing=missing)
    if method := next((candidate for candidate in _LAZY if hasattr(type(frame), candidate)), None):
        raise UserError(f"{name} is a {type(frame).__name__}, which holds no rows yet: give {name}.{method}()")
    if not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        raise UserError(f"{name} is a {type(frame).__name__}, expected a table of pandas, polars or pyarrow")
    columns = list(frame.columns)
    if (twice := next((column for column in columns if columns.count(column) > 1), None)) is not None:
        raise UserError(f"{name} has two columns {twice!r}")
    for column in columns:
        if not isinstance(column, str):
            raise UserError(f"{name} has a column {column!r}, names of columns must be text")
    arrays = [_convert_series(f"{name}, column {column!r}", frame[column], missing) for column in columns]
    return Table(name, pa.table(dict(zip(columns, arrays, strict=True))), missing=missing)


def _convert_series(place: str, series: Any, missing: Sequence[str]) -> pa.ChunkedArray:
    kind = str(series.dtype)
    if kind.startswith("Sparse["):  # pandas type that Arrow cannot read
        series = series.sparse.to_dense()
    try:
        if kind == "Object":  # polars type that Arrow reads as addresses
            column = values_as_arrow(place, list(series), missing)
        else:
            column = series.to_arrow() if hasattr(series, "to_arrow") else pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        column = values_as_arrow(place, list(series), missing)
    inner = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if str(getattr(inner, "extension_name", "")).startswith("pandas."):  # intervals and periods
        values = series.astype(object).where(series.notna(), None)
        column = pa.array([None if value is None else str(value) for value in values], pa.string())
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def values_as_arrow(place: str, values: Sequence[Any], missing: Sequence[str] = MISSING) -> pa.Array:
    """Converts Python objects. Values without an Arrow type become text.

    Words for missing values among other types become empty cells. Raises `UserError`
    for other values of mixed types.

    Args:
        place: Name of the column, for the message.
        values: [n] values, None if missing.
        missing: Words for missing values, in lower case.
    """
    others = {type(value) for value in values if value is not None and not isinstance(value, str)}
    if others and all(value.strip().lower() in missing for value in values if isinstance(value, str)):
        values = [None if isinstance(value, str) else value for value in values]
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return as_text(place, values, error)


def as_text(place: str, values: Sequence[Any], error: BaseException | None = None) -> pa.Array:
    """Converts values of one type to text, None to null.

    Raises `UserError` for values of mixed types.

    Args:
        place: Name of the column, for the message.
        values: [n] values.
        error: Why Arrow cannot read the values.
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
        raise UserError(f"{place} cannot be read: {one_line(error or 'the values have no text form')}") from error
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _has_text(kind: type) -> bool:
    """Checks whether a type defines its own text, as UUIDs do."""
    has_repr = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return has_repr and not issubclass(kind, list | dict | set | Number)
