"""From a job to its ranks: started here, or by torchrun or a batch system."""

from __future__ import annotations

import copy
import functools
import os
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnkit.comm import Communicator, Mailbox
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs.identity import identity, share_state
from gnnkit.jobs.models import Given, ModelSource, Widths
from gnnkit.jobs.say import say
from gnnkit.launch.entry import die_with_parent
from gnnkit.launch.environment import LOOPBACK, StartedRank
from gnnkit.launch.handshake import agree
from gnnkit.launch.processes import launch, run_in_child
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.leader.channel import LEADER
from gnnkit.leader.cut import PREPARED, Needs, Prepared, load_graph, load_shard, prepare
from gnnkit.leader.result import Result
from gnnkit.settings import Settings
from gnnkit.strategy import ExecutionStrategy, Worker

PRECISIONS = {32: torch.float32, 64: torch.float64}
HEARTBEAT = 1.0  # seconds, at most a quarter of comm.timeout
_PREPARATION = "preparation"  # tag of the leader's letters


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank needs to know. Plain values, for a process that starts afresh."""

    settings: Settings
    folder: Path
    prepared: Prepared
    model: Given = None  # instead of the one that the configuration names

    @property
    def source(self) -> ModelSource:
        return ModelSource(self.settings.model, self.model)

    def strategy(self) -> ExecutionStrategy:
        """Makes a new strategy."""
        strategy: ExecutionStrategy = self.settings.strategy.create()
        return strategy

    def worker(self, comm: Communicator, shard: int | str | None = None, dtype: torch.dtype | None = None) -> Worker:
        """Makes this rank's part of the run.

        Args:
            comm: The ranks.
            shard: Name of the shard, where it is not the rank's own.
            dtype: Instead of the configured precision.
        """
        settings = self.settings
        progress("reading its shard")
        torch.set_num_threads(settings.threads)
        return Worker(
            comm,
            load_shard(self.folder, comm.rank if shard is None else shard),
            dtype or PRECISIONS[settings.trainer.precision],
            settings.seed,
            load_graph(self.folder),
            None if settings.sampler is None else settings.sampler.create(),
            settings.threads,
        )

    def widths(self, worker: Worker) -> Widths:
        """Returns what the model of this run must fit."""
        data = worker.shard if worker.graph is None else worker.graph
        edges = data.edge_features
        return Widths(data.features.shape[1], worker.shard.num_classes, 0 if edges is None else edges.shape[1])


RankWork = Callable[[Job, Communicator], dict[str, Any]]  # the leader's figures; collective


def run_ranks(
    work: RankWork, needs: Needs, settings: Settings, folder: Path, graph: Graph | None, model: Given
) -> Result:
    """Prepares the data in a child, starts the ranks, and returns the leader's result.

    Args:
        work: What each rank does.
        needs: What the ranks read.
        settings: The configuration.
        folder: The run folder.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    try:
        patience = Patience.of(settings.timeout)
        prepared = Prepared(**run_in_child(prepare, settings, needs, folder, graph, patience=patience))
        say(prepared.summary)
        return Result(settings.job, _start(work, Job(settings, folder, prepared, model)))
    finally:
        shutil.rmtree(folder / PREPARED, ignore_errors=True)


def join(
    work: RankWork,
    needs: Needs,
    settings: Settings,
    folder: Path | None,
    started: StartedRank,
    graph: Graph | None,
    model: Given,
) -> Result:
    """Does one rank's work in a run that torchrun or a batch system has started.

    The ranks connect, compare what they run, and then wait for the leader's preparation.

    Args:
        work: What each rank does.
        needs: What the ranks read.
        settings: The configuration.
        folder: The run folder, for the leader only, on a disk that all ranks see.
        started: This rank.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    if settings.comm.load().in_one_process:
        raise UserError(f"comm={settings.comm.name} makes its ranks itself, but ranks were started: choose another one")
    if started.by_torchrun:
        die_with_parent()
    os.environ.update(started.variables())
    comm = connect(settings, started.rank, started.world_size, _listener(started))
    try:
        agree(comm, identity(settings, graph, model))
        if isinstance(model, nn.Module):
            model = copy.deepcopy(model)
            share_state(comm, model)
        with comm.mailbox() as mailbox:
            if folder is None:
                job = hear_of_job(mailbox, settings, model)
            else:
                job = prepare_for_others(mailbox, settings, needs, folder, graph, model)
        return Result(settings.job, work(job, comm))
    finally:
        comm.close()
        if folder is not None:
            shutil.rmtree(folder / PREPARED, ignore_errors=True)


def prepare_for_others(
    mailbox: Mailbox, settings: Settings, needs: Needs, folder: Path, graph: Graph | None, model: Given
) -> Job:
    """Prepares the data in a child, and tells the other ranks.

    Heartbeats go to them meanwhile.

    Args:
        mailbox: Between the ranks.
        settings: The configuration.
        needs: What the ranks read.
        folder: The run folder.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    others, last = [rank for rank in range(mailbox.world_size) if rank != mailbox.rank], time.monotonic()

    def tell(**fields: Any) -> None:
        for rank in others:
            mailbox.put(rank, _PREPARATION, fields)

    def beat() -> None:
        nonlocal last
        if time.monotonic() - last > min(HEARTBEAT, settings.timeout / 4):
            tell()
            last = time.monotonic()

    try:
        patience = Patience.of(settings.timeout)
        prepared = run_in_child(prepare, settings, needs, folder, graph, patience=patience, meanwhile=beat)
    except UserError as error:
        tell(error=str(error))
        raise
    tell(folder=str(folder), prepared=prepared)
    say(prepared["summary"])
    return Job(settings, folder, Prepared(**prepared), model)


def hear_of_job(mailbox: Mailbox, settings: Settings, model: Given) -> Job:
    """Waits for the leader's preparation. Each heartbeat renews the deadline.

    Args:
        mailbox: Between the ranks.
        settings: The configuration.
        model: Instead of the configured model.
    """
    while True:
        message = mailbox.take(_PREPARATION, src=LEADER, timeout=settings.timeout).fields
        if "error" in message:
            raise UserError(message["error"])
        if "prepared" in message:
            return Job(settings, Path(message["folder"]), Prepared(**message["prepared"]), model)


def _start(work: RankWork, job: Job) -> dict[str, Any]:
    """Starts the ranks, and returns the leader's figures."""
    workers, comm, patience = job.settings.workers, job.settings.comm.load(), Patience.of(job.settings.timeout)
    if comm.in_one_process:
        return launch(
            functools.partial(_thread_ranks, work, job), 1, patience=patience, name="the process of all ranks"
        )
    on_gpus = comm.device_type == "cuda"
    if on_gpus and torch.cuda.device_count() < workers:
        raise UserError(
            f"comm={job.settings.comm.name} needs a GPU for each of workers={workers}, "
            f"found {torch.cuda.device_count()}"
        )
    ranks, method = functools.partial(_process_rank, work, job), "spawn" if on_gpus else "fork"
    return launch(ranks, workers, start_method=method, patience=patience)  # type: ignore[arg-type]


def _thread_ranks(
    work: RankWork, job: Job, rank: int, world_size: int, listener: socket.socket | None
) -> dict[str, Any]:
    comm: type[Communicator] = job.settings.comm.load()
    results = comm.run(functools.partial(work, job), job.settings.workers, timeout=job.settings.timeout)
    return results[0]


def _process_rank(
    work: RankWork, job: Job, rank: int, world_size: int, listener: socket.socket | None
) -> dict[str, Any]:
    progress("the meeting of the ranks")
    comm = connect(job.settings, rank, world_size, listener)
    try:
        return work(job, comm)
    finally:
        comm.close()


def _listener(started: StartedRank) -> socket.socket | None:
    """Opens the meeting point on loopback, where this rank is the one to do so."""
    if not started.on_loopback or started.rank != LEADER:
        return None
    try:
        return socket.create_server((LOOPBACK, started.master_port or 0), backlog=max(started.world_size, 128))
    except OSError as error:
        raise UserError(f"MASTER_PORT={started.master_port}: {error.strerror}; set another port") from error


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
