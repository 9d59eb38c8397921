"""Starts ranks as processes of this machine, monitors them, and ends all of them.

Torch's elastic launcher takes seconds to detect a dead rank, and blames the wrong one.
Torch's store listens on all interfaces. Here, a death is detected at once, the message
names the rank that failed first, and ranks rendezvous in an anonymous file, with a
secret token. Results and errors are returned as JSON and never pickled.

A process starts in `entry`. A `child` represents one process in the launching process,
a `group` represents all of them, and the `watchdog` detects a group that hangs.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from gnnkit.launch.child import Child, StartMethod
from gnnkit.launch.environment import LOOPBACK, StartedRank
from gnnkit.launch.group import Group
from gnnkit.launch.watchdog import Patience

RankFunction = Callable[[int, int], Any]
_INLINE = ContextVar("inline", default=False)


def launch(
    function: RankFunction,
    world_size: int,
    *,
    start_method: StartMethod = "fork",
    patience: Patience | None = None,
    names: Sequence[str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, Any]:
    """Runs a function in processes, and returns its results by rank.

    Each process calls `function(rank, world_size)`. Its environment contains RANK,
    WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, and what `gnnkit.comm.rendezvous` reads.
    Results must be JSON values.

    If a rank fails after calling `progress.dispensable`, the others continue, and the
    results omit it.

    All ranks have ended when this function returns, also if a rank fails, no rank makes
    progress, or a signal arrives. Raises a rank's `UserError` unchanged, and otherwise
    `RankError`.

    Args:
        start_method: fork or spawn. Default: fork.
        patience: How long to wait for progress. Default: `Patience()`.
        names: Name of each process in messages. Default: `rank` with the number.
        meanwhile: Called a few times per second. Default: does nothing.
    """
    token = secrets.token_hex(16)
    with _meeting_file() as store:
        places = [
            StartedRank(rank, world_size, rank, world_size, LOOPBACK, store=store, token=token)
            for rank in range(world_size)
        ]
        return launch_at(
            function, places, start_method=start_method, patience=patience, names=names, meanwhile=meanwhile
        )


def launch_at(
    function: RankFunction,
    places: Sequence[StartedRank],
    *,
    start_method: StartMethod = "fork",
    patience: Patience | None = None,
    names: Sequence[str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[int, Any]:
    """Runs the part of a distributed run that belongs to this machine.

    Otherwise like `launch`.

    Args:
        places: The ranks on this machine, with the rendezvous address.
        start_method: fork or spawn. Default: fork.
        patience: How long to wait for progress. Default: `Patience()`.
        names: Name of each of the run's processes in messages. Default: `rank` with the
            number.
        meanwhile: Called a few times per second. Default: does nothing.
    """
    children = [
        Child(
            f"rank {place.rank}" if names is None else names[place.rank],
            start_method,
            place.variables(),
            function,
            (place.rank, place.world_size),
        )
        for place in places
    ]
    outcome = Group(children, patience or Patience(), meanwhile=meanwhile).run()
    return {places[number].rank: result for number, result in outcome.items()}


@contextlib.contextmanager
def _meeting_file() -> Iterator[str]:
    """Yields a file for the rendezvous that only this user's processes can open."""
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryDirectory() as folder:  # mode 0700
            yield os.path.join(folder, "store")
        return
    descriptor = os.memfd_create("gnnkit-store")
    try:
        yield f"/proc/{os.getpid()}/fd/{descriptor}"
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def inline() -> Iterator[None]:
    """Makes `run_in_child` call functions in this process, for debuggers and tests."""
    token = _INLINE.set(True)
    try:
        yield
    finally:
        _INLINE.reset(token)


def is_inline() -> bool:
    """Returns whether `inline` is active."""
    return _INLINE.get()


def run_in_child(
    function: Callable[..., Any],
    *arguments: Any,
    always: bool = False,
    patience: Patience | None = None,
    beside: Callable[[], object] = lambda: None,
    meanwhile: Callable[[], None] = lambda: None,
) -> Any:
    """Returns `function(*arguments)` from a forked process. The result must be JSON.

    The process ends with the function, which releases its memory and thread pools.
    Raises errors as `launch` does. Within `inline`, the function runs in this process,
    and its errors are not wrapped.

    Args:
        always: Whether to start a process even within `inline`, because the function
            changes the process permanently.
        patience: How long to wait for progress. Default: `Patience()`.
        beside: Called once, as soon as the process has started. If it raises, the
            process is ended. Default: does nothing.
        meanwhile: Called a few times per second after that. An error ends the
            process too.
    """
    if is_inline() and not always:
        beside()
        return json.loads(json.dumps(function(*arguments)))
    name = getattr(function, "__name__", str(function))
    child = Child(f"the process of {name}", "fork", {}, function, arguments)
    return Group([child], patience or Patience(), beside=beside, meanwhile=meanwhile).run()[0]
