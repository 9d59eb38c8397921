"""The examples in docstrings run, and give the results that they show."""

from __future__ import annotations

import ast
import doctest
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import gnnkit
from gnnkit.graph import Graph
from tests.runs import BARE, within_process

pytestmark = pytest.mark.reads("gnnkit", "plugins", "tests/runs.py")
ROOT = Path(__file__).parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
RUN = "outputs/first"  # examples that load a run name this folder


def _examples() -> Iterator[tuple[str, str, int]]:
    """Yields path with name, text and line of each docstring that has an example."""
    for path in sorted((*ROOT.glob("gnnkit/**/*.py"), *ROOT.glob("plugins/*/*_*/**/*.py"))):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)) if ">>>" in source else ():
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and ">>>" in (text := ast.get_docstring(node) or ""):
                yield f"{path.relative_to(ROOT)}:{node.name}", text, node.lineno


class _Checker(doctest.OutputChecker):
    """Lets a statement without a result print, as a run does."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return not want or super().check_output(want, got, optionflags)


def _run(text: str, name: str, values: dict[str, Any], line: int) -> tuple[doctest.TestResults, str]:
    """Returns how many statements were run and failed, and the report of failures."""
    test = doctest.DocTestParser().get_doctest(text, values, name, name, line)
    report: list[str] = []
    return doctest.DocTestRunner(_Checker(), optionflags=FLAGS).run(test, out=report.append), "".join(report)


EXAMPLES = list(_examples())


def _graph() -> Graph:
    return Graph.from_edges(
        [0, 1, 2, 3],
        [1, 2, 3, 0],
        features=[[0.0], [1.0], [0.0], [1.0]],
        labels=[0, 1, 0, 1],
        split=["train", "train", "val", "test"],
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a trained run, as after a user's first command."""
    folder = tmp_path_factory.mktemp("examples")
    with within_process():
        keys = {"strategy": "vertex_centric", "workers": 1, "trainer": {"max_epochs": 2}, **BARE}
        gnnkit.train(_graph(), folder=folder / RUN, **keys)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text", "line"), [pytest.param(*example, id=example[0].replace("/", ".")) for example in EXAMPLES]
)
def test_the_example_runs(name: str, text: str, line: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with within_process():
        results, report = _run(text, name, {"graph": _graph()}, line)
    assert results.attempted > 0
    assert results.failed == 0, report


@pytest.mark.parametrize("text", [">>> 1 + 1\n3", ">>> absent"])
def test_an_example_with_a_wrong_result_fails(text: str) -> None:
    results, report = _run(text, "wrong", {}, 1)
    assert results.failed == 1
    assert "wrong" in report
