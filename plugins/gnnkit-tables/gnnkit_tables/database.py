"""Tables as types of rows, with their times and the rows that they refer to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.column_table import require
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text, matches

from gnnkit.errors import UserError
from gnnkit.graph.times import ALWAYS, NEVER, Times, has_time, is_time, show_time, to_unit
from gnnkit.graph.types import Ids
from gnnkit.launch.progress import say
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import shown, shown_names
from gnnkit_tables.folder import Folder, as_days
from gnnkit_tables.keys import DANGLING, NULL, KeyIndex, find_parents
from gnnkit_tables.manifest import Manifest, TableSpec

ROW = "row"  # relation of the part of a row that is known later, or the first free of row_, row__, ...
_DATES = (
    r"^\s*(\d{1,2}[./-](\d{1,2}|[A-Za-z]{3,9})[./-](\d{2}|\d{4})|\d{4}[./-]\d{1,2}[./-]\d{1,2}|[A-Za-z]{3,9} \d{1,2},? \d{4}"
    r"|\d{1,2} [A-Za-z]{3,9} \d{4})\b"
)  # dates in other forms than those that are read
_FIRST_DAYS = 31 * 86_400  # seconds of January 1970, where numbers in a wrong unit end
# Seconds since 1970 from 1990 to 2030, which no date such as 2024013123 equals
_EPOCHS = (631_152_000, 1_900_000_000)
_UNITS = ("s", "ms", "us", "ns")
ColumnTimes = Mapping[tuple[str, str], Times]  # [rows] each, in one unit, by table and column


@dataclass(frozen=True, slots=True, eq=False)
class RowLink:
    """The row of another type that each row refers to."""

    name: str
    parent: str  # type of the rows
    rows: Ids  # [num_rows] row of the parent type, `NULL` or `DANGLING`
    is_same: bool = False  # whether both are parts of one row


@dataclass(frozen=True, slots=True, eq=False)
class RowType:
    """The rows of a table, or the part of them that is visible at the same time."""

    name: str
    table: Table
    columns: tuple[str, ...]  # columns that are features
    times: Times  # [num_rows] `ALWAYS` in a static table, `NEVER` without a time
    links: tuple[RowLink, ...]
    index: KeyIndex | None  # rows by primary key

    @property
    def is_static(self) -> bool:
        return bool((self.times == ALWAYS).all())

    @property
    def num_rows(self) -> int:
        return self.table.num_rows


@dataclass(frozen=True, slots=True)
class Database:
    """All types of rows by name."""

    types: Mapping[str, RowType]
    unit: str | None  # of times. None: plain numbers
    end: int = NEVER  # rows and labels after this time are hidden

    def lines(self) -> list[str]:
        """Describes static tables, rows without a time, and keys that lead nowhere."""
        static = [row_type.name for row_type in self.types.values() if row_type.is_static]
        lines = [f"tables: rows of {shown_names(static)} have no time and are always visible"] if static else []
        for row_type in self.types.values():
            for column, sample in find_unread_times(row_type.table) if row_type.is_static else ():
                lines.append(
                    f"tables: {row_type.name}.{column} holds {sample}: if these are times, write dates as 2026-01-31 or name "
                    f"the column as tables.{row_type.name}.time, or else rows of {row_type.name} are seen too early"
                )
            if count := int(np.count_nonzero(row_type.times == NEVER)):
                lines.append(f"tables: {count:,} rows of {row_type.name} have an empty time and are never visible")
            for link in row_type.links:
                null, dangling = (int(np.count_nonzero(link.rows == code)) for code in (NULL, DANGLING))
                if null or dangling:
                    what = f"{null:,} empty and {dangling:,} unknown keys{self._examples(row_type, link)}"
                    lines.append(
                        f"tables: {row_type.name}.{link.name} has {what}, which refer to no row of {link.parent}"
                    )
        return lines

    def _examples(self, row_type: RowType, link: RowLink) -> str:
        """Returns an unknown key beside one of the parent's, to compare their forms."""
        unknown, parent = np.flatnonzero(link.rows == DANGLING), self.types[link.parent].index
        if link.name not in row_type.table.names or not len(unknown) or parent is None or not len(parent.columns[0]):
            return ""
        return (
            f" (such as {shown(str(row_type.table.plain(link.name)[int(unknown[0])]))}, unlike {shown(parent.show(0))})"
        )

    def until(self, time: int) -> Database:
        """Returns the database without the rows that are later."""

        def cut(row_type: RowType) -> RowType:
            late = (row_type.times > time) & (row_type.times != NEVER)
            return replace(row_type, times=np.where(late, NEVER, row_type.times))

        return replace(self, end=time, types={name: cut(row_type) for name, row_type in self.types.items()})


def find_unread_times(table: Table) -> Iterator[tuple[str, str]]:
    """Yields columns that look like times but are not guessed to be, with a value.

    They are text with dates in other forms, and whole numbers in a column named time.
    """
    for name, kind in table.kinds.items():
        if pa.types.is_temporal(kind) or not (is_text(kind) or is_time(name)):
            continue
        if not len(values := pc.unique(table.plain(name)).drop_null()):
            continue
        if not is_text(kind) or (matches(values, _DATES).all() and not table.holds_times(name)):
            yield name, str(values[0])


def read_tables(folder: Folder, manifest: Manifest, missing: Sequence[str]) -> dict[str, Table]:
    """Reads the tables in the manifest. Raises `UserError` for missing files."""
    if absent := [name for name in manifest.tables if name not in folder.tables]:
        raise UserError(f"tables.{absent[0]} has no file in {folder.root}, which holds {shown_names(folder.tables)}")
    tables = {}
    for name, spec in manifest.tables.items():
        if ids := [column for column in spec.known_later if column in spec.ids]:
            raise UserError(f"tables.{name}.later: {ids[0]!r} is a key or a link, which rows have from the start")
        tables[name] = folder.read(folder.tables[name], spec.ids, missing)
        for column in (*spec.ids, *spec.ignore, *spec.later, *spec.known_later):
            require(tables[name].name, tables[name].names, column, "; change the manifest")
    return tables


def read_database(tables: Mapping[str, Table], manifest: Manifest, times: ColumnTimes, unit: str | None) -> Database:
    """Finds the rows that keys refer to.

    Args:
        tables: The tables by name.
        manifest: Their keys, links and times.
        times: [num_rows] in one unit, by table and column, from `read_times`.
        unit: Of times.
    """
    indices = {name: KeyIndex.create(tables[name], spec.key) for name, spec in manifest.tables.items() if spec.key}
    links = {
        name: tuple(
            RowLink(link.name, link.table, find_parents(tables[name], link.columns, indices[link.table]))
            for link in spec.links
        )
        for name, spec in manifest.tables.items()
    }
    row_times = _row_times(tables, manifest, times, links)
    types: dict[str, RowType] = {}
    for name, spec in manifest.tables.items():
        no_features = {*spec.ids, *spec.known_later, *spec.ignore, *spec.later, spec.time}
        columns = tuple(column for column in tables[name].names if column not in no_features)
        rows = RowType(name, tables[name], columns, row_times[name], links[name], indices.get(name))
        types |= {part.name: part for part in (rows, *_list_outcomes(rows, spec, times))}
    return Database(types, unit)


def _row_times(
    tables: Mapping[str, Table], manifest: Manifest, times: ColumnTimes, links: Mapping[str, Sequence[RowLink]]
) -> dict[str, Times]:
    """Returns the times of each table's column, or else those of the rows it refers to.

    The latest of them counts, through any number of tables without times, such as
    options of an order's lines.
    """
    row_times = {
        name: np.full(tables[name].num_rows, ALWAYS) if spec.time is None else times[name, spec.time]
        for name, spec in manifest.tables.items()
    }
    for _ in row_times:  # the longest chain of tables
        for name, spec in manifest.tables.items():
            for link in links[name] if spec.time is None else ():
                parents = np.append(row_times[link.parent], [ALWAYS, ALWAYS])
                row_times[name] = np.maximum(row_times[name], parents[link.rows])
    return row_times


def _list_outcomes(rows: RowType, spec: TableSpec, times: ColumnTimes) -> Iterator[RowType]:
    """Yields a type for each set of columns known later, linked to the row itself."""
    row = ROW
    while any(link.name == row for link in rows.links):
        row += "_"
    links = (*rows.links, RowLink(row, rows.name, np.arange(rows.num_rows), is_same=True))
    for column, names in spec.later.items():
        visible = np.maximum(times[rows.name, column], rows.times)
        yield RowType(f"{rows.name}.{column}", rows.table, names, visible, links, None)


def as_dates(times: Array) -> Array:
    """Returns seconds since 1970, or parts of them, as dates."""
    numbers = times[times != NEVER] if times.dtype.kind == "i" else times[:0]
    for place, unit in enumerate(_UNITS if len(numbers) else ()):
        if _EPOCHS[0] * 1000**place <= int(numbers.min()) and int(numbers.max()) < _EPOCHS[1] * 1000**place:
            return np.where(times == NEVER, ALWAYS, times).view(f"M8[{unit}]")  # ALWAYS is NaT
    return times


def join_epochs(columns: Mapping[tuple[str, str], Array], *, has_spans: bool) -> dict[tuple[str, str], Array]:
    """Reads seconds since 1970 as dates if other times are dates, with a line.

    Args:
        columns: [rows] int64 or datetime64, by table and column.
        has_spans: Whether spans such as `30 days` are added to times.
    """
    is_date = {place: values.dtype.kind == "M" for place, values in columns.items()}
    if not (has_spans or any(is_date.values())):
        return dict(columns)
    joined = {place: as_dates(values) for place, values in columns.items()}
    for (table, column), values in joined.items():
        if values.dtype.kind == "M" and not is_date[table, column]:
            unit = np.datetime_data(values.dtype)[0]
            first = show_time(int(np.nanmin(values).astype(np.int64)), unit)
            say(f"tables: {table}.{column} holds whole numbers, which are read as {unit} since 1970, from {first} on")
        elif values.dtype.kind != "M" and any(is_date.values()) and (values != NEVER).any():
            # The first one that is no day, if there is one.
            example = min(np.unique(values[values != NEVER]).tolist(), key=lambda x: as_days(pa.array([x])) is not None)
            raise UserError(
                f"{table}, column {column!r} holds numbers such as {example}, but other times of the database are dates; "
                "write dates such as 2026-01-31, or seconds since 1970, and leave unknown times empty"
            )
        elif any(is_date.values()):  # a CSV's column without any time has no type
            joined[table, column] = values if values.dtype.kind == "M" else np.full(len(values), ALWAYS).view("M8[s]")
    return joined


def read_times(columns: Mapping[tuple[str, str], Array]) -> tuple[dict[tuple[str, str], Times], str | None]:
    """Converts times of all tables to one unit, which is returned too.

    Raises `UserError` if some are numbers and the rest are dates, or if dates are those
    of January 1970.

    Args:
        columns: [rows] int64 or datetime64, by table and column.
    """
    units = {np.datetime_data(values.dtype)[0] if values.dtype.kind == "M" else None for values in columns.values()}
    finest = max((unit for unit in units if unit is not None), key=_UNITS.index, default=None)
    times = {place: to_unit(".".join(place), values, finest) for place, values in columns.items()}
    for (table, column), values in times.items() if finest else ():
        first = values[has_time(values)]
        if len(first) and 0 <= np.median(first) < _FIRST_DAYS * 10 ** (3 * _UNITS.index(str(finest))):
            raise UserError(
                f"{table}, column {column!r}: most dates are in January 1970, such as {show_time(int(first[0]), finest)}; "
                "the numbers have another unit: convert the column"
            )
    return times, finest
