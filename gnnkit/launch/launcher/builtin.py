"""The launchers of this package: processes, threads, inline and outside."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

from gnnkit.errors import UserError
from gnnkit.launch import environment, processes
from gnnkit.launch.child import StartMethod, die_with_parent, forks_differentiate
from gnnkit.launch.environment import LOOPBACK, StartedRank
from gnnkit.launch.launcher.base import JOBS, RANKS, Jobs, Launcher, Ranks, run_process
from gnnkit.launch.lean import keep_freed_memory
from gnnkit.launch.processes import is_inline, launch
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
        from gnnkit.launch.jobs import run_jobs  # for sweeps only

        jobs.preload()
        at_once = num_cores() if self.n_jobs < 0 else self.n_jobs
        return run_jobs(jobs.work, jobs.logs, at_once)


def _check_gpus(num_ranks: int) -> None:
    import torch

    if (num_gpus := torch.cuda.device_count()) < num_ranks:
        raise UserError(f"{num_ranks} ranks need a GPU each, but there are {num_gpus}: use fewer workers or comm=gloo")


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


class Outside(Launcher):
    """Reads this process's rank from the environment of torchrun, SLURM or MPI.

    A scheduler's tasks that are not ranks are an error.
    """

    def check(self, target: str) -> None:
        if self.started() is None:
            raise UserError(
                "launcher=outside finds no rank in the environment: start gnnkit with torchrun, srun or mpirun, set "
                "RANK and WORLD_SIZE, or remove launcher=outside"
            )

    def suits(self, *, in_one_process: bool) -> bool:
        return self.started() is not None

    def started(self) -> StartedRank | None:
        started_rank = environment.started_rank()
        if started_rank is None:
            environment.check_tasks()
        return started_rank

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Mapping[int, Any]:
        self.check("")
        started_rank = self.started()
        assert started_rank is not None
        if started_rank.by_torchrun:
            die_with_parent()
        keep_freed_memory()  # before the communicator starts threads
        os.environ.update(started_rank.variables())
        from gnnkit.comm.rendezvous import set_aside  # imports torch, which the run needs anyway

        with set_aside():
            return ranks.by_rank({started_rank.rank: ranks.run_several(started_rank.rank)})


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
