"""Starts the ranks of a job on this machine: as processes, or as threads of one."""

from __future__ import annotations

import functools
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs.job import Job, RankWork
from gnnkit.jobs.models import Given
from gnnkit.jobs.say import say
from gnnkit.launch.processes import launch, run_in_child
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.cut import PREPARED, Needs, Prepared, prepare
from gnnkit.leader.result import Result
from gnnkit.settings import Settings


def run_ranks(
    find_work: Callable[[], RankWork], needs: Needs, settings: Settings, folder: Path, graph: Graph | None, model: Given
) -> Result:
    """Prepares the data in a child, starts the ranks, and returns the leader's result.

    Args:
        find_work: Imports the work of each rank, beside the child.
        needs: The data that the ranks read.
        settings: The configuration.
        folder: The run folder.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    try:
        patience = Patience.of(settings.timeout)
        prepared = Prepared(
            **run_in_child(prepare, settings, needs, folder, graph, patience=patience, beside=find_work)
        )
        say(prepared.summary)
        return Result(settings.job, _start(find_work(), Job(settings, folder, prepared, model)))
    finally:
        shutil.rmtree(folder / PREPARED, ignore_errors=True)


def connect(settings: Settings, rank: int, world_size: int, listener: socket.socket | None) -> Communicator:
    """Joins the run's ranks.

    Args:
        settings: The configuration.
        rank: This rank.
        world_size: Number of ranks.
        listener: Listening socket of the meeting point, on rank 0 of a local run.
    """
    comm: type[Communicator] = settings.comm.load()
    device = torch.device(comm.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    return comm.connect(rank, world_size, device=device, timeout=settings.timeout, listener=listener)


def _start(work: RankWork, job: Job) -> dict[str, Any]:
    """Starts the ranks, and returns the leader's figures."""
    settings, comm, patience = job.settings, job.settings.comm.load(), Patience.of(job.settings.timeout)
    if comm.in_one_process:
        return launch(
            functools.partial(_thread_ranks, work, job), 1, patience=patience, name="the process of all ranks"
        )
    on_gpus = comm.device_type == "cuda"
    if on_gpus and torch.cuda.device_count() < settings.world_size:
        serving = f" and sync.servers={settings.servers}" if settings.servers else ""
        raise UserError(
            f"comm={settings.comm.name} needs a GPU for each of workers={settings.workers}{serving}, "
            f"found {torch.cuda.device_count()}"
        )
    ranks = functools.partial(_process_rank, work, job)
    return launch(ranks, settings.world_size, start_method="spawn" if on_gpus else "fork", patience=patience)


def _thread_ranks(
    work: RankWork, job: Job, rank: int, world_size: int, listener: socket.socket | None
) -> dict[str, Any]:
    """Does the work of all ranks in this process, the only one that was started."""
    comm: type[Communicator] = job.settings.comm.load()
    results = comm.run(functools.partial(work, job), job.settings.world_size, timeout=job.settings.timeout)
    return results[0]


def _process_rank(
    work: RankWork, job: Job, rank: int, world_size: int, listener: socket.socket | None
) -> dict[str, Any]:
    """Does the work of one rank in this process."""
    progress("the meeting of the ranks")
    comm = connect(job.settings, rank, world_size, listener)
    try:
        return work(job, comm)
    finally:
        comm.close()
