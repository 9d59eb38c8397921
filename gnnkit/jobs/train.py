"""job=train: what one rank does, from its shard to its part of the result."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from gnnkit.comm import Communicator
from gnnkit.errors import UserError
from gnnkit.evaluation import Evaluation, accuracies
from gnnkit.graph import Split
from gnnkit.jobs.resumable import resumable
from gnnkit.jobs.rows import all_ranks, share_of_splits, write_rows
from gnnkit.jobs.run import Job
from gnnkit.launch.processes import progress
from gnnkit.leader.channel import LEADER, StateChannel
from gnnkit.leader.result import versions
from gnnkit.leader.watch import Watch
from gnnkit.model.exactness import inexact
from gnnkit.strategy import Worker
from gnnkit.sync import GradientSync, drift
from gnnkit.training import resume
from gnnkit.training.ddp import SyncMeter
from gnnkit.training.display import Display
from gnnkit.training.finite import Guard
from gnnkit.training.module import TrainingModule
from gnnkit.training.observer import Observer, words
from gnnkit.training.trainer import make_trainer


def train(job: Job, comm: Communicator) -> dict[str, Any]:
    """Trains and evaluates. The leader writes.

    Collective. Returns the figures on the leader.
    """
    trainer_settings = job.settings.trainer
    resumed = _resumed(job)
    guard = _guard(job, resumed)
    worker = job.worker(comm)
    sync: GradientSync = job.settings.sync.create()
    module = make_module(job, worker)
    reasons = _inexact(job, worker, module, sync) if comm.rank == LEADER else []
    mailbox = comm.mailbox()
    try:
        loggers = _loggers(job.folder) if comm.rank == LEADER else []
        watch = _watch(job, worker, loggers) if comm.rank == LEADER else None
        meter = SyncMeter()
        channel = StateChannel(mailbox, comm.rank, comm.world_size, watch)
        observer = Observer(worker, meter, channel, job.settings.timeout)
        trainer = make_trainer(
            module,
            sync,
            meter,
            guard=guard,
            callbacks=[observer, _signs(), *_periodic(job), *resumed, *_display(job, watch)],
            logger=loggers or False,
            max_epochs=trainer_settings.max_epochs,
            check_val_every_n_epoch=trainer_settings.check_val_every_n_epoch,
            log_every_n_steps=trainer_settings.log_every_n_steps,
        )
        for callback in resumed:
            callback.place(trainer, module)
        trainer.fit(module)
        if watch is not None:
            watch.close()
    finally:
        mailbox.close()
    drifts = finish(job, worker, module, sync, trainer)
    figures = _collect(job, worker, module, observer, watch) | drifts | _left_out(guard, worker)
    return figures | {"exact": not reasons, "inexact": reasons}


def make_module(job: Job, worker: Worker) -> TrainingModule:
    """Makes the module of one rank, and sets up its strategy. Collective."""
    settings = job.settings
    strategy = job.strategy()
    model = job.source.make_model(job.widths(worker), settings.seed).to(worker.device, worker.dtype)
    strategy.check(worker.sampler, model.num_layers)  # type: ignore[arg-type]
    strategy.setup(worker, model)
    evaluation = Evaluation.of(worker, model, settings.trainer.evaluation_memory, job.folder)
    return TrainingModule(
        model,
        strategy,
        worker,
        evaluation,
        optimizer=settings.trainer.optimizer,
        lr=settings.trainer.lr,
        weight_decay=settings.trainer.weight_decay,
    )


def _inexact(job: Job, worker: Worker, module: TrainingModule, sync: GradientSync) -> list[str]:
    """Lists why several ranks train something else than one.

    Prints the reasons that lie in the model.
    """
    if worker.comm.world_size == 1:
        return []
    reasons, widths = [], job.widths(worker)
    if module.strategy.on_one_rank(worker.comm.world_size, worker.sampler) is None:
        reasons.append(f"strategy={job.settings.strategy.name}: its steps depend on the number of workers")
    if not sync.exact:
        reasons.append(f"sync={job.settings.sync.name}: its steps are not those of the exact gradient")
    model = job.source.make_model(widths, job.settings.seed)
    by_model = [f"model {reason}" for reason in inexact(model, widths.in_features, widths.edge_width)]
    for reason in by_model:
        print(f"not exact on {worker.comm.world_size} workers: {reason}", file=sys.stderr, flush=True)
    return reasons + by_model


def finish(
    job: Job, worker: Worker, module: TrainingModule, sync: GradientSync, trainer: L.Trainer
) -> dict[str, float]:
    """Ends training and saves the last checkpoint. Collective.

    Args:
        job: The job.
        worker: This rank.
        module: The module of this rank.
        sync: Brings workers that drifted to one model.
        trainer: The trainer of this rank.

    Returns:
        The largest difference of a parameter between two ranks, before and after.
    """
    settings = job.settings.trainer
    before = after = drift(module.model, worker.comm)
    last = resume.state(trainer, module)  # what a longer run goes on from
    if before and settings.final_average:
        sync.finish(module.model, worker.comm, int(np.count_nonzero(worker.shard.split == Split.TRAIN)))
        after = drift(module.model, worker.comm)
    if settings.checkpoint:
        resume.save(job.folder / resume.FILE, trainer, module, resumable(job), (trainer.current_epoch, 0), last)
    return {"drift": before, "final_drift": after}


def _resumed(job: Job) -> list[resume.Resume]:
    path = job.settings.trainer.resume
    return [] if path is None else [resume.Resume(resume.load(path), resumable(job))]


def _loggers(folder: Path) -> list[Any]:
    return [TensorBoardLogger(folder, "", "tensorboard"), CSVLogger(folder, "", "csv")]


def _watch(job: Job, worker: Worker, loggers: list[Any]) -> Watch:
    settings = job.settings.trainer

    def log(scalars: Any, step: int) -> None:
        for logger in loggers:
            logger.log_metrics(dict(scalars), step=step)

    return Watch(
        worker.comm.world_size,
        job.folder,
        settings.max_epochs,
        quiet=settings.progress_bar,
        every=settings.log_every_n_steps,
        log=log,
    )


def _signs() -> Callback:
    """Tells the launcher of every step and every evaluation."""
    return LambdaCallback(
        on_train_batch_start=lambda trainer, *_: progress(f"step {trainer.global_step}"),
        on_validation_start=lambda *_: progress("an evaluation"),
        on_train_end=lambda *_: progress("the end of training"),
    )


def _periodic(job: Job) -> list[Callback]:
    settings = job.settings.trainer
    if not settings.checkpoint:
        return []
    path, epochs, steps = job.folder / resume.FILE, settings.checkpoint_every, settings.checkpoint_every_n_steps
    at_start = settings.on_nan == "rollback"
    return [resume.PeriodicCheckpoint(path, resumable(job), epochs, steps, at_start=at_start)]


def _guard(job: Job, resumed: list[resume.Resume]) -> Guard:
    settings = job.settings.trainer
    if settings.on_nan == "rollback" and not settings.checkpoint:
        raise UserError("trainer.on_nan=rollback goes back to checkpoints: leave out trainer.checkpoint=false")
    path = job.folder / resume.FILE if settings.checkpoint else None
    return Guard(settings.on_nan, path, resumed[0].path if resumed else None)


def _left_out(guard: Guard, worker: Worker) -> dict[str, int]:
    """Counts the steps that a rank left out, and the rollbacks. Collective."""
    counts = torch.zeros(worker.comm.world_size, dtype=torch.int64, device=worker.device)
    counts[worker.comm.rank] = guard.skipped_steps
    return {"skipped_steps": int(worker.comm.all_reduce(counts).max()), "rollbacks": guard.rollbacks}


def _display(job: Job, watch: Watch | None) -> list[Callback]:
    return [Display(watch)] if watch is not None and job.settings.trainer.progress_bar else []


def _collect(
    job: Job, worker: Worker, module: TrainingModule, observer: Observer, watch: Watch | None
) -> dict[str, Any]:
    """Evaluates, writes the predictions, and joins what the ranks counted.

    Collective. Returns the figures on the leader.

    Args:
        job: The job.
        worker: This rank.
        module: The module of this rank.
        observer: Measured this rank.
        watch: Of the leader. None on other ranks.
    """
    logits = module.evaluation.logits(module.model)
    measured = share_of_splits(accuracies(logits, worker))
    write_rows(job.folder / "predictions.npy", logits.argmax(1), worker)
    seconds = observer.epoch_seconds
    totals = {name: count // max(len(seconds), 1) for name, count in words(module.strategy.tally).items()}
    counted = all_ranks(totals, worker)
    if watch is None:
        return {}
    return {
        **chosen(job, worker),
        "epochs": len(seconds),
        "train_loss": watch.train_loss,
        "stragglers": watch.stragglers,
        **measured,
        # The first epoch pays for what is built once.
        "seconds_per_epoch": statistics.median(seconds[1:] or seconds or [0.0]),
        "time_to_accuracy": observer.time_to_accuracy,
        **counted,
        "wait_share": watch.wait_share,
        "balance": job.prepared.balance | watch.balance,
        **circumstances(job),
    }


def chosen(job: Job, worker: Worker) -> dict[str, Any]:
    """Returns what was run."""
    settings = job.settings
    return {
        "strategy": settings.strategy.name,
        "sampler": None if settings.sampler is None else settings.sampler.name,
        "partition": str(settings.partition.grid),
        "nodes": settings.partition.nodes.name,
        "grid": job.prepared.grid,
        "world_size": worker.comm.world_size,
        "dataset": settings.dataset.name,
        "model": job.source.name,
    }


def circumstances(job: Job) -> dict[str, Any]:
    """Returns what a result depends on beside the configuration."""
    return {"why": job.prepared.why, "versions": versions(), "seed": job.settings.seed}
