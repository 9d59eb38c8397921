"""Readers for columns of features and weights."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.cells import nulls_of, numbers_of, without_missing
from gnnkit.graph.types import Floats
from gnnkit.graph.unfit_columns import UnfitColumns, collect_unfit, describe_many, has_many_values, raise_unfit
from gnnkit.utils.checks import FLOAT32_MAX, Array
from gnnkit_formats.column_table import ColumnTable
from gnnkit_formats.values import ColumnReading, Survey, is_listed, is_number, is_text, typed_numbers


class FeatureColumns(ColumnTable):
    """Reads columns of numbers, dates, categories and lists as numbers."""

    def weights(self, name: str) -> Floats:  # [rows] finite
        """Reads a numeric column without missing cells. Raises `UnfitColumns`."""
        unfit: dict[str, str] = {}
        with collect_unfit(unfit, name):
            return self._read_weights(name)
        raise UnfitColumns(unfit[name])

    def _read_weights(self, name: str) -> Floats:  # [rows]
        column = self.plain(name)
        if is_number(column.type):
            plain = pa.types.is_floating(column.type) and not column.null_count
            numbers: Array = numbers_of(column) if plain else typed_numbers(column)
        elif is_text(column.type) and self.reading(name).kind == "numbers":
            numbers = self.reading(name).numbers(column, self.missing)
        else:
            raise UserError(f"{self._column_place(name)} holds {column.type}, expected numbers")
        return self._check_numbers(name, numbers[:, None], True)[:, 0]

    def rows(self, names: Sequence[str]) -> Floats | None:  # [rows, columns]
        """Reads columns without missing cells, or raises `UnfitColumns`."""
        return self._read_columns(names, complete=True) if names else None

    def rows_with_nan(self, names: Sequence[str]) -> Floats:  # [rows, columns]
        """Reads columns side by side, with NaN in missing cells.

        Numbers, dates (as seconds) and lists of equal length are float32, or float64 if
        the reading requires it. Other text is one-hot encoded, with one column per
        value. A missing cell is missing in all of them.
        """
        return self._read_columns(names, complete=False)

    def _read_columns(self, names: Sequence[str], *, complete: bool) -> Floats:  # [rows, columns]
        """Reads columns as one dtype: float64 if any column requires it."""
        self._find_readings(names)
        dtype = np.result_type(np.float32, *(self.readings[name].dtype for name in names))
        columns, unfit = list[Floats](), dict[str, str]()
        for name in names:
            with collect_unfit(unfit, name):
                columns.append(self._check_numbers(name, self._read_column(name, dtype), complete).astype(dtype))
        raise_unfit(unfit)
        return np.concatenate(columns, axis=1)

    def reading(self, name: str) -> ColumnReading:
        """Returns how the column becomes numbers."""
        self._find_readings([name])
        return self.readings[name]

    def _find_readings(self, names: Sequence[str]) -> None:
        """Decides on all readings, so that one error lists all unfit columns."""
        if new := [name for name in names if name not in self.readings]:
            self.readings |= find_readings(self.name, [self], new)

    def use_readings(self, readings: Mapping[str, ColumnReading]) -> Self:
        """Reads columns as for the complete table, from which this is a piece."""
        self.readings.update(readings)
        return self

    def column_names(self, names: Sequence[str]) -> list[str] | None:
        """Returns the names of the columns of `rows`.

        For example `x`, `x[0]` if `x` contains lists, and `x=red` if `x` contains text.
        """
        return [column_name for name in names for column_name in self._expanded_names(name)] or None

    def category_of(self, names: Sequence[str]) -> list[str] | None:
        """Returns the text column that each column of `rows` encodes, or ""."""
        kinds = {name: self.reading(name).kind for name in names}
        sources = [name if kinds[name] == "categories" else "" for name in names for _ in self._expanded_names(name)]
        return sources if any(sources) else None

    def _expanded_names(self, name: str) -> list[str]:
        column, reading = self.plain(name), self.reading(name)
        if reading.kind == "categories":
            return [f"{name}={value}" for value in reading.categories]
        if not is_listed(column.type):
            return [name]
        return [
            f"{name}[{number}]"
            for number in range(len(pc.drop_null(column)[0]) if column.null_count < len(column) else 0)
        ]

    def _read_column(self, name: str, dtype: np.dtype[Any]) -> Floats:  # [rows, 1 or more], NaN where a cell is empty
        column, reading = self.plain(name), self.reading(name)
        if reading.kind == "categories":
            places = reading.places(column, self.missing)
            rows: Floats = (places[:, None] == np.arange(len(reading.categories))).astype(dtype)
            rows[places < 0] = np.nan
            return rows
        if not is_listed(column.type):
            return reading.numbers(column, self.missing)[:, None]
        known = ~nulls_of(column)
        length = numbers_of(pc.list_value_length(column).drop_null())
        width = int(length[0]) if len(length) else 0
        lengths = np.full(len(column), width)
        lengths[known] = length
        self._reject(
            name,
            lengths != width,
            lengths,
            f"numbers, expected {width} as in row {self._row_number(int(np.argmax(known)))}",
        )
        cells = without_missing(pc.list_flatten(column), self.missing)
        inner = reading.numbers(cells, self.missing).reshape(len(length), width)
        if known.all():
            return inner
        wide: Floats = np.full((len(column), width), np.nan)
        wide[known] = inner
        return wide

    def _check_numbers(self, name: str, numbers: Floats, complete: bool) -> Floats:  # [rows, width]
        """Raises `UserError` for numbers beyond float32, and for NaN if `complete`."""
        bad = np.isinf(numbers) if numbers.itemsize <= 4 else np.abs(numbers) > FLOAT32_MAX
        if complete:
            bad |= np.isnan(numbers)
        for _, at in np.argwhere(bad)[:1]:
            cells, text = numbers[:, at].astype(np.float64), self.plain(name)
            empty = "is empty or a word for a missing value, which missing=[WORD, ...] (dataset.missing) lists"
            self._reject_first(
                name,
                (np.isnan(cells) & complete, text if is_text(text.type) else None, empty),
                (np.isinf(cells), cells, "is not finite"),
                (np.abs(cells) > FLOAT32_MAX, cells, "is too large for float32"),
            )
        return numbers


def find_unfit(
    place: str, pieces: Callable[[Sequence[str]], Iterable[FeatureColumns]], names: Sequence[str], *, is_nodes: bool
) -> list[tuple[str, str]]:
    """Reads all columns of features and weights of one or several tables.

    Returns the unfit columns, and why they are unfit.

    Args:
        place: Table, for messages.
        pieces: Yields the rows of some columns.
        names: The columns.
        is_nodes: Whether rows are nodes, whose cells may be empty, or edges.
    """
    readings, unfit = _survey(place, pieces(names), names)
    widths, num_rows = dict[str, int](), 0
    for piece in pieces(list(readings)) if readings else ():
        num_rows += piece.use_readings(readings).num_rows
        for name in readings.keys() - unfit.keys():
            with collect_unfit(unfit, name):
                _check_column(piece, name, widths, is_nodes=is_nodes)
    for name, reading in readings.items() if is_nodes else ():
        if has_many_values(len(reading.categories), num_rows):
            unfit[name] = f"{place}, {describe_many(name, len(reading.categories), num_rows)}"
    return [(name, unfit[name]) for name in names if name in unfit]


def _check_column(piece: FeatureColumns, name: str, widths: dict[str, int], *, is_nodes: bool) -> None:
    """Raises `UserError` for cells that cannot be read, and for another width."""
    if name == "weight" and not is_nodes:
        piece.weights(name)
        return
    rows = piece.rows_with_nan([name]) if is_nodes else piece.rows([name])
    width = 0 if rows is None else rows.shape[1]
    if widths.setdefault(name, width) != width:
        raise UserError(f"{piece.name}, column {name!r} holds lists of {width} numbers, {widths[name]} elsewhere")


def find_readings(place: str, pieces: Iterable[ColumnTable], names: Sequence[str]) -> dict[str, ColumnReading]:
    """Decides how columns are read, over all pieces of one or several tables.

    Raises `UnfitColumns` for unreadable columns.

    Args:
        place: Table, for messages.
        pieces: The rows. If empty, columns are read as numbers.
    """
    readings, unfit = _survey(place, pieces, names)
    raise_unfit(unfit)
    return readings


def _survey(
    place: str, pieces: Iterable[ColumnTable], names: Sequence[str]
) -> tuple[dict[str, ColumnReading], dict[str, str]]:
    """Returns the columns' readings, and why columns have none."""
    surveys, readings, unfit = dict[str, Survey](), dict[str, ColumnReading](), dict[str, str]()
    for piece in pieces:
        surveys = surveys or {name: Survey(place, name, piece.missing) for name in names}
        for name, survey in surveys.items():
            if name not in unfit:
                with collect_unfit(unfit, name):
                    survey.add(piece.plain(name))
        if all(name in unfit or survey.has_too_many for name, survey in surveys.items()):
            break
    comma = next((survey.decimal_comma for survey in surveys.values() if survey.decimal_comma), "")
    for name in names:
        if name not in unfit:
            with collect_unfit(unfit, name):
                if comma:
                    surveys[name].check_points(comma)
                readings[name] = surveys[name].reading() if surveys else ColumnReading("numbers")
    return readings, unfit


def warn_readings(table: str, readings: Mapping[str, ColumnReading]) -> None:
    """Warns about text and dates that are read as numbers."""
    if unusual := [text for name, reading in readings.items() if (text := reading.description(name))]:
        warnings.warn(f"{table}: reads {', '.join(unusual)}", stacklevel=4)
