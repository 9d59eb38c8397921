"""Fills pages from the README, the other documents, the YAML files and pictures.

A line `::name argument` of a page is replaced by the text that the function of this
name returns.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from pictures import layout, strategy  # noqa: E402

from gnnkit import keys, plugins  # noqa: E402
from gnnkit.partition import Grid  # noqa: E402

PAGES = {
    "CONTRIBUTING.md": "contributing.md",
    "DESIGN.md": "explanation/design.md",
    "CHANGELOG.md": "changelog.md",
    "docs/explanation/samplers.md": "explanation/samplers.md",
}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Replaces the lines of a page that begin with `::`. mkdocs calls this function."""
    up = "../" * page.file.src_uri.count("/")
    return re.sub(r"^::(\w+) ?(.*)$", lambda line: FILL[line[1]](line[2], up), markdown, flags=re.MULTILINE)


def section(heading: str, up: str = "", name: str = "README.md") -> str:
    """Returns a section of a document, without its heading."""
    parts = re.split(r"^## (.*)$", _read(name), flags=re.MULTILINE)
    return _linked(dict(zip(parts[1::2], parts[2::2], strict=True))[heading].strip(), up)


def document(name: str, up: str = "") -> str:
    """Returns a document of the repository."""
    return _linked(_read(name), up)


def table(heading: str, up: str = "") -> str:
    """Returns the table of the README whose first column has this heading."""
    found = re.search(rf"^\| {re.escape(heading)} \|.*\n(?:\|.*\n)+", _read("README.md"), re.MULTILINE)
    assert found is not None, f"README has no table of {heading}"
    return _linked(found[0], up)


def every_key(_argument: str = "", _up: str = "") -> str:
    """Lists the keys of all YAML files that are installed, with default and comment."""
    parts = [f"## The main keys\n\n{_keys('', keys.read('', 'config').keys)}"]
    for kind in (*plugins.KINDS, "trainer"):
        for name in ["default"] if kind == "trainer" else plugins.options(kind):
            option = keys.read(kind, name)
            title = "trainer" if kind == "trainer" else f"{kind}={name}"
            rows = (*option.keys, *keys.shared(kind))
            parts.append(f"## `{title}`\n\n{option.summary}\n\n{_keys(f'{kind}.', rows) if rows else 'No keys.'}")
    return "\n\n".join(parts)


def _keys(prefix: str, rows: Iterable[keys.Key]) -> str:
    lines = [f"| `{prefix}{key.name}` | {_code(key.default)} | {_cell(key.comment)} |" for key in rows]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *lines])


def _code(default: str) -> str:
    return f"`{default}`" if default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _linked(text: str, up: str) -> str:
    """Makes links to documents lead to their pages. Other files have no page."""

    def link(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        if "://" in target:
            return found[0]
        return f"[{label}]({up}{PAGES[target]})" if target in PAGES else label

    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", link, text)


def _grid(shape: str, _up: str) -> str:
    return layout(Grid(*map(int, shape.split())))


FILL: dict[str, Callable[[str, str], str]] = {
    "readme": section,
    "contributing": lambda heading, up: section(heading, up, "CONTRIBUTING.md"),
    "document": document,
    "table": table,
    "keys": every_key,
    "layout": _grid,
    "strategy": lambda name, _: strategy(name),
}
