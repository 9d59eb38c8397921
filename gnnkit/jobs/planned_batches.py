"""job=plan of sampled batches: what the ranks will read from disk, and their memory."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import torch

from gnnkit.comm import Communicator, Mailbox
from gnnkit.jobs.rank_job import RankJob, with_servers
from gnnkit.jobs.train import make_module
from gnnkit.launch.progress import progress
from gnnkit.leader.channel import LEADER
from gnnkit.leader.watch import peak_memory
from gnnkit.training.module import TrainingModule

EPOCHS = 2  # of which the batches are drawn: the second begins with a full cache
STEPS = 3  # whose memory is measured


def plan_batches(job: RankJob, world: Communicator) -> dict[str, Any]:
    """Draws the batches of the first epochs, and computes the first few.

    Collective. Returns the figures on the leader.

    Args:
        job: The job.
        world: The workers, and after them the servers.
    """
    return with_servers(job, world, functools.partial(_work, job)) or {}


def _work(job: RankJob, comm: Communicator, mailbox: Mailbox) -> dict[str, Any]:
    module = make_module(job, job.strategy(), job.worker(comm))
    figures: dict[str, Any] = {"job": "plan", "model": job.source.name, "place": job.prepared.place}
    figures["memory"] = _memory(module)
    module.strategy.close()
    if job.prepared.place == "disk":
        progress("drawing batches")
        other = make_module(job, job.strategy(), job.worker(comm))
        epochs = min(EPOCHS, job.settings.trainer.max_epochs)
        figures["features_read"] = other.strategy.foresee_reads(epochs)
        other.strategy.close()
    return figures if comm.rank == LEADER else {}


def _memory(module: TrainingModule) -> list[int]:
    """Returns the bytes that each rank will take at most. Collective.

    The memory of a rank after a few steps, and the part of the cache that these did
    not fill.
    """
    comm, disk = module.worker.comm, module.worker.disk
    for batch in itertools.islice(module.strategy.batches(0), STEPS):
        with batch.precision():
            batch.outputs(module.model(batch.x, batch.adjacencies)).float().sum().backward()  # type: ignore[no-untyped-call]
    filled = 0 if disk is None else min(disk.counts.rows, disk.cache_rows)
    rest = 0 if disk is None else (disk.cache_rows - filled) * disk.row_bytes
    found = torch.zeros(comm.world_size, dtype=torch.int64, device=comm.device)
    found[comm.rank] = peak_memory(comm.device) + rest
    found = comm.all_reduce(found)
    return [int(size) for size in found.tolist()]
