"""From a job to its ranks: started here, or by torchrun or a batch system."""

from __future__ import annotations

import functools
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs.models import Given, ModelSource, Widths
from gnnkit.jobs.say import say
from gnnkit.launch.environment import StartedRank
from gnnkit.launch.processes import launch, run_in_child
from gnnkit.leader.cut import PREPARED, Needs, Prepared, load_graph, load_shard, prepare
from gnnkit.leader.result import Result
from gnnkit.settings import Settings
from gnnkit.strategy import ExecutionStrategy, Worker

PRECISIONS = {32: torch.float32, 64: torch.float64}


@dataclass(frozen=True, slots=True)
class Job:
    """What every rank needs to know. Plain values, so that a fresh process can be told."""

    settings: Settings
    folder: Path
    prepared: Prepared
    model: Given = None  # instead of the one that the configuration names

    @property
    def source(self) -> ModelSource:
        return ModelSource(self.settings.model, self.model)

    def strategy(self) -> ExecutionStrategy:
        """A new strategy."""
        strategy: ExecutionStrategy = self.settings.strategy.create()
        return strategy

    def worker(self, comm: Communicator, shard: int | str | None = None, dtype: torch.dtype | None = None) -> Worker:
        """This rank's part of the run.

        Args:
            comm: The ranks.
            shard: Name of the shard, where it is not the rank's own.
            dtype: Instead of the configured precision.
        """
        settings = self.settings
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
        """What the model of this run must fit."""
        data = worker.shard if worker.graph is None else worker.graph
        edges = data.edge_features
        return Widths(data.features.shape[1], worker.shard.num_classes, 0 if edges is None else edges.shape[1])


RankWork = Callable[[Job, Communicator], dict[str, Any]]  # the leader's figures; collective


def run_ranks(
    work: RankWork, needs: Needs, settings: Settings, folder: Path, graph: Graph | None, model: Given
) -> Result:
    """Prepares the data in a child, then starts the ranks on it, and returns what the leader found.

    Args:
        work: What each rank does.
        needs: What the ranks read.
        settings: The configuration.
        folder: The run folder.
        graph: Instead of the data set.
        model: Instead of the configured model.
    """
    try:
        prepared = Prepared(**run_in_child(prepare, settings, needs, folder, graph))
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
    message: dict[str, Any] = {}
    if folder is not None:
        try:
            message = {"folder": str(folder), "prepared": run_in_child(prepare, settings, needs, folder, graph)}
        except UserError as error:
            message = {"error": str(error)}
    comm = connect(settings, started.rank, started.world_size, None)
    try:
        message = comm.share(message)
        if "error" in message:
            raise UserError(message["error"])
        job = Job(settings, Path(message["folder"]), Prepared(**message["prepared"]), model)
        return Result(settings.job, work(job, comm))
    finally:
        comm.close()
        if folder is not None:
            shutil.rmtree(folder / PREPARED, ignore_errors=True)


def _start(work: RankWork, job: Job) -> dict[str, Any]:
    """Starts the ranks; the leader's figures."""
    workers, comm = job.settings.workers, job.settings.comm.load()
    if comm.in_one_process:
        return launch(functools.partial(_thread_ranks, work, job), 1)
    on_gpus = comm.device_type == "cuda"
    if on_gpus and torch.cuda.device_count() < workers:
        raise UserError(
            f"comm={job.settings.comm.name} needs a GPU for each of workers={workers}, "
            f"found {torch.cuda.device_count()}"
        )
    return launch(functools.partial(_process_rank, work, job), workers, start_method="spawn" if on_gpus else "fork")


def _thread_ranks(
    work: RankWork, job: Job, rank: int, world_size: int, listener: socket.socket | None
) -> dict[str, Any]:
    comm: type[Communicator] = job.settings.comm.load()
    results = comm.run(functools.partial(work, job), job.settings.workers, timeout=job.settings.timeout)
    return results[0]


def _process_rank(
    work: RankWork, job: Job, rank: int, world_size: int, listener: socket.socket | None
) -> dict[str, Any]:
    comm = connect(job.settings, rank, world_size, listener)
    try:
        return work(job, comm)
    finally:
        comm.close()


def connect(settings: Settings, rank: int, world_size: int, listener: socket.socket | None) -> Communicator:
    """Joins the run's ranks."""
    comm: type[Communicator] = settings.comm.load()
    device = torch.device(comm.device_type)
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
        torch.cuda.set_device(device)
    return comm.connect(rank, world_size, device=device, timeout=settings.timeout, listener=listener)
