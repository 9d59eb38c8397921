"""Rules that all tests keep, as a plugin of pytest.

A test that is marked `alone` runs while no other test does, in the beginning. A test
that is not marked `slow` should take half a second. One that takes twice that is named
among the warnings.
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
MAX_WAIT = 30.0  # seconds by the clock, which other work takes part in


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Names a test of the inner loop that takes too long. Machines differ: no failure.

    The first test of hypothesis in a process reads the sources of all modules, so these
    are left out.
    """
    used, begun = sum(os.times()[:4]), time.monotonic()
    yield
    seconds, waited = sum(os.times()[:4]) - used, time.monotonic() - begun
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if item.get_closest_marker("slow") is not None or drawn:
        return
    if min(seconds, waited) > MAX_SECONDS or waited > MAX_WAIT:
        text = f"takes {seconds:.2f} s of a processor, {waited:.2f} s in all: make it quicker, or mark it slow"
        item.warn(pytest.PytestWarning(text))


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder of locks by which processes of pytest-xdist take turns."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="gnnkit-turns-")
        config.add_cleanup(folder.cleanup)
        config.turns = folder.name  # type: ignore[attr-defined]


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
    """Puts the tests that run alone before the others of each process.

    Then such a test waits for another such test, and not for a long one.
    """
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
