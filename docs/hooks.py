"""Fills pages of the site with pictures and keys, and adds documents of the repository.

A line `<!-- name argument -->` of a page is replaced by the text that the function of
this name returns. Links of pages lead to files of the repository, as editors show them.
The site has its own places for CONTRIBUTING.md, DESIGN.md and CHANGELOG.md.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs")]

from pictures import layout, strategy  # noqa: E402

from gnnkit import plugins  # noqa: E402
from gnnkit.config import keys  # noqa: E402
from gnnkit.partition import Grid  # noqa: E402

ADDED = {
    "CONTRIBUTING.md": "contributing.md",
    "DESIGN.md": "design/overview.md",
    "CHANGELOG.md": "changelog.md",
}  # page of each document of the repository
SOURCES = {page: document for document, page in ADDED.items()}


def on_config(config: Any) -> Any:
    """Names the version below each page, and offers others where it is published."""
    config.copyright = f"gnnkit {version('gnnkit')}"
    if os.environ.get("GNNKIT_SITE") == "published":
        config.extra["version"] = {"provider": "mike"}  # reads ../versions.json
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the documents of the repository as pages. mkdocs calls this function."""
    from mkdocs.structure.files import File  # tests read this module without mkdocs

    for document, page in ADDED.items():
        files.append(File.generated(config, page, content=(ROOT / document).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fills in the lines of a page, and mends its links. mkdocs calls this function."""
    filled = re.sub(r"^<!-- (\w+) ?(.*) -->$", lambda line: FILL[line[1]](line[2]), markdown, flags=re.MULTILINE)
    return linked(filled, page.file.src_uri)


def linked(text: str, page: str) -> str:
    """Makes links to documents lead to their pages. Other files have no page."""
    folder = os.path.dirname(SOURCES.get(page, f"docs/{page}"))

    def link(found: re.Match[str]) -> str:
        label, (target, mark, anchor) = found[1], found[2].strip().partition("#")
        path = os.path.normpath(os.path.join(folder, target))
        if not target or not (ROOT / path).exists():
            return found[0]
        there = ADDED.get(path, path.removeprefix("docs/") if path.startswith("docs/") else "")
        return f"[{label}]({os.path.relpath(there, os.path.dirname(page) or '.')}{mark}{anchor})" if there else label

    return re.sub(r"\[([^\]]+)\]\(([^)]+)\)", link, text)


def limits(_argument: str = "") -> str:
    """Returns what README says cannot be done yet, with links as pages have them."""
    heading = "## Limitations"
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition(heading)[2].partition("\n## ")[0]
    return heading + section.replace("](docs/", "](").rstrip()


def every_key(_argument: str = "") -> str:
    """Lists the keys of all YAML files that are installed, with default and comment."""
    parts = [f"## The main keys\n\n{_keys('', keys.read('', 'config').keys)}"]
    for kind in (*plugins.KINDS, "trainer"):
        for name in ["default"] if kind == "trainer" else plugins.options(kind):
            option = keys.read(kind, name)
            title = "trainer" if kind == "trainer" else f"{kind}={name}"
            rows = (*option.keys, *keys.shared_keys(kind))
            parts.append(f"## `{title}`\n\n{option.summary}\n\n{_keys(f'{kind}.', rows) if rows else 'No keys.'}")
    return "\n\n".join(parts)


def _keys(prefix: str, rows: Iterable[keys.Key]) -> str:
    lines = [f"| `{prefix}{key.name}` | {_code(key.default)} | {_cell(key.comment)} |" for key in rows]
    return "\n".join(["| key | default | meaning |", "|---|---|---|", *lines])


def _code(default: str) -> str:
    return f"`{default}`" if default else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


FILL: dict[str, Callable[[str], str]] = {
    "keys": every_key,
    "limits": limits,
    "layout": lambda shape: layout(Grid(*map(int, shape.split()))),
    "strategy": strategy,
}
