"""The work of one rank: the settings, and the data that were prepared for the ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from gnnkit.comm import Communicator, Mailbox
from gnnkit.config.settings import USUAL_ORDERS, Settings
from gnnkit.errors import UserError
from gnnkit.graph.features import feature_arrays
from gnnkit.jobs import models
from gnnkit.jobs.identity import of_model, share_state
from gnnkit.jobs.models import Given, ModelSource, Widths
from gnnkit.launch.handshake import agree
from gnnkit.launch.progress import progress
from gnnkit.model.exactness import inexact
from gnnkit.order import NodeOrder
from gnnkit.prepare.cut import Prepared
from gnnkit.remote import LearnedRows
from gnnkit.remote.disk import OnDisk
from gnnkit.storage import bring_pages
from gnnkit.store.parts import Parts
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.training.embedding import Embedding

T = TypeVar("T")
_CURE = ". Give layers and calls one order, as by sorted(names): the order of a set differs between processes"
# Types of features, parameters and messages by trainer.precision.
DTYPES: dict[int | str, torch.dtype] = {32: torch.float32, 64: torch.float64, "bf16-mixed": torch.float32}
_PRODUCTS = {"bf16-mixed": "medium"}  # torch's name of the precision of products of float32


def input_dtype(settings: Settings) -> torch.dtype | None:
    """Returns `Worker.input_dtype`, the type of input rows in training on CPUs."""
    short = settings.trainer.precision == "bf16-mixed" and settings.comm.load().device_type == "cpu"
    return torch.bfloat16 if short else None


@dataclass(frozen=True, slots=True)
class Start:
    """One start of all ranks of a run that may have several."""

    run: str  # equal in all starts of a run
    begun: float  # of the first start, seconds of `time.monotonic`
    number: int = 0  # starts before
    failed_at: float = 0.0  # of the start before, seconds of `time.monotonic`


@dataclass(frozen=True, slots=True)
class RankJob:
    """What the ranks of a job get: the settings and the prepared data.

    Holds plain values, for a process that starts afresh.
    """

    settings: Settings
    folder: Path  # the run folder
    prepared: Prepared
    model: Given = None  # instead of the configured model
    start: Start | None = None  # None: the ranks are started once only
    writer: Path | None = None  # folder of `checkpoint.writing`, of the leader. None: the job saves none

    @contextlib.contextmanager
    def writing(self) -> Iterator[RankJob]:
        """Gives the job whose leader alone may save checkpoints, until the end."""
        if not (self.settings.job.trains and self.settings.trainer.checkpoint):
            yield self
            return
        from gnnkit.training import checkpoint, resume  # imports Lightning

        with checkpoint.writing(self.folder / resume.FILE) as writer:
            yield replace(self, writer=writer)

    def with_balance(self, balance: Mapping[str, float]) -> RankJob:
        """Returns the job with the balance of other shards. Empty: unchanged."""
        return replace(self, prepared=replace(self.prepared, balance=dict(balance))) if balance else self

    @property
    def source(self) -> ModelSource:
        """The maker of the model."""
        return ModelSource(self.settings.model, self.model)

    @property
    def goes_on(self) -> bool:
        """Whether ranks of this run have been started before, and have died."""
        return self.start is not None and self.start.number > 0

    @property
    def parts(self) -> Parts:
        """Where the ranks read."""
        return self.prepared.parts(self.folder)

    @property
    def on_disk(self) -> OnDisk | None:
        """How ranks read features that stay on disk."""
        features, prepared = self.settings.features, self.prepared
        if prepared.place != "disk":
            return None
        return OnDisk(prepared.cache, features.policy, features.direct, features.reads == "io_uring")

    def order(self) -> NodeOrder | None:
        """Makes the order of rows in memory, for jobs that sum over these many times.

        Raises `UserError` for a chosen order where rows stay on disk.
        """
        settings, chosen = self.settings, self.settings.order
        if settings.job.reads_checkpoint or not self.strategy().reads.all_edges:
            return None
        if self.prepared.place != "disk":
            order: NodeOrder = chosen.create()
            return order
        if chosen.name not in USUAL_ORDERS:
            raise UserError(
                f"order={chosen.name}: with features.place=disk rows are in the order of the file: leave order out"
            )
        return None

    def strategy(self) -> ExecutionStrategy:
        """Makes a new strategy."""
        strategy: ExecutionStrategy = self.settings.create_strategy()
        return strategy

    def sync(self) -> GradientSync:
        """Makes a new gradient synchronisation."""
        sync: GradientSync = self.settings.sync.create()
        return sync

    def task(self) -> Task:
        """Makes a new task."""
        task: Task = self.settings.task.create()
        return task

    def worker(self, comm: Communicator, shard: int | str | None = None, dtype: torch.dtype | None = None) -> Worker:
        """Makes this rank's part of the run.

        Args:
            comm: The ranks.
            shard: Name of the shard. Default: the rank's own.
            dtype: Type of features and parameters. Default: the configured precision.
        """
        settings, parts = self.settings, self.parts
        progress("reading its shard")
        set_up_torch(settings)
        inputs = input_dtype(settings) if dtype is None else None
        worker = Worker(
            comm,
            parts.shard(comm.rank if shard is None else shard),
            dtype or DTYPES[settings.trainer.precision],
            settings.seed,
            parts.graph(),
            None if settings.sampler is None else settings.sampler.create(),
            settings.threads,
            links=parts.links(),
            peers=tuple(self.prepared.peers[comm.rank]) if shard is None else None,
            input_dtype=inputs,
            rounded=None if inputs is None else parts.rounded(),
            on_disk=self.on_disk,
            remote_edges=self.prepared.remote_edges,
            order=self.order(),
        )
        if self.prepared.place == "memory":
            progress("reading features into memory")
            for table in feature_arrays(
                worker.shard.features if worker.graph is None else worker.graph.features
            ).values():
                bring_pages(table)
        return worker

    def widths(self, worker: Worker) -> Widths:
        """Returns the widths that the model of this run must fit."""
        data = worker.shard if worker.graph is None else worker.graph
        edges = data.edge_features
        num_outputs = self.task().num_outputs(worker.shard.num_classes)
        width = self.settings.embedding or worker.features.width
        return Widths(width, num_outputs, 0 if edges is None else edges.shape[1], worker.shard.num_relations)

    def set_up(self, strategy: ExecutionStrategy, worker: Worker, model: nn.Module) -> Embedding | None:
        """Sets up the strategy for a model. Collective.

        Returns the learned input rows of one rank, where input rows are learned.
        """
        models.fit(self.settings, strategy, worker.sampler, model)
        strategy.check(worker.sampler, model.num_layers)  # type: ignore[arg-type]
        strategy.setup(worker, model)
        width, learned = self.settings.embedding, self.settings.learned
        if width is None:
            return None
        decay = self.settings.trainer.weight_decay if getattr(model, "decays_rows", False) else 0.0
        rows = LearnedRows(worker.shard, width, worker.comm, worker.dtype, worker.seed, learned.scale)
        return Embedding(rows, strategy.tally, decay if learned.weight_decay is None else learned.weight_decay)

    def make_model(self, worker: Worker, widths: Widths, task: Task, *, exchanges: bool) -> nn.Module:
        """Makes the model of one rank, with the parameters and buffers of the leader.

        Raises `UserError` where the models of two ranks differ. Threads share torch's
        random generator, and Lightning winds the generator back at the begin of
        training. So no thread returns before all threads have a model. Collective.

        Args:
            worker: This rank.
            widths: Sizes that the model must fit.
            task: The task, whose parameters become a part of the model.
            exchanges: Whether the model's layers exchange rows between ranks.
        """
        model = self.own_model(worker, widths, task)
        if worker.comm.world_size > 1:
            calls = self.source.calls(model, widths) if exchanges else []
            agree(worker.comm, of_model(model) | {f"model call {n}": call for n, call in enumerate(calls, 1)}, _CURE)
            share_state(worker.comm, model)
        return model

    def own_model(self, worker: Worker, widths: Widths, task: Task) -> nn.Module:
        """Makes the model of one rank alone, whatever the other ranks have."""
        return self.source.make_model(widths, self.settings.seed, task).to(worker.device, worker.dtype)

    def inexact(self, worker: Worker) -> list[str]:
        """Lists the known reasons why several ranks compute another model than one."""
        widths = self.widths(worker)
        model = self.source.make_model(widths, self.settings.seed)
        return inexact(model, widths.in_features, widths.edge_width)


def set_up_torch(settings: Settings) -> None:
    """Sets the threads of this rank, and the precision of products."""
    torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision(_PRODUCTS.get(str(settings.trainer.precision), "highest"))


def with_servers(job: RankJob, world: Communicator, work: Callable[[Communicator, Mailbox], T]) -> T | None:
    """Does the work of a worker, or serves and returns None.

    Collective over all ranks. Servers end after the workers' `GradientSync.close`.

    Args:
        job: The settings and the prepared data.
        world: The workers, and after them the servers.
        work: Called on each worker with the workers, and letters between all ranks.
    """
    num_workers = world.world_size - job.settings.servers
    with world.mailbox() as mailbox:
        if world.rank >= num_workers:
            progress("serving")
            torch.set_num_threads(job.settings.threads)
            job.sync().serve(mailbox, num_workers)
            return None
        return work(world.split(range(num_workers)) if job.settings.servers else world, mailbox)


# The work of one rank in a job. Collective. Returns the figures, on the leader.
RankWork = Callable[[RankJob, Communicator], dict[str, Any]]
