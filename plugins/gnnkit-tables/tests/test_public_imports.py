"""The package uses what any other package may use."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import gnnkit_tables

import gnnkit

PACKAGES = ("gnnkit", "gnnkit_formats")
DOCS = Path(gnnkit.__file__).resolve().parents[1] / "docs"


def imports() -> Iterator[tuple[str, str]]:
    """Yields module and name of each import from gnnkit, and of each attribute."""
    for path in Path(gnnkit_tables.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in PACKAGES:
                yield from ((str(node.module), alias.name) for alias in node.names)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                module = {"gnnkit": "gnnkit", "plugins": "gnnkit.plugins"}.get(node.value.id)
                yield from [(module, node.attr)] if module else []


def helpers() -> set[tuple[str, str]]:
    """Reads the table of helpers on the page about plugins."""
    section = (
        (DOCS / "howto/plugin.md").read_text(encoding="utf-8").partition("\n## Helpers\n")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", section, re.MULTILINE)
    return {(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)}


def test_all_imports_from_gnnkit_are_documented_as_public() -> None:
    page = (DOCS / "reference/python.md").read_text(encoding="utf-8")
    public = {tuple(name.rsplit(".", 1)) for name in re.findall(r"^::: ([\w.]+)$", page, re.MULTILINE)}
    public |= {("gnnkit", "plugins"), ("gnnkit.graph.graph", "EdgeListFields")} | helpers()
    assert set(imports()) - public == set()


def test_all_helpers_exist_and_are_used() -> None:
    assert helpers() - set(imports()) == set()
    for module, name in helpers():
        assert hasattr(importlib.import_module(module), name), f"{module}.{name}"
