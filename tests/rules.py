"""Rules that all tests keep, as a plugin of pytest.

A test that is marked `exhaustive` runs with `--exhaustive`, with `-m exhaustive`, or
where it is named. A test that is marked `alone` runs while no other test does, in the
beginning. A test that is not marked `slow` should take half a second. One that takes
twice that is named among the warnings. With `--store-durations=FILE`, a test of the
default selection fails the session if it takes over five seconds of a processor and is
not marked `long` with a reason.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WANTED = 0.5  # seconds of a processor, children included, or by the clock where threads make this less
MAX_SECONDS = 2 * WANTED  # other tests share the cores and their caches
LONG = 5.0  # seconds of a processor, children included, of a test without a reason
MAX_WAIT = 30.0  # seconds by the clock, which other work takes part in


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Names a test of the inner loop that takes too long. Machines differ: no failure.

    The first test of hypothesis in a process reads the sources of all modules, so these
    are left out.
    """
    used, begun = sum(os.times()[:4]), time.monotonic()
    try:
        yield
    finally:
        seconds, waited = sum(os.times()[:4]) - used, time.monotonic() - begun
        item.user_properties.append(("seconds", [round(seconds, 2), round(waited, 2)]))
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if item.get_closest_marker("slow") is not None or drawn:
        return
    if min(seconds, waited) > MAX_SECONDS or waited > MAX_WAIT:
        text = f"takes {seconds:.2f} s of a processor, {waited:.2f} s in all: make it quicker, or mark it slow"
        item.warn(pytest.PytestWarning(text))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds what selects tests and stores what each takes."""
    group = parser.getgroup("gnnkit")
    group.addoption("--exhaustive", action="store_true", help="run the tests marked exhaustive too")
    group.addoption(
        "--store-durations", metavar="FILE", help="write the seconds of each test into a file, slowest first"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder of locks by which processes of pytest-xdist take turns."""
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
        self.too_long: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" and (seconds := dict(report.user_properties).get("seconds")):
            self.tests.append((*seconds, report.nodeid))
            if seconds[0] > LONG and not {"exhaustive", "long"} & {*report.keywords}:
                self.too_long.append(report.nodeid)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        self.tests.sort(reverse=True)
        lines = [f"{used:8.2f} {waited:8.2f} {name}" for used, waited, name in self.tests]
        self.file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        if self.too_long and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section(f"seconds of a processor, and by the clock: {self.file}")
        for line in self.file.read_text(encoding="utf-8").splitlines()[: self.SLOWEST]:
            terminalreporter.line(line)
        for name in self.too_long:
            terminalreporter.line(f"takes over {LONG:.0f} s of a processor without a reason: {name}", red=True)
            terminalreporter.line("make it quicker, or mark it long(REASON) or exhaustive")


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Starts one process more than there are cores, as whole runs wait now and then.

    The inner loop waits for nothing, and a further process would import all once more.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ or not hasattr(os, "sched_getaffinity"):
        return None
    return len(os.sched_getaffinity(0)) + (config.option.markexpr != "not slow")


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
    others = iter([item for item in items if item.get_closest_marker("alone") is None])
    order: list[pytest.Item] = []
    for process in range(processes):
        first = alone[process::processes]
        size = (len(items) - len(order)) // (processes - process)
        order += [*first, *itertools.islice(others, max(size - len(first), 0))]
    return [*order, *others]


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
