"""The manifest of a database: keys, links, times and tasks."""

from __future__ import annotations

import datetime
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import yaml

from gnnkit.errors import UserError
from gnnkit.graph.times import check_span
from gnnkit.utils.documents import read_yaml
from gnnkit.utils.ranges import one_line, one_of, shown, shown_names, whole

FILE = "manifest.yaml"
RANKING = "ranking"
_TYPES = ("classification", "regression", RANKING)
# RelBench's names of entries of a ranking task
_RELBENCH = {
    "src_entity_table": "table",
    "src_entity_col": "entity",
    "dst_entity_table": "target",
    "dst_entity_col": "label",
    "time_col": "time",
}
Reasons = Mapping[tuple[str, ...], str]  # as `Manifest.reasons`


@dataclass(frozen=True, slots=True)
class Link:
    """Columns that hold the primary key of a row in another table."""

    columns: tuple[str, ...]
    table: str

    @property
    def name(self) -> str:
        """The relation's name."""
        return "+".join(self.columns)


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What the manifest states about a table."""

    key: tuple[str, ...] = ()  # columns of the primary key. Empty: rows have none
    time: str | None = None  # column of the time from which a row is visible. None: always
    links: tuple[Link, ...] = ()
    later: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # columns that are visible from a later time on
    ignore: tuple[str, ...] = ()  # columns that are no features

    @property
    def ids(self) -> set[str]:
        """Columns of the primary key and of links."""
        return {*self.key, *(column for link in self.links for column in link.columns)}

    @property
    def known_later(self) -> list[str]:
        """Columns that are visible from a later time on, besides this time."""
        return [column for names in self.later.values() for column in names]


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What the manifest states about a task table."""

    table: str  # the entities' table
    entity: tuple[str, ...]  # columns with the entity's primary key
    label: str
    time: str | None = None  # column of the time of the prediction. None: a task without times
    horizon: str | int | None = None  # after which a label is known: a span, or units of plain times
    type: str | None = None  # classification, regression or ranking. None: by the labels, or ranking with a target
    query: str | None = None  # SQL that computes the rows from the tables. None: they are a file
    val: str | int | None = None  # a query's first validation date, and first test date. None: by shares of the dates
    test: str | int | None = None
    train_dates: int | None = None  # at most this many dates, and so for validation and test each. None: all that fit
    eval_dates: int | None = None
    target: str | None = None  # the table whose rows are listed, of which labels are keys
    eval_k: int | None = None  # length of lists. None: 10

    @property
    def keys(self) -> tuple[str, ...]:
        """Columns with primary keys."""
        return self.entity if self.target is None else (*self.entity, self.label)


@dataclass(slots=True)
class Manifest:
    """The tables of a database and its tasks, by name, to which guesses are added."""

    tables: dict[str, TableSpec] = field(default_factory=dict)
    tasks: dict[str, TaskSpec] = field(default_factory=dict)
    # Why a guessed line is as it is, by its path
    reasons: dict[tuple[str, ...], str] = field(default_factory=dict, compare=False)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Reads a file, which may name tasks only.

        Raises `UserError` with the path of an invalid entry.
        """
        content = _mapping(FILE, read_yaml(path, FILE), ("tables", "tasks"))
        tables = _mapping("tables", content.get("tables"))
        tasks = _mapping("tasks", content.get("tasks"))
        manifest = cls(
            {name: _read_table(f"tables.{name}", entry) for name, entry in tables.items()},
            {name: _read_task(f"tasks.{name}", entry) for name, entry in tasks.items()},
        )
        return manifest.checked() if tables else manifest

    def checked(self) -> Self:
        """Raises `UserError` for links and tasks that name no table with a key."""
        types = [*self.tables, *(f"{name}.{column}" for name, table in self.tables.items() for column in table.later)]
        if twice := [name for name in (*self.tasks, *types) if [*self.tasks, *types].count(name) > 1]:
            raise UserError(f"{FILE}: {twice[0]!r} names a table and also a task, or a column known later; rename one")
        places = [
            (f"tables.{name}.links.{link.name}", link.table, link.columns)
            for name, table in self.tables.items()
            for link in table.links
        ]
        places += [(f"tasks.{name}.table", task.table, task.entity) for name, task in self.tasks.items()]
        places += [
            (f"tasks.{name}.target", task.target, (task.label,)) for name, task in self.tasks.items() if task.target
        ]
        for place, table, columns in places:
            if table not in self.tables:
                raise UserError(f"{FILE}, {place}: no table {table!r}, only {shown_names(self.tables)}")
            if not self.tables[table].key:
                raise UserError(
                    f"{FILE}, {place}: {table} has no primary key; write tables.{table}.key, whose values are distinct in all "
                    "rows"
                )
            if len(self.tables[table].key) != len(columns):
                key = list(self.tables[table].key)
                raise UserError(
                    f"{FILE}, {place}: {len(columns)} columns refer to the key {key} of {table}; use one column for each "
                    "column of the key"
                )
        return self

    def text(self) -> str:
        """Returns the file's content, with a comment after each line with a reason."""
        entries = {
            "tables": {name: {**asdict(spec), "links": _plain_links(spec.links)} for name, spec in self.tables.items()},
            "tasks": {name: asdict(task) for name, task in self.tasks.items()},
        }
        lines = []
        for section, parts in entries.items():
            lines.append(f"{section}:" if parts else f"{section}: {{}}")
            for name, entry in parts.items():
                lines += [f"  {_scalar(name)}:", *_entry_lines((section, name), entry, self.reasons)]
        return "\n".join(lines) + "\n"


def _plain_links(links: Sequence[Link]) -> dict[str, str] | list[dict[str, Any]]:
    """Returns links as a mapping, or as a list if a key has several columns."""
    if all(len(link.columns) == 1 for link in links):
        return {link.columns[0]: link.table for link in links}
    return [{"columns": list(link.columns), "table": link.table} for link in links]


def _entry_lines(path: tuple[str, ...], entry: Mapping[str, Any], reasons: Reasons) -> list[str]:
    """Returns the lines of a table or task without its empty values.

    Reasons of entries that the manifest lacks are comments of their own.
    """
    lines = []
    for key, value in entry.items():
        parts = _part_lines(value)
        absent = [
            f"    # {one_line(f'{name}: {reason}')}"
            for (*parent, name), reason in reasons.items()
            if tuple(parent) == (*path, key) and name not in parts
        ]
        if value in (None, [], {}) or (value == () and key != "key"):
            lines += [f"    # {key}: {one_line(reasons[*path, key])}"] if (*path, key) in reasons else []
        elif parts:
            lines.append(f"    {key}:")
            lines += [f"      {line}{_why(reasons, *path, key, name)}" for name, line in parts.items()]
        elif isinstance(value, str) and "\n" in value:
            lines += [f"    {key}: |-", *(f"      {line}".rstrip() for line in value.splitlines())]
        else:
            lines.append(f"    {key}: {_scalar(value)}{_why(reasons, *path, key)}")
        lines += absent
    return lines


def _part_lines(value: Any) -> dict[str, str]:
    """Returns a line for each entry of a mapping, or of a list of links, by name."""
    if isinstance(value, list):
        return {"+".join(link["columns"]): f"- {_scalar(link)}" for link in value}
    return (
        {name: f"{_scalar(name)}: {_scalar(part)}" for name, part in value.items()} if isinstance(value, dict) else {}
    )


def _why(reasons: Reasons, *path: str) -> str:
    return f"  # {one_line(reasons[path])}" if path in reasons else ""


def _scalar(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10**6)
    return text.removesuffix("\n").removesuffix("\n...")


def _read_table(place: str, value: Any) -> TableSpec:
    entry = _mapping(place, value, [part.name for part in fields(TableSpec)])
    later = _mapping(f"{place}.later", entry.get("later"))
    return TableSpec(
        _names(f"{place}.key", entry.get("key")),
        _name(f"{place}.time", entry.get("time")),
        _read_links(f"{place}.links", entry.get("links")),
        {column: _names(f"{place}.later.{column}", names) for column, names in later.items()},
        _names(f"{place}.ignore", entry.get("ignore")),
    )


def _read_links(place: str, value: Any) -> tuple[Link, ...]:
    """Reads `{column: table}`, or a list of `{columns: [...], table: ...}`."""
    if not isinstance(value, list):
        return tuple(
            Link((column,), str(_name(f"{place}.{column}", table))) for column, table in _mapping(place, value).items()
        )
    entries = [_mapping(place, entry, ("columns", "table")) for entry in value]
    if any(entry.keys() != {"columns", "table"} for entry in entries):
        raise UserError(f"{FILE}, {place}: a link in a list needs columns and table")
    return tuple(Link(_names(place, entry["columns"]), str(_name(place, entry["table"]))) for entry in entries)


def _read_task(place: str, value: Any) -> TaskSpec:
    names = [part.name for part in fields(TaskSpec)]
    entry = _mapping(place, value, [*names, *_RELBENCH])
    for other, name in _RELBENCH.items():
        if other in entry and name in entry:
            raise UserError(f"{FILE}, {place}: {other} is RelBench's name of {name}; remove one of them")
    entry = {_RELBENCH.get(key, key): part for key, part in entry.items()}
    if missing := [key for key in ("table", "entity", "label") if entry.get(key) is None]:
        raise UserError(f"{FILE}, {place}: {missing[0]} is missing")
    target = _name(f"{place}.target", entry.get("target"))
    _check_ranking(place, entry, target)
    return TaskSpec(
        str(_name(f"{place}.table", entry["table"])),
        _names(f"{place}.entity", entry["entity"]),
        str(_name(f"{place}.label", entry["label"])),
        _name(f"{place}.time", entry.get("time")),
        check_span(f"{FILE}, {place}.horizon", entry.get("horizon"), 2**31),
        RANKING
        if target is not None
        else None
        if entry.get("type") is None
        else one_of(f"{FILE}, {place}.type", entry["type"], _TYPES),
        query if (query := _name(f"{place}.query", entry.get("query"))) is None else query.strip(),
        _read_date(f"{place}.val", entry.get("val")),
        _read_date(f"{place}.test", entry.get("test")),
        _read_count(f"{place}.train_dates", entry.get("train_dates")),
        _read_count(f"{place}.eval_dates", entry.get("eval_dates")),
        target,
        _read_count(f"{place}.eval_k", entry.get("eval_k")),
    )


def _check_ranking(place: str, entry: Mapping[str, Any], target: str | None) -> None:
    """Raises `UserError` for entries that only one of ranking and other types has."""
    kind = entry.get("type") or (RANKING if target else None)
    if kind == RANKING and target is None:
        raise UserError(f"{FILE}, {place}: type: ranking needs target, the table whose rows are listed")
    if kind != RANKING and target is not None:
        raise UserError(f"{FILE}, {place}: target={target} is the table of lists, so type must be ranking, or left out")
    if kind != RANKING and entry.get("eval_k") is not None:
        raise UserError(f"{FILE}, {place}.eval_k is the length of lists: add target, or remove it")
    if kind == RANKING and entry.get("time") is None:
        raise UserError(
            f"{FILE}, {place}: ranking needs time, since lists are of what follows it; without times, use "
            "task=link_prediction with dataset=edges"
        )


def _read_date(place: str, value: Any) -> str | int | None:
    """Returns a date as text, in which YAML has none of its own."""
    if value is None or (isinstance(value, str | int) and not isinstance(value, bool)):
        return value
    if isinstance(value, datetime.date):
        return str(value)
    raise UserError(f"{FILE}, {place}={shown(value)}: expected a date such as 2026-01-31")


def _read_count(place: str, value: Any) -> int | None:
    return None if value is None else whole(f"{FILE}, {place}", value, 1)


def _mapping(place: str, value: Any, keys: Sequence[str] | None = None) -> dict[str, Any]:
    """Reads a mapping. Raises `UserError` for keys that do not exist."""
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise UserError(f"{FILE}, {place}: expected a mapping, got {shown(value)}")
    if keys is not None and (unread := [key for key in value if key not in keys]):
        raise UserError(f"{FILE}, {place}: no key {unread[0]!r}, only {shown_names(keys)}")
    return value


def _name(place: str, value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise UserError(f"{FILE}, {place}: expected a name, got {shown(value)}")


def _names(place: str, value: Any) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value or []
    if not isinstance(values, list) or not all(isinstance(name, str) for name in values):
        raise UserError(f"{FILE}, {place}: expected column names, got {shown(value)}")
    return tuple(values)


_PLAIN = re.compile(r"[A-Za-z_]\w*")
_TASK = """
{name}:
  table: {parent}
  entity: {entity}
  time: date
  label: label
  horizon: 30 days  # a number if times are numbers
  query: |
    SELECT t.timestamp AS date, {selected}, COUNT(o.{time}) > 0 AS label
    FROM timestamps t {join}
    LEFT JOIN {child} o ON {equal} AND o.{time} > t.timestamp
      AND o.{time} <= t.timestamp + INTERVAL '{{timedelta}}'
    GROUP BY ALL
"""


def example_tasks(manifest: Manifest) -> str:
    """Returns the section `tasks` with a question as a comment.

    It asks whether a row of one table is referred to by another one within 30 days.

    Args:
        manifest: The tables.
    """
    if not (links := list(_dated_links(manifest))):
        return "tasks: {}  # a question needs a table with a time and a link to another one\n"
    child, link = links[0]
    parent, key, since = _quoted(link.table), manifest.tables[link.table].key, manifest.tables[link.table].time
    task = _TASK.format(
        name=re.sub(r"\W", "_", f"has_{child}"),
        parent=_scalar(link.table),
        entity=_scalar([*key]),
        selected=", ".join(f"e.{_quoted(column)}" for column in key),
        equal=" AND ".join(
            f"o.{_quoted(column)} = e.{_quoted(part)}" for column, part in zip(link.columns, key, strict=True)
        ),
        time=_quoted(str(manifest.tables[child].time)),
        join=f"CROSS JOIN {parent} e" if since is None else f"JOIN {parent} e ON e.{_quoted(since)} <= t.timestamp",
        child=_quoted(child),
    )
    return f'tasks:  # change this example, and remove "# " before its lines\n{textwrap.indent(task.strip(), "#   ")}\n'


def _dated_links(manifest: Manifest) -> Iterator[tuple[str, Link]]:
    for name, table in manifest.tables.items():
        yield from ((name, link) for link in table.links if table.time is not None and link.table != name)


def _quoted(name: str) -> str:
    """Returns a name as SQL reads it."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
