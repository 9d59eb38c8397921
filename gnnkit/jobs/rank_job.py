"""The work of one rank: the settings and the prepared data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from gnnkit.comm import Communicator, Mailbox, Survivors
from gnnkit.comm.agreement import agree
from gnnkit.config.settings import USUAL_ORDERS, Settings
from gnnkit.engine.remote import LearnedRows
from gnnkit.engine.remote.disk import OnDisk
from gnnkit.errors import UserError
from gnnkit.graph.features import feature_arrays
from gnnkit.graph.schema import Schema
from gnnkit.jobs import models
from gnnkit.jobs.models import ModelSource, PythonModel, Widths, create_steps, describe, share_state
from gnnkit.launch.progress import progress
from gnnkit.model.exactness import ModelCheck, TrialRows, check_model
from gnnkit.model.hetero import HeteroModel
from gnnkit.model.unchanged import EdgeIndexModel
from gnnkit.partition.order import NodeOrder
from gnnkit.partition.shard import Shard
from gnnkit.partition.store.parts import WHOLE, RankParts
from gnnkit.prepare.facts import Prepared
from gnnkit.strategy import ExecutionStrategy, JoinedLayers, Worker
from gnnkit.sync import GradientSync
from gnnkit.task import Task
from gnnkit.task.evaluation import Evaluation, LaterEvaluation, SurvivorsEvaluation
from gnnkit.training.embedding import Embedding, LabelInputs
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import bring_pages

T = TypeVar("T")
_REMEDY = ". Make layers and calls in a fixed order, for example by sorted(names): set order differs between processes"
# Dtype of features, parameters and messages by trainer.precision.
DTYPES: dict[int | str, torch.dtype] = {32: torch.float32, 64: torch.float64, "bf16-mixed": torch.float32}
_TRIED = 200  # rows of nodes, and edges, from which small graphs for a trial are drawn
_PRODUCTS = {"bf16-mixed": "medium"}  # torch's float32 matmul precision


def input_dtype(settings: Settings) -> torch.dtype | None:
    """Returns `Worker.input_dtype`: bfloat16 for mixed precision on CPUs."""
    short = settings.trainer.precision == "bf16-mixed" and settings.comm.load().device_type == "cpu"
    return torch.bfloat16 if short else None


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a run's ranks, which restarts may repeat."""

    run: str  # identical in all starts of a run
    started_at: float  # first start, in seconds of `time.monotonic`
    number: int = 0  # number of earlier starts
    failed_at: float = 0.0  # end of the previous start, in seconds of `time.monotonic`


@dataclass(frozen=True, slots=True)
class RankJob:
    """The settings and prepared data of a job's ranks.

    Holds plain values only, so that it can be passed to a new process.
    """

    settings: Settings
    folder: Path
    prepared: Prepared
    model: PythonModel = None  # replaces the configured model
    start: Start | None = None  # None if restarts are disabled
    writer: Path | None = None  # the leader's folder of `checkpoint.writing`, or None without checkpoints
    quiet: bool = False  # whether trial runs print no lines about the schedule and defaults

    @contextlib.contextmanager
    def writing(self) -> Iterator[RankJob]:
        """Yields the job with the exclusive right to write checkpoints."""
        if not (self.settings.job.trains and self.settings.trainer.checkpoint):
            yield self
            return
        from gnnkit.training import checkpoint, resume  # loads Lightning

        with checkpoint.writing(self.folder / resume.FILE) as writer:
            yield replace(self, writer=writer)

    @property
    def source(self) -> ModelSource:
        """The source of the model."""
        return ModelSource(self.settings.model, self.model)

    @property
    def parts(self) -> RankParts:
        """The locations of the prepared data."""
        return self.prepared.parts(self.folder)

    @property
    def on_disk(self) -> OnDisk | None:
        """How ranks read features on disk, or None if features are in memory."""
        return OnDisk(self.prepared.cache) if self.prepared.place == "disk" else None

    def order(self) -> NodeOrder | None:
        """Makes the order of rows in memory, for jobs that read all edges repeatedly.

        Raises `UserError` for an explicit order if rows stay on disk.
        """
        settings, choice = self.settings, self.settings.order
        if settings.job.reads_checkpoint or not self.strategy().reads.all_edges:
            return None
        if self.prepared.place != "disk":
            order: NodeOrder = choice.create()
            return order
        if choice.name not in USUAL_ORDERS:
            raise UserError(
                f"order={choice.name}: with features.place=disk rows are in the order of the file: leave order out"
            )
        return None

    @property
    def schema(self) -> Schema | None:
        """The data's types, if known."""
        plain = self.prepared.schema
        return None if plain is None else Schema.of_plain(plain)

    def strategy(self) -> ExecutionStrategy:
        """Makes a new strategy."""
        return create_steps(self.settings, self.source)[0]

    def sync(self) -> GradientSync:
        """Makes a new gradient synchronisation."""
        return create_steps(self.settings, self.source)[1]

    def task(self) -> Task:
        """Makes a new task."""
        task: Task = self.settings.task.create()
        return task

    def worker(self, comm: Communicator, shard: int | str | None = None, dtype: torch.dtype | None = None) -> Worker:
        """Makes this rank's `Worker`.

        Args:
            comm: The ranks.
            shard: Name of the shard. Default: this rank's shard.
            dtype: Type of features and parameters. Default: by `trainer.precision`.
        """
        settings, parts = self.settings, self.parts
        progress("reading its shard")
        set_up_torch(settings)
        inputs = input_dtype(settings) if dtype is None else None
        worker = Worker(
            comm,
            self._with_types(parts.shard(comm.rank if shard is None else shard)),
            dtype or DTYPES[settings.trainer.precision],
            settings.seed,
            parts.graph(),
            None if settings.sampler is None else settings.sampler.create(),
            settings.threads,
            rows=parts.rows(),
            peers=tuple(self.prepared.peers[comm.rank]) if shard is None else None,
            input_dtype=inputs,
            rounded=None if inputs is None else parts.rounded(),
            on_disk=self.on_disk,
            remote_edges=self.prepared.remote_edges,
            order=self.order(),
            inverse_edges=self.prepared.inverse_edges,
            relation_names=None if self.prepared.relations is None else tuple(self.prepared.relations),
        )
        if self.prepared.place == "memory":
            progress("reading features into memory")
            for table in feature_arrays(
                worker.shard.features if worker.graph is None else worker.graph.features
            ).values():
                bring_pages(table)
        return worker

    def _with_types(self, shard: Shard) -> Shard:
        """Adds the sizes of node types, if a store of an earlier version has none."""
        if shard.type_sizes is not None or self.schema is None:
            return shard
        return replace(shard, type_sizes=self.schema.type_sizes)

    def widths(self, worker: Worker) -> Widths:
        """Returns the input and output widths of the run's model."""
        data = worker.shard if worker.graph is None else worker.graph
        edges = data.edge_features
        num_outputs = self.task().num_outputs(worker.shard.num_classes)
        width = self.settings.embedding or worker.features.width
        num_relations = worker.shard.num_relations // (1 + worker.inverse_edges)
        edge_width, sizes = 0 if edges is None else edges.shape[1], worker.shard.type_sizes
        num_types = 1 if sizes is None else len(sizes)
        return Widths(width, num_outputs, edge_width, num_relations, num_types, num_targets=worker.rows.num_outputs)

    def set_up(self, strategy: ExecutionStrategy, worker: Worker, model: nn.Module) -> Embedding | None:
        """Sets up the strategy for a model. Collective.

        Returns this rank's learned input rows, or None.
        """
        models.fit(self.settings, strategy, worker.sampler, model)
        strategy.check(worker.sampler, model.num_layers)  # type: ignore[arg-type]
        strategy.setup(worker, model)
        width, keys = self.settings.embedding, self.settings.learned
        if width is None:
            return None
        decay = (self.settings.trainer.weight_decay or 0.0) if getattr(model, "decays_rows", False) else 0.0
        rows = LearnedRows(worker.shard, width, worker.comm, worker.dtype, worker.seed, keys.scale)
        return Embedding(rows, strategy.tally, decay if keys.weight_decay is None else keys.weight_decay)

    def label_inputs(self, worker: Worker) -> LabelInputs | None:
        """Returns which input columns are labels, or None if none are."""
        share = self.settings.label_inputs
        return None if share is None else LabelInputs(share, worker.shard.num_classes)

    def make_model(self, worker: Worker, widths: Widths, task: Task, *, exchanges: bool) -> nn.Module:
        """Makes the model with the leader's parameters and buffers. Collective.

        Raises `UserError` if the models of two ranks differ. Ranks that are threads
        share torch's random generator, which Lightning resets when training begins.
        Therefore no thread returns before all threads have a model.

        Args:
            worker: This rank.
            widths: Sizes that the model must fit.
            task: The task, whose parameters become part of the model.
            exchanges: Whether the model's layers exchange rows between ranks.
        """
        model = self.own_model(worker, widths, task)
        if worker.comm.world_size > 1:
            calls = self.source.calls(model, widths) if exchanges else []
            agree(worker.comm, describe(model) | {f"model call {n}": call for n, call in enumerate(calls, 1)}, _REMEDY)
            share_state(worker.comm, model)
        return model

    def own_model(self, worker: Worker, widths: Widths, task: Task) -> nn.Module:
        """Makes the model of one rank without comparing it to other ranks."""
        widths = replace(widths, schema=self.schema)
        model = self.source.make_model(widths, self.settings.seed, task)
        if isinstance(model, HeteroModel):
            if worker.rows.pairs:
                model.check_link_ends(0 if worker.rows.relation is None else worker.rows.relation.number)
            else:
                model.check_labels(worker.owned[worker.shard.labelled])
        return model.to(worker.device, worker.dtype)

    def evaluation(
        self,
        worker: Worker,
        model: nn.Module,
        *,
        learned_rows: LearnedRows | None = None,
        splits: Collection[str] | None = None,
        scratch: Path | None = None,
    ) -> Evaluation:
        """Makes the evaluation of a model, which also covers lost workers' nodes.

        Args:
            worker: This rank.
            model: The model.
            learned_rows: The learned input rows. If None, input rows are features.
            splits: Splits whose nodes are evaluated. If None, all nodes.
            scratch: Folder for temporary files between layers. Default: none.
        """

        def make(worker: Worker, splits: Collection[str] | None = None) -> Evaluation:
            memory = self.settings.trainer.evaluation_memory
            if later := self._later_workers(worker):
                return LaterEvaluation(
                    {
                        name: Evaluation.of(split_worker, model, memory, scratch, learned_rows)
                        for name, split_worker in later.items()
                    }
                )
            return Evaluation.of(worker, model, memory, scratch, learned_rows, splits)

        if isinstance(worker.comm, Survivors):
            return SurvivorsEvaluation(worker, worker.comm, make, self.parts.adopting)
        return make(worker, splits)

    def _later_workers(self, worker: Worker) -> dict[str, Worker]:
        """Returns this rank with the edges that each split is evaluated on.

        Empty if these are the edges of training.
        """
        workers = {}
        for split, parts in self.parts.later().items():
            graph, fields = parts.graph(), dict[str, Any]()
            if graph is not None and worker.graph is not None:
                fields["graph"] = worker.graph.with_edges(graph.csc.weighted(None), graph.edge_columns)
            name: int | str = worker.comm.rank
            if worker.comm.world_size == 1 and parts.files(WHOLE):
                name = WHOLE
            if parts.files(str(name)):
                shard = self._with_types(parts.shard(name))
                fields["shard"] = replace(shard, features=worker.shard.features)
            workers[split] = replace(worker, **fields)
        return workers

    def scratch_folder(self, comm: Communicator) -> Path | None:
        """Returns the run folder if all ranks are on one host and share its cache."""
        processes = self.settings.processes or (1 if comm.in_threads else self.settings.world_size)
        num_local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
        return self.folder if num_local == processes else None

    def alone(self, worker: Worker) -> ExecutionStrategy | None:
        """Returns a strategy for one rank with the same steps as all ranks, or None."""
        strategy, sync = self.strategy(), self.sync()
        ability = strategy.ability(JoinedLayers)
        if (ability is not None and not ability.by_owners) and isinstance(
            self.own_model(worker, self.widths(worker), self.task()), EdgeIndexModel
        ):
            return None  # the batch graph depends on all of a rank's seeds
        return strategy.on_one_rank(worker.comm.world_size, worker.sampler) if sync.exact else None

    def check_model(self, worker: Worker) -> ModelCheck:
        """Searches for reasons in the model why several ranks differ from one rank.

        The layers of gnnkit's own models are exact, and are not compared.
        """
        widths = self.widths(worker)
        model = self.source.make_model(replace(widths, schema=self.schema), self.settings.seed)
        is_exact = self.source.python_model is None and self.source.choice.load().__module__.startswith("gnnkit.")
        graph_size = self.prepared.num_nodes, self.prepared.num_edges
        return check_model(model, _trial_rows(worker, widths, graph_size), compares=not is_exact)


def _trial_rows(worker: Worker, widths: Widths, graph_size: tuple[int, int]) -> TrialRows:
    """Samples a rank's rows for trials on graphs of up to `graph_size`."""
    rng, data = np.random.default_rng(worker.seed), worker.shard if worker.graph is None else worker.graph
    features, edges = None, {}
    if widths.in_features == worker.features.width and len(worker.owned):  # otherwise rows are learned
        nodes = np.unique(worker.owned[rng.integers(0, len(worker.owned), _TRIED)])
        features = worker.features.rows(nodes).double().cpu().numpy()
    if data.csc.num_edges:
        positions = np.sort(rng.integers(0, data.csc.num_edges, _TRIED))
        columns = {"weight": data.csc.weight, "edge_features": data.edge_features}
        edges = {name: np.asarray(values[positions]) for name, values in columns.items() if values is not None}
    return TrialRows(widths.in_features, widths.edge_width, features, edges, train_size=graph_size)


def set_up_torch(settings: Settings) -> None:
    """Sets this rank's number of threads and the matmul precision."""
    torch.set_num_threads(settings.threads)
    torch.set_float32_matmul_precision(_PRODUCTS.get(str(settings.trainer.precision), "highest"))


def with_servers(job: RankJob, world: Communicator, work: Callable[[Communicator, Mailbox], T]) -> T | None:
    """Runs `work` on a worker, or serves and returns None.

    Collective over all ranks. Servers end after the workers' `GradientSync.close`.

    Args:
        job: The settings and the prepared data.
        world: The workers, followed by the servers.
        work: Called with the workers, and a mailbox between all ranks.
    """
    num_workers = world.world_size - job.settings.servers
    with world.mailbox() as mailbox:
        if world.rank >= num_workers:
            progress("serving")
            torch.set_num_threads(job.settings.threads)
            job.sync().serve(mailbox, num_workers)
            return None
        return work(world.split(range(num_workers)) if job.settings.servers else world, mailbox)


# A job's work on one rank. Collective. Returns the figures on the leader.
RankWork = Callable[[RankJob, Communicator], Json]
