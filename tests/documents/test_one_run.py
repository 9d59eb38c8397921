"""The walk through one run names few files, which exist and define what it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.reads("docs/design/one-run.md", "gnnkit", "conf")
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/design/one-run.md").read_text(encoding="utf-8")
LIGHTNING = {"Trainer", "Trainer.fit"}
ROWS = re.findall(r"^\| \[`([\w/.]+)`\]\(\.\./\.\./([\w/.]+)\) \| `([\w.]+)` \|", PAGE, re.MULTILINE)


def defined(path: Path) -> set[str]:
    """Returns the names of a file's classes and functions, and of methods as `A.b`."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{method.name}" for method in node.body if isinstance(method, ast.FunctionDef)}
    return names


def test_the_page_names_at_most_40_files_each_once() -> None:
    files = [label for label, _, _ in ROWS]
    assert 30 <= len(files) <= 40
    assert len(set(files)) == len(files)
    assert f"It names {len(files)} files" in PAGE
    assert set(re.findall(r"`((?:gnnkit|conf)/[\w/]+\.\w+)`", PAGE)) == set(files)


@pytest.mark.parametrize(("label", "link", "start"), ROWS)
def test_each_file_exists_and_defines_where_to_start(label: str, link: str, start: str) -> None:
    assert label == link
    path = ROOT / label
    assert path.is_file()
    if path.suffix == ".py":
        assert start in defined(path)


def test_every_private_class_and_hook_in_the_text_is_defined() -> None:
    names = {name for path in (ROOT / "gnnkit").rglob("*.py") for name in defined(path)}
    mentioned = set(re.findall(r"`(_?[A-Z]\w+(?:\.\w+)?)`", re.sub(r"^\| \[.*?\) \|", "|", PAGE, flags=re.MULTILINE)))
    assert {name for name in mentioned if name not in names} <= LIGHTNING
