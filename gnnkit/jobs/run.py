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
from gnnkit.launch.child import StartMethod
from gnnkit.launch.phases import phase, say
from gnnkit.launch.processes import launch, run_in_child
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.cut import Needs
from gnnkit.leader.folder import PREPARED
from gnnkit.leader.result import Result
from gnnkit.leader.stored import prepared as prepare
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
        in_child = functools.partial(run_in_child, patience=patience, beside=find_work)
        prepared = prepare(settings, needs, folder, graph, in_child)
        say(prepared.summary)
        phase(f"starting {settings.world_size} ranks, comm={settings.comm.name}")
        work = functools.partial(find_work(), Job(settings, folder, prepared, model))
        return Result(settings.job, start_ranks(work, settings, settings.world_size))
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


def start_ranks(
    work: Callable[[Communicator], dict[str, Any]],
    settings: Settings,
    num_ranks: int,
    meanwhile: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Starts ranks on this machine, and returns the leader's figures.

    Args:
        work: The work of each rank. Collective.
        settings: The configuration.
        num_ranks: Number of ranks.
        meanwhile: Called a few times a second. Default: does nothing.
    """
    comm, patience = settings.comm.load(), Patience.of(settings.timeout)
    if comm.in_one_process:
        threads = functools.partial(_thread_ranks, work, settings, num_ranks)
        return launch(threads, 1, patience=patience, name="the process of all ranks", meanwhile=meanwhile)
    on_gpus = comm.device_type == "cuda"
    if on_gpus and torch.cuda.device_count() < num_ranks:
        serving = f" and sync.servers={settings.servers}" if settings.servers else ""
        raise UserError(
            f"comm={settings.comm.name} needs a GPU for each of workers={settings.workers}{serving}, "
            f"found {torch.cuda.device_count()}"
        )
    ranks = functools.partial(_process_rank, work, settings)
    method: StartMethod = "spawn" if on_gpus else "fork"
    return launch(ranks, num_ranks, start_method=method, patience=patience, meanwhile=meanwhile)


def _thread_ranks(
    work: Callable[[Communicator], dict[str, Any]],
    settings: Settings,
    num_ranks: int,
    rank: int,
    world_size: int,
    listener: socket.socket | None,
) -> dict[str, Any]:
    """Does the work of all ranks in this process, the only one that was started."""
    comm: type[Communicator] = settings.comm.load()
    return comm.run(work, num_ranks, timeout=settings.timeout)[0]


def _process_rank(
    work: Callable[[Communicator], dict[str, Any]],
    settings: Settings,
    rank: int,
    world_size: int,
    listener: socket.socket | None,
) -> dict[str, Any]:
    """Does the work of one rank in this process."""
    progress("the meeting of the ranks")
    comm = connect(settings, rank, world_size, listener)
    try:
        return work(comm)
    finally:
        comm.close()
