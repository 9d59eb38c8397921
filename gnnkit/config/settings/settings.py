"""The typed settings of one job, and the validation of a composed configuration."""

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from gnnkit import plugins
from gnnkit.config import JobFacts
from gnnkit.config.settings.choice import Choice, PartitionSettings, find_launcher, launcher_for
from gnnkit.config.settings.fields import (
    AUTO,
    UPLOADED,
    LocalPath,
    OnlyWith,
    Section,
    Switch,
    Url,
    by_job,
    cache_folder,
    names,
    output_names,
    path,
)
from gnnkit.config.settings.ranks import MAX_WORKERS, AutoWorkers, servers_of, share_machine
from gnnkit.config.settings.sections import (
    FEATURES,
    INEXACT,
    INPUT_ROWS,
    INPUTS,
    LEARNED,
    TYPES,
    FeaturesSettings,
    LabelShare,
    LearnedSettings,
    TrainerSettings,
)
from gnnkit.errors import UserError
from gnnkit.launch.environment import StartedRank
from gnnkit.utils.ranges import MAX_THREADS, MAX_WIDTH, one_of, real, switch, whole

if TYPE_CHECKING:
    from gnnkit.launch.launcher import Launcher
    from gnnkit.strategy import ExecutionStrategy
import copy
from collections.abc import Iterator

from gnnkit.config import SECTIONS, check_removed, dotted_keys, keys, of_option, read_otherwise
from gnnkit.config.settings.choice import (
    choice_of,
    exchange_of,
    move_task_keys,
    partition_of,
    several_of,
    started_of,
)
from gnnkit.config.settings.fields import KeyRule, expect_keys, key_rules, missing, read_texts
from gnnkit.config.settings.ranks import num_ranks, replace_auto
from gnnkit.config.settings.sections import DEFAULT_EMBEDDING
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import MAX_TIMEOUT, parse_scalar, shown, unknown_key

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
    def read(cls, section: str, values: Mapping[str, object]) -> Self:
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

    def create_strategy(self) -> "ExecutionStrategy":
        """Creates the strategy with the selected exchange.

        Raises `UserError` if an exchange is selected but the strategy accepts none.
        """
        choice, takes = self.exchange, "exchange" in inspect.signature(self.strategy.load()).parameters
        exchange = None if choice is None else choice.create()
        if choice is not None and not takes:
            raise UserError(f"exchange={choice.name}: strategy={self.strategy.name} takes no exchange: leave it out")
        strategy: ExecutionStrategy = self.strategy.create(exchange=exchange) if takes else self.strategy.create()
        return strategy

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
    def cut(self) -> Mapping[str, object]:
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
    def predicted(self) -> Mapping[str, object] | None:
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


_CHOICES = ("dataset", "strategy", "sync", "model", "task", "order")  # sections with one plugin
_UNSELECTED: Mapping[str, Any] = {
    **dict.fromkeys(plugins.OPTIONAL),
    "logger": {},
    "callback": {},
}  # sections that Hydra omits if nothing is selected


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that a job reads, without the keys of plugins."""

    rules: tuple[KeyRule, ...]  # for keys outside sections
    sections: Mapping[str, type[Section]]  # without plugins

    @classmethod
    def of(cls, job: type[JobFacts]) -> Self:
        """Returns the keys that all jobs read, and the keys of one job."""
        rules = (*key_rules(Settings), *(key_rules(job.keys) if job.keys else ()))
        sections = {rule.name: rule.section for rule in rules if rule.section is not None}
        return cls(tuple(rule for rule in rules if rule.rule is not None), sections)

    @property
    def names(self) -> tuple[str, ...]:
        """All keys and sections, each once."""
        return (*dict.fromkeys((*SECTIONS, *self.sections, *(rule.name for rule in self.rules))),)


def settle(composed_config: Mapping[str, Any]) -> Settings:
    """Validates a composed configuration and replaces each `auto`.

    Raises `UserError` with the configuration key for unknown keys, plugin names, types
    and ranges, and for a grid that does not match the workers. Imports torch only if
    the machine has GPUs.
    """
    config = copy.deepcopy({**_UNSELECTED, **composed_config})
    if "job" not in config:
        raise missing("job")
    job = job_class("job", config["job"])
    job_keys = _Keys.of(job)
    check_removed(config)
    _check_keys(config, job_keys)
    _read_texts(config, job_keys)
    launcher = choice_of("launcher", config)
    started_rank = started_of(launcher)
    notes, auto_workers = replace_auto(config, launcher, started_rank)
    values: dict[str, Any] = {
        rule.name: rule.read(rule.name, config[rule.name]) for rule in key_rules(Settings) if rule.rule or rule.section
    }
    values |= {kind: choice_of(kind, config) for kind in _CHOICES}
    checkpoint, dataset = values["checkpoint"], values["dataset"]
    texts = () if checkpoint is None else read_otherwise(checkpoint, dataset.name, dataset.arguments)
    values["dataset"], values["task"] = move_task_keys(values["dataset"], values["task"])
    values |= {kind: several_of(kind, config) for kind in plugins.SEVERAL}
    values["workers"] = num_ranks(config)
    if values["embedding"] is None and values["inputs"] == "learned":
        values["embedding"] = values["task"].arguments.get("width", DEFAULT_EMBEDDING)
    comm, timeout = _communicator(choice_of("comm", config))
    settings = Settings(
        processes=None if config["parts"] is None else config["workers"],
        auto_workers=auto_workers,
        partition=partition_of(config, values["workers"]),
        sampler=None if config["sampler"] is None else choice_of("sampler", config),
        exchange=exchange_of(config),
        comm=comm,
        timeout=timeout,
        launcher=launcher,
        started=started_rank,
        composed=config,
        job_keys=None if job.keys is None else job.keys.read("", config),
        notes=notes,
        read_otherwise=texts,
        **values,
    )
    run_keys = keys.run_keys()
    for key, value, rule in _conditional_keys(config, job_keys):
        if value != run_keys[key].value:
            rule.check_read(key, value, settings)
    return settings


def _conditional_keys(config: Mapping[str, Any], job_keys: _Keys) -> Iterator[tuple[str, object, KeyRule]]:
    """Yields name, value and rule of each conditional key."""
    yield from ((rule.name, config[rule.name], rule) for rule in job_keys.rules if rule.conditions)
    for section, kind in job_keys.sections.items():
        yield from (
            (f"{section}.{rule.name}", config[section][rule.name], rule) for rule in key_rules(kind) if rule.conditions
        )


def _communicator(choice: Choice) -> tuple[Choice, float]:
    """Returns the communicator with the keys of its backend, and `comm.timeout`."""
    keys = dict(choice.arguments)
    timeout = real("comm.timeout", keys.pop("timeout", 120.0), high=MAX_TIMEOUT, above=0)
    check = choice.load().check_keys if keys else None
    expect_keys("comm", choice.arguments, (), ("timeout", *(inspect.signature(check).parameters if check else ())))
    if check is not None:
        plugins.check_arguments(check, keys, "comm")
        check(**keys)
    return replace(choice, arguments=keys), timeout


def _check_keys(config: Mapping[str, Any], job_keys: _Keys) -> None:
    """Raises `UserError` for missing or unknown keys, and for ill-typed sections."""
    names = job_keys.names
    for key in config:
        if key not in names:
            raise unknown_key(str(key), {*names, *dotted_keys({name: config.get(name) for name in names})})
    for key in names:
        if key not in config:
            raise missing(key)
    for key, kind in job_keys.sections.items():
        if key not in SECTIONS and not isinstance(config[key], dict):
            raise UserError(f"{key}={shown(config[key])} is a section: set {key}.{key_rules(kind)[0].name}")
    for key in SECTIONS:
        if not isinstance(config[key], dict) and (key not in plugins.OPTIONAL or config[key] is not None):
            raise UserError(f"{key}={shown(config[key])} must be one of: {', '.join(plugins.options(key))}")
    for section, kind in job_keys.sections.items():
        expect_keys(section, config[section], [rule.name for rule in key_rules(kind)], kind.optional_keys())
    expect_keys("partition", config["partition"], ("nodes", *plugins.GRID_KEYS), ("options", *plugins.PARTITION_KEYS))


def _read_texts(config: Json, job_keys: _Keys) -> None:
    """Parses text that contains a number or a boolean, as `${oc.env:NAME}` returns it.

    Whether a key accepts text follows from its annotation, or from the default for a
    plugin's key.
    """
    read_texts(config, job_keys.rules)
    for section, kind in job_keys.sections.items():
        read_texts(config[section], key_rules(kind))
    for section in plugins.KINDS:
        values = config[section] or {}
        texts = [key for key, value in values.items() if parse_scalar(value) is not None]
        defaults = of_option(section, plugins.plugin_name(section, values)) if texts else {}
        values.update({key: parse_scalar(values[key]) for key in texts if isinstance(defaults.get(key), int | float)})
