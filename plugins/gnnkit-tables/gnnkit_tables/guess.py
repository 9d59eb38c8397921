"""Proposes the manifest of a folder of tables, with a reason for each line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text

from gnnkit.errors import UserError
from gnnkit.graph.cells import numbers_of
from gnnkit.graph.times import is_time
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import shown
from gnnkit_tables.composite import find_composite_keys, match_keys
from gnnkit_tables.database import as_dates, find_unread_times
from gnnkit_tables.folder import SPLIT
from gnnkit_tables.keys import (
    KEY,
    KeyIndex,
    TablesByName,
    count_missing,
    find_parents,
    key_column,
    name_stems,
    plain_name,
)
from gnnkit_tables.manifest import RANKING, Link, Manifest, TableSpec, TaskSpec

_HALF, _MOST = 0.5, 0.9  # shares of distinct values that a key of the same name, or other text, has in common
_FEW = 3  # distinct values of text, at least, for a link by values
_GAPS = 0.9  # share of a range of whole numbers that keys cover, above which all numbers are keys by chance
_MANY = 20  # distinct numbers, below which they are keys by chance
_NEVER_TIMES = re.compile(r"(dob|birth|born|found|valid|expir|due)", re.IGNORECASE)
Indices = Mapping[str, KeyIndex]  # of the tables with a key, by name


def propose(tables: TablesByName, tasks: TablesByName) -> Manifest:
    """Proposes keys, links, times and tasks from names and values.

    Args:
        tables: The tables by name.
        tasks: The task tables by name.
    """
    manifest = Manifest()
    for name, table in tables.items():
        key, reason = _find_key(name, table)
        manifest.tables[name] = TableSpec(key)
        manifest.reasons["tables", name, "key"] = reason
    indices = {name: KeyIndex.create(tables[name], spec.key) for name, spec in manifest.tables.items() if spec.key}
    for name, table in tables.items():
        links = dict(_find_links(name, table, indices))
        manifest.tables[name] = replace(manifest.tables[name], links=tuple(links))
        reasons = {link.name: reason for link, reason in links.items()}
        reasons = {**dict(_explain_unlinked(name, table, indices)), **reasons}
        manifest.reasons |= {("tables", name, "links", column): reason for column, reason in reasons.items()}
    for name, table in tables.items():
        _set_time(manifest, name, table, *_find_time(name, tables, manifest, indices))
    _add_composite_keys(manifest, tables, indices)
    for name, table in tasks.items():
        add_task(manifest, name, table, tables, indices)
    return manifest


def columns_named_like_keys(table: Table, indices: Indices) -> list[str]:
    """Returns a task's columns that may hold keys, which are read as text from CSV."""
    return [
        column
        for column in table.names
        if any(column in index.names or _is_named(column, other, index) for other, index in indices.items())
    ]


def add_task(manifest: Manifest, name: str, table: Table, tables: TablesByName, indices: Indices) -> None:
    """Proposes a task's entry.

    If its times are mostly a column of its entity's row, such as when a booking was
    made, the row is visible from this column on.

    Args:
        manifest: The tables, without reasons if they are no guesses.
        name: Name of the task.
        table: The task's rows.
        tables: The tables by name.
        indices: Their rows by primary key.
    """
    spec, reasons = _find_task(name, table, indices)
    manifest.tasks[name] = spec
    manifest.reasons |= {("tasks", name, key): reason for key, reason in reasons.items()}
    if spec.time is None or ("tables", spec.table, "time") not in manifest.reasons:
        return
    rows, entities = find_parents(table, spec.entity, indices[spec.table]), tables[spec.table]
    times = as_dates(table.times(spec.time))[rows >= 0]
    for column in entities.names:
        if column != manifest.tables[spec.table].time and _holds_dates(entities, column):
            share = float((as_dates(entities.times(column))[rows[rows >= 0]] == times).mean())
            if share >= _MOST:
                _set_time(
                    manifest, spec.table, entities, column, f"{spec.time} of {100 * share:.0f} % of {name}'s rows"
                )
                return


def _set_time(manifest: Manifest, name: str, table: Table, time: str | None, reason: str) -> None:
    """Sets the time of a table's rows, and the columns of dates that are later."""
    later = [] if time is None else _find_later(table, time)
    manifest.tables[name] = replace(manifest.tables[name], time=time, later=dict.fromkeys(later, ()))
    manifest.reasons["tables", name, "time"] = reason
    for key in [key for key in manifest.reasons if key[:3] == ("tables", name, "later")]:
        del manifest.reasons[key]  # of the time before
    for column in later:
        why = f"mostly later than {time}, so it is hidden until then; list columns known then"
        manifest.reasons["tables", name, "later", column] = why


def _add_composite_keys(manifest: Manifest, tables: TablesByName, indices: dict[str, KeyIndex]) -> None:
    """Adds keys of several columns, after times, which are guessed by other links."""
    for composite in find_composite_keys(tables, manifest.tables):
        parent, indices[composite.table] = composite.table, composite.index
        manifest.tables[parent] = replace(manifest.tables[parent], key=composite.index.names)
        manifest.reasons["tables", parent, "key"] = composite.reason
        for child, (link, reason) in composite.links.items():
            spec = manifest.tables[child]
            manifest.tables[child] = replace(spec, links=(*spec.links, link))
            manifest.reasons["tables", child, "links", link.name] = reason
            for column in {*link.columns} - {other.name for other in spec.links}:
                manifest.reasons.pop(("tables", child, "links", column), None)  # why it alone is no link


def _find_key(name: str, table: Table) -> tuple[tuple[str, ...], str]:
    """Returns the primary key, by name or else the first column that can be one.

    A column named like the table with few duplicates is one, too, so that reading the
    key refuses them.
    """
    names = ("id", *(f"{stem}id" for stem in name_stems(name)))
    unique = [column for column in table.names if _is_unique(table, column)]
    like = [column for column in table.names if plain_name(column) in names]
    named = [column for column in like if column in unique] or [
        column for column in like if _distinct_share(table, column) >= _MOST
    ]
    if not unique and not named:
        return (), "no column is distinct in all rows"
    key = (named or unique)[0]
    why = "named like the table" if named else "the first column that is distinct in all rows"
    rest = [column for column in unique if column != key]
    return (key,), f"{why}; {table.num_rows:,} values" + (f"; also distinct: {', '.join(rest[:3])}" if rest else "")


def _distinct_share(table: Table, column: str) -> float:
    """Returns the share of rows whose key does not occur in an earlier row."""
    if not _may_be_key(table, column) or not table.num_rows:
        return 0.0
    with suppress(UserError):  # fractions
        return len(pc.unique(key_column(table, column).drop_null())) / table.num_rows
    return 0.0


def _is_unique(table: Table, name: str) -> bool:
    return not pa.types.is_floating(table.plain(name).type) and _distinct_share(table, name) == 1


def _find_links(name: str, table: Table, indices: Indices) -> Iterator[tuple[Link, str]]:
    """Yields links to keys of the same name, and from text to keys with its values."""
    for column in table.names:
        if not _may_be_key(table, column):
            continue
        named = [other for other, index in indices.items() if other != name and _is_named(column, other, index)]
        is_key = name in indices and indices[name].names == (column,)
        # Whole numbers with empty cells are no text.
        has_text = is_text(table.plain(column).type) and is_text(key_column(table, column).type)
        if is_key and _names_table(column, name):
            continue
        others = [] if named or is_key or not has_text else [key for key in indices if key != name]
        if not (named or is_key or has_text) and KEY.search(column):
            others = [other for other, index in indices.items() if _fits_gaps(table, column, index)]
        shares = {other: _found_share(table, column, indices[other]) for other in (*named, *others)}
        shares = {other: share for other, share in shares.items() if share >= (_HALF if named else _MOST)}
        best = max(shares, key=lambda other: (_names_table(column, other), shares[other]), default=None)
        if best is None or (not named and len(pc.unique(table.plain(column))) < _FEW):
            continue
        counts = count_missing(find_parents(table, (column,), indices[best]))
        what = "named like its key" if named else "text" if has_text else "keys, where others would be no keys"
        yield Link((column,), best), f"{what}; {100 * shares[best]:.0f} % of the distinct values are keys; {counts}"


def _explain_unlinked(name: str, table: Table, indices: Indices) -> Iterator[tuple[str, str]]:
    """Yields columns named like a key of this or another table that are no link."""
    own_key = indices[name].names if name in indices else ()
    for column in table.names:
        filled = table.plain(column).drop_null()
        if not (len(filled) and _may_be_key(table, column) and own_key != (column,)):
            continue
        if KEY.search(column):
            yield column, "no link: no table has this name; add it to links if its values are keys of a table"
        for other, index in indices.items():
            if other == name or not _is_named(column, other, index) or not len(index.columns[0]):
                continue
            if (share := _found_share(table, column, index)) < _HALF:
                unlike = f"{shown(str(filled[0]))} is unlike {index.show(0)}"
                yield (
                    column,
                    f"no link: named like the key of {other}, but {100 * share:.0f} % of the values are keys: {unlike}",
                )


def _may_be_key(table: Table, column: str) -> bool:
    kind = table.plain(column).type
    return is_text(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind)


def _is_named(column: str, other: str, index: KeyIndex) -> bool:
    """Returns whether a column has the name of another table's key, or of the table."""
    keys = {plain_name(key) for key in index.names if len(index.names) == 1} - {"id"}
    return _names_table(column, other) or plain_name(column) in keys


def _names_table(column: str, table: str) -> bool:
    """Returns whether a column has a table's name, which outweighs its key's name."""
    return plain_name(column) in {f"{stem}id" for stem in name_stems(table)} - {"id"}


def _fits_gaps(table: Table, column: str, index: KeyIndex) -> bool:
    """Returns whether whole numbers are keys, although their range has many others.

    Any table that numbers its rows has the keys from 1 on, so these prove no link.
    """
    if len(index.names) != 1 or not pa.types.is_integer(index.columns[0].type):
        return False
    with suppress(UserError, pa.ArrowException):
        columns = (key_column(table, column), index.columns[0])
        values, keys = (np.unique(numbers_of(numbers.drop_null())) for numbers in columns)
        inside = keys[(keys >= values[:1].min(initial=0)) & (keys <= values[-1:].max(initial=0))]
        few = len(values) < _MANY or len(inside) > _GAPS * (int(values[-1]) - int(values[0]) + 1)
        return not few and bool(np.isin(values, keys).mean() >= _MOST)
    return False


def _found_share(table: Table, column: str, index: KeyIndex) -> float:
    """Returns the share of distinct values that are keys, or 0 if the types differ."""
    if len(index.names) != 1:
        return 0.0
    try:
        distinct = pc.unique(key_column(table, column).drop_null())
        values, keys = index.same_type(distinct, index.columns[0], table.name, table.name.endswith(".csv"))
    except (UserError, pa.ArrowException):
        return 0.0
    return pc.mean(pc.is_in(values, value_set=keys)).as_py() or 0.0


def _find_time(name: str, tables: TablesByName, manifest: Manifest, indices: Indices) -> tuple[str | None, str]:
    """Returns the column of dates from which a row is visible.

    It is the only one, or the latest of several.
    """
    table = tables[name]
    dates = [column for column in table.names if _holds_dates(table, column)]
    candidates = (column for column in dates if not _NEVER_TIMES.search(column))
    fits = [column for column in candidates if _precedes(name, column, tables, manifest, indices)]
    if not fits:
        if not dates and (unread := next(find_unread_times(table), None)):
            return None, f"{unread[0]} holds {unread[1]}, which is not read as a date: rows are always visible"
        if dates:
            return None, f"{dates[0]} is a date of another kind"
        visible = "visible with the rows to which they refer" if manifest.tables[name].links else "always visible"
        return None, f"no column of dates: rows are {visible}"
    latest = max(fits, key=lambda column: _mean_time(table, column))
    why = (
        "the only column of dates"
        if len(dates) == 1
        else f"the first of {', '.join(dates)} that can be the time of rows"
        if len(fits) == 1
        else (
            f"the latest of {', '.join(fits)}; if columns are known at different times, use the first and name the rest: "
            f"later: {{{latest}: [COLUMN, ...]}}"
        )
    )
    return latest, why


def _find_later(table: Table, time: str) -> list[str]:
    """Returns columns of dates that are mostly later than the row's time."""
    begin = as_dates(table.times(time))
    columns = (column for column in table.names if column != time and _holds_dates(table, column))
    ends = {column: as_dates(table.times(column)) for column in columns if not _NEVER_TIMES.search(column)}
    return [
        column
        for column, end in ends.items()
        if 2 * np.count_nonzero(end > begin) > np.count_nonzero(~np.isnat(end) & ~np.isnat(begin))
    ]


def _holds_dates(table: Table, column: str) -> bool:
    """Returns whether a column holds dates, or by its name seconds since 1970."""
    if pa.types.is_integer(table.plain(column).type):
        return is_time(column) and as_dates(table.times(column)).dtype.kind == "M"
    return table.holds_times(column)


def _mean_time(table: Table, column: str) -> float:
    times = as_dates(table.times(column))
    return float(times[~np.isnat(times)].astype("M8[s]").astype(np.int64).mean()) if (~np.isnat(times)).any() else 0.0


def _precedes(name: str, column: str, tables: TablesByName, manifest: Manifest, indices: Indices) -> bool:
    """Returns whether rows that refer to this table are mostly no earlier, in days."""
    days, earlier, total = _days(tables[name], column), 0, 0
    for child, spec in manifest.tables.items():
        links = [link for link in spec.links if link.table == name and child != name]
        dates = [date for date in tables[child].names if links and _holds_dates(tables[child], date)]
        dates = [date for date in dates if not _NEVER_TIMES.search(date)]
        for link in links if len(dates) == 1 else ():
            rows, child_days = find_parents(tables[child], link.columns, indices[name]), _days(tables[child], dates[0])
            earlier += int(np.count_nonzero((rows >= 0) & (child_days < days[rows])))
            total += int(np.count_nonzero(rows >= 0))
    return 2 * earlier <= total


def _days(table: Table, column: str) -> Array:
    days: Array = as_dates(table.times(column)).astype("M8[D]")
    return days


def _find_task(name: str, table: Table, indices: Indices) -> tuple[TaskSpec, dict[str, str]]:
    """Proposes entity, time and label of a task table."""
    columns, entity, share = _find_entity(name, table, indices)
    dates = [other for other in table.names if other not in columns and _holds_dates(table, other)]
    rest = [other for other in table.names if other not in (*columns, SPLIT, *dates)]
    if len(rest) != 1:
        raise UserError(f"{table.name}: {len(rest)} columns may be the label; write tasks.{name} in the manifest")
    spec = TaskSpec(entity, columns, rest[0], dates[0] if dates else None)
    reasons = {"entity": f"{100 * share:.0f} % are keys of {entity}", "label": "the remaining column"}
    if dates and (target := _find_target(name, table, rest[0], entity, indices)):
        spec, reasons["target"] = replace(spec, target=target, type=RANKING), "labels are keys of this table"
    return spec, reasons


def _find_entity(name: str, table: Table, indices: Indices) -> tuple[tuple[str, ...], str, float]:
    """Returns columns with keys of a table, the table, and their share.

    Columns with the names of a composite key outweigh one of them.
    """
    for other, index in indices.items():
        is_composite = len(index.names) > 1 and {*index.names} <= {*table.names}
        if is_composite and (share := match_keys(table, index.names, index)[0]) >= _HALF:
            return index.names, other, share
    shares = {
        (column, other): _found_share(table, column, index)
        for column in table.names
        for other, index in indices.items()
        if _is_named(column, other, index) or index.names == (column,)
    }
    best = max(shares, key=lambda pair: (shares[pair] >= _HALF and _names_table(*pair), shares[pair]), default=None)
    for column, other in shares:
        if best and (not shares[best] or (_names_table(column, other) and not _names_table(*best))):
            _refuse_unlike(name, table, column, indices[other])
    if best is None or not shares[best]:
        raise UserError(f"{table.name}: no column is named like a primary key; write tasks.{name} in the manifest")
    return (best[0],), best[1], shares[best]


def _find_target(name: str, table: Table, label: str, entity: str, indices: Indices) -> str | None:
    """Returns the other table that a label is named like and has keys of, if any."""
    column = table.plain(label)
    keys = pc.list_flatten(column) if pa.types.is_list(column.type) or pa.types.is_large_list(column.type) else column
    rows = Table(table.name, pa.table({label: keys}), missing=table.missing)
    named = [other for other, index in indices.items() if other != entity and _is_named(label, other, index)]
    shares = {other: _found_share(rows, label, indices[other]) for other in named}
    best = max(shares, key=lambda other: shares[other], default=None)
    if best is not None and not shares[best]:
        _refuse_unlike(name, rows, label, indices[best])
    return best


def _refuse_unlike(name: str, table: Table, column: str, index: KeyIndex) -> None:
    """Raises `UserError` for a column with other values than the keys."""
    values = table.plain(column).drop_null()
    if len(values) and len(index.columns[0]):
        raise UserError(
            f"{table.name}: column {column!r} is named like the key of {index.table}, but {shown(str(values[0]))} is unlike "
            f"{index.show(0)}; write both alike, or write tasks.{name} in the manifest"
        )
