"""job=verify: a few steps on the ranks against one process, in float64."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from gnnkit.comm import Communicator, Mailbox
from gnnkit.comm.average import to_vector
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.evaluation import by_node
from gnnkit.jobs.iterate import iterate
from gnnkit.jobs.rank_job import RankJob, with_servers
from gnnkit.jobs.train import make_module
from gnnkit.launch.progress import progress
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.store.parts import WHOLE
from gnnkit.strategy import Batch, ExecutionStrategy, JoinedLayers, Worker
from gnnkit.training.ddp import SyncMeter
from gnnkit.training.module import TrainingModule
from gnnkit.training.trainer import make_trainer
from gnnkit.watch.channel import LEADER

EPOCHS, STEPS = 3, 4  # steps of an epoch at most
TOLERANCE = 1e-10
LEARNING_RATE = 0.1
_FOREVER = 1e6  # seconds, as the reference has no peers that could be lost


@dataclass(frozen=True, slots=True)
class _Reference:
    """The process that the ranks are compared with."""

    strategy: ExecutionStrategy
    num_ranks: int  # threads of the process

    @property
    def name(self) -> str:
        """Name of the reference in `result.json`."""
        if self.num_ranks == 1:
            return "one rank with the whole graph"
        return f"{self.num_ranks} ranks as threads of one process"

    @classmethod
    def of(cls, job: RankJob, worker: Worker) -> _Reference:
        """Takes one rank where the strategy promises the result of one, else all."""
        strategy, sync = job.strategy(), job.sync()
        alone = strategy.on_one_rank(worker.comm.world_size, worker.sampler) if sync.exact else None
        joined = strategy.ability(JoinedLayers)
        if (joined is not None and not joined.by_owners) and isinstance(
            job.own_model(worker, job.widths(worker), job.task()), EdgeIndexModel
        ):
            alone = None  # the graph of a rank's batch depends on all of its seeds
        return cls(strategy, worker.comm.world_size) if alone is None else cls(alone, 1)


def verify(job: RankJob, world: Communicator) -> dict[str, Any]:
    """Trains on the ranks, then trains on the leader alone, and compares.

    Where the strategy promises the result of one process, the reference is one rank
    with the whole graph. Otherwise the reference is all ranks as threads of this
    process. Both use the trainer of `job=train`, DDP included, up to the final average.
    The optimiser is SGD, because changes of parameters then show the gradients.

    Collective. Returns the figures on the leader.

    Args:
        job: The job.
        world: The workers, and after them the servers.
    """
    if not job.sync().lockstep:
        raise UserError(
            f"job=verify needs ranks that step together, the result of sync={job.settings.sync.name} depends on time"
        )
    if not job.strategy().steps.repeatable:
        raise UserError(
            f"job=verify needs steps that do not depend on time, unlike strategy={job.settings.strategy.name} with "
            "these options: set strategy.local_iterations to a number"
        )
    return with_servers(job, world, functools.partial(_verify, job)) or {}


def _verify(job: RankJob, comm: Communicator, mailbox: Mailbox) -> dict[str, Any]:
    """Does the work of one worker. Collective over the workers.

    Args:
        job: The job.
        comm: The workers.
        mailbox: Letters between workers and servers.
    """
    worker = job.worker(comm, dtype=torch.float64)
    found = _steps(job, job.strategy(), worker, mailbox)
    if comm.rank != LEADER:
        return {}
    reference = _Reference.of(job, worker)

    def expected(comm: Communicator, mailbox: Mailbox) -> dict[str, Tensor]:
        own = job.worker(comm, WHOLE if reference.num_ranks == 1 else None, torch.float64)
        return _steps(job, copy.deepcopy(reference.strategy), own, mailbox)

    ranks = functools.partial(with_servers, job, work=expected)
    alone = Threads.run(ranks, reference.num_ranks + job.settings.servers, timeout=_FOREVER)[0]
    assert alone is not None
    return _compared(found, alone) | {"reference": reference.name, "note": _note(job, worker)}


def verify_program(job: RankJob, comm: Communicator) -> dict[str, Any]:
    """Runs a program on the ranks, then on the leader alone with the whole graph.

    Collective. Returns the figures on the leader.
    """

    def values(comm: Communicator, shard: str | None) -> dict[str, Tensor]:
        worker = job.worker(comm, shard, torch.float64)
        return {"values": _all_rows(iterate(job.source.make_program(), worker, lambda *_: None).values, worker)}

    found = values(comm, None)
    if comm.rank != LEADER:
        return {}
    expected = Threads.run(functools.partial(values, shard=WHOLE), 1, timeout=_FOREVER)[0]
    return _compared(found, expected) | {"reference": "one rank with the whole graph"}


def _steps(job: RankJob, strategy: ExecutionStrategy, worker: Worker, mailbox: Mailbox) -> dict[str, Tensor]:
    """Takes some steps. Returns losses, gradients, parameters and the last logits.

    Collective. Only the leader's logits are of all nodes.

    Args:
        job: The job.
        strategy: Hands out the batches.
        worker: This rank.
        mailbox: Letters between workers and servers.
    """
    module = make_module(job, strategy, worker, kind=_Plain)
    recorder, sync = _Recorder(), job.sync()
    options: dict[str, Any] = {
        "max_epochs": EPOCHS,
        "limit_train_batches": STEPS,
        "limit_val_batches": 0,
        "logger": False,
    }
    make_trainer(module, sync, SyncMeter(), mailbox=mailbox, callbacks=[recorder], **options).fit(module)
    module.join()
    sync.close()
    strategy.close()
    learned = {}
    if module.embedding is not None:
        learned["embedding"] = _all_rows(module.embedding.rows.owned.detach(), worker)
    return learned | {
        "loss": worker.comm.all_reduce(torch.stack(recorder.losses)),
        "gradients": torch.stack(recorder.gradients),
        "parameters": _values(module),
        "logits": _all_rows(module.evaluation.logits(module.model), worker),
    }


class _Plain(TrainingModule):
    """A module that steps all parameters by SGD, whatever the model's own optimiser.

    Other optimisers divide by gradients that are nearly zero.
    """

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.model.parameters(), lr=LEARNING_RATE)


class _Recorder(Callback):
    """The recorder of every step's loss and gradient.

    A loss is this rank's part. A gradient is the change of the parameters, divided by
    the learning rate.
    """

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.gradients: list[Tensor] = []

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        progress(f"step {len(self.losses)}")
        self._before = _values(module)

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.losses.append(module.local_loss)
        self.gradients.append((self._before - _values(module)) / LEARNING_RATE)


def _values(module: nn.Module) -> Tensor:
    return to_vector(module.parameters())


def _all_rows(rows: Tensor, worker: Worker) -> Tensor:  # [num_nodes, ...] on the leader
    joined = by_node(rows, worker)
    return rows if joined is None else joined


def _compared(found: dict[str, Tensor], expected: dict[str, Tensor]) -> dict[str, Any]:
    differences, verified = {}, True
    for name, reference in expected.items():
        differences[name] = float((found[name].cpu() - reference).abs().max())
        verified &= differences[name] <= TOLERANCE * max(1.0, float(reference.abs().max()))
    return {"job": "verify", "verified": verified, "largest_difference": differences, "tolerance": TOLERANCE}


def _note(job: RankJob, worker: Worker) -> str | None:
    """Says why the model is not exact, where the reason is known."""
    return "\n".join(job.inexact(worker)) or None
