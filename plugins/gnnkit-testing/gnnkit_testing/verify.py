"""job=verify: compares a few steps on the ranks with one process, in float64."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn

from gnnkit.comm import LEADER, Communicator, Mailbox
from gnnkit.comm.agreement import to_vector
from gnnkit.comm.threads import Threads
from gnnkit.config.settings import AUTO
from gnnkit.errors import UserError
from gnnkit.jobs.iterate import iterate
from gnnkit.jobs.rank_job import RankJob, with_servers
from gnnkit.jobs.rank_run import make_module
from gnnkit.launch.progress import progress
from gnnkit.leader.meter import SyncMeter
from gnnkit.partition.store.parts import WHOLE
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.task.evaluation import by_node
from gnnkit.training.finite import Guard
from gnnkit.training.step import own_method
from gnnkit.training.trainer import make_trainer

EPOCHS, STEPS = 3, 4  # STEPS: maximum per epoch
TOLERANCE = 1e-10  # relative to the largest value, or absolute for values below 1
AMPLIFIED = 1e-6  # sensitivity, relative to the largest value, above which a tensor is not compared
_ROUNDINGS = 100.0  # accepted difference in units of the reference's own sensitivity
_LAST_BITS = 2.0**-50  # relative change of a parameter for measuring sensitivity
_OPTIONS: Mapping[str, Any] = {
    "max_epochs": EPOCHS,
    "limit_val_batches": 0,
    "check_val_every_n_epoch": EPOCHS + 1,  # no schedule waits for an evaluation
    "logger": False,
}
_FOREVER = 1e6  # seconds. The reference has no peers that could be lost


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
    """The results of some steps."""

    values: dict[str, Tensor]  # losses, gradients, parameters, logits
    skipped: int  # steps skipped because of a non-finite loss or gradient
    brings_optimizer: bool  # whether the model configures its own optimiser
    num_steps: dict[str, int]  # of all kinds, and approximate ones

    @property
    def are_finite(self) -> bool:
        return self.skipped == 0 and all(bool(value.isfinite().all()) for value in self.values.values())


@dataclass(frozen=True, slots=True)
class _Reference:
    """The single process with which the ranks are compared."""

    strategy: ExecutionStrategy
    num_ranks: int  # threads of the process

    @property
    def name(self) -> str:
        """The name of the reference in `result.json`."""
        alone = self.num_ranks == 1
        return "one rank with the whole graph" if alone else f"{self.num_ranks} ranks as threads of one process"

    @classmethod
    def of(cls, job: RankJob, worker: Worker) -> _Reference:
        """Selects one rank if the strategy guarantees its result, else all ranks."""
        alone = job.alone(worker)
        return cls(job.strategy(), worker.comm.world_size) if alone is None else cls(alone, 1)


def verify(job: RankJob, world: Communicator) -> dict[str, Any]:
    """Trains on the ranks, then on the leader alone, and compares.

    If the strategy guarantees the result of one process, the reference is one rank with
    the full graph. Otherwise it is all ranks as threads of one process. Both use the
    trainer of job=train, including DDP, the optimiser, the schedule and the final
    average.

    The epochs of an approximate scheme are approximate, unless `trainer.exact_shares`
    is configured: the few steps would otherwise be those of its exact start.

    Collective. Returns the figures on the leader.

    Args:
        job: The job.
        world: The workers, followed by the servers.
    """
    trainer = job.settings.trainer
    if trainer.exact_shares == AUTO:
        job = replace(job, settings=replace(job.settings, trainer=replace(trainer, exact_shares=(0.0, 0.0))))
    if not job.sync().lockstep:
        raise UserError(
            f"job=verify needs ranks that step together, but results of sync={job.settings.sync.name} depend on timing"
        )
    return with_servers(job, world, functools.partial(_verify, job)) or {}


def _verify(job: RankJob, comm: Communicator, mailbox: Mailbox) -> dict[str, Any]:
    """Trains and compares one worker. Collective over the workers."""
    worker = job.worker(comm, dtype=torch.float64)
    actual = _steps(job, job.strategy(), worker, mailbox)
    if comm.rank != LEADER:
        return {}
    reference, quiet = _Reference.of(job, worker), replace(job, quiet=True)

    def alone(*, perturb: bool) -> _Steps:
        def steps(comm: Communicator, mailbox: Mailbox) -> _Steps:
            alone_worker = job.worker(comm, WHOLE if reference.num_ranks == 1 else None, torch.float64)
            return _steps(quiet, copy.deepcopy(reference.strategy), alone_worker, mailbox, perturb=perturb)

        ranks = functools.partial(with_servers, job, work=steps)
        results = Threads.run(ranks, reference.num_ranks + job.settings.servers, timeout=_FOREVER)
        assert results[0] is not None
        return results[0]

    figures = _judge(actual, alone(perturb=False), functools.partial(alone, perturb=True))
    notes = [_divergence(job, actual)] if figures["diverges"] else job.check_model(worker).reasons
    if figures["not_compared"]:
        notes = [*notes, _amplification(job, actual, figures["not_compared"])]
    return figures | {"steps": actual.num_steps, "reference": reference.name, "note": "\n".join(notes) or None}


def verify_program(job: RankJob, comm: Communicator) -> dict[str, Any]:
    """Runs a program on the ranks, then on the leader alone with the full graph.

    Collective. Returns the figures on the leader.
    """

    def values(comm: Communicator, shard: str | None) -> dict[str, Tensor]:
        worker = job.worker(comm, shard, torch.float64)
        return {"values": _all_rows(iterate(job.source.make_program(), worker, lambda *_: None).values, worker)}

    actual = values(comm, None)
    if comm.rank != LEADER:
        return {}
    reference = Threads.run(functools.partial(values, shard=WHOLE), 1, timeout=_FOREVER)[0]
    differences = _differences(actual, reference)
    is_verified = all(differences[name] <= TOLERANCE * _scale(value) for name, value in reference.items())
    return _figures(differences, is_verified=is_verified) | {"reference": "one rank with the whole graph"}


def _steps(
    job: RankJob, strategy: ExecutionStrategy, worker: Worker, mailbox: Mailbox, *, perturb: bool = False
) -> _Steps:
    """Runs some steps. Returns losses, gradients, parameters and the last logits.

    Steps with a non-finite loss or gradient are skipped, so that diverging training can
    still be compared. Collective. Gradients of all rows and logits of all nodes are
    only complete on the leader.

    Args:
        job: The job.
        strategy: Provides the batches.
        worker: This rank.
        mailbox: Messages between workers and servers.
        perturb: Whether to change the last bits of the initial parameters.
    """
    module = make_module(job, strategy, worker)
    if perturb:
        _nudge(module)
    recorder, sync, guard, meter = _Recorder(), job.sync(), Guard("skip", quiet=True), SyncMeter(worker.comm)
    options = {**_OPTIONS, "limit_train_batches": STEPS * module.accumulate}
    make_trainer(module, sync, meter, guard=guard, mailbox=mailbox, callbacks=[recorder], **options).fit(module)
    module.join()
    sync.close()
    strategy.close()
    gradients = torch.stack(recorder.gradients)
    values = {
        "loss": worker.comm.all_reduce(torch.stack(recorder.losses)),
        "gradients": gradients if sync.steps_here else worker.comm.all_reduce(gradients),
        "parameters": to_vector(module.parameters()),
        "logits": module.evaluation.read(module.model, _all_rows),
    }
    if module.embedding is not None:
        values["embedding"] = _all_rows(module.embedding.rows.owned.detach(), worker)
    num_steps = {"approximate": recorder.num_approximate, "all": len(recorder.losses)}
    return _Steps(values, guard.skipped_steps, own_method(module.model, "configure_optimizers") is not None, num_steps)


@torch.no_grad()
def _nudge(module: nn.Module) -> None:
    """Changes the last bits of each parameter. Zeros stay, because of ReLU's kink."""
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        signs = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).sign()
        parameter.mul_(1 + _LAST_BITS * signs.to(parameter.device))


class _Recorder(Callback):
    """Records every batch's loss and gradient.

    The loss is this rank's part. The gradient is what this rank's optimiser used: on
    the leader the sum over ranks, unless servers compute the sum. Accumulating batches
    have no gradient.
    """

    def __init__(self) -> None:
        self.losses, self.gradients, self.num_approximate = list[Tensor](), list[Tensor](), 0

    def on_train_batch_start(self, trainer: L.Trainer, module: Any, batch: Batch, batch_idx: int) -> None:
        progress(f"step {len(self.losses)}")

    def on_train_batch_end(self, trainer: L.Trainer, module: Any, outputs: Any, batch: Batch, batch_idx: int) -> None:
        self.losses.append(module.local_loss)
        several, exact = module.worker.comm.world_size > 1, module.exact_epochs
        self.num_approximate += not exact.exact if exact else several and bool(module.strategy.costs())
        if batch.update != "accumulate":
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
            self.gradients.append(to_vector(grads))


def _all_rows(rows: Tensor, worker: Worker) -> Tensor:  # [num_nodes, ...] on the leader
    return rows if (full := by_node(rows, worker)) is None else full


def _judge(actual: _Steps, reference: _Steps, perturb: Callable[[], _Steps]) -> dict[str, Any]:
    """Compares the ranks with the reference.

    If they differ by more than the tolerance, the reference is run again from slightly
    different initial parameters. Differences of that size are not caused by the ranks:
    diverging training amplifies rounding, and optimisers such as Adam amplify gradients
    close to zero. The latter affects only parameters, such as a bias before a
    normalisation, while losses and gradients stay equal.

    Args:
        actual: The steps of the ranks.
        reference: The steps of the reference.
        perturb: Runs the reference again.
    """
    differences = _differences(actual.values, reference.values)
    scales = {name: _scale(value) for name, value in reference.values.items()}
    if not reference.are_finite:
        return _figures(differences, diverges=True)
    if all(difference <= TOLERANCE * scales[name] for name, difference in differences.items()):
        return _figures(differences, is_verified=True)
    again = perturb()
    sensitivity = _differences(again.values, reference.values)
    is_explained = all(
        difference <= max(TOLERANCE * scales[name], _ROUNDINGS * sensitivity[name])
        for name, difference in differences.items()
    )
    unstable = [name for name, value in sensitivity.items() if not value <= AMPLIFIED * scales[name]]
    if not again.are_finite or (is_explained and {"loss", "gradients"} & set(unstable)):
        return _figures(differences, sensitivity, diverges=True)
    return _figures(differences, sensitivity, is_verified=is_explained, unstable=unstable if is_explained else ())


def _figures(
    differences: dict[str, float],
    sensitivity: dict[str, float] | None = None,
    *,
    is_verified: bool = False,
    diverges: bool = False,
    unstable: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "job": "verify",
        "verified": None if diverges else is_verified,
        "diverges": diverges,
        "largest_difference": differences,
        "tolerance": TOLERANCE,
        "sensitivity": sensitivity,
        "not_compared": list(unstable),
    }


def _differences(values: dict[str, Tensor], references: dict[str, Tensor]) -> dict[str, float]:
    """Returns the largest difference of each tensor. NaN: not finite."""
    return {
        name: float((values[name].to(reference.device) - reference).abs().max()) if reference.numel() else 0.0
        for name, reference in references.items()
    }


def _scale(reference: Tensor) -> float:
    return max(1.0, float(reference.abs().max())) if reference.numel() else 1.0


def _divergence(job: RankJob, steps: _Steps) -> str:
    """Explains that training diverges, and which keys change that."""
    cure = "use a smaller trainer.lr, or set trainer.clip_norm"
    if steps.brings_optimizer:
        cure = "use a smaller rate in configure_optimizers"
    return f"{_rule(job, steps)}: training diverges on the reference too, so results cannot be compared; {cure}"


def _amplification(job: RankJob, steps: _Steps, names: Sequence[str]) -> str:
    """Explains that the optimiser amplifies rounding, and in which tensors."""
    return (
        f"{_rule(job, steps)}: losses and gradients are equal in each step, but the optimiser amplifies rounding in the "
        f"reference's {' and '.join(names)} too, which are not compared"
    )


def _rule(job: RankJob, steps: _Steps) -> str:
    """Names the optimiser keys, or the model if it configures the optimiser."""
    settings = job.settings.trainer
    if steps.brings_optimizer:
        return f"model={job.settings.model.name}"
    rate = "" if settings.lr is None else f", trainer.lr={settings.lr:g}"
    return f"trainer.optimizer={settings.optimizer}{rate}"
