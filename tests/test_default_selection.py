"""Every plugin, job and refusal has a case in the default selection.

The check reads the cases of the conformance tests and the sources of other tests. It
runs no test.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from gnnkit import plugins
from gnnkit.jobs import fits
from tests import test_conformance as conformance
from tests.jobs import test_fits

ROOT = Path(__file__).resolve().parents[1]
KINDS = {
    "partition": conformance.test_partitioners,
    "sampler": conformance.test_samplers,
    "dataset": conformance.test_datasets,
    "order": conformance.test_orders,
    "task": conformance.test_tasks,
    "strategy": conformance.test_strategies,
    "exchange": conformance.test_exchanges,
    "sync": conformance.test_synchronisations,
    "logger": conformance.test_loggers,
    "callback": conformance.test_callbacks,
    "launcher": conformance.test_launchers,
    "model": conformance.test_models_and_programs,
    "comm": conformance.test_communicators,
}
ELSEWHERE = {  # what no check covers, and the folders of the tests
    ("partition", "stored"): ["tests/partition", "tests/jobs"],
    ("launcher", "ray"): ["plugins/gnnkit-ray/tests"],
    ("leader", "rebalance"): ["plugins/gnnkit-rebalancing/tests"],
    ("exchange", "error_feedback"): ["plugins/gnnkit-error-feedback/tests"],
    ("text", "hashed"): ["plugins/gnnkit-tables/tests"],
    ("upload", "fsspec"): ["plugins/gnnkit-upload/tests"],
    **{("aggregation", name): ["tests/sync"] for name in ("mean", "median", "trimmed_mean", "weighted")},
    **{
        ("job", name): ["plugins/template/tests" if name == "hubs" else "tests/jobs"]
        for name in plugins.names("job")
        if name not in plugins.PACKAGES["job"]
    },
    **{
        (kind, name): [f"plugins/{package}/tests"]
        for kind in ("job", plugins.COMMAND, plugins.FUNCTION, plugins.PLANNER, plugins.SEARCH)
        for name, package in plugins.PACKAGES[kind].items()
    },
}


def default_cases(test: Any) -> list[Any]:
    """Returns the values of a parametrised test that run by default."""
    marks = {mark.name: mark for mark in test.pytestmark}
    if "exhaustive" in marks:
        return []
    params = [pytest.param(value) if isinstance(value, str) else value for value in marks["parametrize"].args[1]]
    return [
        param.values if isinstance(param, type(pytest.param(0))) else param
        for param in params
        if "exhaustive" not in [mark.name for mark in getattr(param, "marks", ())]
    ]


def installed(kind: str) -> set[str]:
    """Names the plugins of a kind that this repository has."""
    projects = [ROOT / "pyproject.toml", *(ROOT / "plugins").glob("*/pyproject.toml")]
    names = {re.search(r'^name = "(.*)"$', path.read_text(encoding="utf-8"), re.MULTILINE)[1] for path in projects}  # type: ignore[index]
    points = metadata.entry_points(group=f"gnnkit.{kind}")
    return {point.name for point in points if point.dist is None or point.dist.name in names}


@pytest.mark.parametrize("kind", plugins.KINDS)
def test_every_plugin_is_checked_by_default(kind: str) -> None:
    checked = {case[0] for case in default_cases(KINDS[kind])}
    assert installed(kind) - checked == {name for other, name in ELSEWHERE if other == kind}


def test_every_other_group_of_plugins_is_tested_elsewhere() -> None:
    groups = {group.removeprefix("gnnkit.") for group in metadata.entry_points().groups if group.startswith("gnnkit.")}
    other_groups = groups - set(plugins.KINDS) - {"conf"}
    assert other_groups == {
        "aggregation",
        "command",
        "function",
        "job",
        "leader",
        "planner",
        "search",
        "text",
        "upload",
    }
    assert {(kind, name) for kind in other_groups for name in installed(kind)} == {
        key for key in ELSEWHERE if key[0] in other_groups
    }


@pytest.mark.parametrize(("kind", "name"), ELSEWHERE, ids="-".join)
def test_what_no_check_covers_is_in_a_test_that_runs_by_default(kind: str, name: str) -> None:
    words = re.compile(rf"\b{kind}=[\"']?{name}\b|[\"']{kind}[\"']: [\"']{name}\b|[\"']{name}[\"']|\b{kind}={name}\b")
    if kind == plugins.FUNCTION:
        words = re.compile(rf"\bgnnkit\.{name}\(")
    folders = ELSEWHERE[kind, name]
    paths = [path for folder in folders for path in (ROOT / folder).rglob("test_*.py") if "apart" not in path.parts]
    assert any(words.search(text) for path in paths for text in default_text(path))


def default_text(path: Path) -> Iterator[str]:
    """Yields the text of a module without its exhaustive tests, if any test is left."""
    text = path.read_text(encoding="utf-8")
    if "exhaustive" not in text:
        yield text
        return
    module, lines = ast.parse(text), text.splitlines()
    tests = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    rare = [test for test in tests if "pytest.mark.exhaustive" in map(ast.unparse, test.decorator_list)]
    if len(rare) == len(tests) or re.search(r"^pytestmark = .*exhaustive", text, re.MULTILINE):
        return
    for test in rare:
        lines[test.lineno - 1 : test.end_lineno] = [""] * ((test.end_lineno or 0) - test.lineno + 1)
    yield "\n".join(lines)


def test_every_refusal_of_combinations_has_a_case_by_default() -> None:
    messages = [message for topic in fits.TOPICS for message in topic.conflicts]
    assert [case[0] for case in default_cases(test_fits.test_each_row_refuses_a_configuration)] == messages


def test_a_case_that_is_missing_is_seen(tmp_path: Path) -> None:
    @pytest.mark.parametrize("name", ["a", pytest.param("b", marks=pytest.mark.exhaustive)])
    def check(name: str) -> None: ...

    assert default_cases(check) == [("a",)]
    assert default_cases(pytest.mark.exhaustive(check)) == []
    (tmp_path / "test_a.py").write_text(
        "import pytest\nTEXT = 'one'\n@pytest.mark.exhaustive\ndef test_a():\n    'two'\ndef test_b():\n    'three'\n"
    )
    (text,) = default_text(tmp_path / "test_a.py")
    assert [word in text for word in ("one", "two", "three")] == [True, False, True]
    (tmp_path / "test_b.py").write_text("import pytest\n@pytest.mark.exhaustive\ndef test_a():\n    'two'\n")
    assert list(default_text(tmp_path / "test_b.py")) == []
