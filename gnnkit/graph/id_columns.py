"""Columns of node ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.checks import Array
from gnnkit.errors import UserError
from gnnkit.graph.arrow import numbers_of
from gnnkit.graph.column_table import ColumnTable
from gnnkit.graph.ids import MAX_EXACT, IdTable, find_ids, first_row, whole_numbers
from gnnkit.graph.missing import missing_cells
from gnnkit.graph.types import Ids
from gnnkit.graph.values import is_text

_MAX_TEXT = 2048  # characters of an id. An array of ids gives each the room of the longest
_WHOLE = r"^(0|-?[1-9][0-9]*)$"  # text that is spelt as a whole number
_INT64 = 2**63 - 1


class IdColumns(ColumnTable):
    """Reads node ids, and finds the nodes that a column names."""

    def ids(self, name: str, cure: str = "") -> pa.Array:  # [rows] int64 or large_string, distinct
        """Reads ids of nodes, as `id_column` does, which must be distinct.

        Args:
            name: of the column.
            cure: says what to do about an id that occurs twice, or nothing.
        """
        if not self._table.num_rows:
            raise UserError(f"{self.name} has no rows")
        ids = self.id_column(name)
        if is_text(ids.type):
            length = numbers_of(pc.utf8_length(ids))
            self._refuse(name, length > _MAX_TEXT, length, f"characters are too many for an id, at most {_MAX_TEXT}")
        first = find_ids(ids, ids)
        if len(again := np.flatnonzero(first != np.arange(len(ids)))):
            row, before = int(again[0]), int(first[again[0]])
            value, other = (self.plain(name)[each].as_py() for each in (row, before))
            spelt = "" if value == other else f", where it is spelt {other!r}"
            raise UserError(
                f"{self._place(name)}, row {self._number(row)}: {value!r} occurs a second time, after row "
                f"{self._number(before)}{spelt}{cure}"
            )
        return ids

    def id_column(self, name: str) -> pa.Array:  # [rows] int64 or large_string
        """Reads ids: whole numbers, text without surrounding blanks, or UUIDs as text.

        Floating-point numbers are ids where they are whole and exact. Raises
        `UserError` with the row of an empty id, of text with a NUL character, and of a
        number that int64 cannot hold.
        """
        column = self.plain(name)
        return self._text_ids(name, column) if is_text(column.type) else self._number_ids(name, column)

    def positions(self, name: str, ids: pa.Array | IdTable | None, *, fraction: bool = False) -> Ids:  # [rows]
        """Finds the position in `ids` of each entry of a column.

        Without `ids`, entries are positions. Numbers and text match where the text is
        spelt as the number is.

        Args:
            name: of the column.
            ids: [num_nodes] int64 or large_string, or None.
            fraction: whether a column of text spells whole numbers as `7.0`.
        """
        numbers = ids is None or not is_text(ids.type)
        if numbers:
            column = self._whole_ids(name, fraction)
        elif self.is_text(name):
            column = self.plain(name).cast(pa.large_string())
            self._refuse_nulls(name, column)
        else:
            column = self.id_column(name).cast(pa.large_string())
        if ids is None:
            return numbers_of(column)
        found = find_ids(ids, column)
        if not numbers and found.min(initial=0) < 0:  # blanks are stripped where there may be some
            column = self._text_ids(name, column)
            found = find_ids(ids, column)
        spelt = not numbers and not self.is_text(name)
        self._refuse(name, found < 0, column, "is no id of a node" + (", as these are text" if spelt else ""))
        return found

    def holds_numbers(self, names: Sequence[str]) -> bool:
        """Says whether most values in columns of text are whole numbers."""
        values = self.distinct(names)
        return 2 * (pc.sum(pc.match_substring_regex(values, _WHOLE)).as_py() or 0) >= len(values)

    def distinct(self, names: Sequence[str]) -> pa.Array:  # [values] large_string
        """Collects the ids in columns of text, as they are spelt.

        Raises `UserError` with the row of an empty id, and of a NUL character.
        """
        found = []
        for name in names:
            column = self.plain(name).cast(pa.large_string())
            values = pc.unique(column)
            if self._bad_text(values).any():
                self._text_ids(name, column)  # raises, with the row
            found.append(values)
        return pc.unique(pa.concat_arrays(found))

    def check_range(self, name: str, ids: Ids, num_nodes: int) -> None:
        """Refuses numbers [rows] of nodes that are not within 0..num_nodes-1."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_nodes):
            self._refuse(name, (ids < 0) | (ids >= num_nodes), ids, f"is out of range for {num_nodes} nodes")

    def _whole_ids(self, name: str, fraction: bool) -> pa.Array:  # [rows] int64
        """Reads a column of whole numbers, which may be text."""
        column = self.plain(name)
        if not is_text(column.type):
            return self._number_ids(name, column)
        self._refuse_nulls(name, column)
        numbers = whole_numbers(column, fraction=fraction)
        if numbers is not None:
            return numbers
        self._text_ids(name, column)  # raises for an empty cell
        row = first_row(column, lambda cells: whole_numbers(cells, fraction=fraction) is not None)
        text = column[row].as_py()
        raise UserError(f"{self._place(name)}, row {self._number(row)}: {text!r} {_why_no_number(text)}")

    def _number_ids(self, name: str, column: pa.Array) -> pa.Array:  # [rows] int64
        """Reads a column of numbers, which are whole and exact."""
        kind = column.type
        if pa.types.is_null(kind) or not len(column):
            column = column.cast(pa.int64())
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise UserError(f"{self._place(name)} holds {kind}, expected whole numbers, text or UUIDs")
        self._refuse_nulls(name, column)
        if pa.types.is_floating(kind):
            numbers = numbers_of(column).astype(np.float64, copy=False)
            self._refuse(name, np.isnan(numbers), None, "is empty")
            self._refuse(name, np.rint(numbers) != numbers, numbers, "is no whole number")
            inexact = np.abs(numbers) > MAX_EXACT
            self._refuse(name, inexact, numbers, "is beyond 2^53, where a float is no exact id: use int64 or text")
            return pa.array(numbers.astype(np.int64))
        if pa.types.is_unsigned_integer(kind):
            numbers = numbers_of(column)
            self._refuse(name, numbers > _INT64, numbers, "is too large for an id of 64 bits: give such ids as text")
        return self._cast(name, pa.int64())

    def _text_ids(self, name: str, column: pa.Array) -> pa.Array:  # [rows] large_string
        """Strips blanks from ids that are text."""
        column = column.cast(pa.large_string())
        self._refuse_nulls(name, column)
        if self._bad_text(column).any():
            empty = missing_cells(column, ("",))
            self._refuse(name, empty, None, "is empty")
            why = "is empty: the word stands for a missing value, unless missing=[WORD, ...] (dataset.missing) lists others"
            self._refuse(name, missing_cells(column, self.missing), column, why)
            nul = pc.match_substring(column, "\0").to_numpy(zero_copy_only=False)
            self._refuse(name, nul, column, "holds a NUL character, which ids cannot")
        return pc.utf8_trim_whitespace(column)

    def _bad_text(self, text: pa.Array) -> npt.NDArray[np.bool_]:  # [rows]
        """Marks text that is no id: empty cells, and text with a NUL character."""
        nul = pc.match_substring(text, "\0").fill_null(True).to_numpy(zero_copy_only=False)
        return np.asarray(nul | missing_cells(text, ("", *self.missing)))


def as_ids(ids: pa.Array) -> Array | None:  # [num_nodes]
    """Returns ids for `Graph.node_ids`, or None where each is the node's own number."""
    if is_text(ids.type):
        return np.array(ids.to_pylist(), np.str_)
    numbers = numbers_of(ids)
    return None if np.array_equal(numbers, np.arange(len(numbers))) else numbers


def joined_ids(tables: Sequence[IdColumns], names: Sequence[str]) -> pa.Array:  # [num_nodes] large_string
    """Collects the ids in columns of text, in the order of code points.

    Surrounding blanks do not count. Raises `UserError` for ids that differ in these
    alone.
    """
    spelt = pc.unique(pa.concat_arrays([table.distinct(names) for table in tables]))
    ids = pc.utf8_trim_whitespace(spelt)
    distinct = pc.unique(ids).sort()
    if len(distinct) < len(ids):
        first = find_ids(ids, ids)
        row = int(np.flatnonzero(first != np.arange(len(ids)))[0])
        one, other = spelt[int(first[row])].as_py(), spelt[row].as_py()
        raise UserError(
            f"{tables[0].name}, columns {names[0]!r} and {names[1]!r}: {one!r} and {other!r} differ in blanks alone: "
            "spell the id one way"
        )
    return distinct


def _why_no_number(text: str) -> str:
    """Returns why text is not the id of a node where ids are numbers."""
    try:
        number = float(text) if "." in text else int(text)
    except ValueError:
        return "is no whole number"
    if number != int(number):
        return "is no whole number"
    if abs(number) > _INT64:
        return "is too large for an id of 64 bits: give a table of nodes whose ids are text"
    return f"is not spelt as the id {int(number)} is: spell an id one way, or give all ids as text"
