"""Packages whose files stand in a document, each below its path, and their install."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

_PATH = re.compile(r"`(gnnkit-[\w-]+/[\w/.-]+\.(?:toml|py|yaml))`")
_BLOCK = re.compile(r"^```(?:toml|python|yaml)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def files_of(page: str) -> dict[str, str]:
    """Returns the files of a page by path, named in the paragraph above each block."""
    files: dict[str, str] = {}
    for block in _BLOCK.finditer(page):
        above = page[: block.start()].rstrip().rpartition("\n\n")[2]
        for path in _PATH.findall(above)[:1]:
            files[path] = block[1]
    return files


def install(files: Mapping[str, str], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Makes packages importable and their entry points known, as `pip install` does.

    Args:
        files: Text of each file by path. A path begins with the project's name.
        folder: Where the files are written.
        patch: Restores the search path.
    """
    for path, text in files.items():
        root, _, inner = path.partition("/")
        target = folder / root / inner
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        if inner == "pyproject.toml":
            project = tomllib.loads(text)["project"]
            assert project["name"] == root
            groups = project["entry-points"].items()
            lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in points.items()) for group, points in groups]
            facts = folder / root / f"{root.replace('-', '_')}-{project['version']}.dist-info"
            facts.mkdir()
            (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {root}\nVersion: {project['version']}\n")
            (facts / "entry_points.txt").write_text("\n".join(lines))
            patch.syspath_prepend(str(folder / root))
            patch.delitem(sys.modules, root.replace("-", "_"), raising=False)
