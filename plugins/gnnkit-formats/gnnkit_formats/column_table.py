"""A table with named columns, with errors that point to the file's rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gnnkit.errors import UserError
from gnnkit.graph.cells import MISSING, first_row, nulls_of, quote, without_missing
from gnnkit.graph.types import Ids
from gnnkit.utils.checks import Array
from gnnkit_formats.values import ColumnReading, is_text

CSV_FORMS = ("csv", "csv.gz", "tsv", "tsv.gz")
NO_HEADER = (
    "; add a first line with names of columns, such as src,dst for edges or id,label for nodes, and remove comments"
)
_WIDER = {pa.float16(): pa.float32(), pa.string_view(): pa.large_string()}  # for types that Arrow hardly computes with


class ColumnTable:
    """A table with errors that name the file, column and row."""

    def __init__(
        self,
        name: str,
        table: pa.Table,
        first: int = 0,
        missing: Sequence[str] = MISSING,
        rows: Ids | None = None,
    ) -> None:
        """Wraps a table. Raises `UserError` for duplicate column names.

        Args:
            name: Name of the file or argument, for messages.
            first: Number of the first row in the file, for messages.
            missing: Words for missing values, in lower case.
            rows: [rows] number of each row in the file, if rows were removed.
        """
        self.name = name
        self._first, self.missing, self._rows = first, tuple(missing), rows
        self._table = table
        self.readings: dict[str, ColumnReading] = {}  # how columns become numbers, filled on first use
        self.names: list[str] = table.column_names
        check_distinct(name, self.names)

    @property
    def schema(self) -> pa.Schema:
        return self._table.schema

    @property
    def num_rows(self) -> int:
        return int(self._table.num_rows)

    def is_text(self, name: str) -> bool:
        """Checks whether the column is text."""
        return is_text(self.plain(name).type)

    def others(self, known: Collection[str | None]) -> list[str]:
        """Returns all columns except `known`."""
        return [name for name in self.names if name not in known]

    def plain(self, name: str) -> pa.Array:
        """Returns a column as an array of numbers, text or lists.

        Numbers that `missing` lists are null. Words in text remain.
        """
        require(self.name, self.names, name)
        column = self._table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if column.type in _WIDER:
            column = column.cast(_WIDER[column.type])
        elif getattr(column.type, "extension_name", "") == "arrow.uuid":
            column = pa.chunked_array([pa.array([str(uuid) for uuid in column.to_pylist()], pa.string())])
        elif isinstance(column.type, pa.BaseExtensionType):
            raise UserError(f"{self._column_place(name)} holds {column.type}, expected numbers or text")
        return without_missing(column.combine_chunks(), self.missing)

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        column = self.plain(name)
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            row = first_row(column, lambda cells: cells.cast(kind))
            what = "date" if pa.types.is_timestamp(kind) else str(kind)
            what = "whole number of 64 bits" if pa.types.is_integer(kind) else what
            raise UserError(
                f"{self._column_place(name)}, row {self._row_number(row)}: {str(column[row].as_py())!r} is no {what}"
            ) from error

    def _row_number(self, row: int) -> int:
        return self._first + int(row if self._rows is None else self._rows[row])

    def _reject_empty(self, name: str, column: pa.Array) -> None:
        self._reject(name, nulls_of(column), None, "is empty")

    def _reject(self, name: str, bad: npt.NDArray[np.bool_], column: pa.Array | Array | None, why: str) -> None:
        """Raises `UserError` for the first bad row, with its value and the reason."""
        rows = np.flatnonzero(bad)
        if len(rows):
            cell = None if column is None else _as_object(column[int(rows[0])])
            value = "" if cell is None else f"{quote(cell)} "
            raise UserError(f"{self._column_place(name)}, row {self._row_number(int(rows[0]))}: {value}{why}")

    def _reject_first(self, name: str, *rules: tuple[npt.NDArray[np.bool_], pa.Array | Array | None, str]) -> None:
        """Raises `UserError` for the first row that breaks one of several rules.

        The error is then the same if the table is read in pieces.

        Args:
            name: Column.
            rules: Bad rows, cells and reason, as for `_reject`.
        """
        rows = [int(np.argmax(bad)) if bad.any() else len(bad) for bad, _, _ in rules]
        self._reject(name, *rules[int(np.argmin(rows))])

    def _column_place(self, name: str) -> str:
        return f"{self.name}, column {name!r}"


def require(table: str, names: Sequence[str], column: str, hint: str = "") -> None:
    """Raises `UserError` if the column is missing. `hint` ends the message."""
    if column not in names:
        shown = [*map(repr, names[:20]), *(["..."] if len(names) > 20 else [])]
        alike = [name for name in names if name.strip().lower() == column.lower()]
        is_line = len(names) == 1 or names[:1] == ["sep="]
        cure = f"{hint}; did you mean {alike[0]!r}?" if alike else is_line * explain_line(names[0]) or hint
        remedy = explain_names(names)
        if not (remedy or alike) and all(re.search(r"\d", name) for name in names):
            remedy = f"; if this line is data,{NO_HEADER[1:]}"
        raise UserError(f"{table} has no column {column!r}, only {', '.join(shown)}{cure}{remedy}")


def check_distinct(name: str, columns: Sequence[str]) -> None:
    """Raises `UserError` if a table has two columns of one name."""
    if (twice := next((column for column, count in Counter(columns).items() if count > 1), None)) is not None:
        raise UserError(f"{name} has two columns {twice!r}{explain_names(columns)}")


def explain_names(names: Sequence[str]) -> str:
    """Returns the remedy for a first line that names no columns, or ""."""
    return NO_HEADER if all(re.fullmatch(r"[-+.\d\s]*|[#%].*", name) for name in names) else ""


def explain_line(first: str) -> str:
    """Returns the remedy if the first line of a CSV does not divide names, or ""."""
    if first.removeprefix("\ufeff").startswith("sep="):
        return "; remove the first line, which begins with sep="
    mark = None if re.search("^[#%]|[,;\t]", first) else re.search(r"[| ]", first.strip())
    return f"; cells must be divided by commas, tabs or semicolons, and not by {mark[0]!r}" if mark else ""


def _as_object(value: Any) -> object:
    """Returns an array entry as a Python object."""
    return value.as_py() if isinstance(value, pa.Scalar) else value.item()
