"""Ranks that are threads of the calling process."""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gnnkit.launch.environment import LOOPBACK, StartedRank
from gnnkit.launcher.base import Launcher, Ranks


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


def run_inline(ranks: Ranks) -> dict[int, Any]:
    """Runs the ranks as threads of this process, and returns their results by rank.

    Afterwards the environment, torch's number of threads and precision, its random
    numbers, and the garbage collector are as before.
    """
    with _restored():
        results = ranks.comm.run(ranks.work, ranks.world_size, timeout=ranks.timeout)
    return dict(enumerate(json.loads(json.dumps(results))))


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    import torch

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    environment, collects = dict(os.environ), gc.isenabled()
    os.environ.update(StartedRank(0, 1, 0, 1, LOOPBACK, 0).variables())
    gc.enable()
    try:
        with torch.random.fork_rng():
            yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)
        if not collects:
            gc.disable()
