"""A checked configuration as typed values. Nothing heavy is imported here."""

from __future__ import annotations

import copy
import inspect
import re
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gnnkit import plugins
from gnnkit.config import JOBS, SECTIONS, JobFacts, dotted, of_option, read_otherwise
from gnnkit.errors import UserError
from gnnkit.ranges import (
    MAX_COUNT,
    MAX_THREADS,
    MAX_WIDTH,
    local_path,
    num_cores,
    number_of,
    one_of,
    real,
    shown,
    switch,
    unknown_key,
    whole,
)

if TYPE_CHECKING:
    from gnnkit.launch.environment import StartedRank
    from gnnkit.launcher import Launcher

AUTO = "auto"  # a partition or a strategy that the leader chooses, a launcher that says so
_OPEN = ("partition", "strategy", "launcher")  # sections that may be AUTO
WRITTEN = ("predictions", "logits", "probabilities", "embeddings")
FORMATS = ("npy", "parquet")  # of the files that `write` names
SCHEDULES = ("cosine", "linear", "plateau")
PRECISIONS = (32, 64, "bf16-mixed")
ON_EXISTS = ("refuse", "resume", "replace")
INPUTS = ("features", "degree", "learned")
INPUT_ROWS = ("auto", "dense", "sparse")
SCALES = ("standard", "row", "none")
TEXTS = ("one_hot", "known", "refuse")
FILLS = ("refuse", "mean", "zero", "drop")
PLACES = ("memory", "mapped", "disk")  # of the rows of features
POLICIES = ("exact", "static", "lru")  # of the rows that are kept in memory
DEFAULT_WORKERS = 4
FEW_EDGES = 500_000  # one worker is quicker. Measured up to 240,000 on two cores, with 2 and 4
DEFAULT_EMBEDDING = 64  # numbers of a learned row
DEFAULT_TASK = "node_classification"
DEFAULT_TIMEOUT = 120.0  # seconds
MAX_WORKERS = 2**16
MAX_RESTARTS = 1000
MAX_KEPT = 1000  # checkpoints of a run
MAX_RUNS = 64  # that one report compares
MOST_EPOCHS_UNSEEN = 10  # between two evaluations, of trainer.check_val_every_n_epoch=auto
MAX_SCALE = 1e6  # of first learned rows
WAYS = ["vertex_centric", "preset_workload", "individual_sample", "joint_sample"]  # of job=compare
MAX_SEEDS = 100  # of job=compare
USUAL_MINUTES = 2
MAX_MINUTES = 1e5  # of trials
MAX_RATE = 1e9  # of numbers of a machine
MAX_TIMEOUT = 1e9  # seconds. More would not fit torch's milliseconds
OnNan = Literal["stop", "skip", "rollback"]
_USUAL_LOGGERS = ("tensorboard", "csv")  # of `conf/config.yaml`, chosen for every job
LEAST_MEMORY, MOST_MEMORY = 2**26, 2**60  # bytes that job=import may take
_UNITS = {None: 1, "GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}
_KEYS = (
    *SECTIONS,
    "inputs",
    "input_rows",
    "features",
    "embedding",
    "learned",
    "workers",
    "parts",
    "threads",
    "seed",
    "job",
    "output",
    "on_exists",
    "cache",
    "memory",
    "checkpoint",
    "write",
    "write_format",
    "leader",
    "plan",
    "compare",
    "init",
    "report",
    "report_port",
    "profile",
    "restarts",
    "runs",
)


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """One value of `trainer.optimizer`."""

    torch_name: str  # of the class in `torch.optim`
    moments: int  # numbers that the optimiser keeps for each parameter


OPTIMIZERS = {
    "adam": OptimizerKind("Adam", 2),
    "adamw": OptimizerKind("AdamW", 2),
    "sgd": OptimizerKind("SGD", 0),
}


@dataclass(frozen=True, slots=True)
class Choice:
    """One plugin by name, with the arguments of the constructor."""

    kind: str
    name: str
    arguments: Mapping[str, Any]
    given: Any = None  # the plugin itself, where it comes from Python

    @property
    def origin(self) -> str:
        """Where the plugin comes from, or Python for a given graph or model."""
        names = plugins.parts(self.kind, self.name)
        if not set(names) <= set(plugins.names(self.kind)):
            return "Python"
        points = [plugins.find(self.kind, name) for name in names]
        return " and ".join(
            f"{point.value} of {point.dist.name} {point.dist.version}" if point.dist else point.value
            for point in points
        )

    def load(self) -> type[Any]:
        """Imports the plugin's class."""
        return plugins.load(self.kind, self.name)

    def check(self, extra: Collection[str] = ()) -> None:
        """Raises `UserError` for arguments that the constructor does not take.

        `extra` names arguments that gnnkit adds.
        """
        plugins.check(self, extra)

    def create(self, **extra: Any) -> Any:
        """Makes the plugin. `extra` are arguments that gnnkit adds.

        Copies a plugin that is given, because ranks may be threads.
        """
        return plugins.create(self, **extra) if self.given is None else copy.deepcopy(self.given)


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The owner of each node, and the process grid."""

    nodes: Choice  # the partitioner
    grid: str | list[int]  # 1d, 1.5d, 2d, 3d or [rows, cols, slices]
    replication: int | None  # of grid 1.5d
    border: str  # of `gnnkit.partition.border`


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """The section `trainer`. The constructor checks types and ranges."""

    max_epochs: int
    optimizer: str
    lr: float
    weight_decay: float
    schedule: str | None  # of SCHEDULES
    warmup_epochs: int
    plateau_factor: float | None  # of schedule plateau
    plateau_patience: int | None  # of schedule plateau: looks at the value
    clip_norm: float | None
    accumulate: int  # batches that make one step
    max_time: float | None  # seconds
    precision: int | str  # one of PRECISIONS
    check_val_every_n_epoch: int
    log_every_n_steps: int
    progress_bar: bool
    checkpoint: bool
    checkpoint_every: int  # epochs
    checkpoint_every_n_steps: int | None  # within an epoch
    checkpoint_every_minutes: float | None
    keep_checkpoints: int  # of the newest
    resume: str | None
    on_nan: OnNan
    final_average: bool
    evaluation_memory: float  # MiB
    monitor: str | None  # the value whose best model is kept. The task names more
    patience: int | None  # looks at that value without a better one
    min_delta: float | None  # change that counts as better

    def __post_init__(self) -> None:
        counts = ("max_epochs", "accumulate", "check_val_every_n_epoch", "log_every_n_steps", "checkpoint_every")
        optional = () if self.checkpoint_every_n_steps is None else ("checkpoint_every_n_steps",)
        whole("trainer.keep_checkpoints", self.keep_checkpoints, 1, MAX_KEPT)
        for name in (*counts, *optional):
            whole(f"trainer.{name}", getattr(self, name), 1, MAX_COUNT)
        for name in ("progress_bar", "checkpoint", "final_average"):
            switch(f"trainer.{name}", getattr(self, name))
        for name in ("lr", "evaluation_memory"):
            real(f"trainer.{name}", getattr(self, name), above=0)
        real("trainer.weight_decay", self.weight_decay, 0)
        one_of("trainer.optimizer", self.optimizer, OPTIMIZERS)
        one_of("trainer.precision", self.precision, PRECISIONS)
        one_of("trainer.on_nan", self.on_nan, OnNan.__args__)  # type: ignore[attr-defined]
        _path("trainer.resume", self.resume)
        if self.schedule is not None:
            one_of("trainer.schedule", self.schedule, SCHEDULES)
        whole("trainer.warmup_epochs", self.warmup_epochs, 0, MAX_COUNT)
        for name in ("clip_norm", "max_time", "checkpoint_every_minutes"):
            if getattr(self, name) is not None:
                real(f"trainer.{name}", getattr(self, name), above=0)
        self._check_plateau()
        self._check_monitor()
        if self.checkpoint_every_n_steps is not None and self.checkpoint_every_n_steps % self.accumulate:
            raise UserError(
                f"trainer.checkpoint_every_n_steps={self.checkpoint_every_n_steps} must be a multiple of "
                f"trainer.accumulate={self.accumulate}: a checkpoint is between two steps of the optimiser"
            )

    def _check_plateau(self) -> None:
        if self.plateau_factor is not None:
            real("trainer.plateau_factor", self.plateau_factor, above=0, below=1)
        if self.plateau_patience is not None:
            whole("trainer.plateau_patience", self.plateau_patience, 0, MAX_COUNT)
        if self.schedule != "plateau":
            for name in ("plateau_factor", "plateau_patience"):
                if getattr(self, name) is not None:
                    raise UserError(f"trainer.{name}={getattr(self, name)} is read by trainer.schedule=plateau only")
        elif self.monitor is None:
            raise UserError("trainer.schedule=plateau follows trainer.monitor, which is null: choose a value")
        elif self.warmup_epochs:
            raise UserError(
                f"trainer.warmup_epochs={self.warmup_epochs}: trainer.schedule=plateau has no warm-up, leave it out"
            )

    def _check_monitor(self) -> None:
        if self.patience is not None:
            whole("trainer.patience", self.patience, 1, MAX_COUNT)
        if self.min_delta is not None:
            real("trainer.min_delta", self.min_delta, 0)
        if self.monitor is not None:
            return  # the names are known with the task
        for name in ("patience", "min_delta"):
            if getattr(self, name) is not None:
                raise UserError(
                    f"trainer.{name}={getattr(self, name)} is of trainer.monitor, which is null: choose a value"
                )


@dataclass(frozen=True, slots=True)
class LeaderSettings:
    """The section `leader`. The constructor checks the values."""

    rebalance: bool  # whether work moves away from a worker that stays slow

    def __post_init__(self) -> None:
        switch("leader.rebalance", self.rebalance)


@dataclass(frozen=True, slots=True)
class FeaturesSettings:
    """The section `features`. The constructor checks the values."""

    scale: str  # of SCALES, or AUTO: chosen by the columns
    fill: str  # of FILLS: what takes the place of empty cells
    text: str  # of TEXTS: what columns of text are read as
    place: str  # of PLACES, or AUTO: chosen by the memory at hand
    cache: int | None  # bytes of rows that each worker keeps, with place "disk". None: chosen
    policy: str  # of POLICIES
    direct: bool  # whether reads pass by the system's cache of files

    def __post_init__(self) -> None:
        one_of("features.scale", self.scale, (AUTO, *SCALES))
        one_of("features.fill", self.fill, FILLS)
        one_of("features.text", self.text, TEXTS)
        one_of("features.place", self.place, (AUTO, *PLACES))
        one_of("features.policy", self.policy, POLICIES)
        switch("features.direct", self.direct)

    @property
    def of_disk(self) -> list[str]:
        """Lists the keys that were set of those that place "disk" reads."""
        usual = {"cache": None, "policy": "exact", "direct": False}
        return [key for key, value in usual.items() if getattr(self, key) != value]


@dataclass(frozen=True, slots=True)
class LearnedSettings:
    """The section `learned`. The constructor checks the ranges."""

    scale: float | None  # deviation of the first rows' numbers. None: 1 / sqrt(embedding)
    weight_decay: float | None  # L2 penalty on the rows. None: the model chooses

    def __post_init__(self) -> None:
        if self.scale is not None:
            real("learned.scale", self.scale, high=MAX_SCALE, above=0)
        if self.weight_decay is not None:
            real("learned.weight_decay", self.weight_decay, 0)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """The section `plan`: a cluster as numbers. The constructor checks the ranges."""

    flops: float | None  # GFLOP/s of a rank in dense products. None: measured here
    bandwidth: float | None  # GB/s that a rank receives
    latency: float | None  # microseconds of a message
    memory: float | None  # GiB for each rank

    def __post_init__(self) -> None:
        for name in ("flops", "bandwidth", "memory"):
            if getattr(self, name) is not None:
                real(f"plan.{name}", getattr(self, name), high=MAX_RATE, above=0)
        if self.latency is not None:
            real("plan.latency", self.latency, 0, MAX_RATE)

    @property
    def is_cluster(self) -> bool:
        """Whether any number of another machine is given."""
        return any(getattr(self, field.name) is not None for field in fields(self))


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """A simulated link between ranks. The constructor checks the ranges."""

    key: str  # of the configuration
    gigabits: float  # in a second, of each rank's card
    milliseconds: float  # latency, one way

    def __post_init__(self) -> None:
        real(f"{self.key}.gigabits", self.gigabits, high=MAX_RATE, above=0)
        real(f"{self.key}.milliseconds", self.milliseconds, 0, MAX_RATE)


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """The section `compare`. The constructor checks the values."""

    ways: tuple[str, ...]  # each a strategy's name and further overrides, separated by blanks
    seeds: int  # runs of each way
    link: LinkSettings | None  # between the ranks of each run

    def __post_init__(self) -> None:
        if not isinstance(self.ways, list | tuple) or not all(isinstance(way, str) for way in self.ways):
            raise UserError(f"compare.ways={shown(self.ways)} must be a list of strategies: [NAME,'NAME KEY=VALUE']")
        if not self.ways:
            raise UserError("compare.ways=[] must name a strategy or more")
        whole("compare.seeds", self.seeds, 1, MAX_SEEDS)


@dataclass(frozen=True, slots=True)
class InitSettings:
    """The section `init`. The constructor checks the range."""

    minutes: float  # of trials, 0 for none

    def __post_init__(self) -> None:
        real("init.minutes", self.minutes, 0, MAX_MINUTES)


_NUMBERS = ("workers", "parts", "threads", "seed", "embedding", "restarts", "report", "profile")  # keys at the top
_TYPED = {
    "trainer": TrainerSettings,
    "leader": LeaderSettings,
    "features": FeaturesSettings,
    "learned": LearnedSettings,
    "plan": PlanSettings,
    "init": InitSettings,
}  # sections of ours


@dataclass(frozen=True, slots=True)
class Settings:
    """One job's configuration.

    The partition or the strategy may be `AUTO` until the leader has decided. Nothing
    else is `auto` any more.
    """

    job: JobFacts
    inputs: str  # one of INPUTS
    input_rows: str  # one of INPUT_ROWS, where `inputs` is "features"
    features: FeaturesSettings  # read where `inputs` is "features"
    embedding: int | None  # numbers of a learned row. None: rows are not learned
    learned: LearnedSettings  # read where `inputs` is "learned"
    seed: int
    workers: int  # ranks that train, each with its part of the work
    processes: int | None  # that hold the ranks, several in each. None: as the communicator does
    threads: int  # of each rank
    output: str | None  # the run folder
    on_exists: str  # of ON_EXISTS: where the run folder holds a run
    cache: Path | None  # where partitions and shards are kept. None: nowhere
    memory: int | None  # bytes that job=import may take. None: a share of what is free
    checkpoint: str | None  # the folder of the run that has trained, where the job reads one
    write: tuple[str, ...]  # of WRITTEN
    write_format: str  # one of FORMATS
    dataset: Choice
    partition: PartitionSettings
    sampler: Choice | None  # None: nothing was chosen
    strategy: Choice
    exchange: Choice | None  # None: nothing was chosen
    comm: Choice
    timeout: float  # seconds that a rank waits for another
    link: LinkSettings | None  # simulated between ranks
    launcher: Choice
    started: StartedRank | None  # this process's rank, where ranks were started before
    sync: Choice
    model: Choice
    task: Choice
    logger: tuple[Choice, ...]
    callback: tuple[Choice, ...]
    trainer: TrainerSettings
    leader: LeaderSettings
    plan: PlanSettings
    compare: CompareSettings
    init: InitSettings
    composed: Mapping[str, Any]  # as plain data, for config.yaml
    report: bool | Literal["live"] = True  # whether a training run leaves report.html, or serves it too
    report_port: int = 0  # of report=live. 0: any
    profile: bool = False  # whether a training run leaves trace.json
    restarts: int = 0  # times that training goes on after ranks have died
    runs: tuple[str, ...] = ()  # of job=report: the run folders
    notes: tuple[str, ...] = ()  # lines for people, printed before the job
    read_otherwise: tuple[str, ...] = ()  # lines on keys by which `dataset` is read otherwise than that of `checkpoint`
    decided: Mapping[str, Any] | None = None  # the leader's decision for `auto`: why, and figures of each layout

    def __post_init__(self) -> None:
        if self.companions and not self.job.trains:
            raise UserError(f"{self.companions[0]}: job={self.job} does not train: leave it out")

    @property
    def companions(self) -> list[str]:
        """What was asked to accompany training, as on the command line."""
        return [
            *(f"callback={choice.name}" for choice in self.callback),
            *(f"logger={choice.name}" for choice in self.logger if choice.name not in _USUAL_LOGGERS),
            *(["profile=true"] if self.profile else []),
            *([f"restarts={self.restarts}"] if self.restarts else []),
            *(["leader.rebalance=true"] if self.leader.rebalance else []),
        ]

    @property
    def draws_report(self) -> bool:
        """Whether the run leaves `report.html`."""
        return self.job.trains and bool(self.report)

    @property
    def serves_report(self) -> bool:
        """Whether a page is served while the run trains."""
        return self.job.trains and self.report == "live"

    @property
    def is_open(self) -> bool:
        """Whether the leader has anything to decide that the job reads."""
        strategy = (self.strategy.name,) if self.job.reads_strategy else ()
        return AUTO in (self.partition.nodes.name, *strategy)

    def create_strategy(self) -> Any:
        """Makes the strategy, with the chosen exchange.

        Raises `UserError` for an exchange where the strategy takes none.
        """
        takes = "exchange" in inspect.signature(self.strategy.load()).parameters
        exchange = None if self.exchange is None else self.exchange.create()
        if exchange is not None and not takes:
            raise UserError(
                f"exchange={self.exchange.name}: strategy={self.strategy.name} has no exchange to choose, leave it out"  # type: ignore[union-attr]
            )
        return self.strategy.create(exchange=exchange) if takes else self.strategy.create()

    def create_launcher(self, *, beside: bool = False) -> Launcher:
        """Makes the launcher of the ranks. Imports the communicator.

        Raises `UserError` where the launcher starts no ranks, or none of this kind.

        Args:
            beside: Whether the ranks measure on this machine, beside those of the run.
        """
        in_threads, processes = self.comm.load().in_threads, self.processes
        if processes is not None and not in_threads:
            raise UserError(
                f"parts={self.workers}: comm={self.comm.name} has one rank in each process, and comm=threads several: "
                "leave comm or parts out"
            )
        choice = self.launcher
        if choice.name == AUTO or (beside and self.started is not None):
            choice = _that_suits(choice, self.comm.name, in_threads and processes in (None, 1), beside)
        launcher = launcher_for(choice, "ranks")
        if processes is not None:
            if launcher.in_one_process and processes > 1:
                raise UserError(
                    f"launcher={choice.name} has all ranks in one process, and workers={processes}: leave launcher out"
                )
            return launcher
        if in_threads and self.started is not None and not beside:
            raise UserError(f"comm={self.comm.name} makes its ranks itself, but ranks were started: choose another one")
        if in_threads != launcher.in_one_process:
            one, each = ("comm", "launcher") if in_threads else ("launcher", "comm")
            raise UserError(
                f"{one}={getattr(self, one).name} has all ranks in one process, and {each}={getattr(self, each).name} "
                f"each in its own: leave {each} out"
            )
        return launcher

    @property
    def cut(self) -> Mapping[str, Any]:
        """The composed configuration, in which `workers` is the number of parts."""
        return {**self.composed, "workers": self.workers}

    @property
    def workers_here(self) -> int:
        """Number of workers of this host."""
        if self.started is None:
            return self.workers
        in_each = -(-self.world_size // self.started.world_size)
        return min(in_each * self.started.local_world_size, self.workers)

    @property
    def on_cpus(self) -> bool:
        """Whether ranks are still to be started, and compute on CPUs."""
        return self.started is None and self.comm.name != "nccl"

    @property
    def servers(self) -> int:
        """Number of ranks beyond the workers, which serve the synchronisation."""
        return _servers(self.sync.arguments)

    @property
    def world_size(self) -> int:
        """Number of ranks: the workers, and after them the servers."""
        return self.workers + self.servers


def settle(composed: Mapping[str, Any]) -> Settings:
    """Checks a composed configuration and replaces each `auto`.

    Raises `UserError` with the configuration key for keys, names of plugins, types and
    ranges, and for a grid that does not fit the workers. Imports torch only on machines
    with GPUs.
    """
    left_out: dict[str, Any] = {**dict.fromkeys(plugins.OPTIONAL), "logger": {}, "callback": {}}  # by Hydra
    config: dict[str, Any] = {**left_out, **copy.deepcopy(dict(composed))}
    _check_keys(config)
    _read_numbers(config)
    launcher = _choice("launcher", config)
    started = _started(launcher)
    notes = _replace_auto(config, launcher, started)
    processes = None if config["parts"] is None else config["workers"]
    workers = _num_ranks(config)
    job = JOBS[one_of("job", config["job"], JOBS)]
    plan = _plan(job, config)
    comm = _choice("comm", config)
    _expect_keys("comm", comm.arguments, (), ("timeout", "link"))
    dataset, checkpoint = _choice("dataset", config), _checkpoint(job, config["checkpoint"])
    return Settings(
        job=job,
        inputs=one_of("inputs", config["inputs"], INPUTS),
        input_rows=_input_rows(config["inputs"], config["input_rows"]),
        features=_features(job, config["inputs"], config["features"]),
        embedding=_embedding(config["inputs"], config["embedding"]),
        learned=_learned(config["inputs"], config["learned"]),
        seed=whole("seed", config["seed"], 0, 2**63 - 1),
        workers=workers,
        processes=processes,
        threads=_count("threads", config, MAX_THREADS),
        output=_path("output", config["output"]),
        on_exists=one_of("on_exists", config["on_exists"], ON_EXISTS),
        cache=_cache(config["cache"]),
        memory=_memory(job, config["memory"]),
        checkpoint=checkpoint,
        write=_written(config["write"]),
        write_format=one_of("write_format", config["write_format"], FORMATS),
        dataset=dataset,
        partition=_partition(config, workers),
        sampler=None if config["sampler"] is None else _choice("sampler", config),
        strategy=_choice("strategy", config),
        exchange=_exchange(config),
        comm=replace(comm, arguments={}),
        timeout=real("comm.timeout", comm.arguments.get("timeout", DEFAULT_TIMEOUT), high=MAX_TIMEOUT, above=0),
        link=_link("comm.link", comm.arguments.get("link")),
        launcher=launcher,
        started=started,
        sync=_choice("sync", config),
        model=_choice("model", config),
        task=_choice("task", config),
        logger=_several("logger", config),
        callback=_several("callback", config),
        trainer=TrainerSettings(**config["trainer"]),
        leader=LeaderSettings(**config["leader"]),
        plan=plan,
        compare=_compare(job, config["compare"]),
        init=_init(job, config["init"]),
        report=(report := _report(config["report"])),
        report_port=_report_port(report, config["report_port"]),
        profile=switch("profile", config["profile"]),
        restarts=whole("restarts", config["restarts"], 0, MAX_RESTARTS),
        runs=_runs(job, config["runs"]),
        composed=config,
        notes=notes,
        read_otherwise=() if checkpoint is None else read_otherwise(checkpoint, dataset.name, dataset.arguments),
    )


def _report(value: object) -> bool | Literal["live"]:
    return "live" if value == "live" else switch("report", value, what="true, false or live")


def _report_port(report: bool | str, value: object) -> int:
    """Returns the port. Raises `UserError` where no page is served."""
    port: int = whole("report_port", value, 0, 2**16 - 1)
    if port and report != "live":
        raise UserError(f"report_port={port}: only report=live serves a page, leave it out")
    return port


def _input_rows(inputs: str, rows: object) -> str:
    """Returns how features are kept. Raises `UserError` where none are."""
    given: str = one_of("input_rows", rows, INPUT_ROWS)
    if given != "auto" and inputs != "features":
        raise UserError(f"input_rows={given} must be auto: only inputs=features reads the key, and inputs={inputs}")
    return given


def _features(job: JobFacts, inputs: str, section: Mapping[str, Any]) -> FeaturesSettings:
    """Reads the section `features`. Raises `UserError` where there are no features."""
    cache = None if section["cache"] == AUTO else _bytes("features.cache", section["cache"], 0)
    features = FeaturesSettings(**{**section, "cache": cache})
    for key in features.of_disk:
        if features.place not in (AUTO, "disk"):
            raise UserError(
                f"features.{key}={shown(section[key])} is of features.place=disk, and features.place={features.place}: leave "
                "the key out"
            )
    for key in [*(["place"] if features.place != AUTO else []), *features.of_disk]:
        if not job.reads_rows:
            raise UserError(f"features.{key}={shown(section[key])}: job={job} computes with no rows, leave the key out")
    for key, usual in (("scale", AUTO), ("fill", "refuse"), ("text", "one_hot"), ("place", AUTO)):
        if (value := getattr(features, key)) != usual and inputs != "features":
            raise UserError(
                f"features.{key}={value} must be {usual}: only inputs=features reads the key, and inputs={inputs}"
            )
    return features


def _embedding(inputs: str, width: object) -> int | None:
    """Returns the numbers of a learned row, None where rows are not learned.

    Raises `UserError` for a width that nothing reads.
    """
    if width is None:
        return DEFAULT_EMBEDDING if inputs == "learned" else None
    given = whole("embedding", width, 1, MAX_WIDTH, what="null or a whole number")
    if inputs != "learned":
        raise UserError(f"embedding={given} must be null: only inputs=learned reads the key, and inputs={inputs}")
    return given


def _learned(inputs: str, section: Mapping[str, Any]) -> LearnedSettings:
    """Reads the section `learned`. Raises `UserError` where no rows are learned."""
    learned = LearnedSettings(**section)
    for key, value in section.items():
        if value is not None and inputs != "learned":
            raise UserError(
                f"learned.{key}={value} must be null: only inputs=learned reads the key, and inputs={inputs}"
            )
    return learned


def with_choice(settings: Settings, choice: Choice) -> Settings:
    """Puts another plugin in the place of the configured one."""
    composed = {**settings.composed, choice.kind: {"name": choice.name, **choice.arguments}}
    changed: dict[str, Any] = {choice.kind: choice, "composed": composed}
    return replace(settings, **changed)


def with_given(settings: Settings, kind: str, objects: Mapping[str, Any]) -> Settings:
    """Adds plugins from Python to those that are configured.

    Args:
        settings: The configuration.
        kind: One of `plugins.SEVERAL`.
        objects: The plugins by name.
    """
    more = tuple(Choice(kind, name, {}, each) for name, each in objects.items())
    section = {**settings.composed[kind], **{choice.name: {"name": choice.name} for choice in more}}
    changed: dict[str, Any] = {
        kind: (*getattr(settings, kind), *more),
        "composed": {**settings.composed, kind: section},
    }
    return replace(settings, **changed)


def with_partition(settings: Settings, partition: PartitionSettings) -> Settings:
    """Puts another layout in the place of the configured one."""
    keys = {"grid": partition.grid, "replication": partition.replication, "border": partition.border}
    rest = {key: value for key, value in partition.nodes.arguments.items() if key in plugins.PARTITION_KEYS}
    options = {key: value for key, value in partition.nodes.arguments.items() if key not in rest}
    section = {"nodes": partition.nodes.name, **keys, "options": options, **rest}
    return replace(settings, partition=partition, composed={**settings.composed, "partition": section})


def num_gpus() -> int:
    """Counts the GPUs that torch can use. Asks torch only if there is a driver."""
    if not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return 0
    import torch

    return torch.cuda.device_count()


def in_notebook() -> bool:
    """Says whether a notebook shows what this process prints: lines, no display."""
    return type(sys.stderr).__module__.startswith("ipykernel.")


def in_ipython() -> bool:
    """Says whether IPython or a notebook shows the errors of this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)
    return shell() is not None


def _check_keys(config: Mapping[str, Any]) -> None:
    known = {*_KEYS, *dotted({key: config.get(key) for key in _KEYS})}
    for key in config:
        if key not in _KEYS:
            raise unknown_key(str(key), known)
    for key in _KEYS:
        if key not in config:
            raise UserError(f"{key} is missing: do not remove it from the configuration")
    examples = {
        "plan": "plan.bandwidth and the others",
        "leader": "leader.rebalance",
        "features": "features.scale",
        "learned": "learned.scale",
        "compare": "compare.ways",
        "init": "init.minutes",
    }
    for key, example in examples.items():
        if not isinstance(config[key], dict):
            raise UserError(f"{key}={shown(config[key])} is a section: set {example}")
    for key in SECTIONS:
        if not isinstance(config[key], dict) and (key not in plugins.OPTIONAL or config[key] is not None):
            raise UserError(f"{key}={shown(config[key])} must be one of: {', '.join(plugins.options(key))}")
    _expect_keys("trainer", config["trainer"], [field.name for field in fields(TrainerSettings)])
    _expect_keys("features", config["features"], [field.name for field in fields(FeaturesSettings)])
    _expect_keys("learned", config["learned"], [field.name for field in fields(LearnedSettings)])
    _expect_keys("leader", config["leader"], [field.name for field in fields(LeaderSettings)])
    _expect_keys("compare", config["compare"], [field.name for field in fields(CompareSettings)])
    _expect_keys("init", config["init"], [field.name for field in fields(InitSettings)])
    _expect_keys("plan", config["plan"], [field.name for field in fields(PlanSettings)])
    _expect_keys("partition", config["partition"], ("nodes", *plugins.GRID_KEYS), ("options", *plugins.PARTITION_KEYS))


def _read_numbers(config: dict[str, Any]) -> None:
    """Replaces text that spells a number or a switch, as `${oc.env:NAME}` gives.

    Only where a key takes no text: by the type of a key of ours, by the default of a
    plugin's key.
    """
    _read_texts(config, _NUMBERS)
    for section, kind in _TYPED.items():
        _read_texts(config[section], [field.name for field in fields(kind) if "str" not in str(field.type)])
    for section in SECTIONS:
        texts = [key for key, value in (config[section] or {}).items() if number_of(value) is not None]
        if texts:
            name = "default" if section == "trainer" else plugins.plugin_name(section, config[section])
            defaults = of_option(section, name)
            _read_texts(config[section], [key for key in texts if isinstance(defaults.get(key), int | float)])


def _read_texts(section: dict[str, Any], keys: Iterable[str]) -> None:
    for key in keys:
        if (number := number_of(section.get(key))) is not None:
            section[key] = number


def _expect_keys(
    section: str, given: Mapping[str, Any], needed: Collection[str], optional: Collection[str] = ()
) -> None:
    """Raises `UserError` for a key of a section that is missing or not known."""
    known = [f"{section}.{key}" for key in (*needed, *optional)]
    for key in given:
        if f"{section}.{key}" not in known:
            raise unknown_key(f"{section}.{key}", known)
    for key in needed:
        if key not in given:
            raise UserError(f"{section}.{key} is missing: do not remove it from the configuration")


def _choice(kind: str, config: Mapping[str, Any]) -> Choice:
    """Looks up the plugin that one section names. Imports nothing."""
    section = config[kind]
    name = plugins.plugin_name(kind, section)
    arguments = plugins.arguments_of(kind, section)
    if name != AUTO or kind not in _OPEN:
        for part in plugins.parts(kind, name):
            plugins.find(kind, part)
    elif kind == "strategy":
        _expect_keys("strategy", arguments, ())
    elif kind == "launcher":
        _expect_keys("launcher", arguments, ("ask",))
    return Choice(kind, name, arguments)


def _asked(choice: Choice) -> list[Choice]:
    """Returns the launcher, or all that launcher=auto asks."""
    if choice.name != AUTO:
        return [choice]
    found, known = choice.arguments["ask"], plugins.names("launcher")
    if not isinstance(found, list) or not found or any(name not in known for name in found):
        raise UserError(f"launcher.ask={shown(found)} must be a list of launchers, there are: {', '.join(known)}")
    return [Choice("launcher", name, {}) for name in found]


def _started(choice: Choice) -> StartedRank | None:
    """Returns this process's rank, where a launcher finds one.

    Raises `UserError` where ranks were started, and the launcher would start others.
    """
    from gnnkit.launch.environment import started_rank

    for each in _asked(choice):
        launcher: Launcher = each.create()
        if (found := launcher.started()) is not None:
            return found
    if (other := started_rank()) is not None:
        raise UserError(
            f"launcher={choice.name}: this is rank {other.rank} of {other.world_size} that were started before, leave the "
            "launcher out"
        )
    return None


def _that_suits(choice: Choice, comm: str, in_one_process: bool, beside: bool) -> Choice:
    """Returns the first launcher that suits, of those that launcher=auto asks.

    Args:
        choice: The section. Another launcher stands for the usual ones.
        comm: Name of the communicator.
        in_one_process: Whether all ranks are threads of one process.
        beside: Whether to leave out launchers that have started the ranks before.
    """
    auto = choice if choice.name == AUTO else Choice("launcher", AUTO, {"ask": of_option("launcher", AUTO)["ask"]})
    for each in _asked(auto):
        launcher: Launcher = each.create()
        if launcher.suits(in_one_process=in_one_process) and not (beside and launcher.started() is not None):
            return each
    raise UserError(f"launcher.ask={shown(auto.arguments['ask'])}: none of these starts the ranks of comm={comm} here")


def launcher_for(choice: Choice, what: str) -> Launcher:
    """Makes a launcher. Raises `UserError` where the launcher does not start `what`.

    Args:
        choice: The launcher.
        what: ranks or jobs.
    """
    launcher: Launcher = choice.create()
    if what not in launcher.starts:
        usual = "add -m to run a sweep, or leave the launcher out" if what == "ranks" else "choose another launcher"
        raise UserError(f"launcher={choice.name} starts {' and '.join(launcher.starts)}, not {what}: {usual}")
    launcher.check(what)
    return launcher


def _exchange(config: Mapping[str, Any]) -> Choice | None:
    """Looks up the exchange. Raises `UserError` under strategy=auto."""
    if config["exchange"] is None:
        return None
    choice = _choice("exchange", config)
    if config["strategy"].get("name") == AUTO:
        raise UserError(f"exchange={choice.name}: strategy=auto chooses the exchange too, leave it out")
    return choice


def _several(kind: str, config: Mapping[str, Any]) -> tuple[Choice, ...]:
    """Looks up any number of plugins, each under its name in the section."""
    for name, section in config[kind].items():
        found = section.get("name") if isinstance(section, dict) else section
        if not isinstance(section, dict) or found != name:
            raise UserError(f"{kind}.{name}={shown(found)} must be a section with this name: choose {kind}={name}")
    return tuple(_choice(kind, {kind: section}) for section in config[kind].values())


def _partition(config: Mapping[str, Any], workers: int) -> PartitionSettings:
    from gnnkit.partition.border import NAMES
    from gnnkit.partition.grid import make_grid

    section = config["partition"]
    grid, replication = section["grid"], section["replication"]
    make_grid(grid, workers, replication)
    if plugins.plugin_name("partition", section) == AUTO:
        _check_auto(section)
    return PartitionSettings(
        _choice("partition", config), grid, replication, one_of("partition.border", section["border"], NAMES)
    )


def _check_auto(section: Mapping[str, Any]) -> None:
    """Raises `UserError` for a key that `partition=auto` chooses itself."""
    left: dict[str, Any] = {"grid": "1d", "replication": None, "border": "none", "options": {}}
    for key, value in section.items():
        if key != "nodes" and value != left.get(key):
            raise UserError(f"partition.{key}={shown(value)}: partition=auto chooses this key itself, leave it out")


def _plan(job: JobFacts, config: Mapping[str, Any]) -> PlanSettings:
    """Reads the numbers of a cluster. Raises `UserError` where nothing reads these."""
    plan = PlanSettings(**config["plan"])
    named = (config["strategy"].get("name"), config["partition"].get("nodes"))
    if plan.is_cluster and not job.reads_plan and AUTO not in named:
        key = next(key for key, value in config["plan"].items() if value is not None)
        raise UserError(
            f"plan.{key}={config['plan'][key]} is read by job=plan, partition=auto and strategy=auto: leave it out"
        )
    return plan


def _compare(job: JobFacts, section: Mapping[str, Any]) -> CompareSettings:
    """Reads the section `compare`. One way may stand without a list.

    Raises `UserError` for keys of another job.
    """
    for key, value in section.items():
        if not job.several and value != {"ways": AUTO, "seeds": 1, "link": None}[key]:
            raise UserError(f"compare.{key}={shown(value)} is read by job=compare: leave it out, or add job=compare")
    ways = WAYS if section["ways"] == AUTO else section["ways"]
    ways = [ways] if isinstance(ways, str) else ways
    link = _link("compare.link", section["link"])
    return CompareSettings(tuple(ways) if isinstance(ways, list) else ways, section["seeds"], link)


def _init(job: JobFacts, section: Mapping[str, Any]) -> InitSettings:
    """Reads the section `init`. Raises `UserError` for a value that nothing reads."""
    found = InitSettings(**section)
    if not job.reads_data_only and found.minutes != USUAL_MINUTES:
        raise UserError(f"init.minutes={found.minutes:g} is read by job=init: leave it out, or add job=init")
    return found


def _link(key: str, value: object) -> LinkSettings | None:
    if value is None:
        return None
    names = ("gigabits", "milliseconds")
    if not isinstance(value, Mapping) or {*value} != {*names}:
        raise UserError(f"{key}={shown(value)} must be null or {{gigabits:NUMBER,milliseconds:NUMBER}}")
    return LinkSettings(key, *(value[name] for name in names))


def _path(name: str, value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and value:
        local_path(name, value)
        return value
    raise UserError(f"{name}={shown(value)} must be a path or null")


def _cache(value: object) -> Path | None:
    from gnnkit.storage import cache_folder

    if value == "auto":
        base = cache_folder()
        return None if base is None else base / "shards"
    if value is False or value is None:
        return None
    if isinstance(value, str) and value:
        return local_path("cache", value).expanduser().absolute()
    raise UserError(f"cache={shown(value)} must be auto, false or a folder")


def _memory(job: JobFacts, value: object) -> int | None:
    """Reads a number of bytes, such as 1GB. Raises `UserError` where none is read."""
    if value == AUTO:
        return None
    size = _bytes("memory", value, LEAST_MEMORY)
    if not job.reads_memory:
        raise UserError(f"memory={shown(value)} must be auto: only job=import reads the key, and job={job}")
    return size


def _bytes(key: str, value: object, least: int) -> int:
    """Reads a number of bytes, such as 1GB. `least` is a number of MiB, in bytes."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(GB|GiB|MB|MiB)?", str(value))
    if found is None or isinstance(value, bool):
        raise UserError(f"{key}={shown(value)} must be auto, a number of bytes, or a text such as 1GB or 512MiB")
    size = float(found[1]) * _UNITS[found[2]]
    if not least <= size <= MOST_MEMORY:
        raise UserError(f"{key}={shown(value)} must be at least {least // 2**20}MiB, and less than 2^60 bytes")
    return int(size)


def _checkpoint(job: JobFacts, value: object) -> str | None:
    path = _path("checkpoint", value)
    if (path is None) == job.reads_checkpoint:
        means = "needs checkpoint=FOLDER of a run that has trained" if path is None else "reads no checkpoint"
        raise UserError(f"job={job} {means}" + ("" if path is None else ": trainer.resume goes on from one"))
    return path


def _runs(job: JobFacts, value: object) -> tuple[str, ...]:
    """Returns the run folders of job=report. Raises `UserError` where none is read."""
    given = [] if value is None else value if isinstance(value, list) else [value]
    runs = tuple(path for each in given if (path := _path("runs", each)) is not None)
    if job.reads_runs != bool(runs):
        means = "reads no runs" if runs else "needs runs=FOLDER or runs=[FOLDER,FOLDER] of runs that have trained"
        raise UserError(f"job={job} {means}")
    if len(runs) > MAX_RUNS:
        raise UserError(f"runs has {len(runs)} folders, at most {MAX_RUNS} are compared")
    return runs


def _written(value: object) -> tuple[str, ...]:
    names = value if isinstance(value, list) else [value]
    return tuple(one_of("write", name, WRITTEN) for name in names)


def _replace_auto(config: dict[str, Any], launcher: Choice, started: StartedRank | None) -> tuple[str, ...]:
    """Replaces each `auto`. Returns notes for the user, one line each."""
    gpus, notes = num_gpus(), []
    servers = _servers(plugins.arguments_of("sync", config["sync"]))
    if config["parts"] is not None:
        config["workers"] = _processes(config, started, servers)
    elif started is not None:
        config["workers"] = _started_workers(config["workers"], started.world_size, servers)
    if config["workers"] == "auto":
        config["workers"] = max(gpus - servers, 1) if gpus > 1 else DEFAULT_WORKERS
        if started is None and gpus == 1:
            notes.append(
                f"workers=auto: {DEFAULT_WORKERS} workers on CPUs, one GPU stays idle: workers=1 comm=nccl uses it"
            )
    # ranks of this host
    here = _num_ranks(config) + servers
    if started is not None:  # as many in each process
        here = -(-here // started.world_size) * started.local_world_size
    if config["threads"] == "auto":
        config["threads"] = max(num_cores() // here, 1)
    if config["comm"].get("name") == "auto":
        usual = None if launcher.name == AUTO else launcher.load().comm
        several = None if config["parts"] is None else "threads"
        config["comm"]["name"] = several or usual or ("nccl" if gpus >= here else "gloo")
    if config["trainer"]["progress_bar"] == "auto":
        config["trainer"]["progress_bar"] = in_notebook() or (bool(sys.stderr) and sys.stderr.isatty())
    switch("trainer.progress_bar", config["trainer"]["progress_bar"], what="auto, true or false")
    if config["trainer"]["check_val_every_n_epoch"] == "auto":
        epochs = whole("trainer.max_epochs", config["trainer"]["max_epochs"], 1, MAX_COUNT)
        config["trainer"]["check_val_every_n_epoch"] = min(max(epochs // 10, 1), MOST_EPOCHS_UNSEEN)
    return tuple(notes)


def _servers(arguments: Mapping[str, Any]) -> int:
    """Returns `sync.servers`, 0 for a synchronisation without this key."""
    return whole("sync.servers", arguments.get("servers", 0), 0, MAX_WORKERS)


def _num_ranks(config: Mapping[str, Any]) -> int:
    """Returns the number of ranks that train: `parts`, else `workers`."""
    if config["parts"] is None:
        return _count("workers", config, MAX_WORKERS)
    return whole("parts", config["parts"], 1, MAX_WORKERS, what="null or a whole number")


def _processes(config: Mapping[str, Any], started: StartedRank | None, servers: int) -> int:
    """Returns the number of processes that hold the ranks.

    Args:
        config: The configuration, with `parts`.
        started: This process's rank, where ranks were started before.
        servers: Number of ranks that serve.
    """
    ranks = _num_ranks(config) + servers
    given = config["workers"]
    if started is not None and given not in ("auto", started.world_size):
        raise UserError(f"workers={shown(given)} but {started.world_size} processes were started")
    if given == "auto":
        given = min(ranks, num_cores()) if started is None else started.world_size
    return whole("workers", given, 1, ranks, what="auto or a whole number, of processes that hold parts,")


def _started_workers(workers: object, started: int, servers: int) -> int:
    """Returns the number of workers among the ranks that were started.

    Raises `UserError` for another number of workers.

    Args:
        workers: The value of the key, maybe `auto`.
        started: Number of ranks.
        servers: Number of ranks that serve.
    """
    serving = f", of which sync.servers={servers} serve" if servers else ""
    if started <= servers or workers not in ("auto", started - servers):
        raise UserError(f"workers={shown(workers)} but {started} ranks were started{serving}")
    return started - servers


def _count(key: str, config: Mapping[str, Any], most: int) -> int:
    return whole(key, config[key], 1, most, what="auto or a whole number")
