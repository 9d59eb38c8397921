"""Ranks and jobs that are processes of this machine."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Generator, Mapping
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch import processes
from gnnkit.launch.child import StartMethod, forks_differentiate
from gnnkit.launch.jobs import run_jobs
from gnnkit.launch.launcher.base import JOBS, RANKS, Jobs, Launcher, Ranks, run_process
from gnnkit.launch.watchdog import Patience
from gnnkit.utils.ranges import num_cores, whole


class Processes(Launcher):
    """Forks processes, which share what is already imported.

    GPU ranks are spawned, and so are ranks of a process that cannot be forked safely.
    """

    starts = (RANKS, JOBS)

    def __init__(self, n_jobs: int = 1) -> None:
        whole("launcher.n_jobs", n_jobs, -1, 2**16)
        if n_jobs == 0:
            raise UserError("launcher.n_jobs=0 must be -1 or a whole number from 1")
        self.n_jobs = n_jobs

    def check(self, target: str) -> None:
        if target == RANKS and self.n_jobs != 1:
            raise UserError(f"launcher.n_jobs={self.n_jobs} applies to sweeps only: add -m or remove it")

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        method: StartMethod = "fork"
        if ranks.comm.device_type == "cuda":
            method = "spawn"
            _check_gpus(ranks.world_size)
        elif not forks_differentiate():
            method = "spawn"
            print("spawning ranks: torch's autograd threads of this process do not survive a fork", file=sys.stderr)
        run = functools.partial(run_process, ranks)
        patience = Patience.of(ranks.timeout)
        results = processes.launch(
            run, ranks.processes, start_method=method, patience=patience, names=ranks.names, meanwhile=meanwhile
        )
        return ranks.by_rank(results)

    def jobs(self, jobs: Jobs) -> Generator[tuple[int, int]]:
        jobs.preload()
        at_once = num_cores() if self.n_jobs < 0 else self.n_jobs
        return run_jobs(jobs.work, jobs.logs, at_once)


def _check_gpus(num_ranks: int) -> None:
    import torch

    if (num_gpus := torch.cuda.device_count()) < num_ranks:
        raise UserError(f"{num_ranks} ranks need a GPU each, but there are {num_gpus}: use fewer workers or comm=gloo")
