"""One rank's training run: its parts, created once from the job."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from gnnkit.comm import LEADER, Communicator, Mailbox, Survivors
from gnnkit.config.settings import AUTO, TrainerSettings
from gnnkit.errors import UserError
from gnnkit.graph import Split
from gnnkit.jobs.folder import copy_checkpoints
from gnnkit.jobs.rank_job import RankJob
from gnnkit.jobs.restarts import resumable
from gnnkit.launch.progress import dispensable, progress, say
from gnnkit.leader import trace
from gnnkit.leader.site import LeaderRun
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.result.figures import PhaseFigures
from gnnkit.result.result import COORDINATION
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.strategy.base import Phases
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.task.evaluation import BYTES_PER_EDGE, COPIES, MIB
from gnnkit.training import hooks, resume
from gnnkit.training.exact_epochs import ExactEpochs
from gnnkit.training.finite import Guard, decide_together
from gnnkit.training.logger import Loggers
from gnnkit.training.module import TrainingModule
from gnnkit.training.monitor import count_labelled
from gnnkit.training.saving import Checkpoints
from gnnkit.training.schedule import Plateau, RateSchedule, Schedules
from gnnkit.training.step import LOSS, monitored_metric, own_method
from gnnkit.utils.documents import read_object
from gnnkit.utils.spans import active, record, stop
from gnnkit.utils.storage import write_atomically

if TYPE_CHECKING:
    import lightning as L

    from gnnkit.callback import LeaderHook
    from gnnkit.training.run_site import RunSite

WARM_UP = 10  # epochs in which the learning rate of mini-batches and schedules increases, or a tenth if that is less
WIDE = 4  # input features per training node above which weights decay by default


@dataclass(eq=False)
class RankRun(LeaderRun):
    """A training run on one rank.

    `open_run` creates it. The phases in `jobs/train.py` add what is created later, and
    their figures. The leader's hooks receive it as `LeaderRun`.
    """

    job: RankJob
    mailbox: Mailbox  # connects the workers and the servers
    sync: GradientSync
    module: TrainingModule
    checkpoints: Checkpoints
    resume_point: resume.Resume | None  # the checkpoint to resume from
    guard: Guard
    figures: PhaseFigures = field(default_factory=PhaseFigures)
    loggers: Loggers = field(default_factory=Loggers)
    site: RunSite = field(init=False)
    hooks: list[LeaderHook] = field(init=False)

    def __post_init__(self) -> None:
        settings = self.job.settings
        self.folder, self.timeout = self.job.folder, settings.timeout
        self.checkpoint_every, self.world_size = settings.trainer.checkpoint_every, settings.workers

    @property
    def worker(self) -> Worker:
        """This rank's data and settings, a new object after rebalancing."""
        return self.module.worker

    @property
    def strategy(self) -> ExecutionStrategy:
        """Provides the batches."""
        return self.module.strategy

    @property
    def task(self) -> Task:
        """Computes losses and metrics."""
        return self.module.task

    @property
    def trainer(self) -> L.Trainer:
        """Runs the steps, from `fit` on."""
        return self.module.trainer

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0."""
        return self.worker.comm.rank == LEADER

    def close(self) -> None:
        """Ends the trace, the synchronisation and the strategy. Collective."""
        if (spans := active()) is not None:
            stop()
            tracks = trace.gather(spans, self.mailbox, self.worker.comm.world_size, self.timeout)
            if self.is_leader:
                trace.save(tracks, self.folder)
        self.sync.close()
        self.strategy.close()

    def progress(self, activity: str) -> None:
        progress(activity)

    def take_shard(self, module: Any, name: str, balance: Mapping[str, float]) -> None:
        progress("loading the new shard")
        comm, strategy, tally = module.worker.comm, module.strategy, module.strategy.tally
        strategy.close()
        worker = self.job.worker(comm, f"{name}/{comm.rank}")
        strategy.setup(worker, module.model)
        strategy.tally.include(tally)
        module.worker = worker
        module.evaluation = self.job.evaluation(worker, module.model, scratch=self.job.scratch_folder(comm))
        if balance:
            self.job = replace(self.job, prepared=replace(self.job.prepared, balance=dict(balance)))

    def note(self, fields: Mapping[str, Any]) -> None:
        path = self.folder / COORDINATION
        coordination = read_object(path) if path.exists() else {}
        write_atomically(path, json.dumps({**coordination, **fields}).encode())


@contextlib.contextmanager
def open_run(job: RankJob, comm: Communicator, mailbox: Mailbox) -> Iterator[RankRun]:
    """Creates the run of one worker, with `sync.on_lost` handled. Collective.

    On exit, the last checkpoint is written.

    Args:
        job: The settings and the prepared data.
        comm: The workers.
        mailbox: Connects the workers, and the servers, which are numbered after them.
    """
    sync = job.sync()
    try:
        with _tolerate_losses(comm, mailbox, sync) as workers, _checkpoints(job) as checkpoints:
            resume_point = _read_checkpoint(job, workers.rank)
            guard = _guard(job, resume_point, checkpoints)
            if job.settings.profile:
                record(trace.limit(workers.world_size))
            begin = 0 if resume_point is None else resume_point.saved["epoch"]
            scratch = job.scratch_folder(workers)
            module = make_module(job, job.strategy(), job.worker(workers), scratch=scratch, begin=begin)
            yield RankRun(job, mailbox, sync, module, checkpoints, resume_point, guard)
    finally:
        stop()  # ends the spans of an aborted run


@contextlib.contextmanager
def _tolerate_losses(workers: Communicator, mailbox: Mailbox, sync: GradientSync) -> Iterator[Communicator]:
    """Yields the workers, as `Survivors` under `sync.on_lost=continue`.

    After the first collective, workers other than the leader notify the launcher that
    the run may continue without them.
    """
    if sync.on_lost != "continue":
        yield workers
        return
    survivors = Survivors(workers, mailbox, range(workers.world_size))
    try:
        survivors.all_reduce(torch.zeros(1))
        if survivors.rank != LEADER:
            dispensable()
        yield survivors
    finally:
        survivors.close()


def _checkpoints(job: RankJob) -> Checkpoints:
    """Creates the writer of the run's checkpoints."""
    keep, url = job.settings.trainer.keep_checkpoints, job.settings.upload
    uploads = [] if url is None else [functools.partial(copy_checkpoints, url, job.folder, job.writer)]
    return Checkpoints(job.folder / resume.FILE, resumable(job), keep, job.writer, *uploads)


def _read_checkpoint(job: RankJob, rank: int) -> resume.Resume | None:
    """Reads the checkpoint to resume from, if any. The leader prints damaged ones."""
    path, ends = job.settings.trainer.resume, job.settings.on_exists == "resume"
    if path is None:
        return None
    resume_point = resume.Resume(resume.load(path, rank), resumable(job), ends=ends)
    if rank == LEADER:
        resume_point.report_damage()
    return resume_point


def _guard(job: RankJob, resume_point: resume.Resume | None, checkpoints: Checkpoints) -> Guard:
    """Creates the guard against non-finite values.

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
    return Guard(settings.on_nan, writer, resume_point.path if resume_point else None)


def make_module(
    job: RankJob, strategy: ExecutionStrategy, worker: Worker, *, scratch: Path | None = None, begin: int = 0
) -> TrainingModule:
    """Creates the training module of one rank and sets up the strategy. Collective.

    Args:
        job: The job.
        strategy: Provides the batches.
        worker: This rank.
        scratch: Folder for temporary files of layer-wise evaluation. Default: none.
        begin: Number of epochs that a resumed run has completed.
    """
    settings, task = job.settings.trainer, job.task()
    task.begin(worker)
    model = job.make_model(worker, job.widths(worker), task, exchanges=worker.fetches or strategy.steps.exchange)
    embedding = job.set_up(strategy, worker, model)
    learned_rows = None if embedding is None else embedding.rows
    exact_epochs = _exact_epochs(job, strategy, worker, model, begin)
    on_schedule = None if exact_epochs is None else exact_epochs.phases.first > 0
    module = TrainingModule(
        model,
        strategy,
        worker,
        job.evaluation(worker, model, learned_rows=learned_rows, splits=task.splits, scratch=scratch),
        task=task,
        embedding=embedding,
        label_inputs=job.label_inputs(worker),
        optimizer=settings.optimizer,
        lr=settings.learning_rate(model),
        weight_decay=_weight_decay(job, worker, model),
        schedule=_schedule(job, task, model, warms_up=not strategy.has_whole_steps or on_schedule),
        clip_norm=settings.clip_norm,
        accumulate=settings.accumulate,
        exact_epochs=exact_epochs,
        progress_splits=_progress_splits(worker),
    )
    _check(job, module)
    return module


def _progress_splits(worker: Worker) -> tuple[str, ...] | None:
    """Returns the splits to measure during training, or None for all. Collective.

    Nodes that are sampled at their own times share nothing, so that each costs as much
    as in training. Then only those of validation are evaluated, which select the model.
    """
    is_cheaper = worker.samples_by_time and not worker.rows.pairs
    return ("val",) if is_cheaper and count_labelled(worker, Split.VAL) else None


def _weight_decay(job: RankJob, worker: Worker, model: nn.Module) -> float:
    """Returns `trainer.weight_decay`, or the model's default. Collective.

    The default applies if there are `WIDE` input features per training node, as in a
    graph of documents with few labels, where a model without a penalty overfits.
    """
    default: float = getattr(model, "default_weight_decay", 0.0)
    if job.settings.trainer.weight_decay is not None or not default or worker.rows.pairs:
        return job.settings.trainer.weight_decay or 0.0
    width, num_nodes = job.widths(worker).in_features, count_labelled(worker, Split.TRAIN)
    if width < WIDE * num_nodes:
        return 0.0
    line = f"trainer.weight_decay={default:g}, because there are {width:,} features and {num_nodes:,} training nodes"
    _say(job, worker, line)
    return default


def _exact_epochs(
    job: RankJob, strategy: ExecutionStrategy, worker: Worker, model: nn.Module, begin: int
) -> ExactEpochs | None:
    """Gives the strategy its schedule of exact epochs, which the leader prints.

    Returns None if no epoch is approximate, or none has an exact counterpart.
    """
    settings, (by_sync, by_strategy) = job.settings.trainer, _approximate(job, strategy, worker)
    shares, epochs, reason = settings.exact_shares, settings.max_epochs, _lacks_exact_steps(strategy, worker, model)
    key = "trainer.exact_shares=" + str(shares).translate(str.maketrans("()", "[]", " "))
    memory = None if reason else _lacks_memory(settings, strategy, worker, model)
    keeps = strategy.finishes == "asked" and shares == AUTO  # the strategy's steps, in all epochs
    has_exact = by_strategy and not keeps
    if has_exact and (reason := reason or (memory if shares == AUTO else None)):
        _say(job, worker, f"{key}: the strategy has no exact epochs, because {reason}")
        by_strategy = has_exact = False
    if not any((by_sync, by_strategy)):
        return None
    phases = Phases() if keeps and not by_sync else Phases.of(epochs, *(() if shares == AUTO else shares))
    strategy.phases = phases if has_exact else strategy.phases
    exact_epochs = ExactEpochs(phases, exact=has_exact or not strategy.costs())
    _say(job, worker, f"schedule of {epochs} epochs: {exact_epochs.describe(epochs, begin)} ({key})")
    return exact_epochs


def _approximate(job: RankJob, strategy: ExecutionStrategy, worker: Worker) -> tuple[bool, bool]:
    """Returns whether sync and strategy are approximate, with exact counterparts."""
    sync, alone, on_request = job.sync(), worker.comm.world_size == 1, strategy.finishes == "asked"
    exchanges = strategy.finishes == "always" or strategy.reads.all_edges  # one rank alone has no other rows
    keeps_batches = on_request and job.settings.trainer.exact_shares == AUTO and not strategy.has_whole_steps
    has_exact_steps = strategy.finishes != "no" and not keeps_batches and not (alone and exchanges)
    return bool(sync.costs()) and sync.finishes and not alone, bool(strategy.costs()) and has_exact_steps


def _say(job: RankJob, worker: Worker, line: str) -> None:
    if worker.comm.rank == LEADER and not job.quiet:
        say(line)


def _lacks_exact_steps(strategy: ExecutionStrategy, worker: Worker, model: nn.Module) -> str | None:
    """Returns why subgraphs or batches have no exact steps, or None."""
    if strategy.reads.all_edges:
        return None
    if worker.rows.drawn:
        return "a step that predicts all edges leaves none to pass messages"
    if isinstance(model, EdgeIndexModel):
        return f"model={type(model).__name__} does not declare how many layers it has"
    return "all features would be read from disk in each step" if worker.disk is not None else None


def _lacks_memory(
    settings: TrainerSettings, strategy: ExecutionStrategy, worker: Worker, model: nn.Module
) -> str | None:
    """Returns why exact steps of subgraphs or batches may need too much memory."""
    if strategy.reads.all_edges:
        return None
    weights = [parameter.shape for parameter in model.parameters() if parameter.dim() > 1]
    hidden = max((min(shape) for shape in weights), default=1)
    layers: int = model.num_layers  # type: ignore[assignment]
    rows = (worker.shard.features.shape[1] + COPIES * layers * hidden) * worker.dtype.itemsize
    mebibytes = (worker.shard.num_nodes * rows + worker.shard.num_edges * layers * BYTES_PER_EDGE) / MIB
    if mebibytes <= settings.evaluation_memory:
        return None
    return f"a step with all neighbours may take {mebibytes:,.0f} MiB (trainer.evaluation_memory)"


def _schedule(job: RankJob, task: Task, model: nn.Module, *, warms_up: bool | None) -> Schedules | None:
    """Creates the learning-rate schedule, or None for a constant rate.

    A run that warms up by default has a schedule with any number of epochs, so that a
    run of more epochs can resume it.

    Args:
        job: The job.
        task: Knows the metrics.
        model: The model. One that configures its optimisers has schedules of its own.
        warms_up: Whether the rate increases by default, from ten epochs on. None: not
            in runs of any length, which therefore need no schedule.
    """
    settings = job.settings.trainer
    if settings.schedule == "plateau":
        name = monitored_metric(settings.monitor, task)
        assert name is not None
        return Plateau(name, name == LOSS or task.is_lower_better(name))
    may_warm_up = warms_up is not None and own_method(model, "configure_optimizers") is None
    default = min(settings.max_epochs // 10, WARM_UP) if may_warm_up and warms_up else 0
    warmup = default if settings.warmup_epochs == "auto" else settings.warmup_epochs
    if settings.schedule or warmup or (may_warm_up and settings.warmup_epochs == "auto"):
        return RateSchedule(settings.schedule, warmup, settings.max_epochs)
    return None


def _check(job: RankJob, module: TrainingModule) -> None:
    """Raises `UserError` for conflicts that only appear once the parts exist."""
    settings, task, model, sync = job.settings, module.task, module.model, job.sync()
    if module.accumulate > 1 and module.strategy.num_batches(0) == 1:
        raise UserError(
            f"trainer.accumulate={module.accumulate}: strategy={settings.strategy.name} has one batch per epoch here: use "
            "trainer.accumulate=1"
        )
    hooks.check(model, sync, not task.pairs and sync.on_lost == "stop")
    if task.head() is not None and own_method(model, "training_step") is not None:
        raise UserError(
            f"task={settings.task.name}: model={type(model).__name__} defines training_step, which ignores the "
            "task's parameters: remove training_step, or choose a task without parameters (task.decoder=dot)"
        )
