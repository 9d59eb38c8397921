"""job=plan of sampled batches: what the ranks will read from disk, and their memory."""

from __future__ import annotations

import functools
from typing import Any

import torch

from gnnkit.comm import Communicator, Mailbox
from gnnkit.jobs.rank_job import RankJob, with_servers
from gnnkit.jobs.train import make_module
from gnnkit.launch.progress import progress
from gnnkit.strategy.on_disk import SHARE
from gnnkit.training.ddp import SyncMeter
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer
from gnnkit.watch.channel import LEADER
from gnnkit.watch.watch import peak_memory

EPOCHS = 2  # of which the batches are drawn: the second begins with a full cache
STEPS = 16  # whose memory is measured


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
    module = make_module(job, job.strategy(), job.worker(comm))
    if module.worker.disk is not None:
        progress("drawing batches")
        epochs = min(EPOCHS, job.settings.trainer.max_epochs)
        figures["features_read"] = module.strategy.foresee_reads(epochs)
        module.strategy.close()
        module = make_module(job, job.strategy(), job.worker(comm))
    progress("taking steps")
    figures["memory"] = _memory(job, module, mailbox, figures.get("features_read", {}).get("window", 0))
    return figures if comm.rank == LEADER else {}


def _memory(job: RankJob, module: TrainingModule, mailbox: Mailbox, window: int) -> list[int]:
    """Returns the bytes that each rank takes at most in training. Collective.

    Measures some steps, and adds the cache and the batches ahead that these did not
    fill.

    Args:
        job: The job.
        module: The module of this rank.
        mailbox: Letters between all ranks.
        window: Batches drawn ahead of those that are read from disk.
    """
    comm, disk, sync = module.worker.comm, module.worker.disk, job.sync()
    options: dict[str, Any] = {"max_epochs": 1, "limit_train_batches": STEPS, "limit_val_batches": 0, "logger": False}
    make_trainer(module, sync, SyncMeter(), mailbox=mailbox, **options).fit(module)
    sync.close()
    module.strategy.close()
    rest = 0
    if disk is not None:
        empty = disk.cache_rows - min(disk.counts.rows, disk.cache_rows)
        ahead = disk.cache_rows * disk.row_bytes // SHARE * max(window - STEPS, 0) // max(window, 1)
        rest = empty * disk.row_bytes + ahead
    found = torch.zeros(comm.world_size, dtype=torch.int64, device=comm.device)
    found[comm.rank] = peak_memory(comm.device) + rest
    return [int(size) for size in comm.all_reduce(found).tolist()]
