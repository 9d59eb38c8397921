"""A user's script passes `mypy --strict` against the installed package, and runs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.reads("gnnkit", "rust", "pyproject.toml", "tests/documents/typed_script.py")
ROOT = Path(__file__).resolve().parents[2]
SCRIPT = Path(__file__).with_name("typed_script.py")
WRONG = [  # each line is a mistake that types show
    "gnnkit.train(graph, strategy=3)",
    "gnnkit.train(graph, model=3)",
    "gnnkit.predict(3)",
    "gnnkit.load(folder, 'gcn')",
    "Graph.from_edges(graph, graph)",
    "graph.no_such_field",
    "BatchNorm('8')",
    "Dropout(0.5)(1, 2)",
    "JumpingKnowledge('sum')",
    "Reach(tolerance='a')",
    "NeighborSampler(fanouts='ab')",
    "Loader(graph, [5, 5], threads='all')",
    "result.folder + 1",
    "module_of_data.no_such_method()",
]


def run(arguments: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    paths = {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=os.environ | paths, capture_output=True, text=True, check=False
    )


@pytest.mark.exhaustive  # mypy checks the package itself before each change is sent
@pytest.mark.slow
def test_a_users_script_is_typed_and_mistakes_in_one_are_found(tmp_path: Path) -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    shutil.copy(SCRIPT, tmp_path / "script.py")
    (tmp_path / "wrong.py").write_text("\n".join([text, *WRONG]), encoding="utf-8")
    # The package's own check has the same options, and so the same cache.
    cache = ["--cache-dir", str(ROOT / ".mypy_cache"), "--config-file", str(ROOT / "pyproject.toml")]
    done = run(["-m", "mypy", "--strict", *cache, "script.py", "wrong.py"], tmp_path)
    errors = re.findall(r"^(\w+)\.py:(\d+): error: ", done.stdout, re.MULTILINE)
    first = len(text.splitlines()) + 2
    assert {(name, int(line)) for name, line in errors} == {("wrong", first + i) for i in range(len(WRONG))}, (
        done.stdout + done.stderr
    )


@pytest.mark.exhaustive  # scripts of documents run by default in test_readme.py
@pytest.mark.slow
def test_the_script_runs_once_without_a_main_guard(tmp_path: Path) -> None:
    """Its ranks are processes in one run, and threads in the others."""
    done = run([str(SCRIPT)], tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("GraphDataModule") == 1
