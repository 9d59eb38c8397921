"""Runs ranks as threads of the calling process, and then restores its state."""

from __future__ import annotations

import contextlib
import gc
import json
import os
from collections.abc import Iterator
from typing import Any

from gnnkit.launch.environment import LOOPBACK, StartedRank
from gnnkit.launch.launcher.base import Ranks


def run_inline(ranks: Ranks) -> dict[int, Any]:
    """Runs the ranks as threads of this process, and returns their results by rank.

    The environment, torch's number of threads and precision, its random state, and the
    garbage collector are restored.
    """
    with _restore_state():
        results = ranks.comm.run(ranks.work, ranks.world_size, timeout=ranks.timeout)
    return dict(enumerate(json.loads(json.dumps(results))))


@contextlib.contextmanager
def _restore_state() -> Iterator[None]:
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
