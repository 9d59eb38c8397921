"""The manifest of a database: keys, links, times and tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gnnkit.errors import UserError
from gnnkit.utils.documents import read_yaml
from gnnkit.utils.ranges import shown, shown_names

FILE = "manifest.yaml"
_TABLE_KEYS = ("key", "time", "links", "later", "ignore")
_TASK_KEYS = ("table", "entity", "time", "label", "horizon")
_SPAN = re.compile(r"(\d+)\s*(second|minute|hour|day|week)?s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
Reasons = Mapping[tuple[str, ...], str]  # why a line of the manifest is as it is, by its path


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


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """What the manifest states about a task table."""

    table: str  # the entities' table
    entity: tuple[str, ...]  # columns with the entity's primary key
    label: str
    time: str | None = None  # column of the time of the prediction. None: a task without times
    horizon: int | None = None  # seconds, or units of plain times, after which a label is known


@dataclass(frozen=True, slots=True)
class Manifest:
    """The tables of a database and its tasks, by name."""

    tables: Mapping[str, TableSpec]
    tasks: Mapping[str, TaskSpec]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Reads a file. Raises `UserError` with the path of an invalid entry."""
        content = _mapping(FILE, read_yaml(path, FILE), ("tables", "tasks"))
        tables = _mapping("tables", content.get("tables"))
        tasks = _mapping("tasks", content.get("tasks"))
        manifest = cls(
            {name: _read_table(f"tables.{name}", entry) for name, entry in tables.items()},
            {name: _read_task(f"tasks.{name}", entry) for name, entry in tasks.items()},
        )
        manifest._check_names()
        return manifest

    def _check_names(self) -> None:
        """Raises `UserError` for links and tasks that name no table with a key."""
        places = [
            (f"tables.{name}.links.{link.name}", link.table, link.columns)
            for name, table in self.tables.items()
            for link in table.links
        ]
        places += [(f"tasks.{name}.table", task.table, task.entity) for name, task in self.tasks.items()]
        for place, table, columns in places:
            if table not in self.tables:
                raise UserError(f"{FILE}, {place}: no table {table!r}, only {shown_names(self.tables)}")
            if len(self.tables[table].key) != len(columns):
                key = list(self.tables[table].key)
                raise UserError(
                    f"{FILE}, {place}: {len(columns)} columns refer to the key {key} of {table}; use one column for each "
                    "column of the key"
                )

    def text(self, reasons: Reasons) -> str:
        """Returns the file's content, with a comment after each line that has one."""
        lines = ["tables:"]
        for name, table in self.tables.items():
            entry = {
                "key": list(table.key),
                "time": table.time,
                "links": _plain_links(table.links),
                "later": {column: list(columns) for column, columns in table.later.items()},
                "ignore": list(table.ignore),
            }
            lines += [f"  {_scalar(name)}:", *_entry_lines(("tables", name), entry, reasons)]
        lines += ["tasks:" if self.tasks else "tasks: {}"]
        for name, task in self.tasks.items():
            entry = {
                "table": task.table,
                "entity": list(task.entity),
                "time": task.time,
                "label": task.label,
                "horizon": task.horizon,
            }
            lines += [f"  {_scalar(name)}:", *_entry_lines(("tasks", name), entry, reasons)]
        return "\n".join(lines) + "\n"


def _plain_links(links: Sequence[Link]) -> dict[str, str] | list[dict[str, Any]]:
    """Returns links as a mapping, or as a list if a key has several columns."""
    if all(len(link.columns) == 1 for link in links):
        return {link.columns[0]: link.table for link in links}
    return [{"columns": list(link.columns), "table": link.table} for link in links]


def _entry_lines(path: tuple[str, ...], entry: Mapping[str, Any], reasons: Reasons) -> list[str]:
    """Returns the lines of a table or task without its empty values."""
    lines = []
    for key, value in entry.items():
        if value is None or (value == [] and key != "key") or value == {}:
            lines += [f"    # {key}: {reasons[*path, key]}"] if (*path, key) in reasons else []
        elif isinstance(value, dict):
            lines.append(f"    {key}:")
            lines += [
                f"      {_scalar(name)}: {_scalar(part)}{_why(reasons, *path, key, name)}"
                for name, part in value.items()
            ]
        else:
            lines.append(f"    {key}: {_scalar(value)}{_why(reasons, *path, key)}")
    return lines


def _why(reasons: Reasons, *path: str) -> str:
    return f"  # {reasons[path]}" if path in reasons else ""


def _scalar(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")


def _read_table(place: str, value: Any) -> TableSpec:
    entry = _mapping(place, value, _TABLE_KEYS)
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
    entry = _mapping(place, value, _TASK_KEYS)
    if missing := [key for key in ("table", "entity", "label") if entry.get(key) is None]:
        raise UserError(f"{FILE}, {place}: {missing[0]} is missing")
    return TaskSpec(
        str(_name(f"{place}.table", entry["table"])),
        _names(f"{place}.entity", entry["entity"]),
        str(_name(f"{place}.label", entry["label"])),
        _name(f"{place}.time", entry.get("time")),
        _read_span(f"{place}.horizon", entry.get("horizon")),
    )


def _read_span(place: str, value: Any) -> int | None:
    """Reads a span such as `30 days`, or a number of seconds or units of time."""
    if value is None:
        return None
    match = _SPAN.fullmatch(str(value).strip())
    if match is None:
        raise UserError(f"{FILE}, {place}={shown(value)}: expected a span such as '30 days'")
    return int(match[1]) * _SECONDS[match[2] or "second"]


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
