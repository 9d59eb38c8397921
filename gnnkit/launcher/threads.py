"""Ranks that are threads."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Mapping
from typing import Any

from gnnkit.launch.processes import launch
from gnnkit.launch.watchdog import Patience
from gnnkit.launcher.base import Launcher, Ranks


class Threads(Launcher):
    """Starts one process, in which the communicator starts a thread for each rank."""

    in_one_process = True
    comm = "threads"

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        run = functools.partial(_run, ranks)
        patience = Patience.of(ranks.timeout)
        (results,) = launch(run, 1, patience=patience, name="the process of all ranks", meanwhile=meanwhile).values()
        return dict(enumerate(results))


def _run(ranks: Ranks, rank: int, world_size: int, listener: socket.socket | None) -> list[Any]:
    """Runs all ranks in this process, the only one that was started."""
    return ranks.comm.run(ranks.work, ranks.world_size, timeout=ranks.timeout)
