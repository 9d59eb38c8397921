"""Readers for columns of node ids."""

from __future__ import annotations

import re
import unicodedata
import warnings
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.cells import IdTable, find_ids, first_row, missing_cells, numbers_of, whole_numbers, without_missing
from gnnkit.graph.labels import MAX_EXACT
from gnnkit.graph.schema import Relation
from gnnkit.graph.types import Fields, Ids
from gnnkit.utils.checks import Array
from gnnkit_formats.column_table import CSV_FORMS, ColumnTable
from gnnkit_formats.values import is_text

_MAX_TEXT = 2048  # characters per id; NumPy pads all ids to the longest one
_WHOLE = r"^(0|-?[1-9][0-9]*)$"  # canonical whole number
_INT64 = 2**63 - 1
_COMPOSITE = (
    ": if several columns together identify rows, join them into one column of ids, in the edges too, or use dataset=tables "
    "(gnnkit-tables) for rows about one node at several times"
)
NO_NODE = "is no id of a node: add the node, or remove the edge"


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
            hint = _COMPOSITE if 2 * len(np.unique(first)) <= len(ids) else hint
            raise UserError(
                f"{self._column_place(name)}, row {self._row_number(row)}: {value!r} occurs a second time, after row "
                f"{self._row_number(before)}{variant}{hint}"
            ) from None

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
        if (unknown := np.flatnonzero(nodes < 0)).size:
            why = "" if numbers else _explain_spelling(column[int(unknown[0])].as_py(), ids)
            self._reject(name, nodes < 0, column, why or NO_NODE + (", as these are text" if is_mixed else ""))
        return nodes

    def has_fraction(self, name: str) -> bool:
        """Checks whether the first id of a CSV's text column is written like 7.0."""
        if not (self.num_rows and self.name.endswith(tuple(CSV_FORMS)) and self.is_text(name)):
            return False
        return re.fullmatch(r"\s*-?\d+\.0+\s*", self.plain(name)[0].as_py() or "") is not None

    def holds_numbers(self, names: Sequence[str]) -> bool:
        """Checks whether most values of text columns are integers."""
        values = self.distinct(names)
        return 2 * int(np.count_nonzero(_are_whole(values))) >= len(values)

    def find_word(self, name: str) -> str | None:
        """Returns the first text among ids that are integers otherwise, or None."""
        ids = self.plain(name)
        if not len(ids) or not is_text(ids.type) or not _are_whole(ids.take(pa.array([0, len(ids) - 1]))).any():
            return None  # without a scan of all ids
        is_number = _are_whole(ids)
        row = int(np.argmin(is_number))
        text: str | None = ids[row].as_py()
        return text if not is_number[row] and 2 * np.count_nonzero(is_number) >= len(is_number) else None

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
            numbers = without_missing(numbers, self.missing)
            self._reject_empty(name, numbers)
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


def _are_whole(text: pa.Array) -> npt.NDArray[np.bool_]:  # [rows]
    return numbers_of(pc.match_substring_regex(text, _WHOLE).fill_null(False))


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


def _explain_spelling(text: str, ids: IdTable) -> str:
    """Returns the remedy if only case, braces or Unicode form differ from a node id."""
    cases = (text.strip("{}"), text.strip("{}").lower(), text.strip("{}").upper())
    spellings = sorted({unicodedata.normalize(form, case) for form in ("NFC", "NFD") for case in cases})
    found = ids.find(pa.array(spellings, pa.large_string()))
    other = next((spelling for spelling, node in zip(spellings, found, strict=True) if node >= 0), None)
    return "" if other is None else f"is written {other!a} as the id of a node: write each id in one way"


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


USERS_AND_ITEMS = (("user", "item"), ("user_id", "item_id"), ("userId", "itemId"))  # ends that are read without a key
_DIRECTION = re.compile(
    "src|dst|dest|source|target|destination|from|to|u|v|i|j|a|b|x|y|head|tail|start|end|origin|sender|receiver|parent|"
    "child|follower|followee|citing|cited"
)  # words in names of columns whose ids are of one type
UNNAMED = "to"  # PyG's name for an unnamed relation


def check_one_type(name: str, columns: Sequence[pa.Array], ends: tuple[str, str], key: str, nodes: str = "") -> str:
    """Returns a hint if no source is a destination, of at least two each.

    Raises `UserError` if both columns hold integers under the names of different
    things, such as userId and movieId, so that equal ids may be different nodes.

    Args:
        name: The edge table.
        columns: Sources and destinations, which may be distinct.
        ends: The names of both columns.
        key: Argument or configuration key that decides.
        nodes: The node table, which excludes two node types.
    """
    if any(pa.types.is_nested(column.type) for column in columns):
        return ""  # which are no ids
    sources, destinations = map(pc.unique, columns)
    if sources.type != destinations.type or min(len(sources), len(destinations)) < 2:
        return ""
    num_common = int(np.count_nonzero(numbers_of(pc.is_in(sources, value_set=destinations))))
    if not num_common:
        return (
            f"no {ends[0]} is a {ends[1]}; use {key}=true to read two node types, such as users and items, "
            f"{key}=false otherwise"
        )
    if is_text(sources.type) or name_one_type(ends):
        return ""
    remedy = f"; {nodes} can list the nodes of one type only: leave it out, or use a HeteroData" if nodes else ""
    raise UserError(
        f"{name}: {num_common:,} of {len(sources):,} distinct ids in {ends[0]!r} also occur among the {len(destinations):,} in "
        f"{ends[1]!r}; use {key}=true if these are two node types with separate ids, {key}=false if equal ids are one node{remedy}"
    )


def name_one_type(ends: Sequence[str]) -> bool:
    """Returns whether names share a word besides "id", or both have a direction."""
    first, second = (
        {word.lower() for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)} - {"id", "ids"} for name in ends
    )
    return bool(first & second) or all(any(map(_DIRECTION.fullmatch, words)) or not words for words in (first, second))


def two_types(ends: Sequence[str], counts: Sequence[int], names: Sequence[str] | None) -> Fields:
    """Returns the fields of graphs for sources and destinations of two types.

    Args:
        ends: Source and destination id columns.
        counts: Number of nodes of each type.
        names: Names of the relations, if edges have any.
    """
    source, destination = (re.sub("(?<=.)(_id|Id)$", "", name) for name in ends)  # named after the columns
    relations = tuple(Relation(source, name, destination) for name in names or ())
    return {"node_types": ((source, counts[0]), (destination, counts[1])), "relations": relations}


def join_ids(ids: Sequence[pa.Array]) -> Array:  # [num_nodes]
    """Returns both types' ids, as text if one of them has text ids."""
    if any(is_text(part.type) for part in ids):
        return np.array([str(value) for part in ids for value in part.to_pylist()], np.str_)
    return np.concatenate([numbers_of(part) for part in ids])
