"""Ranks that are threads of the calling process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gnnkit.launcher.base import Launcher, Ranks
from gnnkit.launcher.in_process import run_inline


class Inline(Launcher):
    """Starts no process: threads of the caller's process do all the work of the job.

    For debuggers, profilers and tests. An error of a rank comes as it is, with its
    traceback. A rank that hangs is noticed by the others only, and one that is killed
    takes the caller along.
    """

    in_one_process = True
    inline = True
    comm = "threads"

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        return run_inline(ranks)
