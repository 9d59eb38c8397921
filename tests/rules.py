"""Rules that all tests keep, as a plugin of pytest.

A test that is marked `alone` runs while no other test does. Where CI runs, a test that
is not marked `slow` should take half a second, and fails after six times that.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WANTED = 0.5  # seconds of a processor, children included, or by the clock where threads make this less
MAX_SECONDS = 6 * WANTED  # imports and garbage of others may add seconds to one measurement
MAX_WAIT = 30.0  # seconds by the clock, which other work takes part in


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test of the inner loop that takes too long, where CI runs.

    Tests of hypothesis are left out: the first one in a process reads the sources of
    all modules.
    """
    used, begun = sum(os.times()[:4]), time.monotonic()
    yield
    drawn = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    if "CI" in os.environ and item.get_closest_marker("slow") is None and not drawn:
        seconds, waited = sum(os.times()[:4]) - used, time.monotonic() - begun
        if min(seconds, waited) > MAX_SECONDS or waited > MAX_WAIT:
            pytest.fail(
                f"takes {seconds:.2f} s of a processor, {waited:.2f} s in all: make it quicker, or mark it slow"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Makes the folder of locks by which processes of pytest-xdist take turns."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="gnnkit-turns-")
        config.add_cleanup(folder.cleanup)
        config.turns = folder.name  # type: ignore[attr-defined]


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
