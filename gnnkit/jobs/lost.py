"""Runs that go on when a worker is lost: `sync.on_lost=continue`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnkit.comm import Communicator, Mailbox, Survivors
from gnnkit.engine import LearnedRows
from gnnkit.errors import UserError
from gnnkit.evaluation import Evaluation, SurvivorsEvaluation
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import dispensable
from gnnkit.leader.channel import LEADER
from gnnkit.settings import Settings
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.sync import GradientSync
from gnnkit.task import NodeTask, Task


def check(settings: Settings, strategy: ExecutionStrategy, task: Task) -> None:
    """Raises `UserError` for a run that cannot go on without a worker.

    Args:
        settings: The configuration.
        strategy: The configured strategy.
        task: The configured task.
    """
    if strategy.samples and strategy.fetches:
        raise UserError(
            "sync.on_lost=continue: workers fetch rows from each other, so each step needs every worker: use "
            "strategy.topology=shared with strategy.features=shared, or sync.on_lost=stop"
        )
    if not strategy.reads_graph or strategy.exchanges:
        raise UserError(
            f"sync.on_lost=continue: strategy={settings.strategy.name} exchanges rows between workers, so each step "
            "needs every worker: choose strategy=individual_sample, strategy=preset_workload or sync.on_lost=stop"
        )
    if not isinstance(task, NodeTask):
        raise UserError(
            f"sync.on_lost=continue: task={settings.task.name} measures with rows of all workers, so each evaluation "
            "needs every worker: choose a task about nodes or sync.on_lost=stop"
        )
    if settings.comm.load().in_one_process:
        raise UserError(
            f"sync.on_lost=continue: with comm={settings.comm.name} all workers are one process and end together: "
            "choose comm=gloo"
        )
    if (started := settings.started) is not None and started.by_torchrun:
        raise UserError(
            "sync.on_lost=continue: torchrun ends all workers when one is lost: start `gnnkit` without torchrun"
        )


@contextmanager
def going_on(workers: Communicator, mailbox: Mailbox, sync: GradientSync) -> Iterator[Communicator]:
    """Gives the workers, as survivors where the run goes on without lost workers.

    Workers that the others can do without tell the launcher, once all have met.

    Args:
        workers: The workers.
        mailbox: Letters between all ranks, workers first.
        sync: The gradient synchronisation.
    """
    if sync.on_lost != "continue":
        yield workers
        return
    survivors = Survivors(workers, mailbox, range(workers.world_size))
    try:
        survivors.all_reduce(torch.zeros(1))
        if survivors.rank != LEADER:
            dispensable()
        yield survivors
    finally:
        survivors.close()


def evaluation(
    job: RankJob, worker: Worker, model: nn.Module, scratch: Path | None = None, learned: LearnedRows | None = None
) -> Evaluation:
    """Makes the evaluation of a model, also of the nodes of workers that are lost.

    Args:
        job: The job.
        worker: This rank.
        model: The model.
        scratch: Folder for files between two layers. Default: none.
        learned: The learned input rows. None: input rows are features.
    """

    def make(worker: Worker) -> Evaluation:
        return Evaluation.of(worker, model, job.settings.trainer.evaluation_memory, scratch, learned)

    if isinstance(worker.comm, Survivors):
        return SurvivorsEvaluation(worker, worker.comm, make, job.parts.adopting)
    return make(worker)


def figures(comm: Communicator) -> dict[str, Any]:
    """Names the workers that the run went on without."""
    lost = sorted(comm.lost) if isinstance(comm, Survivors) else []
    return {"lost_workers": [f"rank {rank}" for rank in lost]}
