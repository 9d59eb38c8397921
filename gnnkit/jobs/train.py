"""job=train on one rank, from reading the shard to the figures."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping
from typing import Any

import lightning as L
from lightning.pytorch.callbacks import Callback, LambdaCallback
from torch import nn

from gnnkit import callback
from gnnkit.callback import Leader
from gnnkit.comm import Communicator, Mailbox
from gnnkit.config.settings import AUTO, in_notebook
from gnnkit.graph import SPLITS, Split
from gnnkit.jobs import figures, weights
from gnnkit.jobs.job import displays
from gnnkit.jobs.order import redact_config
from gnnkit.jobs.outputs import EMBEDDING, Scores, write_array, write_names, write_outputs
from gnnkit.jobs.rank_job import RankJob, with_servers
from gnnkit.jobs.rank_run import RankRun, open_run
from gnnkit.jobs.restarts import RunRecord, marks_in
from gnnkit.launch.progress import phase, progress, stepping, training, warn
from gnnkit.leader.meter import SyncMeter
from gnnkit.leader.site import StateChannel
from gnnkit.leader.watch import STATUS_SECONDS, Watch
from gnnkit.result.figures import Drift
from gnnkit.sync import drift
from gnnkit.training.logger import Loggers
from gnnkit.training.monitor import Monitor, count_labelled, ended_by_user, selection
from gnnkit.training.run_site import RunSite
from gnnkit.training.saving import PeriodicCheckpoint, TimelyCheckpoint
from gnnkit.training.schedule import TimeLimit
from gnnkit.training.step import monitored_metric, own_method
from gnnkit.training.trainer import make_trainer
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import shown


def train(job: RankJob, world: Communicator) -> Json:
    """Trains, evaluates and writes the predictions. Collective.

    Returns the figures on the leader. Servers serve instead.

    Args:
        job: The job.
        world: The workers, followed by the servers.
    """
    return with_servers(job, world, functools.partial(_train, job)) or {}


def _train(job: RankJob, comm: Communicator, mailbox: Mailbox) -> Json:
    """Trains and evaluates one worker. Collective over the workers.

    Returns the figures on the leader.
    """
    with open_run(job, comm, mailbox) as run:
        _describe(run)
        _fit(run)
        if run.is_leader:
            phase("evaluating")
        _select_model(run)
        _test(run)
        run.close()
        scores = _write(run)
        return figures.collect(run, scores)


def _describe(run: RankRun) -> None:
    """Prints warnings and class weights before the first step. Collective."""
    job, task = run.job, run.task
    warnings = task.label_warnings(run.worker, job.prepared.class_names)
    if not run.is_leader:
        return
    run.figures.exactness = figures.exactness(run)
    if unread := job.source.unread(job.widths(run.worker)):
        by_task = (
            "; the task reads those of the edges that it predicts" if getattr(task, "edge_features", False) else ""
        )
        print(f"{unread}{by_task}", file=sys.stderr, flush=True)
    for line in warnings:
        warn(line)
    if (factors := task.facts().class_weights) is not None:
        names = job.prepared.class_names or range(len(factors))
        pairs = ", ".join(f"{name} {factor:.4g}" for name, factor in zip(names, factors, strict=False))
        print(f"class weights: {shown(pairs)}", file=sys.stderr, flush=True)
    weights.save_facts(task.facts(), run.folder)
    max_epochs, resume_point = job.settings.trainer.max_epochs, run.resume_point
    epoch = max_epochs if resume_point is None else resume_point.saved["epoch"]
    phase(f"training {max_epochs} epochs{f', resuming in epoch {epoch + 1}' if epoch < max_epochs else ''}")


def _fit(run: RankRun) -> None:
    """Runs all training steps. Collective."""
    job, comm, settings = run.job, run.worker.comm, run.job.settings.trainer
    if run.is_leader:
        run.loggers = _loggers(run)
    watch = _watch(run) if run.is_leader else None
    with contextlib.nullcontext() if watch is None else contextlib.closing(watch):
        meter = SyncMeter(comm)
        channel = StateChannel(run.mailbox, comm.rank, comm.world_size, watch, goes_on=run.sync.on_lost == "continue")
        run.site = RunSite(run.worker, meter, channel, run.timeout, watch=watch, rule=_monitor(run))
        run.site.record = RunRecord(run) if job.start else None
        run.hooks = [choice.create() for choice in job.settings.leader.hooks]
        shows = settings.progress_bar and not in_notebook()  # notebooks show a bar instead
        trainer = make_trainer(
            run.module,
            run.sync,
            meter,
            guard=run.guard,
            mailbox=run.mailbox,
            callbacks=[
                Leader.at(run.site, run),
                *_step_callbacks(run),
                *run.hooks,
                *([run.resume_point] if run.resume_point else []),
                *(displays(watch) if shows and watch is not None else []),
            ],
            logger=run.loggers.lightning or False,
            max_epochs=settings.max_epochs,
            check_val_every_n_epoch=settings.check_val_every_n_epoch,
            log_every_n_steps=settings.log_every_n_steps,
        )
        _run_trainer(run, trainer)


def _loggers(run: RankRun) -> Loggers:
    """Creates the leader's loggers, and logs the settings and the model's `hparams`."""
    job = run.job
    makers = [choice.create() for choice in job.settings.logger]
    if job.start is not None and job.start.number > 0:
        saved_state = None if run.resume_point is None else run.resume_point.saved
        marks = marks_in(saved_state, job) or [None] * len(makers)
        steps = 0 if saved_state is None else saved_state["global_step"]
        loggers = [maker.go_on(job.folder, steps, mark) for maker, mark in zip(makers, marks, strict=True)]
    else:
        loggers = [maker.make(job.folder) for maker in makers]
    settings = redact_config(job.settings.composed)
    hparams = getattr(run.module.model, "hparams", None)
    if isinstance(hparams, Mapping) and hparams:
        settings["hparams"] = {str(name): value if _is_plain(value) else str(value) for name, value in hparams.items()}
    for logger in loggers:
        logger.log_hyperparams(settings)
    return Loggers(tuple(zip(makers, loggers, strict=True)))


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int | float)


def _watch(run: RankRun) -> Watch:
    """Creates the leader's watch over all workers."""
    settings = run.job.settings.trainer

    def log(scalars: Any, step: int) -> None:
        for logger in run.loggers.lightning:
            logger.log_metrics(dict(scalars), step=step)

    return Watch(
        run.worker.comm.world_size,
        run.folder,
        settings.max_epochs,
        quiet=settings.progress_bar,
        every=settings.log_every_n_steps,
        log=log,
        status_seconds=1.0 if settings.progress_bar else STATUS_SECONDS,
    )


def _monitor(run: RankRun) -> Monitor | None:
    """Creates the rule that selects the best model. Collective.

    Returns None with `trainer.monitor=null`, and with `auto` if the validation split is
    empty and no other key needs the metric.
    """
    settings = run.job.settings.trainer
    name = monitored_metric(settings.monitor, run.task)
    is_required = settings.patience is not None or settings.schedule == "plateau"
    if name is None or (settings.monitor == AUTO and not is_required and not count_labelled(run.worker, Split.VAL)):
        return None
    run.task.monitored = name
    options = {"lower_is_better": run.task.is_lower_better(name), "latest": settings.monitor == AUTO}
    save = functools.partial(_save_model, run) if run.is_leader else None
    return Monitor(name, settings.patience, **options, on_better=save)


def _save_model(run: RankRun, model: nn.Module) -> None:
    weights.save(model, run.job.widths(run.worker), run.folder)


def _step_callbacks(run: RankRun) -> list[Callback]:
    """Creates the callbacks around the steps, in calling order.

    The leader callback precedes them: it counts a step before a checkpoint stores the
    count.
    """
    job, module, settings = run.job, run.module, run.job.settings.trainer
    user_callbacks = _create_user_callbacks(run)
    module.agrees_to_stop = bool(user_callbacks) or isinstance(module.model, L.LightningModule)
    signs = LambdaCallback(
        on_train_start=lambda *_: training(True),
        on_train_batch_start=lambda trainer, *_: stepping(trainer.current_epoch, trainer.global_step),
        on_validation_start=lambda *_: progress("an evaluation"),
        on_train_end=lambda *_: _end_training(),
    )  # for the launcher
    callbacks: list[Callback] = [signs]
    if settings.max_time is not None:
        callbacks.append(TimeLimit(settings.max_time, job.start.started_at if job.start else None))
    callbacks += user_callbacks
    if settings.checkpoint:
        epochs, steps = settings.checkpoint_every, settings.checkpoint_every_n_steps
        at_start = settings.on_nan == "rollback"
        callbacks.append(PeriodicCheckpoint(run.checkpoints, epochs, steps, at_start=at_start))
        if run.sync.lockstep:
            callbacks.append(TimelyCheckpoint(run.checkpoints, settings.checkpoint_every_minutes))
    return callbacks


def _end_training() -> None:
    training(False)
    progress("the end of training")


def _create_user_callbacks(run: RankRun) -> list[Callback]:
    """Creates the callbacks that the configuration and the model define.

    Raises `UserError` for a callback that does not support several ranks.
    """
    callbacks = [(choice.name, choice.create()) for choice in run.job.settings.callback]
    if (configure := own_method(run.module.model, "configure_callbacks")) is not None:
        result = configure()
        model_callbacks = result if isinstance(result, list | tuple) else [result]
        callbacks += [(type(instance).__name__, instance) for instance in model_callbacks]
    for name, instance in callbacks:
        callback.check(name, instance)
    return [instance for _, instance in callbacks]


def _run_trainer(run: RankRun, trainer: L.Trainer) -> None:
    """Restores the position of a resumed run, and trains. Collective."""
    module, resume_point = run.module, run.resume_point
    if resume_point is not None:
        resume_point.place(trainer, module)
    if run.site.record is not None:
        run.site.record.begin()
    trainer.fit(module)
    if run.is_leader and (message := ended_by_user(trainer)):
        print(message, file=sys.stderr, flush=True)
    if resume_point is not None and resume_point.is_over:  # Lightning calls no hooks if no step is left
        leader = Leader.of(trainer)
        assert leader is not None
        for hook in (resume_point, leader):
            hook.on_train_start(trainer, module)
            hook.on_train_end(trainer, module)


def _select_model(run: RankRun) -> None:
    """Saves the last checkpoint and selects the final model on all workers. Collective.

    The final model is the best one by `trainer.monitor`. Without a validation metric,
    it is the last one.
    """
    module, trainer, comm = run.module, run.trainer, run.worker.comm
    module.settle()
    if run.job.settings.trainer.checkpoint:
        run.checkpoints.save(trainer, module, (trainer.current_epoch, 0))
    before = drift(module.model, comm)
    if run.site.rule is not None:
        run.site.rule.take_best(module)
    module.join()
    run.figures.selection = selection(trainer)
    run.figures.drift = Drift(before, drift(module.model, comm))
    if run.is_leader:
        _save_model(run, module.model)


def _test(run: RankRun) -> None:
    """Runs the model's own `test_step`, if any, and closes the loggers. Collective."""
    if own_method(run.module.model, "test_step") is not None:
        (metrics,) = run.trainer.test(run.module, verbose=False)
        run.figures.tests = {"test_step": dict(metrics)}
    run.loggers.close()


def _write(run: RankRun) -> Scores:
    """Writes the model's outputs for all nodes. Collective."""
    job, module, worker, learned_rows = run.job, run.module, run.worker, run.module.learned
    splits, scratch = None if job.settings.write else tuple(SPLITS), job.scratch_folder(worker.comm)
    make = functools.partial(job.evaluation, worker, learned_rows=learned_rows, splits=splits, scratch=scratch)
    scores = write_outputs(job, run.task, module.model, make, job.prepared.class_names)
    if learned_rows is not None:
        write_array(job, worker, EMBEDDING, learned_rows.owned.detach())
    if run.is_leader:
        write_names(job, job.prepared.class_names)
    return scores
