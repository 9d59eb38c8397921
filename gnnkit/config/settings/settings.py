"""The typed settings of one job."""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from gnnkit import plugins
from gnnkit.config import JobFacts
from gnnkit.config.settings.choice import Choice
from gnnkit.config.settings.fields import OnlyWith, Section, Switch, by_job, names
from gnnkit.config.settings.inputs import (
    FEATURES,
    INEXACT,
    INPUT_ROWS,
    INPUTS,
    LEARNED,
    TYPES,
    FeaturesSettings,
    LabelShare,
    LearnedSettings,
)
from gnnkit.config.settings.launchers import find_launcher, launcher_for
from gnnkit.config.settings.layout import PartitionSettings
from gnnkit.config.settings.ranks import MAX_WORKERS, AutoWorkers, servers_of, share_machine
from gnnkit.config.settings.trainer import TrainerSettings
from gnnkit.config.settings.values import (
    AUTO,
    UPLOADED,
    LocalPath,
    Url,
    cache_folder,
    output_names,
    path,
)
from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank
from gnnkit.utils.ranges import MAX_THREADS, MAX_WIDTH, one_of, real, switch, whole

if TYPE_CHECKING:
    from gnnkit.launch.launcher import Launcher


MAX_RATE = 1e9  # upper limit of numbers that describe a machine

Rate = Annotated[float, functools.partial(real, above=0, high=MAX_RATE)]
Latency = Annotated[float, functools.partial(real, low=0, high=MAX_RATE)]


@dataclass(frozen=True, slots=True)
class LeaderSettings(Section):
    """The section `leader`: a switch for each plugin of the leader."""

    rebalance: Switch  # whether work is moved away from a straggler
    other_plugins: tuple[str, ...] = ()  # other enabled plugins. Not a key, since it has a default

    @classmethod
    def optional_keys(cls) -> list[str]:
        return plugins.names("leader")

    @classmethod
    def read(cls, section: str, values: Mapping[str, Any]) -> Self:
        names = [name for name, value in values.items() if switch(f"{section}.{name}", value)]
        for name in names:
            if name not in plugins.names("leader"):
                package = plugins.PACKAGES["leader"][name]
                raise UserError(f"{section}.{name}=true: the package {package} is not installed: pip install {package}")
        return cls("rebalance" in names, tuple(name for name in names if name != "rebalance"))

    @property
    def hooks(self) -> tuple[Choice, ...]:
        """The enabled plugins."""
        return tuple(Choice("leader", name, {}) for name in ("rebalance",) * self.rebalance + self.other_plugins)


@dataclass(frozen=True, slots=True)
class PlanSettings(Section):
    """The section `plan`, which may describe a machine other than this one."""

    conditions = (
        OnlyWith(
            "job=plan, partition=auto or strategy=auto",
            lambda s: s.job.reads_plan or AUTO in (s.strategy.name, s.partition.nodes.name),
        ),
    )

    bandwidth: Rate | None  # GB/s that a rank sends to others
    memory: Rate | None  # GiB per rank


_USUAL_LOGGERS = ("tensorboard", "csv")  # default loggers of `conf/config.yaml`
FEW_EDGES = 500_000  # below this, one worker is faster: measured up to 240,000 edges on two cores, with 2 and 4
# Up to this size, one thread is faster than two. On two busy cores, two threads took 6
# to 13 times as long, because they synchronise thousands of times an epoch and lose
# their turns.
SMALL_EDGES = 50_000
DEFAULT_TASK = "node_classification"
USUAL_ORDERS = ("auto", "none")  # row orders that all strategies support
FORMATS = ("npy", "parquet", "csv")  # file formats for `write`
JOINS = ("rows", "columns")  # of the workers' parts of these files
ON_EXISTS = ("refuse", "resume", "replace")
PERMISSIONS = ("private", "shared")

_Width = Annotated[int, functools.partial(whole, low=1, high=MAX_WIDTH, what="null or a whole number")]
_Workers = Annotated[int, functools.partial(whole, low=1, high=MAX_WORKERS)]
_AS_NPY = OnlyWith("write_format=npy", lambda s: s.write_format == "npy", hint="use write_format=npy")
_CHECKPOINT = by_job(lambda job: job.reads_checkpoint, hint="set trainer.resume to continue training")


def job_class(key: str, value: object) -> type[JobFacts]:
    """Imports a job's class. Raises `UserError` if its `name` differs."""
    name = value if isinstance(value, str) else one_of(key, value, plugins.names("job"))
    job: type[JobFacts] = plugins.load("job", name)
    if job.name != name:
        raise UserError(f"{key}={name}: {job.__module__}.{job.__qualname__} must have name={name!r}, not {job.name!r}")
    return job


def _report(key: str, value: object) -> bool:
    if value == "live":
        raise UserError("report=live: the page is written after training; use logger=tensorboard during training")
    return switch(key, value)


@dataclass(frozen=True, slots=True)
class Settings:
    """One job's configuration.

    Until the leader has decided, the partition or the strategy may be `AUTO`, and the
    number of workers is provisional if `auto_workers` is set. No other value is `auto`.
    """

    job: Annotated[type[JobFacts], job_class]
    inputs: Annotated[str, names(INPUTS)]
    types: Annotated[str, names(TYPES)]  # node and edge types
    inexact: Annotated[str, names(INEXACT)]  # models whose results depend on the number of ranks
    input_rows: Annotated[str, names(INPUT_ROWS), FEATURES]
    features: FeaturesSettings
    embedding: Annotated[_Width | None, LEARNED]  # width of a learned row, or None if rows are not learned
    label_inputs: Annotated[LabelShare | None, FEATURES, by_job(lambda job: job.reads_rows)]  # or None without labels
    learned: LearnedSettings
    seed: Annotated[int, functools.partial(whole, low=0, high=2**63 - 1)]
    workers: _Workers  # training ranks
    parts: _Workers | None  # equals `workers` if set
    processes: int | None  # processes with several ranks each, or None if the communicator decides
    threads: Annotated[int, functools.partial(whole, low=1, high=MAX_THREADS, what="auto or a whole number")]
    output: Annotated[str, functools.partial(path, hint=UPLOADED)] | None  # the run folder
    on_exists: Annotated[str, names(ON_EXISTS)]  # action if the run folder already contains a run
    permissions: Annotated[str, names(PERMISSIONS)]  # access to the run folder
    upload: Annotated[Url | None, by_job(lambda job: job.one_run)]  # destination for a copy of the run folder
    cache: Annotated[Path | None, cache_folder]  # folder for partitions and shards, or None if not cached
    checkpoint: Annotated[LocalPath | None, _CHECKPOINT]  # the trained run's folder
    write: Annotated[tuple[str, ...], output_names]
    write_format: Annotated[str, names(FORMATS)]
    write_by: Annotated[str, names(JOINS), _AS_NPY]
    dataset: Choice
    partition: PartitionSettings
    order: Choice  # row order of full graphs in memory
    sampler: Choice | None  # None if not selected
    strategy: Choice
    exchange: Choice | None  # None if not selected
    comm: Choice
    timeout: float  # seconds that a rank waits for another rank
    launcher: Choice
    started: StartedRank | None  # this process's rank, if ranks were started externally
    sync: Choice
    model: Choice
    task: Choice
    logger: tuple[Choice, ...]
    callback: tuple[Choice, ...]
    trainer: TrainerSettings
    leader: LeaderSettings
    plan: PlanSettings
    report: Annotated[bool, _report]  # whether training writes report.html
    profile: Switch  # whether training writes trace.json
    verbose: Switch  # whether the last lines have all figures
    restarts: Annotated[int, functools.partial(whole, low=0, high=1000)]  # limit, after ranks have died
    composed: Mapping[str, Any]  # plain data for config.yaml
    job_keys: Any = None  # values of the job's class `keys`, or None if it has none
    implies_task: bool = False  # whether the user has left the task at its default
    auto_workers: AutoWorkers | None = None  # candidates for `workers`, or None if the number is fixed
    notes: tuple[str, ...] = ()  # lines printed before the job
    read_otherwise: tuple[str, ...] = ()  # describes keys by which `dataset` differs from the checkpoint's data set
    # The leader's decision: its reason, each layout's figures, and the selected layout.
    decided: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.companions and not self.job.trains:
            raise UserError(f"{self.companions[0]}: job={self.job.name} does not train: leave it out")
        if self.job.reads_checkpoint and self.checkpoint is None:
            raise UserError(f"job={self.job.name} needs checkpoint=FOLDER of a run that has trained")

    @property
    def companions(self) -> list[str]:
        """Overrides for options that only apply to training, such as callbacks."""
        return [
            *(f"callback={choice.name}" for choice in self.callback),
            *(f"logger={choice.name}" for choice in self.logger if choice.name not in _USUAL_LOGGERS),
            *(["profile=true"] if self.profile else []),
            *([f"restarts={self.restarts}"] if self.restarts else []),
            *(f"leader.{choice.name}=true" for choice in self.leader.hooks),
        ]

    @property
    def draws_report(self) -> bool:
        """Whether the run writes `report.html`."""
        return self.job.trains and self.report

    @property
    def is_open(self) -> bool:
        """Whether the leader must decide anything that the job reads."""
        strategy = (self.strategy.name,) if self.job.reads_strategy else ()
        return self.auto_workers is not None or AUTO in (self.partition.nodes.name, *strategy)

    def create_strategy(self) -> Any:
        """Creates the strategy with the selected exchange.

        Raises `UserError` if an exchange is selected but the strategy accepts none.
        """
        takes = "exchange" in inspect.signature(self.strategy.load()).parameters
        exchange = None if self.exchange is None else self.exchange.create()
        if exchange is not None and not takes:
            raise UserError(
                f"exchange={self.exchange.name}: strategy={self.strategy.name} takes no exchange: leave it out"  # type: ignore[union-attr]
            )
        return self.strategy.create(exchange=exchange) if takes else self.strategy.create()

    @property
    def is_inline(self) -> bool:
        """Whether the launcher starts no process."""
        return self.launcher.name != AUTO and bool(self.launcher.load().inline)

    def create_launcher(self, *, additional: bool = False) -> "Launcher":
        """Creates the launcher of the ranks. Imports the communicator.

        Raises `UserError` if the launcher cannot start ranks of this kind.

        Args:
            additional: Whether to start additional ranks for measurements, on this
                machine. Default: False.
        """
        in_threads, processes = self.comm.load().in_threads, self.processes
        if processes is not None and not in_threads:
            raise UserError(
                f"parts={self.workers}: comm={self.comm.name} runs one rank per process; use comm=threads, or "
                "leave parts out"
            )
        choice = self.launcher
        if choice.name == AUTO or (additional and self.started is not None):
            choice = find_launcher(choice, self.comm.name, in_threads and processes in (None, 1), additional)
        launcher = launcher_for(choice, "ranks")
        if processes is not None:
            if launcher.in_one_process and processes > 1:
                raise UserError(
                    f"launcher={choice.name} runs all ranks in one process, but workers={processes}: leave launcher out"
                )
            return launcher
        if in_threads and self.started is not None and not additional:
            raise UserError(
                f"comm={self.comm.name} creates its own ranks, but ranks were started externally: choose another one"
            )
        if in_threads != launcher.in_one_process:
            key, other_key = ("comm", "launcher") if in_threads else ("launcher", "comm")
            raise UserError(
                f"{key}={getattr(self, key).name} runs all ranks in one process, but {other_key}={getattr(self, other_key).name} "
                f"runs each in its own: leave {other_key} out"
            )
        return launcher

    @property
    def cut(self) -> Mapping[str, Any]:
        """The composed configuration, with the number of parts as `workers`."""
        return {**self.composed, "workers": self.workers}

    @property
    def workers_here(self) -> int:
        """Number of workers on this host."""
        if self.started is None:
            return self.workers
        in_each = -(-self.world_size // self.started.world_size)
        return min(in_each * self.started.local_world_size, self.workers)

    @property
    def servers(self) -> int:
        """Number of ranks in addition to the workers that serve the synchronisation."""
        return servers_of(self.sync.arguments)

    @property
    def predicted(self) -> Mapping[str, Any] | None:
        """The leader's prediction for the selected layout, or None."""
        decision = self.decided or {}
        layout: Mapping[str, Any] = decision["layouts"][decision["chosen"]] if "chosen" in decision else {}
        return layout if "seconds" in layout else None

    @property
    def world_size(self) -> int:
        """Number of ranks: first the workers, then the servers."""
        return self.workers + self.servers


def with_workers(settings: Settings, workers: int) -> Settings:
    """Sets the number of workers for workers=auto, and keeps the candidates.

    Threads and communicator are chosen as if this number were configured. Raises
    `UserError` if the number does not match the grid.
    """
    from gnnkit.partition.grid import make_grid

    auto, partition, run_config = settings.auto_workers, settings.partition, settings.composed
    assert auto is not None
    make_grid(partition.grid, workers, partition.replication)
    comm = {**run_config["comm"], "name": auto.comm}
    config = {**run_config, "workers": workers, "threads": auto.threads, "comm": comm}
    share_machine(config, settings.launcher, settings.started)
    comm_choice = replace(settings.comm, name=comm["name"])
    return replace(settings, workers=workers, threads=config["threads"], comm=comm_choice, composed=config)


def with_choice(settings: Settings, choice: Choice) -> Settings:
    """Replaces the configured plugin."""
    config = {**settings.composed, choice.kind: {"name": choice.name, **choice.arguments}}
    return replace(settings, composed=config, **{choice.kind: choice})  # type: ignore[arg-type]


def with_plugins(settings: Settings, kind: str, objects: Mapping[str, Any]) -> Settings:
    """Adds plugins from Python to the configured ones.

    Args:
        kind: One of `plugins.SEVERAL`.
        objects: The plugins by name.
    """
    new_choices = tuple(Choice(kind, name, {}, plugin) for name, plugin in objects.items())
    section = {**settings.composed[kind], **{choice.name: {"name": choice.name} for choice in new_choices}}
    fields: dict[str, Any] = {kind: (*getattr(settings, kind), *new_choices)}
    return replace(settings, composed={**settings.composed, kind: section}, **fields)


def with_partition(settings: Settings, partition: PartitionSettings) -> Settings:
    """Replaces the configured layout."""
    keys = {"grid": partition.grid, "replication": partition.replication, "border": partition.border}
    arguments = {key: value for key, value in partition.nodes.arguments.items() if key in plugins.PARTITION_KEYS}
    options = {key: value for key, value in partition.nodes.arguments.items() if key not in arguments}
    section = {"nodes": partition.nodes.name, **keys, "options": options, **arguments}
    return replace(settings, partition=partition, composed={**settings.composed, "partition": section})
