"""Named columns with row numbers: what every kind of column reader builds on."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gnnkit.checks import Array
from gnnkit.errors import UserError
from gnnkit.graph.arrow import nulls_of
from gnnkit.graph.ids import first_row, is_consecutive
from gnnkit.graph.index_columns import index_columns
from gnnkit.graph.missing import MISSING
from gnnkit.graph.types import Ids
from gnnkit.graph.values import ColumnReading, is_text


class ColumnTable:
    """The columns of a table. Errors name table, column and row."""

    def __init__(
        self,
        name: str,
        table: pa.Table,
        first: int = 0,
        cure: str = "",
        missing: Sequence[str] = MISSING,
        rows: Ids | None = None,
    ) -> None:
        """Keeps the table. Raises `UserError` for two columns of one name.

        Args:
            name: of the file or the argument, for messages.
            table: the columns.
            first: the number of the first row in the file, for messages. Default: 0.
            cure: says how a column is left out, with `{}` for the name, or nothing.
            missing: words for "missing", in lower case.
            rows: [rows] number of each row in the file, where rows were left out.
        """
        self.name = name
        self._first, self._cure, self.missing, self._rows = first, cure, tuple(missing), rows
        self._table = table
        self.readings: dict[str, ColumnReading] = {}  # of columns that were read so far
        self.names: list[str] = table.column_names
        seen: set[str] = set()
        for column in self.names:
            if column in seen:
                raise UserError(f"{name} has two columns {column!r}")
            seen.add(column)

    @property
    def num_rows(self) -> int:
        return int(self._table.num_rows)

    def is_text(self, name: str) -> bool:
        """Says whether the column holds text."""
        return is_text(self.plain(name).type)

    def others(self, known: Collection[str | None]) -> list[str]:
        """Lists all columns but the known ones."""
        return [name for name in self.names if name not in known]

    def index_columns(self, known: Collection[str | None]) -> list[str]:
        """Lists the columns but the known ones that hold the index of a data frame."""
        names = self.others(known)
        return index_columns(self._table.schema, names, lambda name: is_consecutive(self.plain(name), 0))

    def plain(self, name: str) -> pa.Array:
        """Returns a column of plain numbers, text or lists."""
        require(self.name, self.names, name)
        column = self._table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        elif _is_uuid(column.type):
            column = pa.chunked_array([pa.array([str(each) for each in column.to_pylist()], pa.string())])
        elif isinstance(column.type, pa.BaseExtensionType):
            raise UserError(f"{self._place(name)} holds {column.type}, expected numbers or text")
        return column.combine_chunks()

    def _cast(self, name: str, kind: pa.DataType) -> pa.Array:
        column = self.plain(name)
        try:
            return column.cast(kind)
        except pa.ArrowException as error:
            row = first_row(column, lambda cells: _can_cast(cells, kind))
            what = "whole number of 64 bits" if pa.types.is_integer(kind) else str(kind)
            raise UserError(
                f"{self._place(name)}, row {self._number(row)}: {str(column[row].as_py())!r} is no {what}"
            ) from error

    def _number(self, row: int) -> int:
        """Returns the number of a row in the file."""
        return self._first + int(row if self._rows is None else self._rows[row])

    def _refuse_nulls(self, name: str, column: pa.Array) -> None:
        self._refuse(name, nulls_of(column), None, "is empty")

    def _refuse(self, name: str, bad: npt.NDArray[np.bool_], column: pa.Array | Array | None, why: str) -> None:
        """Raises `UserError` with the first bad row, the value and `why`.

        Args:
            name: Name of the column.
            bad: [rows] whether a row is bad.
            column: Values of the rows, or None.
            why: End of the message.
        """
        rows = np.flatnonzero(bad)
        if len(rows):
            value = "" if column is None else f"{_plain(column[int(rows[0])])!r} "
            raise UserError(f"{self._place(name)}, row {self._number(int(rows[0]))}: {value}{why}")

    def _place(self, name: str) -> str:
        return f"{self.name}, column {name!r}"


def require(table: str, names: Sequence[str], column: str, cure: str = "") -> None:
    """Raises `UserError` for a missing column, with `cure` behind the message.

    Args:
        table: name of the table, for the message.
        names: columns that there are.
        column: the one that is needed.
        cure: what to do.
    """
    if column not in names:
        shown = [*map(repr, names[:20]), *(["..."] if len(names) > 20 else [])]
        raise UserError(f"{table} has no column {column!r}, only {', '.join(shown)}{cure}")


def _is_uuid(kind: pa.DataType) -> bool:
    return getattr(kind, "extension_name", "") == "arrow.uuid"


def _plain(value: Any) -> object:
    """Returns the Python object of an entry of a column or an array."""
    return value.as_py() if isinstance(value, pa.Scalar) else value.item()


def _can_cast(column: pa.Array, kind: pa.DataType) -> bool:
    try:
        column.cast(kind)
    except pa.ArrowException:
        return False
    return True
