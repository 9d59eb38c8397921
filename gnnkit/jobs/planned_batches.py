"""job=plan of ranks' own batches: what these read from disk, and their memory."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnnkit.comm import Communicator, Mailbox
from gnnkit.jobs import lost
from gnnkit.jobs.few_steps import few_steps
from gnnkit.jobs.rank_job import RankJob, with_servers
from gnnkit.jobs.rows import scratch
from gnnkit.jobs.train import make_module, measured_splits
from gnnkit.launch.progress import progress
from gnnkit.strategy import GatheredRows, Worker
from gnnkit.strategy.on_disk import SHARE
from gnnkit.training.module import TrainingModule
from gnnkit.watch.channel import LEADER
from gnnkit.watch.watch import peak_memory

EPOCHS = 2  # of which the batches are drawn: the second begins with a full cache
STEPS = 16  # of each epoch whose memory is measured
EVALUATED = 10_000_000  # edges of each rank, at most, in the evaluation whose memory is measured


def plan_batches(job: RankJob, world: Communicator) -> dict[str, Any]:
    """Takes a few steps, and draws the batches of the first epochs.

    Collective. Returns the figures on the leader.

    Args:
        job: The job.
        world: The workers, and after them the servers.
    """
    return with_servers(job, world, functools.partial(_work, job)) or {}


def _work(job: RankJob, comm: Communicator, mailbox: Mailbox) -> dict[str, Any]:
    figures: dict[str, Any] = {"job": "plan", "model": job.source.name, "place": job.prepared.place}

    def module() -> TrainingModule:
        return make_module(job, job.strategy(), job.worker(comm), scratch=scratch(job, comm))

    made = module()
    if made.worker.disk is not None and not made.strategy.lacks(GatheredRows):
        progress("drawing batches")
        epochs = min(EPOCHS, job.settings.trainer.max_epochs)
        figures["features_read"] = made.strategy.foresee_reads(epochs)
        made.strategy.close()
        made = module()
    progress("taking steps")
    figures["memory"] = _memory(job, made, mailbox, figures.get("features_read", {}).get("window", 0))
    return figures if comm.rank == LEADER else {}


def _memory(job: RankJob, module: TrainingModule, mailbox: Mailbox, window: int) -> list[int]:
    """Returns the bytes that each rank takes at most. Collective.

    Measures some steps and an evaluation, and adds the cache and the batches ahead that
    these did not fill.

    Args:
        job: The job.
        module: The module of this rank.
        mailbox: Letters between all ranks.
        window: Batches drawn ahead of those that are read from disk.
    """
    comm, disk = module.worker.comm, module.worker.disk
    if module.learned is None and (some := _some_nodes(module.worker)) is not module.worker:
        splits = measured_splits(module.task)
        module.evaluation = lost.evaluation(job, some, module.model, scratch(job, comm), splits=splits)
    few_steps(module, job.sync(), mailbox, steps=STEPS)
    rest = 0
    if disk is not None:
        empty = disk.cache_rows - min(disk.counts.rows, disk.cache_rows)
        ahead = disk.cache_rows * disk.row_bytes // SHARE * max(window - STEPS, 0) // max(window, 1)
        rest = empty * disk.row_bytes + ahead
    found = torch.zeros(comm.world_size, dtype=torch.int64, device=comm.device)
    found[comm.rank] = peak_memory(comm.device) + rest
    return [int(size) for size in comm.all_reduce(found).tolist()]


def _some_nodes(worker: Worker) -> Worker:
    """Returns the worker with as many nodes as `EVALUATED` in-edges enter.

    An evaluation cuts more nodes into chunks of equal memory. The worker itself, where
    it has no more, or where its shard holds the edges.
    """
    if worker.graph is None or worker.fetches:
        return worker
    shard, indptr = worker.shard, worker.graph.csc.indptr
    count = int(np.searchsorted(np.cumsum(indptr[shard.owned + 1] - indptr[shard.owned]), EVALUATED)) + 1
    if count >= len(shard.owned):
        return worker
    some = {name: getattr(shard, name)[:count] for name in ("owned", "labels", "split")}
    return replace(worker, shard=replace(shard, **some))
