"""Makes the loggers and callbacks of a training run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lightning.pytorch.callbacks import Callback, LambdaCallback
from torch import nn

from gnnkit import callback
from gnnkit.config.settings import in_notebook
from gnnkit.errors import UserError
from gnnkit.jobs.configuration import redact_config
from gnnkit.jobs.rank_job import RankJob
from gnnkit.jobs.restarts import marks_in, resumable
from gnnkit.jobs.upload import copy_checkpoints
from gnnkit.launch.progress import progress, stepping, training
from gnnkit.leader.watch import STATUS_SECONDS, Watch
from gnnkit.training import resume
from gnnkit.training.finite import Guard, decide_together
from gnnkit.training.monitor import Monitor
from gnnkit.training.saving import Checkpoints, PeriodicCheckpoint
from gnnkit.training.schedule import Plateau, Schedule, Schedules
from gnnkit.training.step import LOSS, own_method
from gnnkit.training.timely import TimelyCheckpoint


@dataclass(frozen=True, slots=True)
class Writers:
    """The leader's loggers. Empty on other ranks."""

    pairs: tuple[tuple[Any, Any], ...] = ()  # pairs of `RunLogger` and Lightning `Logger`

    @property
    def loggers(self) -> list[Any]:
        """The Lightning loggers."""
        return [logger for _, logger in self.pairs]

    def mark(self) -> list[Any]:
        """Flushes all scalars, and returns each logger's position."""
        return [maker.mark(logger) for maker, logger in self.pairs]

    def close(self) -> None:
        """Closes the loggers after the last scalar."""
        for maker, logger in self.pairs:
            maker.close(logger)


def writers(job: RankJob, model: nn.Module, resumed: list[resume.Resume]) -> Writers:
    """Makes the loggers, and logs the settings.

    Args:
        job: The job.
        model: The model, whose `hparams` are logged too.
        resumed: The checkpoint to resume from, if any.
    """
    makers = [choice.create() for choice in job.settings.logger]
    if job.goes_on:
        saved = resumed[0].saved if resumed else None
        marks = marks_in(saved, job) or [None] * len(makers)
        steps = 0 if saved is None else saved["global_step"]
        loggers = [maker.go_on(job.folder, steps, mark) for maker, mark in zip(makers, marks, strict=True)]
    else:
        loggers = [maker.make(job.folder) for maker in makers]
    result = Writers(tuple(zip(makers, loggers, strict=True)))
    settings = redact_config(job.settings.composed)
    hparams = getattr(model, "hparams", None)
    if isinstance(hparams, Mapping) and hparams:
        settings["hparams"] = {str(name): value if _is_plain(value) else str(value) for name, value in hparams.items()}
    for logger in result.loggers:
        logger.log_hyperparams(settings)
    return result


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def chosen(job: RankJob, model: nn.Module) -> list[Callback]:
    """Makes the callbacks that the configuration and the model define.

    Raises `UserError` for a callback that does not support several ranks.
    """
    callbacks = [(choice.name, choice.create()) for choice in job.settings.callback]
    if (configure := own_method(model, "configure_callbacks")) is not None:
        configured = configure()
        more = configured if isinstance(configured, list | tuple) else [configured]
        callbacks += [(type(instance).__name__, instance) for instance in more]
    for name, instance in callbacks:
        callback.check(name, instance)
    return [instance for _, instance in callbacks]


def watch(job: RankJob, world_size: int, writers: list[Any]) -> Watch:
    """Makes the leader's watch over all workers."""
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
        status_seconds=1.0 if settings.progress_bar else STATUS_SECONDS,
    )


def shows_display(job: RankJob) -> bool:
    """Whether the leader draws a progress display. Notebooks show a bar instead."""
    return job.settings.trainer.progress_bar and not in_notebook()


def signs() -> Callback:
    """Makes the callback that reports steps and evaluations to the launcher."""
    return LambdaCallback(
        on_train_start=lambda *_: training(True),
        on_train_batch_start=lambda trainer, *_: stepping(trainer.current_epoch, trainer.global_step),
        on_validation_start=lambda *_: progress("an evaluation"),
        on_train_end=lambda *_: _end_training(),
    )


def _end_training() -> None:
    training(False)
    progress("the end of training")


def resumed(job: RankJob, rank: int) -> list[resume.Resume]:
    """Reads the checkpoint to resume from, if any."""
    path, ends = job.settings.trainer.resume, job.settings.on_exists == "resume"
    return [] if path is None else [resume.Resume(resume.load(path, rank), resumable(job), ends=ends)]


def checkpoints(job: RankJob) -> Checkpoints:
    """Makes the writer of the run's checkpoints."""
    keep, url = job.settings.trainer.keep_checkpoints, job.settings.upload
    copied = [] if url is None else [functools.partial(copy_checkpoints, url, job.folder, job.writer)]
    return Checkpoints(job.folder / resume.FILE, resumable(job), keep, job.writer, *copied)


def periodic(job: RankJob, checkpoints: Checkpoints) -> list[Callback]:
    """Makes the callbacks that save checkpoints, unless checkpoints are disabled."""
    settings = job.settings.trainer
    if not settings.checkpoint:
        return []
    epochs, steps = settings.checkpoint_every, settings.checkpoint_every_n_steps
    regular = PeriodicCheckpoint(checkpoints, epochs, steps, at_start=settings.on_nan == "rollback")
    if not job.sync().lockstep:
        return [regular]
    return [regular, TimelyCheckpoint(checkpoints, settings.checkpoint_every_minutes)]


def monitor(job: RankJob, on_better: Callable[[nn.Module], None] | None) -> Monitor | None:
    """Makes the rule that selects the best model, if `trainer.monitor` is set.

    Args:
        job: The job.
        on_better: Called with the model at each improvement.
    """
    settings = job.settings.trainer
    if settings.monitor is None:
        return None
    lower = job.task().is_lower_better(settings.monitor)
    return Monitor(settings.monitor, settings.patience, settings.min_delta, lower_is_better=lower, on_better=on_better)


def schedule(job: RankJob) -> Schedules | None:
    """Makes the learning-rate schedule, or None for a constant rate."""
    settings = job.settings.trainer
    if settings.schedule == "plateau":
        assert settings.monitor is not None
        lower = settings.monitor == LOSS or job.task().is_lower_better(settings.monitor)
        options: dict[str, Any] = {"factor": settings.plateau_factor, "patience": settings.plateau_patience}
        return Plateau(settings.monitor, lower, **{name: value for name, value in options.items() if value is not None})
    if settings.schedule is None and not settings.warmup_epochs:
        return None
    return Schedule(settings.schedule, settings.warmup_epochs, settings.max_epochs)


def guard(job: RankJob, saved: list[resume.Resume], checkpoints: Checkpoints) -> Guard:
    """Makes the guard against non-finite values.

    Raises `UserError` for `rollback` if checkpoints are disabled or ranks do not step
    together.
    """
    settings = job.settings.trainer
    if settings.on_nan == "rollback" and not decide_together(job.sync(), job.strategy()):
        raise UserError(
            f"trainer.on_nan=rollback needs workers that synchronise in each step, unlike sync={job.settings.sync.name} with "
            f"strategy={job.settings.strategy.name}: use stop or skip"
        )
    if settings.on_nan == "rollback" and not settings.checkpoint:
        raise UserError("trainer.on_nan=rollback needs checkpoints: remove trainer.checkpoint=false")
    writer = checkpoints if settings.checkpoint else None
    return Guard(settings.on_nan, writer, saved[0].path if saved else None)
