"""Rules that all tests keep, as a plugin of pytest.

A test that is marked `exhaustive` runs with `--exhaustive`, with `-m exhaustive`, or
where it is named. A test that is marked `alone` runs while no other test does, in the
beginning. A test that is not marked `slow` should take a tenth of a second. One that
takes half a second is named among the warnings. With `--store-durations=FILE`, a test
of the default selection is named in the end if it takes over five seconds of a
processor and is not marked `long` with a reason. Machines differ: this is no failure.

A module with `pytestmark = pytest.mark.reads(PATH, ...)` depends on itself and on these
files and folders, which are relative to the root. Once its tests have passed, it is
left out until one of these files changes. It always runs with `--exhaustive`, with
`-k`, or where it or its folder is named.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

MAX_SECONDS = 0.5  # of a processor, children included, or by the clock where threads make this less
LONG = 5.0  # seconds of a processor, children included, of a test without a reason
_now = time.monotonic  # tests put other clocks into the module
MAX_WAIT = 30.0  # seconds by the clock, which other work takes part in


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Names a test of the inner loop that takes too long. Machines differ: no failure.

    The first test of hypothesis in a process reads the sources of all modules, so these
    are left out.
    """
    start_seconds, begun = sum(os.times()[:4]), _now()
    try:
        yield
    finally:
        seconds, wall_seconds = sum(os.times()[:4]) - start_seconds, _now() - begun
        item.user_properties.append(("seconds", [round(seconds, 2), round(wall_seconds, 2)]))
    is_hypothesis = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if item.get_closest_marker("slow") is not None or is_hypothesis:
        return
    if min(seconds, wall_seconds) > MAX_SECONDS or wall_seconds > MAX_WAIT:
        text = f"takes {seconds:.2f} s of a processor, {wall_seconds:.2f} s in all: make it quicker, or mark it slow"
        item.warn(pytest.PytestWarning(text))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what selects tests and stores what each takes."""
    group = parser.getgroup("gnnkit")
    group.addoption("--exhaustive", action="store_true", help="run the tests marked exhaustive too")
    group.addoption(
        "--store-durations", metavar="FILE", help="write the seconds of each test into a file, slowest first"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers plugins, and makes the folder of locks of processes of pytest-xdist."""
    config.addinivalue_line("markers", "reads(*paths): what a module depends on; left out while nothing changes")
    config.pluginmanager.register(Readers(config), "gnnkit-readers")
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="gnnkit-turns-")
        config.add_cleanup(folder.cleanup)
        config.turns = folder.name  # type: ignore[attr-defined]
        if file := config.getoption("store_durations"):
            config.pluginmanager.register(Durations(Path(file)), "gnnkit-durations")


class Durations:
    """Writes the seconds of each test into a file, and prints those of the slowest.

    The file has a line for each test: seconds of a processor and by the clock, and id.
    """

    SLOWEST = 40

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tests: list[tuple[float, float, str]] = []
        self.long: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and (seconds := properties.get("seconds")):
            self.tests.append((*seconds, report.nodeid))
            if seconds[0] > LONG and not {"exhaustive", "long"} & {*report.keywords}:
                self.long.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        self.tests.sort(reverse=True)
        lines = [f"{used:8.2f} {waited:8.2f} {name}" for used, waited, name in self.tests]
        self.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"seconds of a processor, and by the clock: {self.file}")
        for line in self.file.read_text(encoding="utf-8").splitlines()[: self.SLOWEST]:
            terminalreporter.line(line)
        for name in self.long:
            terminalreporter.line(f"takes over {LONG:.0f} s of a processor without a reason: {name}", red=True)
            terminalreporter.line("make it quicker, or mark it long(REASON) or exhaustive")


class Readers:
    """Leaves a module out while the files that it reads are those with which it passed.

    The process that the user starts decides, and sends the list to the processes of
    pytest-xdist. These send back which tests a module has. All of them must pass.
    """

    KEY = "gnnkit/readers"  # in the cache of pytest: by module, the paths, their digest and the number of tests

    def __init__(self, config: pytest.Config) -> None:
        self.config, self.begun = config, time.time()
        self.worker = getattr(config, "workerinput", None)
        self.cache: pytest.Cache | None = getattr(config, "cache", None)  # none with -p no:cacheprovider
        self.found: dict[str, dict[str, Any]] = {}  # by module, paths and tests
        self.passed: set[str] = set()
        self.failed: set[str] = set()  # modules
        self.left_out: dict[str, dict[str, Any]] = {}
        if self.worker is not None:
            self.left_out = self.worker["left_out"]
        elif not _runs_all(config):
            digest = functools.cache(lambda *paths: digest_of(config.rootpath, paths)[0])
            self.left_out = {
                module: kept
                for module, kept in self.kept().items()
                if _is_below_named(config, module) and digest(module, *kept["paths"]) == kept["digest"]
            }

    def kept(self) -> dict[str, dict[str, Any]]:
        """Returns what the cache has of modules that passed."""
        actual: dict[str, dict[str, Any]] = self.cache.get(self.KEY, {}) if self.cache else {}
        return actual

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["left_out"] = self.left_out

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        inside = collection_path.is_relative_to(self.config.rootpath)
        name = collection_path.relative_to(self.config.rootpath).as_posix() if inside else ""
        return True if name in self.left_out else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Notes the tests of each module that reads files, before any is deselected."""
        if any("::" in name for name in self.config.args):
            return
        for item in items:
            mark, module = item.get_closest_marker("reads"), item.nodeid.partition("::")[0]
            if mark is None:
                continue
            if missing := [path for path in mark.args if not (self.config.rootpath / path).exists()]:
                raise pytest.UsageError(f"{module} reads {missing[0]}, which does not exist")
            facts = self.found.setdefault(module, {"paths": list(mark.args), "tests": []})
            if item.get_closest_marker("exhaustive") is None:
                facts["tests"].append(item.nodeid)
        if self.worker is not None:
            self.config.workeroutput["readers"] = self.found  # type: ignore[attr-defined]

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.found |= getattr(node, "workeroutput", {}).get("readers", {})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and report.passed:
            self.passed.add(report.nodeid)
        elif report.failed:
            self.failed.add(report.nodeid.partition("::")[0])

    def pytest_sessionfinish(self) -> None:
        """Keeps a digest for each module of which all tests by default have passed."""
        if self.worker is not None or self.cache is None:
            return
        kept = {module: facts for module, facts in self.kept().items() if module not in self.failed}
        for module, facts in self.found.items():
            if module in self.failed or not facts["tests"] or not self.passed.issuperset(facts["tests"]):
                continue
            digest, newest = digest_of(self.config.rootpath, (module, *facts["paths"]))
            if newest < self.begun:  # else a test may have read what was there before
                kept[module] = {"paths": facts["paths"], "digest": digest, "tests": len(facts["tests"])}
        self.cache.set(self.KEY, kept)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for module, facts in self.left_out.items():
            text = f"{facts['tests']} tests of {module} left out, which have passed with the same files as now"
            terminalreporter.line(f"{text}: {', '.join(facts['paths'])}")


def _runs_all(config: pytest.Config) -> bool:
    option = config.option
    return bool(option.exhaustive or "exhaustive" in option.markexpr or option.keyword)


def _is_below_named(config: pytest.Config, module: str) -> bool:
    """Says whether the command names a folder around a module, and nothing closer.

    What is closer is the module, its own folder or one of its tests.
    """
    path = config.rootpath / module
    paths = {(config.invocation_params.dir / name.partition("::")[0]).resolve() for name in config.args}
    return not paths & {path, path.parent} and bool(paths.intersection(path.parents))


def digest_of(root: Path, paths: tuple[str, ...]) -> tuple[str, float]:
    """Returns a digest of names and bytes, and the time of the newest change.

    Folders count with all files and links, but for what is hidden or built.
    """
    digest, newest = hashlib.blake2b(digest_size=16), 0.0
    for file in sorted({file for path in paths for file in _files(root / path)}):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(root).as_posix()}\0{len(content)}\0".encode() + content)
        newest = max(newest, file.stat().st_mtime)
    return digest.hexdigest(), newest


def _files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, folders, names in os.walk(path, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]
        yield from (Path(folder, name) for name in names if not name.endswith((".so", ".pyc")))


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Starts one process more than there are cores, as whole runs wait now and then.

    The inner loop waits for nothing, and a further process would import all once more.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return None
    return len(os.sched_getaffinity(0)) + int(config.option.markexpr != "not slow")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves exhaustive tests out, and puts those that run alone before the others.

    Then such a test waits for another such test, and not for a long one.
    """
    option = config.option
    if not (option.exhaustive or "exhaustive" in option.markexpr or any("::" in name for name in config.args)):
        left_out = [item for item in items if item.get_closest_marker("exhaustive") is not None]
        items[:] = [item for item in items if item.get_closest_marker("exhaustive") is None]
        config.hook.pytest_deselected(items=left_out)
    items[:] = dealt(items, getattr(config, "workerinput", {}).get("workercount", 1))


def dealt(items: list[pytest.Item], processes: int) -> list[pytest.Item]:
    """Orders tests so that each process gets its share of those that run alone first.

    `--dist=worksteal` gives each process the same number of tests that follow each
    other, and the last ones what is left over.
    """
    alone = [item for item in items if item.get_closest_marker("alone") is not None]
    parallel_items = iter([item for item in items if item.get_closest_marker("alone") is None])
    order: list[pytest.Item] = []
    for process in range(processes):
        first = alone[process::processes]
        size = (len(items) - len(order)) // (processes - process)
        order += [*first, *itertools.islice(parallel_items, max(size - len(first), 0))]
    return [*order, *parallel_items]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tells a process of pytest-xdist where the locks are."""
    node.workerinput["turns"] = node.config.turns


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Takes the turn before the time-out of the test begins."""
    turns = getattr(item.config, "workerinput", {}).get("turns")
    alone = item.get_closest_marker("alone") is not None
    with contextlib.nullcontext() if turns is None else _turn(Path(turns), alone=alone):
        return (yield)


@contextlib.contextmanager
def _turn(folder: Path, *, alone: bool) -> Iterator[None]:
    """Holds the room, alone or with others. Who waits at the door goes in next."""
    with (folder / "door").open("w") as door, (folder / "room").open("w") as room:
        fcntl.flock(door, fcntl.LOCK_EX)
        fcntl.flock(room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(door, fcntl.LOCK_UN)
        yield
