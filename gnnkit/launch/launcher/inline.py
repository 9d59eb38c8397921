"""Ranks that are threads of the calling process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnnkit.launch.launcher.base import Launcher, Ranks
from gnnkit.launch.launcher.in_process import run_inline


class Inline(Launcher):
    """Starts no process: the job runs in threads of the calling process.

    Suited to debuggers, profilers and tests. A rank's error is raised unchanged, with
    its traceback. Only other ranks detect a rank that hangs, and a killed rank ends the
    calling process.
    """

    in_one_process = True
    inline = True
    comm = "threads"

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        return run_inline(ranks)
