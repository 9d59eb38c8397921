"""The packages of the page on plugins are complete: installed, checked and trained."""

from __future__ import annotations

import json
import re
import runpy
import shlex
from pathlib import Path

import pytest

from gnnkit.__main__ import main
from tests.cases import few
from tests.documents.packages import files_of, install
from tests.runs import within_process

pytestmark = pytest.mark.reads("docs/howto/plugin.md", "gnnkit", "conf", "tests/documents/packages.py", "tests/runs.py")
PAGE = (Path(__file__).resolve().parents[2] / "docs/howto/plugin.md").read_text(encoding="utf-8")
COMMANDS = [shlex.split(line)[1:] for line in re.findall(r"^gnnkit .*$", PAGE, re.MULTILINE)]
SMALL = ["dataset=synthetic", "dataset.num_nodes=120", "dataset.num_edges=400", "workers=4", "comm=threads"]


def test_each_package_has_the_four_files_of_a_plugin() -> None:
    files = set(files_of(PAGE))
    for kind, name in (("model", "graphconv"), ("strategy", "sampled_loss")):
        root = f"gnnkit-{name.replace('_', '-')}"
        inner = {"pyproject.toml", f"gnnkit_{name}/__init__.py", f"gnnkit_{name}/conf/{kind}/{name}.yaml"}
        assert {path for path in files if path.startswith(f"{root}/")} == {
            f"{root}/{path}" for path in (*inner, f"tests/test_{name}.py")
        }
        assert f"pip install ./{root}\n" in PAGE


@pytest.mark.slow
@pytest.mark.parametrize("path", [path for path in files_of(PAGE) if "/tests/" in path])
def test_the_tests_of_each_package_pass(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(files_of(PAGE), tmp_path, monkeypatch)
    tests = [value for name, value in runpy.run_path(str(tmp_path / path)).items() if name.startswith("test_")]
    assert len(tests) == 1
    for test in tests:
        test()


@pytest.mark.slow
@few("arguments", [pytest.param(command, id=" ".join(command)) for command in COMMANDS], default=3)
def test_the_commands_of_the_page_run(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(files_of(PAGE), tmp_path, monkeypatch)
    short = [] if "job=verify" in arguments else ["trainer.max_epochs=2"]
    monkeypatch.chdir(tmp_path)
    with within_process():
        assert main([*arguments, *SMALL, *short, "output=run"]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    trains = not any(text.startswith("job=") for text in arguments)
    assert not trains or 0 <= result["test_accuracy"] <= 1
