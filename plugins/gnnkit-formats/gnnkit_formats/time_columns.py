"""Columns of times in tables, and which columns are times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.cells import missing_cells, nulls_of, numbers_of
from gnnkit.graph.times import ALWAYS, NEVER, find_inexact, from_exact
from gnnkit.utils.checks import Array
from gnnkit_formats.feature_columns import FeatureColumns, find_readings
from gnnkit_formats.values import DATE, DAY, FORMS, WHOLE, ZONED, ColumnReading, is_text, matches

_FORMS = "all cells must be whole numbers, or dates such as 2026-01-31 12:30, all with a time zone or all without"


class TimeColumns(FeatureColumns):
    """Reads columns of integers, also in text or as 1.0, and of dates, exactly."""

    def times(self, name: str) -> Array:  # [rows]
        """Reads times as int64, or as datetime64 in the column's unit.

        An empty cell is NaT, or `NEVER` among numbers. Without `use_readings`, this
        table decides how its dates are written.
        """
        column = self.plain(name)
        kind = column.type
        if is_text(kind):
            return self._parse_times(name, column)
        if _is_date(kind):
            return _as_dates(column)
        if pa.types.is_floating(kind):
            numbers = numbers_of(column)
            bad, why = find_inexact(numbers)
            self._reject(name, bad, numbers, why)
            return from_exact(numbers)
        if not (pa.types.is_integer(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
            raise UserError(f"{self._column_place(name)} holds {kind}, expected whole numbers or dates")
        return self._without_lowest(name, numbers_of(self._cast(name, pa.int64()).fill_null(NEVER)))

    def _without_lowest(self, name: str, times: Array) -> Array:
        self._reject(name, times == ALWAYS, times, "is how NaT is written, and would always be visible; leave it empty")
        return times

    def _parse_times(self, name: str, column: pa.Array) -> Array:
        text, missing = pc.utf8_trim_whitespace(column.fill_null("")), missing_cells(column, self.missing)
        forms = [matches(text, form) for form in (WHOLE, DATE, ZONED)]
        first = int(np.argmin(missing)) if len(missing) else 0
        fits = next((form for form in forms if len(form) and form[first]), missing)
        if (~missing & ~fits).any() and (reading := self._dates_in_form(name, text[first : first + 1])):
            return (1e6 * reading.numbers(column, self.missing)).astype("M8[us]")
        self._reject(name, ~missing & ~fits, column, f"differs from {text[first] if len(text) else ''}: {_FORMS}")
        kind = pa.int64() if fits is forms[0] else pa.timestamp("us", "UTC" if fits is forms[2] else None)
        values = pc.if_else(pa.array(missing), pa.scalar(None, text.type), text)
        part = type(self)(self.name, pa.table({name: values}), self._first, self.missing, self._rows)
        times = part._cast(name, kind)
        return self._without_lowest(name, numbers_of(times.fill_null(NEVER))) if fits is forms[0] else _as_dates(times)

    def _dates_in_form(self, name: str, text: pa.Array) -> ColumnReading | None:
        """Returns how to read dates in another form than ISO 8601, if all have one.

        Raises `UserError` if the first `text` [1] has one, but the column no reading.
        """
        try:
            reading = self.readings.get(name) or find_readings(self.name, [self], [name])[name]
        except UserError as error:
            if not matches(text, DATE).any() and any(form.day and form.read(text) is not None for form in FORMS):
                raise UserError(str(error)) from error
            return None
        return reading if reading.form is not None and reading.kind == "seconds" else None

    @property
    def kinds(self) -> dict[str, pa.DataType]:
        """The type of each column."""
        return dict(zip(self._table.column_names, self._table.schema.types, strict=True))

    def holds_times(self, name: str) -> bool:
        """Returns whether a column holds integers or dates, also in text."""
        return holds_times(self.kinds[name], lambda: find_readings(self.name, [self], [name])[name])


def holds_times(kind: pa.DataType, find_reading: Callable[[], ColumnReading]) -> bool:
    """Returns whether a column holds integers or dates, also in text.

    Args:
        kind: The column's type.
        find_reading: Determines how text is read.
    """
    if not is_text(kind):
        return bool(pa.types.is_integer(kind) or _is_date(kind))
    with suppress(UserError):
        return find_reading().kind == "seconds"
    return False


def forms_of(readings: Mapping[str, ColumnReading], kinds: Mapping[str, pa.DataType]) -> list[str]:
    """Returns how the cells of columns are written, as in `Graph.column_forms`.

    Args:
        readings: How columns of features are read.
        kinds: The type of each column.
    """
    styles = {name: reading.style for name, reading in readings.items() if reading.style is not None}
    dates = (name for name, reading in readings.items() if reading.kind == "seconds")
    forms = [f"dates: {name}" for name in dates if is_text(kinds[name]) or _is_date(kinds[name])]
    return [*forms, *(f"{style.mark}: {name}" for name, style in styles.items() if style.mark)]


def time_unit(kind: pa.DataType) -> str | None:
    """Returns the unit in which `TimeColumns.times` reads a column that is no text."""
    if pa.types.is_timestamp(kind):
        return str(kind.unit)
    return {pa.date32(): "s", pa.date64(): "ms"}.get(kind)


def _is_date(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) or pa.types.is_date(kind))


def _as_dates(column: pa.Array) -> npt.NDArray[np.datetime64]:  # [rows]
    """Converts a column of dates exactly, with NaT for null."""
    kind = column.type
    factor = DAY if pa.types.is_date32(kind) else 1
    counts = column.cast(pa.int32()) if pa.types.is_date32(kind) else column
    dates = numbers_of(counts.cast(pa.int64()).fill_null(0)).astype(np.int64) * factor
    return np.where(nulls_of(column), np.datetime64("NaT"), dates.view(f"M8[{time_unit(kind)}]"))
