"""The library needs torch, and nothing of gnnkit."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
BLOCK = "import sys; sys.modules.update(dict.fromkeys(['gnnkit', 'torch_geometric']))\n"  # their import fails


def imported(path: Path) -> Iterator[str]:
    """Yields the packages that a file imports, also within functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            yield str(node.module).partition(".")[0]


@pytest.mark.parametrize("folder", ["lazyedges", "tests"])
def test_modules_import_torch_only(folder: str) -> None:
    paths = sorted((ROOT / folder).glob("*.py"))
    own = {"lazyedges", "torch", *(path.stem for path in paths)} | ({"pytest"} if folder == "tests" else set())
    assert len(paths) > 4
    for path in paths:
        assert set(imported(path)) - sys.stdlib_module_names <= own, path


@pytest.mark.slow
def test_the_example_of_the_readme_runs_without_gnnkit() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'tests'}"}
    done = subprocess.run([sys.executable, "-c", BLOCK + block], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
