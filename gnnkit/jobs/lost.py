"""Training that continues without lost workers: `sync.on_lost=continue`."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from gnnkit.comm import Communicator, Mailbox, Survivors
from gnnkit.engine.remote import LearnedRows
from gnnkit.jobs.rank_job import RankJob
from gnnkit.launch.progress import dispensable
from gnnkit.leader.channel import LEADER
from gnnkit.strategy import Worker
from gnnkit.sync import GradientSync
from gnnkit.task.evaluation import Evaluation, SurvivorsEvaluation


@contextmanager
def going_on(workers: Communicator, mailbox: Mailbox, sync: GradientSync) -> Iterator[Communicator]:
    """Yields the workers, as `Survivors` under `sync.on_lost=continue`.

    After the first collective, workers other than the leader tell the launcher that the
    run may continue without them.
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
    job: RankJob,
    worker: Worker,
    model: nn.Module,
    scratch: Path | None = None,
    learned: LearnedRows | None = None,
    splits: Collection[str] | None = None,
) -> Evaluation:
    """Makes the evaluation of a model, which also covers lost workers' nodes.

    Args:
        job: The job.
        worker: This rank.
        model: The model.
        scratch: Folder for temporary files between layers. Default: none.
        learned: The learned input rows. None: input rows are features.
        splits: Splits whose nodes are evaluated. None: all nodes.
    """

    def make(worker: Worker, splits: Collection[str] | None = None) -> Evaluation:
        return Evaluation.of(worker, model, job.settings.trainer.evaluation_memory, scratch, learned, splits)

    if isinstance(worker.comm, Survivors):
        return SurvivorsEvaluation(worker, worker.comm, make, job.parts.adopting)
    return make(worker, splits)


def figures(comm: Communicator) -> dict[str, Any]:
    """Lists the lost workers."""
    lost = sorted(comm.lost) if isinstance(comm, Survivors) else []
    return {"lost_workers": [f"rank {rank}" for rank in lost]}
