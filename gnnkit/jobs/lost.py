"""Runs that go on when a worker is lost: `sync.on_lost=continue`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gnnkit.comm import Communicator, Mailbox, Survivors
from gnnkit.errors import UserError
from gnnkit.evaluation import Evaluation, SurvivorsEvaluation
from gnnkit.jobs.job import Job
from gnnkit.launch.environment import started_rank
from gnnkit.launch.progress import dispensable
from gnnkit.leader.channel import LEADER
from gnnkit.leader.cut import adopting_shard
from gnnkit.settings import Settings
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.sync import GradientSync


def check(settings: Settings, strategy: ExecutionStrategy) -> None:
    """Raises `UserError` for a run that cannot go on without a worker."""
    if not strategy.reads_graph:
        raise UserError(
            f"sync.on_lost=continue: strategy={settings.strategy.name} exchanges rows between workers, so each step "
            "needs every worker: choose strategy=individual_sample or sync.on_lost=stop"
        )
    if settings.comm.load().in_one_process:
        raise UserError(
            f"sync.on_lost=continue: with comm={settings.comm.name} all workers are one process and end together: "
            "choose comm=gloo"
        )
    if (started := started_rank()) is not None and started.by_torchrun:
        raise UserError(
            "sync.on_lost=continue: torchrun ends all workers when one is lost: start `gnnkit` without torchrun"
        )


@contextmanager
def workers(job: Job, world: Communicator, mailbox: Mailbox, sync: GradientSync) -> Iterator[Communicator]:
    """Gives the workers among all ranks. Only workers call this function.

    Workers that go on without each other tell the launcher as soon as all have met.

    Args:
        job: The job.
        world: All ranks.
        mailbox: Letters between all ranks.
        sync: The gradient synchronisation.
    """
    if sync.on_lost != "continue":
        yield job.workers(world)
        return
    comm = Survivors(world, mailbox, range(job.settings.workers))
    try:
        comm.all_reduce(torch.zeros(1))
        if comm.rank != LEADER:
            dispensable()
        yield comm
    finally:
        comm.close()


def evaluation(job: Job, worker: Worker, make: Callable[[Worker], Evaluation]) -> Evaluation:
    """Makes the evaluation, also of the nodes of workers that are lost.

    Args:
        job: The job.
        worker: This rank.
        make: Makes the evaluation of a rank's nodes.
    """
    if isinstance(worker.comm, Survivors):
        return SurvivorsEvaluation(worker, worker.comm, make, functools.partial(adopting_shard, job.folder))
    return make(worker)


def figures(comm: Communicator) -> dict[str, Any]:
    """Names the workers that the run went on without."""
    lost = sorted(comm.lost) if isinstance(comm, Survivors) else []
    return {"lost_workers": [f"rank {rank}" for rank in lost]}
