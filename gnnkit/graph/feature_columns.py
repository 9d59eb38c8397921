"""Readers for columns of features and weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.arrow import nulls_of, numbers_of
from gnnkit.graph.column_table import ColumnTable
from gnnkit.graph.features import replace_nan
from gnnkit.graph.missing import missing_cells
from gnnkit.graph.types import Floats, Ids
from gnnkit.graph.values import ColumnReading, Survey, is_listed, is_number, is_text, typed_numbers
from gnnkit.utils.checks import FLOAT32_MAX, Array


class FeatureColumns(ColumnTable):
    """Reads columns of numbers, dates, categories and lists as numbers."""

    def weights(self, name: str) -> Floats:  # [rows] finite
        """Reads a numeric column without missing cells."""
        column = self.plain(name)
        if is_number(column.type):
            plain = pa.types.is_floating(column.type) and not column.null_count
            numbers: Array = numbers_of(column) if plain else typed_numbers(column)
        elif is_text(column.type) and self.reading(name).kind == "numbers":
            numbers = self.reading(name).numbers(column, self.missing)
        else:
            raise UserError(
                f"{self._column_place(name)} holds {column.type}, expected numbers{self._hint.format(name)}"
            )
        self._reject_missing(name, np.isnan(numbers))
        self._reject(name, np.isinf(numbers), numbers, "is not finite")
        return numbers

    def rows(self, names: Sequence[str]) -> Floats | None:  # [rows, columns]
        """Reads columns like `cells`, but raises `UserError` for missing cells."""
        if not names:
            return None
        columns = self._read_columns(names)
        for name, values in zip(names, columns, strict=True):
            self._reject_missing(name, np.asarray(np.isnan(values).any(axis=1)))
        return np.concatenate(columns, axis=1)

    def cells(self, names: Sequence[str]) -> tuple[Floats | None, Ids | None]:
        """Reads columns side by side, where cells may be missing or NaN.

        Numbers, dates (as seconds) and lists of equal length are float32, or float64 if
        the reading requires it. Other text is one-hot encoded, with one column per
        value. A missing cell is missing in all of them.

        Returns:
            The rows [rows, columns], 0 in missing cells, and row and column of each
                missing cell [k, 2]. None without missing cells.
        """
        return replace_nan(self.rows_with_nan(names)) if names else (None, None)

    def rows_with_nan(self, names: Sequence[str]) -> Floats:  # [rows, columns]
        """Reads one or more columns like `cells`, with NaN in missing cells."""
        return np.concatenate(self._read_columns(names), axis=1)

    def _read_columns(self, names: Sequence[str]) -> list[Floats]:  # [rows, 1 or more] each
        """Reads columns as one dtype: float64 if any column requires it."""
        self._find_readings(names)
        dtype = np.result_type(np.float32, *(self.readings[name].dtype for name in names))
        return [self._read_column(name, dtype) for name in names]

    def reading(self, name: str) -> ColumnReading:
        """Returns how the column becomes numbers."""
        self._find_readings([name])
        return self.readings[name]

    def _find_readings(self, names: Sequence[str]) -> None:
        """Decides on the readings together, so that one error lists all bad columns."""
        if new := [name for name in names if name not in self.readings]:
            self.readings |= find_readings(self.name, [self], new, self._hint)

    def use_readings(self, readings: Mapping[str, ColumnReading]) -> Self:
        """Reads columns as for the complete table, from which this is a piece."""
        self.readings.update(readings)
        return self

    def column_names(self, names: Sequence[str]) -> list[str] | None:
        """Returns the names of the columns of `rows` and `cells`.

        For example `x`, `x[0]` if `x` contains lists, and `x=red` if `x` contains text.
        """
        return [column_name for name in names for column_name in self._expanded_names(name)] or None

    def category_of(self, names: Sequence[str]) -> list[str] | None:
        """Returns the text column that each column of `cells` encodes, or ""."""
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
            return self._check_numbers(name, reading.numbers(column, self.missing)).astype(dtype)[:, None]
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
        wide: Floats = np.full((len(column), width), np.nan, dtype)
        inner = reading.numbers(pc.list_flatten(column), self.missing)
        wide[known] = self._check_numbers(name, inner, width).reshape(-1, width) if width else 0
        return wide

    def _check_numbers(self, name: str, numbers: Floats, width: int = 1) -> Floats:
        """Raises `UserError` for numbers beyond float32, `width` per row."""
        for bad, why in (
            (np.isinf(numbers), "is not finite"),
            (np.abs(numbers) > FLOAT32_MAX, "is too large for float32"),
        ):
            if bad.any():
                at = int(np.argmax(bad))
                raise UserError(
                    f"{self._column_place(name)}, row {self._row_number(at // width)}: {numbers[at].item()!r} {why}"
                )
        return numbers

    def _reject_missing(self, name: str, bad: npt.NDArray[np.bool_]) -> None:
        hint, text = self._hint.format(name), self.plain(name)
        empty = missing_cells(text, ("",)) if is_text(text.type) and bad.any() else bad
        self._reject(name, bad & empty, None, f"is empty{hint}")
        why = "stands for a missing value, unless missing=[WORD, ...] (dataset.missing) lists other words"
        self._reject(name, bad, text, f"{why}{hint}")

    def check_bound(self, name: str, numbers: Floats) -> None:
        """Raises `UserError` for numbers [rows] beyond float32."""
        self._reject(name, np.abs(numbers) > FLOAT32_MAX, numbers, "is too large for float32")


def find_readings(
    place: str, pieces: Iterable[ColumnTable], names: Sequence[str], hint: str = ""
) -> dict[str, ColumnReading]:
    """Decides how columns are read, over all pieces of one or several tables.

    Raises `UserError` for unreadable columns.

    Args:
        place: Table, for messages.
        pieces: The rows. If empty, columns are read as numbers.
        hint: As in `ColumnTable`.
    """
    surveys: dict[str, Survey] = {}
    for piece in pieces:
        surveys = surveys or {name: Survey(place, name, hint, piece.missing) for name in names}
        for name, survey in surveys.items():
            survey.add(piece.plain(name))
        if all(survey.has_too_many for survey in surveys.values()):
            break
    many = [name for name, survey in surveys.items() if survey.has_too_many]
    return {name: surveys[name].reading(many) if name in surveys else ColumnReading("numbers") for name in names}


def warn_readings(table: str, readings: Mapping[str, ColumnReading]) -> None:
    """Warns about text and dates that are read as numbers."""
    if unusual := [text for name, reading in readings.items() if (text := reading.description(name))]:
        warnings.warn(f"{table}: reads {', '.join(unusual)}", stacklevel=4)
