"""Ranks that are threads."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

from gnnkit.launch.launcher.base import Launcher, Ranks, run_process
from gnnkit.launch.launcher.in_process import run_inline
from gnnkit.launch.processes import is_inline, launch
from gnnkit.launch.watchdog import Patience


class Threads(Launcher):
    """Starts one process, in which the communicator starts one thread per rank."""

    in_one_process = True
    comm = "threads"

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        ranks = dataclasses.replace(ranks, processes=1)
        if is_inline():
            return run_inline(ranks)
        patience = Patience.of(ranks.timeout)
        results = launch(
            functools.partial(run_process, ranks),
            1,
            patience=patience,
            names=["the process of all ranks"],
            meanwhile=meanwhile,
        )
        return ranks.by_rank(results)
