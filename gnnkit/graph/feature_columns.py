"""Columns of features and weights."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.checks import FLOAT32_MAX, Array
from gnnkit.errors import UserError
from gnnkit.graph.arrow import nulls_of, numbers_of
from gnnkit.graph.column_table import ColumnTable
from gnnkit.graph.features import replace_nan
from gnnkit.graph.missing import missing_cells
from gnnkit.graph.types import Floats, Ids
from gnnkit.graph.values import ColumnReading, Survey, is_listed, is_number, is_text, typed_numbers


class FeatureColumns(ColumnTable):
    """Reads columns of any type as numbers."""

    def weights(self, name: str) -> Floats:  # [rows] finite
        """Reads a column of numbers without missing cells."""
        column = self.plain(name)
        if is_number(column.type):
            plain = pa.types.is_floating(column.type) and not column.null_count
            numbers: Array = numbers_of(column) if plain else typed_numbers(column)
        elif is_text(column.type) and self.reading(name).kind == "numbers":
            numbers = self.reading(name).numbers(column, self.missing)
        else:
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers{self._cure.format(name)}")
        self._refuse_gaps(name, np.isnan(numbers))
        self._refuse(name, np.isinf(numbers), numbers, "is not finite")
        return numbers

    def rows(self, names: Sequence[str]) -> Floats | None:  # [rows, columns]
        """Reads columns like `cells`, of which no cell may be empty."""
        if not names:
            return None
        found = self._beside(names)
        for name, values in zip(names, found, strict=True):
            self._refuse_gaps(name, np.asarray(np.isnan(values).any(axis=1)))
        return np.concatenate(found, axis=1)

    def cells(self, names: Sequence[str]) -> tuple[Floats | None, Ids | None]:
        """Reads columns side by side, of which cells may be empty or NaN.

        Numbers, dates (as seconds) and lists of numbers of equal length are float32, or
        float64 where float32 loses what `values.Survey` finds. A column of other text
        becomes one column for each of its values, with 1 where a row has the value and
        0 elsewhere. All of these are empty where the text is.

        Returns:
            The rows [rows, columns], 0 in empty cells, and row and column of each empty
            cell [k, 2], None where there is none.
        """
        return replace_nan(self.rows_with_nan(names)) if names else (None, None)

    def rows_with_nan(self, names: Sequence[str]) -> Floats:  # [rows, columns]
        """Reads one or more columns like `cells`, with NaN where a cell is empty."""
        return np.concatenate(self._beside(names), axis=1)

    def _beside(self, names: Sequence[str]) -> list[Floats]:  # [rows, 1 or more] each
        """Reads columns in one type: float64 where one of these needs it."""
        self._find_readings(names)
        dtype = np.result_type(np.float32, *(self.readings[name].dtype for name in names))
        return [self._values(name, dtype) for name in names]

    def reading(self, name: str) -> ColumnReading:
        """Returns how the column's cells are read."""
        self._find_readings([name])
        return self.readings[name]

    def _find_readings(self, names: Sequence[str]) -> None:
        """Finds how columns are read, with all that have none in one message."""
        if new := [name for name in names if name not in self.readings]:
            self.readings |= find_readings(self.name, [self], new, self._cure)

    def use_readings(self, readings: Mapping[str, ColumnReading]) -> Self:
        """Returns the table, whose columns are read as those of a larger one."""
        self.readings.update(readings)
        return self

    def column_names(self, names: Sequence[str]) -> list[str] | None:
        """Names the columns of `rows` and `cells`.

        Such as `x`, `x[0]` where `x` holds lists, and `x=red` where `x` holds text.
        """
        return [each for name in names for each in self._names(name)] or None

    def category_of(self, names: Sequence[str]) -> list[str] | None:
        """Names the column of text that each column of `cells` is a value of, or ""."""
        kinds = {name: self.reading(name).kind for name in names}
        found = [name if kinds[name] == "categories" else "" for name in names for _ in self._names(name)]
        return found if any(found) else None

    def _names(self, name: str) -> list[str]:
        column, reading = self.plain(name), self.reading(name)
        if reading.kind == "categories":
            return [f"{name}={value}" for value in reading.categories]
        if not is_listed(column.type):
            return [name]
        return [
            f"{name}[{number}]"
            for number in range(len(pc.drop_null(column)[0]) if column.null_count < len(column) else 0)
        ]

    def _values(self, name: str, dtype: np.dtype[Any]) -> Floats:  # [rows, 1 or more], NaN where a cell is empty
        column, reading = self.plain(name), self.reading(name)
        if reading.kind == "categories":
            places = reading.places(column, self.missing)
            rows: Floats = (places[:, None] == np.arange(len(reading.categories))).astype(dtype)
            rows[places < 0] = np.nan
            return rows
        if not is_listed(column.type):
            return self._checked(name, reading.numbers(column, self.missing)).astype(dtype)[:, None]
        known = ~nulls_of(column)
        length = numbers_of(pc.list_value_length(column).drop_null())
        width = int(length[0]) if len(length) else 0
        lengths = np.full(len(column), width)
        lengths[known] = length
        self._refuse(
            name,
            lengths != width,
            lengths,
            f"numbers, expected {width} as in row {self._number(int(np.argmax(known)))}",
        )
        wide: Floats = np.full((len(column), width), np.nan, dtype)
        inner = reading.numbers(pc.list_flatten(column), self.missing)
        wide[known] = self._checked(name, inner, width).reshape(-1, width) if width else 0
        return wide

    def _checked(self, name: str, numbers: Floats, width: int = 1) -> Floats:
        """Refuses infinite numbers, `width` of a row, and those beyond float32."""
        for bad, why in (
            (np.isinf(numbers), "is not finite"),
            (np.abs(numbers) > FLOAT32_MAX, "is too large for float32"),
        ):
            if bad.any():
                at = int(np.argmax(bad))
                raise UserError(f"{self._place(name)}, row {self._number(at // width)}: {numbers[at].item()!r} {why}")
        return numbers

    def _refuse_gaps(self, name: str, bad: npt.NDArray[np.bool_]) -> None:
        cure, text = self._cure.format(name), self.plain(name)
        empty = missing_cells(text, ("",)) if is_text(text.type) and bad.any() else bad
        self._refuse(name, bad & empty, None, f"is empty{cure}")
        why = "stands for a missing value, unless missing=[WORD, ...] (dataset.missing) lists other words"
        self._refuse(name, bad, text, f"{why}{cure}")

    def check_bound(self, name: str, numbers: Floats) -> None:
        """Refuses numbers [rows] that float32 cannot hold."""
        self._refuse(name, np.abs(numbers) > FLOAT32_MAX, numbers, "is too large for float32")


def find_readings(
    place: str, pieces: Iterable[ColumnTable], names: Sequence[str], cure: str = ""
) -> dict[str, ColumnReading]:
    """Finds how columns are read, over all pieces of one or several tables.

    Raises `UserError` for a column that has no reading.

    Args:
        place: table, for messages.
        pieces: the rows. Without any, columns are numbers.
        names: of the columns.
        cure: as of `Table`.
    """
    surveys: dict[str, Survey] = {}
    for piece in pieces:
        surveys = surveys or {name: Survey(place, name, cure, piece.missing) for name in names}
        for name, survey in surveys.items():
            survey.add(piece.plain(name))
        if all(survey.has_too_many for survey in surveys.values()):
            break
    many = [name for name, survey in surveys.items() if survey.has_too_many]
    return {name: surveys[name].reading(many) if name in surveys else ColumnReading("numbers") for name in names}


def warn_readings(table: str, readings: Mapping[str, ColumnReading]) -> None:
    """Warns, in one line, of text and dates that are read as numbers."""
    if unusual := [text for name, reading in readings.items() if (text := reading.described(name))]:
        warnings.warn(f"{table}: reads {', '.join(unusual)}", stacklevel=4)
