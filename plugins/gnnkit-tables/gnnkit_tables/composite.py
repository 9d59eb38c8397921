"""Proposes keys of several columns for tables without a distinct column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text

from gnnkit.errors import UserError
from gnnkit.graph.types import Ids
from gnnkit.utils.ranges import shown_names
from gnnkit_tables.keys import KeyIndex, TablesByName, count_missing, find_parents, key_column, name_stems, plain_name
from gnnkit_tables.manifest import Link, TableSpec

_COLUMNS = 16  # columns shared with another table, at most, of which a key is sought. Keys come first
_PREFIX = 10_000  # rows in which most columns that are no key already repeat
_CHANCE = 5.0  # expected pairs of equal rows above which distinct rows are no chance: exp(-5) is below 1 %
_SHARE = 0.9  # of a table's combinations, at least, that are keys


@dataclass(frozen=True, slots=True)
class CompositeKey:
    """A key of several columns, and the links of other tables to it."""

    table: str
    index: KeyIndex
    links: Mapping[str, tuple[Link, str]]  # with their reasons, by the table that refers to the key

    @property
    def reason(self) -> str:
        count = len(self.index.columns[0])
        return f"no column is distinct in all rows, but these together; {count:,} values; {shown_names(self.links)} has them"


def find_composite_keys(tables: TablesByName, specs: Mapping[str, TableSpec]) -> Iterator[CompositeKey]:
    """Yields composite keys of tables without a key to which other tables refer.

    Other tables have columns of the same names, several rows for a key, and mostly
    combinations that are keys. Columns that would be distinct by chance, such as two
    small numbers in few rows, are no key.

    Args:
        tables: The tables by name.
        specs: Their keys, links and columns known later.
    """
    for name, spec in specs.items():
        if spec.key or not tables[name].num_rows:
            continue
        matches = {child: _match_columns(name, child, tables, specs) for child in specs if child != name}
        part_names = dict.fromkeys(column for match in matches.values() for column in match)
        parts = {column: cells for column in part_names if (cells := _read_column(tables[name], column)) is not None}
        shared = [[column for column in match if column in parts] for match in matches.values()]
        keys = dict.fromkeys(key for names in shared if (key := _find_key(parts, names[:_COLUMNS])))
        candidates = [_link_children(KeyIndex.create(tables[name], key), name, tables, matches) for key in keys]
        best = max(candidates, key=lambda candidate: len(candidate.links), default=None)
        if best is not None and best.links:
            yield best


def _match_columns(parent: str, child: str, tables: TablesByName, specs: Mapping[str, TableSpec]) -> dict[str, str]:
    """Returns another table's column for columns that may be part of a key.

    It has the same name, perhaps after the parent's, such as `room_number` for the
    column `number` of rooms, or it alone refers to the same table.
    """
    by_name = {plain_name(column): column for column in tables[child].names if column not in specs[child].later}
    by_table: dict[str, str] = {}
    for link in specs[child].links:
        by_table[link.table] = link.name if link.table not in by_table else ""
    referred = {link.name: link.table for link in specs[parent].links}
    match: dict[str, str] = {}
    for column in tables[parent].names:
        names = (plain_name(column), *(f"{stem}{plain_name(column)}" for stem in name_stems(parent)))
        other = next((by_name[name] for name in names if name in by_name), by_table.get(referred.get(column, "")))
        if other and other not in match.values() and column not in specs[parent].later:
            match[column] = other
    return match


def _read_column(table: Table, name: str) -> pa.Array | None:
    """Returns cells that may be part of a key, and are not distinct or empty."""
    kind = table.plain(name).type
    if is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind):
        with suppress(UserError, pa.ArrowException):  # fractions
            column = key_column(table, name)
            return None if column.null_count or len(pc.unique(column)) == len(column) else column
    return None


def _find_key(columns: Mapping[str, pa.Array], names: Sequence[str]) -> tuple[str, ...]:
    """Returns the first two columns that are distinct together, or else more.

    More columns are all but those, from the last on, without which the rest is
    distinct. A column of equal cells remains, such as the only year so far.
    """
    if len(names) < 2 or not _are_distinct(columns, names):
        return ()
    if pair := next((pair for pair in combinations(names, 2) if _is_key(columns, pair)), None):
        return pair
    for name in names[::-1]:
        rest = [other for other in names if other != name]
        if len(pc.unique(columns[name])) > 1 and _are_distinct(columns, rest):
            names = rest
    return tuple(names) if _is_key(columns, names) else ()


def _is_key(columns: Mapping[str, pa.Array], names: Sequence[str]) -> bool:
    """Returns whether combinations are distinct, and not by chance."""
    return _are_distinct(columns, names) and _count_repeats([columns[name] for name in names]) > _CHANCE


def _are_distinct(columns: Mapping[str, pa.Array], names: Sequence[str]) -> bool:
    """Returns whether no combination repeats. Few rows are compared first."""
    table = pa.table({name: columns[name] for name in names})
    parts = (table.slice(0, size) for size in dict.fromkeys((min(_PREFIX, len(table)), len(table))))
    return all(len(_distinct(part)) == len(part) for part in parts)


def _distinct(table: pa.Table) -> pa.Table:
    return table.group_by(table.column_names).aggregate([])


def _count_repeats(columns: Sequence[pa.Array]) -> float:
    """Returns how many pairs of rows would be equal if columns were independent."""
    size = len(columns[0])
    counts = [np.asarray(pc.value_counts(column).field("counts"), np.float64) for column in columns]
    return size * (size - 1) / 2 * float(np.prod([((count / size) ** 2).sum() for count in counts]))


def _link_children(
    index: KeyIndex, parent: str, tables: TablesByName, matches: Mapping[str, Mapping[str, str]]
) -> CompositeKey:
    """Returns the key with a link of each table whose combinations are mostly keys.

    One of them must repeat. Otherwise, rows have the same key rather than refer to it.
    """
    links: dict[str, tuple[Link, str]] = {}
    for child, match in matches.items():
        columns = tuple(match[column] for column in index.names if column in match)
        if len(columns) < len(index.names):
            continue
        share, rows = match_keys(tables[child], columns, index)
        if share >= _SHARE and len(np.unique(rows[rows >= 0])) < np.count_nonzero(rows >= 0):
            what = f"columns of the key; {100 * share:.0f} % of the distinct combinations are keys"
            links[child] = Link(columns, parent), f"{what}; {count_missing(rows)}"
    return CompositeKey(parent, index, links)


def match_keys(table: Table, columns: Sequence[str], index: KeyIndex) -> tuple[float, Ids]:
    """Returns the share of distinct combinations that are keys, and each row's parent.

    If types differ, the share is 0, and there are no parents.
    """
    with suppress(UserError, pa.ArrowException):
        rows = find_parents(table, columns, index)
        cells = pa.table({str(place): key_column(table, name) for place, name in enumerate(columns)}).drop_null()
        return len(np.unique(rows[rows >= 0])) / max(len(_distinct(cells)), 1), rows
    return 0.0, np.empty(0, np.int64)
