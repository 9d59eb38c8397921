"""Starts ranks as processes of this machine, watches them, and leaves none behind.

Torch's elastic launcher needs seconds to notice a dead rank and blames the wrong one.
Torch's store listens on all interfaces. Here a death is seen at once, the message names
the rank that failed first, and ranks meet in a file without a name, with a token that
only they know. Results and errors come back as JSON, never pickled.

A process begins in `entry`. A `child` is the process as the launcher sees it. A `group`
is the run of all processes. The `watchdog` notices a group that hangs.
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
    """Runs a function in processes, and returns what the function returned, by rank.

    Each process calls `function(rank, world_size)`. The environment holds RANK,
    WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, and what `gnnkit.comm.rendezvous` reads.
    Results must be JSON.

    The others go on without a rank that has called `progress.dispensable` and fails.
    The results leave such a rank out.

    All ranks are ended before this function returns. This also holds when a rank
    fails, when no rank makes progress, and when a signal comes. Raises `UserError` with
    the message of a rank's `UserError`, else `RankError`.

    Args:
        function: The work of each rank.
        world_size: Number of processes.
        start_method: fork or spawn. Default: fork.
        patience: How long to wait for a sign of progress. Default: `Patience()`.
        names: Name of each process in messages. Default: `rank` with the number.
        meanwhile: Called a few times a second. Default: does nothing.
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
    """Runs the processes of this machine, of a run that may have others elsewhere.

    All as for `launch`.

    Args:
        function: The work of each rank.
        places: Of the ranks here, which say where all meet.
        start_method: fork or spawn. Default: fork.
        patience: How long to wait for a sign of progress. Default: `Patience()`.
        names: Name of each process of the run in messages. Default: `rank` with the
            number.
        meanwhile: Called a few times a second. Default: does nothing.
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
    """Gives a file that processes of this user can open, gone with this process."""
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
    """Lets `run_in_child` call functions in this process, for debuggers and tests."""
    token = _INLINE.set(True)
    try:
        yield
    finally:
        _INLINE.reset(token)


def is_inline() -> bool:
    """Says whether `inline` is in effect."""
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

    The process ends with the function, and so do memory and thread pools that the
    function leaves behind. Raises errors as `launch` does. Within `inline`, the
    function runs in this process, and its errors come as they are.

    Args:
        function: The work of the process.
        *arguments: Arguments of the function.
        always: Whether to start a process within `inline` too, because the function
            changes the process for good. Default: False.
        patience: How long to wait for a sign of progress. Default: `Patience()`.
        beside: Called once, as soon as the process has begun. An error of this
            function ends the process. Default: does nothing.
        meanwhile: Called a few times a second afterwards, with the same rule.
    """
    if is_inline() and not always:
        beside()
        return json.loads(json.dumps(function(*arguments)))
    name = getattr(function, "__name__", str(function))
    child = Child(f"the process of {name}", "fork", {}, function, arguments)
    return Group([child], patience or Patience(), beside=beside, meanwhile=meanwhile).run()[0]
