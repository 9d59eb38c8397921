"""A question about a database without tasks, as an example for its manifest."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence

import yaml

from gnnkit_tables.manifest import Link, Manifest

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
        parent=_as_yaml([link.table])[1:-1],
        entity=_as_yaml(key),
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


def _as_yaml(names: Sequence[str]) -> str:
    return str(yaml.safe_dump([*names], default_flow_style=True, width=10**6)).strip()


def _quoted(name: str) -> str:
    """Returns a name as SQL reads it."""
    return name if _PLAIN.fullmatch(name) else '"' + name.replace('"', '""') + '"'
