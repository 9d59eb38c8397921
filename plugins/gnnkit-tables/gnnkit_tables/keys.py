"""Primary and foreign keys: from columns of keys to positions of rows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text

from gnnkit.errors import UserError
from gnnkit.graph.cells import missing_cells, nulls_of, numbers_of
from gnnkit.graph.labels import MAX_EXACT
from gnnkit.graph.types import Ids

NULL, DANGLING = -1, -2  # positions of keys that are empty, and of keys that no row has
_EXAMPLES = 3  # values in a message
TablesByName = Mapping[str, Table]


@dataclass(frozen=True, slots=True, eq=False)
class KeyIndex:
    """The rows of a table by primary key, which may have several columns."""

    table: str
    names: tuple[str, ...]
    columns: tuple[pa.Array, ...]  # [rows] each
    from_text: bool  # whether the file is text, in which types are guesses

    @classmethod
    def create(cls, table: Table, names: Sequence[str]) -> KeyIndex:
        """Reads a primary key. Raises `UserError` if it is empty or not distinct."""
        index = cls(table.name, tuple(names), tuple(key_column(table, name) for name in names), _is_csv(table))
        empty = np.logical_or.reduce([nulls_of(column) for column in index.columns])
        if empty.any():
            rows = np.flatnonzero(empty)[:_EXAMPLES].tolist()
            raise UserError(f"{index.place}: {empty.sum():,} empty cells in a primary key, such as in rows {rows}")
        first = index.find(index.columns, index.place, index.from_text)
        if len(again := np.flatnonzero(first != np.arange(table.num_rows))):
            examples = [f"{index.show(row)} in rows {first[row]} and {row}" for row in again[:_EXAMPLES].tolist()]
            raise UserError(
                f"{index.place}: {len(again):,} rows repeat a primary key: {', '.join(examples)}; remove duplicates, or "
                "name further columns of the key in the manifest"
            )
        return index

    @property
    def place(self) -> str:
        return f"{self.table}, {_describe(self.names)}"

    def show(self, row: int) -> str:
        """Returns a row's key as text."""
        return ",".join(str(column[row].as_py()) for column in self.columns)

    def find(self, columns: Sequence[pa.Array], place: str, from_text: bool) -> Ids:  # [k]
        """Returns the first row of each key, `NULL` or `DANGLING`.

        Args:
            columns: [k] each, one for each column of the key.
            place: Table and columns, for messages.
            from_text: Whether they are from a text file.
        """
        empty = np.logical_or.reduce([nulls_of(column) for column in columns])
        codes: Ids = np.zeros(len(columns[0]), np.int64)
        parents: Ids = np.zeros(len(self.columns[0]), np.int64)
        for pair in zip(columns, self.columns, strict=True):
            column, parent = self.same_type(*pair, place, from_text)
            codes, parents = _number_pairs(codes, parents, column, parent)
        rows = np.full(int(parents.max(initial=-1)) + 2, DANGLING)  # the last one for code -1
        rows[parents[::-1]] = np.arange(len(parents))[::-1]  # the first row remains
        return np.where(empty, NULL, rows[codes])

    def same_type(self, column: pa.Array, parent: pa.Array, place: str, from_text: bool) -> tuple[pa.Array, pa.Array]:
        """Returns both columns in one type. Raises `UserError` for text and numbers."""
        if column.type == parent.type or pa.types.is_null(column.type):
            return column.cast(parent.type), parent
        if pa.types.is_timestamp(column.type) and pa.types.is_timestamp(parent.type):
            return column.cast(pa.timestamp("ns", column.type.tz)), parent.cast(pa.timestamp("ns", parent.type.tz))
        if (is_text(column.type) and self.from_text) or (is_text(parent.type) and from_text):
            return column.cast(pa.large_string()), parent.cast(pa.large_string())
        values = pc.unique(column.drop_null())
        raise UserError(
            f"{place}: {len(column) - column.null_count:,} keys are {column.type}, such as "
            f"{values[:_EXAMPLES].to_pylist()}, but {self.place} is {parent.type}; convert one of them"
        )


def key_column(table: Table, name: str) -> pa.Array:  # [rows] int64, large_string or a date, null if empty
    """Reads a column of keys, which may have empty cells.

    Blanks around text are removed. Floating-point numbers must be whole.
    """
    column = table.plain(name)
    kind = column.type
    if is_text(kind):
        empty = pa.array(missing_cells(column, table.missing))
        text = pc.utf8_trim_whitespace(column.cast(pa.large_string()))
        text = pc.if_else(empty, pa.scalar(None, pa.large_string()), text)
        whole = pc.match_substring_regex(text.drop_null(), r"^(0|-?[1-9]\d{0,17})(\.0+)?$")
        is_whole = _is_csv(table) and len(whole) > 0 and pc.all(whole).as_py()
        return pc.replace_substring_regex(text, r"\.0+$", "").cast(pa.int64()) if is_whole else text
    if pa.types.is_floating(kind):
        numbers = column.to_numpy(zero_copy_only=False)
        empty = np.isnan(numbers)
        bad = np.flatnonzero(~empty & ((np.rint(numbers) != numbers) | (np.abs(numbers) > MAX_EXACT)))
        if len(bad):
            raise UserError(
                f"{table.name}, column {name!r}, row {bad[0]}: {numbers[bad[0]]} is no key; expected whole numbers or text"
            )
        return pa.array(np.where(empty, 0, numbers).astype(np.int64), mask=empty)
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("ms"))
    if pa.types.is_uint64(kind) and (pc.max(column).as_py() or 0) > np.iinfo(np.int64).max:  # hashes, for example
        return column.cast(pa.large_string())
    return column if pa.types.is_timestamp(kind) or pa.types.is_null(kind) else column.cast(pa.int64())


def find_parents(table: Table, names: Sequence[str], parents: KeyIndex) -> Ids:  # [rows]
    """Returns the row that each row's foreign key refers to, `NULL` or `DANGLING`."""
    columns = [key_column(table, name) for name in names]
    return parents.find(columns, f"{table.name}, {_describe(names)}", _is_csv(table))


def count_missing(rows: Ids) -> str:
    """Counts the keys that `find_parents` has found to be empty or unknown."""
    return f"{np.count_nonzero(rows == NULL):,} empty, {np.count_nonzero(rows == DANGLING):,} unknown of {len(rows):,}"


def _number_pairs(codes: Ids, parents: Ids, column: pa.Array, parent: pa.Array) -> tuple[Ids, Ids]:
    """Numbers the keys of one more column, from 0 in the order of the parents' keys.

    Args:
        codes: [k] numbers of keys by the columns so far, -1 for unknown ones.
        parents: [rows] numbers of the primary keys by these columns.
        column: [k] the next column of keys.
        parent: [rows] the next column of the primary key.
    """
    values = pc.unique(parent)
    place, parent_place = (
        numbers_of(pc.index_in(cells, value_set=values, skip_nulls=True).fill_null(-1)).astype(np.int64)
        for cells in (column, parent)
    )
    distinct, numbers = np.unique(parents * len(values) + parent_place, return_inverse=True)
    joined = np.where((codes < 0) | (place < 0), -1, codes * len(values) + place)
    places = np.searchsorted(distinct, joined).clip(max=max(len(distinct) - 1, 0))
    return np.where(np.append(distinct, -1)[places] == joined, places, -1), numbers


def _describe(names: Sequence[str]) -> str:
    return f"column {names[0]!r}" if len(names) == 1 else f"columns {', '.join(map(repr, names))}"


def _is_csv(table: Table) -> bool:
    return table.name.endswith((".csv", ".csv.gz"))


KEY = re.compile(r"([^A-Za-z]id|Id|ID|(?i:key))$")  # endings of names of keys, other than id


def plain_name(name: str) -> str:
    """Returns the letters and digits of a name in lower case."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def name_stems(table: str) -> Sequence[str]:
    """Returns a table's plain name and its singular."""
    name = plain_name(table)
    singular = f"{name[:-3]}y" if name.endswith("ies") else name.removesuffix("s")
    return [name, singular, name.removesuffix("es")]
