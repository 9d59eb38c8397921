"""The parts that accompany training: scalars, watch, checkpoints, guard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch.callbacks import Callback, LambdaCallback
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from torch import nn

from gnnkit.errors import UserError
from gnnkit.jobs.job import Job
from gnnkit.jobs.resumable import resumable
from gnnkit.launch.progress import progress
from gnnkit.leader.watch import Watch
from gnnkit.training import resume
from gnnkit.training.finite import Guard, decide_together
from gnnkit.training.monitor import Monitor


def loggers(folder: Path) -> list[Any]:
    """Makes the writers of scalars, for the leader."""
    return [TensorBoardLogger(folder, "", "tensorboard"), CSVLogger(folder, "", "csv")]


def watch(job: Job, world_size: int, writers: list[Any]) -> Watch:
    """Makes the leader's watch over all workers.

    Args:
        job: The job.
        world_size: Number of workers.
        writers: The writers of scalars.
    """
    settings = job.settings.trainer

    def log(scalars: Any, step: int) -> None:
        for writer in writers:
            writer.log_metrics(dict(scalars), step=step)

    return Watch(
        world_size,
        job.folder,
        settings.max_epochs,
        quiet=settings.progress_bar,
        every=settings.log_every_n_steps,
        log=log,
    )


def signs() -> Callback:
    """Tells the launcher of every step and every evaluation."""
    return LambdaCallback(
        on_train_batch_start=lambda trainer, *_: progress(f"step {trainer.global_step}"),
        on_validation_start=lambda *_: progress("an evaluation"),
        on_train_end=lambda *_: progress("the end of training"),
    )


def resumed(job: Job) -> list[resume.Resume]:
    """Reads the checkpoint that the run goes on from, if there is one."""
    path = job.settings.trainer.resume
    return [] if path is None else [resume.Resume(resume.load(path), resumable(job))]


def periodic(job: Job) -> list[Callback]:
    """Makes the callback that saves checkpoints, unless checkpoints are turned off."""
    settings = job.settings.trainer
    if not settings.checkpoint:
        return []
    path, epochs, steps = job.folder / resume.FILE, settings.checkpoint_every, settings.checkpoint_every_n_steps
    at_start = settings.on_nan == "rollback"
    return [resume.PeriodicCheckpoint(path, resumable(job), epochs, steps, at_start=at_start)]


def monitor(job: Job, on_better: Callable[[nn.Module], None] | None) -> list[Monitor]:
    """Makes the callback that keeps the best model, if asked.

    Args:
        job: The job.
        on_better: Called with the model at each better value.
    """
    settings = job.settings.trainer
    if settings.monitor is None:
        return []
    lower = job.task().is_lower_better(settings.monitor)
    return [
        Monitor(settings.monitor, settings.patience, settings.min_delta, lower_is_better=lower, on_better=on_better)
    ]


def guard(job: Job, saved: list[resume.Resume]) -> Guard:
    """Makes the guard against numbers that are not finite.

    Raises `UserError` for `rollback` without checkpoints, and where ranks decide alone.
    """
    settings = job.settings.trainer
    if settings.on_nan == "rollback" and not decide_together(job.sync(), job.strategy()):
        raise UserError(
            f"trainer.on_nan=rollback needs workers that all meet in each step, sync={job.settings.sync.name} with "
            f"strategy={job.settings.strategy.name} has none: choose stop or skip"
        )
    if settings.on_nan == "rollback" and not settings.checkpoint:
        raise UserError("trainer.on_nan=rollback goes back to checkpoints: leave out trainer.checkpoint=false")
    path = job.folder / resume.FILE if settings.checkpoint else None
    return Guard(settings.on_nan, path, saved[0].path if saved else None)
