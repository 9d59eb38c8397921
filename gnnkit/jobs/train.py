"""job=train on one rank, from reading the shard to the figures."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning as L
from torch import nn

from gnnkit.callback import Leader, LeaderHook
from gnnkit.comm import Communicator, Mailbox
from gnnkit.errors import UserError
from gnnkit.graph import SPLITS
from gnnkit.jobs import callbacks, figures, lost, weights
from gnnkit.jobs.figures import of_verdict
from gnnkit.jobs.outputs import EMBEDDING, Scores, scratch_folder, write_names, write_outputs, write_rows
from gnnkit.jobs.rank_job import RankJob, with_servers
from gnnkit.jobs.restarts import RunRecord
from gnnkit.jobs.run_access import RunAccess
from gnnkit.launch.phases import phase
from gnnkit.leader import trace
from gnnkit.leader.channel import LEADER, StateChannel
from gnnkit.leader.meter import SyncMeter
from gnnkit.leader.watch import Watch
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.sync import GradientSync, drift
from gnnkit.task import NodeTask, Task
from gnnkit.task.evaluation import by_node
from gnnkit.training import hooks, resume
from gnnkit.training.display import Display
from gnnkit.training.finite import Guard
from gnnkit.training.module import TrainingModule
from gnnkit.training.monitor import ended_by_user, monitor
from gnnkit.training.monitor import figures as monitored
from gnnkit.training.run_site import RunSite
from gnnkit.training.saving import Checkpoints
from gnnkit.training.schedule import TimeLimit
from gnnkit.training.step import own_method
from gnnkit.training.trainer import make_trainer
from gnnkit.utils.spans import Spans, record, stop


@dataclass(frozen=True, slots=True, eq=False)
class _Fitted:
    """The training objects of one rank after the last step."""

    trainer: L.Trainer
    site: RunSite  # shared with the leader callback
    access: RunAccess
    hooks: list[LeaderHook]
    writers: callbacks.Writers


def train(job: RankJob, world: Communicator) -> dict[str, Any]:
    """Trains, evaluates and writes the predictions. Collective.

    Returns the figures on the leader. Servers serve instead.

    Args:
        job: The job.
        world: The workers, followed by the servers.
    """
    return with_servers(job, world, functools.partial(_work, job)) or {}


def _work(job: RankJob, comm: Communicator, mailbox: Mailbox) -> dict[str, Any]:
    """Trains one worker, with `sync.on_lost` handled and checkpoints open."""
    sync = job.sync()
    try:
        with lost.going_on(comm, mailbox, sync) as left, callbacks.checkpoints(job) as checkpoints:
            return _train(job, left, mailbox, sync, checkpoints)
    finally:
        stop()  # ends the spans of an aborted run


def _train(
    job: RankJob, comm: Communicator, mailbox: Mailbox, sync: GradientSync, checkpoints: Checkpoints
) -> dict[str, Any]:
    """Trains and evaluates one worker. Collective over the workers."""
    resumed = callbacks.resumed(job, comm.rank)
    for checkpoint in resumed if comm.rank == LEADER else ():
        checkpoint.tell()
    guard = callbacks.guard(job, resumed, checkpoints)
    spans = record(trace.limit(comm.world_size)) if job.settings.profile else None
    module = make_module(job, job.strategy(), job.worker(comm), scratch=scratch_folder(job, comm))
    doubts = module.task.label_warnings(module.worker, job.prepared.class_names)
    exactness = figures.exactness(job, module, sync) if comm.rank == LEADER else {}
    if comm.rank == LEADER:
        if unread := job.source.unread(job.widths(module.worker)):
            print(unread, file=sys.stderr, flush=True)
        for line in doubts:
            print(f"gnnkit: warning: {line}", file=sys.stderr, flush=True)
        weights.save_facts(module.task.facts(), job.folder)
        phase(f"training {job.settings.trainer.max_epochs} epochs")
    fitted = _fit(job, module, sync, guard, resumed, mailbox, checkpoints)
    if comm.rank == LEADER:
        phase("evaluating")
    drifts = _finish(job, module, fitted.trainer, checkpoints)
    logged = _test(module, fitted)
    if spans is not None:
        _trace(job, spans, comm, mailbox)
    sync.close()
    module.strategy.close()
    scores = _write(job, module)
    job = job.with_balance(fitted.access.balance)
    result = figures.of_training(job, module, fitted.site, scores)
    if comm.rank == LEADER:
        exactness |= of_verdict(fitted.trainer, fitted.site.validations, module.task, scores, exactness["approximate"])
    left_out, on_lost = figures.left_out(guard, module.worker), lost.figures(comm)
    restarts = {"restarts": 0, "restarted": []}  # overwritten by the launching process
    result |= drifts | left_out | sync.figures() | exactness | monitored(fitted.trainer)
    return result | on_lost | figures.of_hooks(fitted.hooks) | logged | restarts


def _trace(job: RankJob, spans: Spans, comm: Communicator, mailbox: Mailbox) -> None:
    """Writes the trace of all workers on the leader. Collective over the workers."""
    stop()
    tracks = trace.gather(spans, mailbox, comm.world_size, job.settings.timeout)
    if comm.rank == LEADER:
        trace.save(tracks, job.folder)


def make_module(
    job: RankJob,
    strategy: ExecutionStrategy,
    worker: Worker,
    *,
    kind: type[TrainingModule] = TrainingModule,
    scratch: Path | None = None,
) -> TrainingModule:
    """Makes the training module of one rank and sets up the strategy. Collective.

    Args:
        job: The job.
        strategy: Provides the batches.
        worker: This rank.
        kind: Class of the module. Default: `TrainingModule`.
        scratch: Folder for temporary files of layer-wise evaluation. Default: none.
    """
    settings, task = job.settings, job.task()
    task.begin(worker)
    exchanges = worker.fetches or strategy.steps.exchange
    model = job.make_model(worker, job.widths(worker), task, exchanges=exchanges)
    embedding = job.set_up(strategy, worker, model)
    module = kind(
        model,
        strategy,
        worker,
        lost.evaluation(
            job, worker, model, scratch, None if embedding is None else embedding.rows, measured_splits(task)
        ),
        task=task,
        embedding=embedding,
        optimizer=settings.trainer.optimizer,
        lr=settings.trainer.lr,
        weight_decay=settings.trainer.weight_decay,
        schedule=callbacks.schedule(job),
        clip_norm=settings.trainer.clip_norm,
        accumulate=settings.trainer.accumulate,
        final_average=settings.trainer.final_average,
    )
    _check(job, module)
    return module


def measured_splits(task: Task) -> Sequence[str] | None:
    """Returns the splits whose nodes the task measures, or None for all nodes."""
    return tuple(SPLITS) if isinstance(task, NodeTask) else None


def _check(job: RankJob, module: TrainingModule) -> None:
    """Raises `UserError` for conflicts that only appear once the parts exist."""
    settings, task, model = job.settings, module.task, module.model
    if module.accumulate > 1 and module.strategy.num_batches(0) == 1:
        raise UserError(
            f"trainer.accumulate={module.accumulate}: strategy={settings.strategy.name} has one batch per epoch here: use "
            "trainer.accumulate=1"
        )
    hooks.check(model, job.sync(), isinstance(task, NodeTask) and job.sync().on_lost == "stop")
    if task.head() is not None and own_method(model, "training_step") is not None:
        raise UserError(
            f"task={settings.task.name}: model={type(model).__name__} defines training_step, which ignores the "
            "task's parameters: remove training_step, or choose a task without parameters (task.decoder=dot)"
        )


def _write(job: RankJob, module: TrainingModule) -> Scores:
    """Writes the model's outputs for all nodes. Collective."""
    worker, learned = module.worker, module.learned  # rebalancing may have replaced both
    splits, scratch = None if job.settings.write else measured_splits(module.task), scratch_folder(job, worker.comm)
    make = functools.partial(lost.evaluation, job, worker, scratch=scratch, learned=learned, splits=splits)
    scores = write_outputs(job, module.task, module.model, make, job.prepared.class_names)
    if learned is not None:
        write_rows(job.folder / EMBEDDING, by_node(learned.owned.detach(), worker))
    if worker.comm.rank == LEADER:
        write_names(job, job.prepared.class_names)
    return scores


def _fit(
    job: RankJob,
    module: TrainingModule,
    sync: GradientSync,
    guard: Guard,
    resumed: list[resume.Resume],
    mailbox: Mailbox,
    checkpoints: Checkpoints,
) -> _Fitted:
    """Runs all training steps. Collective.

    Args:
        job: The job.
        module: The module of this rank.
        sync: The gradient synchronisation.
        guard: Checks gradients before each optimiser step.
        resumed: The checkpoint to resume from, if any.
        mailbox: Messages between workers and servers.
        checkpoints: Writes checkpoints.
    """
    comm, settings = module.worker.comm, job.settings.trainer
    writers = callbacks.writers(job, module.model, resumed) if comm.rank == LEADER else callbacks.Writers()
    watch = callbacks.watch(job, comm.world_size, writers.loggers) if comm.rank == LEADER else None
    with contextlib.nullcontext() if watch is None else contextlib.closing(watch):
        meter = SyncMeter(comm.end_of_sum)
        channel = StateChannel(mailbox, comm.rank, comm.world_size, watch, goes_on=sync.on_lost == "continue")
        rule = callbacks.monitor(job, _writer(job, module))
        site = RunSite(module.worker, meter, channel, job.settings.timeout, watch=watch, rule=rule)
        site.record = record = RunRecord(job, module, site, guard, writers.mark) if job.start else None
        access = RunAccess(job, mailbox)
        leader, hooks = Leader.at(site, access), [choice.create() for choice in job.settings.leader.hooks]
        around = _step_callbacks(job, module, checkpoints)
        trainer = make_trainer(
            module,
            sync,
            meter,
            guard=guard,
            mailbox=mailbox,
            callbacks=[leader, *around, *hooks, *resumed, *_display(job, watch)],
            logger=writers.loggers or False,
            max_epochs=settings.max_epochs,
            check_val_every_n_epoch=settings.check_val_every_n_epoch,
            log_every_n_steps=settings.log_every_n_steps,
        )
        _run_trainer(trainer, module, resumed, record, leader)
    return _Fitted(trainer, site, access, hooks, writers)


def _run_trainer(
    trainer: L.Trainer, module: TrainingModule, resumed: list[resume.Resume], record: RunRecord | None, leader: Leader
) -> None:
    """Restores the position of a resumed run, and trains. Collective."""
    for checkpoint in resumed:
        checkpoint.place(trainer, module)
    if record is not None:
        record.begin()
    trainer.fit(module)
    if module.worker.comm.rank == LEADER and (why := ended_by_user(trainer)):
        print(why, file=sys.stderr, flush=True)
    if any(checkpoint.is_over for checkpoint in resumed):
        _call_skipped_hooks(trainer, module, [*resumed, leader])


def _call_skipped_hooks(trainer: L.Trainer, module: TrainingModule, callbacks: Sequence[L.Callback]) -> None:
    """Calls the hooks that Lightning skips if no step is left. Collective."""
    for callback in callbacks:
        callback.on_train_start(trainer, module)
        callback.on_train_end(trainer, module)


def _step_callbacks(job: RankJob, module: TrainingModule, checkpoints: Checkpoints) -> list[L.Callback]:
    """Makes the callbacks around the steps, in calling order.

    The leader callback precedes them: it counts a step before a checkpoint stores the
    count.
    """
    max_time = job.settings.trainer.max_time
    chosen = callbacks.chosen(job, module.model)
    module.agrees_to_stop = bool(chosen) or isinstance(module.model, L.LightningModule)
    return [
        callbacks.signs(),
        *([] if max_time is None else [TimeLimit(max_time, job.start.begun if job.start else None)]),
        *chosen,
        *callbacks.periodic(job, checkpoints),
    ]


def _display(job: RankJob, watch: Watch | None) -> list[Display]:
    return [Display(watch)] if watch is not None and callbacks.shows_display(job) else []


def _test(module: TrainingModule, fitted: _Fitted) -> dict[str, Any]:
    """Runs the model's own `test_step`, if any, and closes the loggers. Collective.

    Returns the logged values.
    """
    test_figures: dict[str, Any] = {}
    if own_method(module.model, "test_step") is not None:
        (logged,) = fitted.trainer.test(module, verbose=False)
        test_figures = {"test_step": dict(logged)}
    fitted.writers.close()
    return test_figures


def _writer(job: RankJob, module: TrainingModule) -> Callable[[nn.Module], None] | None:
    """Returns the function that saves a better model, or None except on the leader."""
    worker = module.worker
    if worker.comm.rank != LEADER:
        return None
    return functools.partial(weights.save, widths=job.widths(worker), folder=job.folder)


def _finish(
    job: RankJob, module: TrainingModule, trainer: L.Trainer, checkpoints: Checkpoints
) -> dict[str, float | None]:
    """Saves the last checkpoint and selects the final model on all workers. Collective.

    The final model is the best one with `trainer.monitor`, and the last one otherwise.

    Returns:
        The largest parameter difference between two ranks before and after, and the
            loss ratio of the averaged model.
    """
    worker = module.worker
    module.settle()
    if job.settings.trainer.checkpoint:
        checkpoints.save(trainer, module, (trainer.current_epoch, 0))
    before = drift(module.model, worker.comm)
    if (rule := monitor(trainer)) is not None:
        rule.take_best(module)
    module.join()
    after = drift(module.model, worker.comm)
    if worker.comm.rank == LEADER:
        weights.save(module.model, job.widths(worker), job.folder)
    return {"drift": before, "final_drift": after, "joint_loss_ratio": module.joint_loss.ratio}
