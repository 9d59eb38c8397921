"""Readers for columns of node ids."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.ids import MAX_EXACT, IdTable, find_ids, first_row, numbers_of, whole_numbers
from gnnkit.graph.missing import missing_cells
from gnnkit.graph.types import Ids
from gnnkit.utils.checks import Array
from gnnkit_formats.column_table import ColumnTable
from gnnkit_formats.values import is_text

_MAX_TEXT = 2048  # characters per id; NumPy pads all ids to the longest one
_WHOLE = r"^(0|-?[1-9][0-9]*)$"  # canonical whole number
_INT64 = 2**63 - 1


class IdColumns(ColumnTable):
    """Reads node ids, and looks up the nodes that a column refers to."""

    def ids(self, name: str, hint: str = "", threads: int = 1) -> IdTable:
        """Reads distinct node ids, like `id_column`.

        Args:
            name: Column.
            hint: Remedy for an id in two rows.
            threads: Threads used by lookups.
        """
        if not self._table.num_rows:
            raise UserError(f"{self.name} has no rows")
        ids = self.id_column(name)
        if is_text(ids.type):
            length = numbers_of(pc.utf8_length(ids))
            self._reject(name, length > _MAX_TEXT, length, f"characters are too long for an id, at most {_MAX_TEXT}")
        try:
            return IdTable(ids, threads)
        except UserError:  # an id occurs twice
            first = find_ids(ids, ids)
            row = int(np.argmax(first != np.arange(len(ids))))
            before = int(first[row])
            value, other = (self.plain(name)[place].as_py() for place in (row, before))
            variant = "" if value == other else f", written as {other!r}"
            raise UserError(
                f"{self._column_place(name)}, row {self._row_number(row)}: {value!r} occurs a second time, after row "
                f"{self._row_number(before)}{variant}{self._explain_key(name, first) or hint}"
            ) from None

    def _explain_key(self, name: str, first: Ids) -> str:
        """Returns the remedy if most ids repeat and two columns are a key.

        Args:
            name: Id column.
            first: [rows] the first row with each row's id.
        """
        if 2 * len(np.unique(first)) > self.num_rows:
            return ""
        keys = [other for other in self.others((name, "label", "split")) if self._is_key(first, self.plain(other))]
        if not keys:
            return ""
        return (
            f": {name!r} and {keys[0]!r} together identify rows; join both into one column of ids, in the edges too, or use "
            "dataset=tables (gnnkit-tables) for rows about one node at several times"
        )

    @staticmethod
    def _is_key(first: Ids, column: pa.Array) -> bool:
        """Checks whether a column distinguishes rows [rows] that have the same id."""
        kind = column.type
        if column.null_count or not (is_text(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
            return False
        ranks = numbers_of(column.dictionary_encode().indices).astype(np.int64)
        return len(np.unique(first * len(ranks) + ranks)) == len(ranks)

    def id_column(self, name: str) -> pa.Array:  # [rows] int64 or large_string
        """Reads ids: integers, text without surrounding blanks, or UUIDs as text.

        Floating-point ids must be exact integers. Raises `UserError` with the row of an
        empty id, of text with a NUL character, and of a number beyond int64.
        """
        column = self.plain(name)
        return self._read_text_ids(name, column) if is_text(column.type) else self._read_number_ids(name, column)

    def positions(self, name: str, ids: IdTable | None, *, fraction: bool = False) -> Ids:  # [rows]
        """Finds the position in `ids` of each entry of a column.

        Without `ids`, entries are positions. Text matches a number if it is the
        number's canonical form.

        Args:
            ids: The node ids, or None.
            fraction: Whether a text column contains integers such as `7.0`.
        """
        numbers = ids is None or not is_text(ids.ids.type)
        if numbers:
            column = self._read_whole_ids(name, fraction)
        elif self.is_text(name):
            column = self.plain(name).cast(pa.large_string())
            self._reject_empty(name, column)
        else:
            column = self.id_column(name).cast(pa.large_string())
        if ids is None:
            return numbers_of(column)
        nodes = ids.find(column)
        if not numbers and nodes.min(initial=0) < 0:  # some entries may have surrounding blanks
            column = self._read_text_ids(name, column)
            nodes = ids.find(column)
        is_mixed = not numbers and not self.is_text(name)
        self._reject(name, nodes < 0, column, "is no id of a node" + (", as these are text" if is_mixed else ""))
        return nodes

    def holds_numbers(self, names: Sequence[str]) -> bool:
        """Checks whether most values of text columns are integers."""
        values = self.distinct(names)
        return 2 * (pc.sum(pc.match_substring_regex(values, _WHOLE)).as_py() or 0) >= len(values)

    def distinct(self, names: Sequence[str]) -> pa.Array:  # [values] large_string
        """Returns the distinct ids of text columns, unmodified.

        Raises `UserError` with the row of an empty id or a NUL character.
        """
        parts = []
        for name in names:
            column = self.plain(name).cast(pa.large_string())
            values = pc.unique(column)
            if self._mark_invalid(values).any():
                self._read_text_ids(name, column)  # raises with the row
            parts.append(values)
        return pc.unique(pa.concat_arrays(parts))

    def check_range(self, name: str, ids: Ids, num_nodes: int, why: str = "is out of range for {} nodes") -> None:
        """Raises `UserError` for node numbers [rows] outside 0..num_nodes-1."""
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_nodes):
            self._reject(name, (ids < 0) | (ids >= num_nodes), ids, why.format(num_nodes))

    def _read_whole_ids(self, name: str, fraction: bool) -> pa.Array:  # [rows] int64
        """Reads integers, which may be stored as text."""
        column = self.plain(name)
        if not is_text(column.type):
            return self._read_number_ids(name, column)
        numbers = None if column.null_count else whole_numbers(column, fraction=fraction)
        if numbers is not None:
            return numbers
        row = first_row(column, lambda cells: None if cells.null_count else whole_numbers(cells, fraction=fraction))
        if self._mark_invalid(column)[row]:
            self._read_text_ids(name, column)  # raises for this row
        text = column[row].as_py()
        raise UserError(f"{self._column_place(name)}, row {self._row_number(row)}: {text!r} {_explain_number(text)}")

    def _read_number_ids(self, name: str, column: pa.Array) -> pa.Array:  # [rows] int64
        """Reads numbers, which must be exact integers."""
        kind = column.type
        if pa.types.is_null(kind) or not len(column):
            column = column.cast(pa.int64())
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
            raise UserError(f"{self._column_place(name)} holds {kind}, expected whole numbers, text or UUIDs")
        if pa.types.is_floating(kind):
            numbers = numbers_of(column).astype(np.float64, copy=False)
            inexact = np.abs(numbers) > MAX_EXACT
            self._reject_first(
                name,
                (np.isnan(numbers), None, "is empty"),
                (np.rint(numbers) != numbers, numbers, "is no whole number"),
                (inexact, numbers, "is beyond 2^53, where a float is no exact id: use int64 or text"),
            )
            return pa.array(numbers.astype(np.int64))
        self._reject_empty(name, column)
        if pa.types.is_unsigned_integer(kind):
            numbers = numbers_of(column)
            self._reject(name, numbers > _INT64, numbers, "exceeds 64-bit ids: use text ids")
        return self._cast(name, pa.int64())

    def _read_text_ids(self, name: str, column: pa.Array) -> pa.Array:  # [rows] large_string
        """Reads text ids, without surrounding blanks."""
        column = column.cast(pa.large_string())
        if self._mark_invalid(column).any():
            why = "is empty: the word stands for a missing value, unless missing=[WORD, ...] (dataset.missing) lists others"
            nul = pc.match_substring(column, "\0").fill_null(False).to_numpy(zero_copy_only=False)
            self._reject_first(
                name,
                (missing_cells(column, ("",)), None, "is empty"),
                (missing_cells(column, self.missing), column, why),
                (nul, column, "holds a NUL character, which ids cannot"),
            )
        return pc.utf8_trim_whitespace(column)

    def _mark_invalid(self, text: pa.Array) -> npt.NDArray[np.bool_]:  # [rows]
        """Marks invalid ids: missing cells, and text with a NUL character."""
        nul = pc.match_substring(text, "\0").fill_null(True).to_numpy(zero_copy_only=False)
        return np.asarray(nul | missing_cells(text, ("", *self.missing)))


def as_ids(ids: pa.Array) -> Array | None:  # [num_nodes]
    """Converts ids to `Graph.node_ids`, or to None if they are 0, 1, ..."""
    if is_text(ids.type):
        return np.array(ids.to_pylist(), np.str_)
    numbers = numbers_of(ids)
    return None if np.array_equal(numbers, np.arange(len(numbers))) else numbers


def joined_numbers(place: str, columns: Sequence[pa.Array], hint: str = "") -> pa.Array | None:  # [num_nodes] int64
    """Returns distinct integer ids in ascending order, or None for 0, 1, ...

    Warns if there are gaps, because not all numbers up to the largest id are nodes.

    Args:
        place: Table, for the warning.
        columns: The ids, which may be distinct within each column.
        hint: What else to do, for the warning.
    """
    ids = np.unique(np.concatenate([numbers_of(column) for column in columns]))
    if not len(ids) or (ids[0] == 0 and ids[-1] < len(ids)):
        return None
    if int(ids[-1]) - int(ids[0]) >= len(ids):
        warnings.warn(
            f"{place}: the {len(ids):,} distinct ids from {ids[0]} to {ids[-1]} are the nodes{hint}", stacklevel=4
        )
    return pa.array(ids)


def joined_ids(tables: Sequence[IdColumns], names: Sequence[str]) -> pa.Array:  # [num_nodes] large_string
    """Returns the distinct ids of text columns, sorted by code point.

    Surrounding blanks are removed. Raises `UserError` for ids that differ only in
    blanks.
    """
    raw_ids = pc.unique(pa.concat_arrays([table.distinct(names) for table in tables]))
    ids = pc.utf8_trim_whitespace(raw_ids)
    distinct = pc.unique(ids).sort()
    if len(distinct) < len(ids):
        first = find_ids(ids, ids)
        row = int(np.flatnonzero(first != np.arange(len(ids)))[0])
        one, other = raw_ids[int(first[row])].as_py(), raw_ids[row].as_py()
        raise UserError(
            f"{tables[0].name}, columns {names[0]!r} and {names[1]!r}: {one!r} and {other!r} differ only in blanks: write the id in one way"
        )
    return distinct


def _explain_number(text: str) -> str:
    """Explains why text is not a valid numeric node id."""
    try:
        number = float(text) if "." in text else int(text)
    except ValueError:
        return "is no whole number"
    if number != int(number):
        return "is no whole number"
    if abs(number) > _INT64:
        return "exceeds 64-bit ids: use a node table with text ids"
    return f"differs from the id {int(number)} in form: write each id in one way, or use text ids"
