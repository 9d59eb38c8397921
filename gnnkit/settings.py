"""A checked configuration as typed values. Nothing heavy is imported here."""

from __future__ import annotations

import copy
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

from gnnkit import plugins
from gnnkit.errors import UserError

JOBS = ("train", "verify", "plan", "partition")
DEFAULT_WORKERS = 4
DEFAULT_TIMEOUT = 120.0  # seconds
OnNan = Literal["stop", "skip", "rollback"]


@dataclass(frozen=True, slots=True)
class Choice:
    """One plugin by name, with the arguments of its constructor."""

    kind: str
    name: str
    arguments: Mapping[str, Any]

    def load(self) -> type[Any]:
        """Imports the plugin's class."""
        return plugins.load(self.kind, self.name)

    def check(self, extra: Sequence[str] = ()) -> None:
        """Raises `UserError` for arguments that the constructor does not take.

        `extra` names arguments that gnnkit gives itself.
        """
        plugins.check(self, extra)

    def create(self, **extra: Any) -> Any:
        """Makes the plugin. `extra` are arguments that gnnkit gives itself."""
        return plugins.create(self, **extra)


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """Who owns each node, and on which process grid."""

    nodes: Choice  # the partitioner
    grid: str | list[int]  # 1d, 1.5d, 2d, 3d or [rows, cols, slices]
    replication: int | None  # of grid 1.5d
    border: str  # none or min_words


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """How training goes; the section `trainer`."""

    max_epochs: int
    optimizer: str
    lr: float
    weight_decay: float
    precision: int  # bits: 32 or 64
    check_val_every_n_epoch: int
    log_every_n_steps: int
    progress_bar: bool
    checkpoint: bool
    checkpoint_every: int  # epochs
    checkpoint_every_n_steps: int | None  # within an epoch
    resume: str | None
    on_nan: OnNan
    final_average: bool
    evaluation_memory: int  # MiB


@dataclass(frozen=True, slots=True)
class Settings:
    """One job's configuration, in which nothing is `auto` any more."""

    job: str
    seed: int
    workers: int
    threads: int  # of each rank
    output: str | None  # the run folder
    dataset: Choice
    partition: PartitionSettings
    sampler: Choice | None  # None: nothing was chosen
    strategy: Choice
    comm: Choice
    timeout: float  # seconds that a rank waits for another
    sync: Choice
    model: Choice
    trainer: TrainerSettings
    composed: Mapping[str, Any]  # as plain data, for config.yaml


def settle(composed: Mapping[str, Any]) -> Settings:
    """Checks a composed configuration and replaces each `auto`.

    Raises `UserError` with the configuration key for keys, names of plugins, types and
    ranges, and for a grid that does not fit the workers. Imports torch only on machines
    with GPUs.
    """
    config: dict[str, Any] = {"sampler": None, **copy.deepcopy(dict(composed))}  # Hydra leaves out what is null
    _check_keys(config)
    _check_scalars(config)
    _check_trainer(config["trainer"])
    _replace_auto(config)
    _check_grid(config)
    partition = config["partition"]
    comm = _choice("comm", config)
    for key in comm.arguments:
        if key != "timeout":
            raise plugins.unknown(f"comm.{key}", f"comm.{key}", ["comm.timeout"])
    return Settings(
        job=config["job"],
        seed=config["seed"],
        workers=config["workers"],
        threads=config["threads"],
        output=config["output"],
        dataset=_choice("dataset", config),
        partition=PartitionSettings(
            _choice("partition", config), partition["grid"], partition["replication"], partition["border"]
        ),
        sampler=None if config["sampler"] is None else _choice("sampler", config),
        strategy=_choice("strategy", config),
        comm=replace(comm, arguments={}),
        timeout=float(comm.arguments.get("timeout", DEFAULT_TIMEOUT)),
        sync=_choice("sync", config),
        model=_choice("model", config),
        trainer=TrainerSettings(**config["trainer"]),
        composed=config,
    )


def with_name(settings: Settings, kind: Literal["dataset", "model"], name: str) -> Settings:
    """The same settings, where something from Python takes the place of a data set or model."""
    composed = {**settings.composed, kind: {"name": name}}
    choice = Choice(kind, name, {})
    if kind == "dataset":
        return replace(settings, dataset=choice, composed=composed)
    return replace(settings, model=choice, composed=composed)


def _choice(kind: str, config: Mapping[str, Any]) -> Choice:
    """The plugin that one section names, which is looked up but not imported."""
    section = config[kind]
    name = plugins.plugin_name(kind, section)
    plugins.find(kind, name)
    return Choice(kind, name, plugins.arguments_of(kind, section))


def _replace_auto(config: dict[str, Any]) -> None:
    from gnnkit.launch.environment import started_rank

    started, gpus = started_rank(), num_gpus()
    if started is not None and config["workers"] not in ("auto", started.world_size):
        raise UserError(f"workers={config['workers']} but {started.world_size} ranks were started")
    if config["workers"] == "auto":
        config["workers"] = started.world_size if started else gpus if gpus > 1 else DEFAULT_WORKERS
    here = started.local_world_size if started else config["workers"]  # ranks of this host
    if config["threads"] == "auto":
        config["threads"] = max(num_cores() // here, 1)
    if config["comm"]["name"] == "auto":
        config["comm"]["name"] = "nccl" if gpus >= here else "gloo"
    if config["trainer"]["progress_bar"] == "auto":
        config["trainer"]["progress_bar"] = bool(sys.stderr) and sys.stderr.isatty()


def num_gpus() -> int:
    """Counts the GPUs that torch can use, and asks torch only if there is a driver."""
    if not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return 0
    import torch

    return torch.cuda.device_count()


def num_cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_keys(config: Mapping[str, Any]) -> None:
    sections = (*plugins.KINDS, "trainer")
    known = (*sections, "workers", "threads", "seed", "job", "output")
    for key in config:
        if key not in known:
            raise plugins.unknown(str(key), str(key), known)
    for key in known:
        if key not in config:
            raise UserError(f"{key} is missing: do not remove it from the configuration")
    for key in sections:
        if not isinstance(config[key], dict) and (key, config[key]) != ("sampler", None):
            raise UserError(f"{key}={config[key]} must be one of: {', '.join(plugins.options(key))}")


def _check_scalars(config: Mapping[str, Any]) -> None:
    for key in ("workers", "threads"):
        if config[key] != "auto" and not _is_int(config[key], 1):
            raise UserError(f"{key}={config[key]} must be auto or a whole number of at least 1")
    if not _is_int(config["seed"], 0) or config["seed"] >= 2**63:
        raise UserError(f"seed={config['seed']} must be a whole number from 0 to 2^63 - 1")
    if config["job"] not in JOBS:
        raise plugins.unknown(f"job={config['job']}", str(config["job"]), JOBS)
    if not (config["output"] is None or isinstance(config["output"], str)):
        raise UserError(f"output={config['output']} must be a folder")
    timeout = config["comm"].get("timeout", 1)
    if not _is_number(timeout) or timeout <= 0:
        raise UserError(f"comm.timeout={timeout} must be a positive number of seconds")


def _check_trainer(trainer: Mapping[str, Any]) -> None:
    for key in trainer:
        if key not in _TRAINER:
            raise plugins.unknown(f"trainer.{key}", str(key), _TRAINER)
    for key, (rule, holds) in _TRAINER.items():
        if not holds(trainer.get(key)):
            raise UserError(f"trainer.{key}={trainer.get(key)} must be {rule}")


def _check_grid(config: Mapping[str, Any]) -> None:
    from gnnkit.partition.border import NAMES
    from gnnkit.partition.grid import make_grid

    chosen = config["partition"]
    if chosen["border"] not in NAMES:
        raise plugins.unknown(f"partition.border={chosen['border']}", str(chosen["border"]), NAMES)
    make_grid(chosen["grid"], config["workers"], chosen["replication"])


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return _is_int(value, 1)


def _is_switch(value: object) -> bool:
    return isinstance(value, bool)


_COUNT = "a whole number of at least 1"
_TRAINER: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "max_epochs": (_COUNT, _is_count),
    "optimizer": ("adam, adamw or sgd", lambda value: value in ("adam", "adamw", "sgd")),
    "lr": ("a positive number", lambda value: _is_number(value) and value > 0),
    "weight_decay": ("a number of at least 0", lambda value: _is_number(value) and value >= 0),
    "precision": ("32 or 64", lambda value: value in (32, 64)),
    "check_val_every_n_epoch": (_COUNT, _is_count),
    "log_every_n_steps": (_COUNT, _is_count),
    "progress_bar": ("auto, true or false", lambda value: value == "auto" or _is_switch(value)),
    "checkpoint": ("true or false", _is_switch),
    "checkpoint_every": (_COUNT, _is_count),
    "checkpoint_every_n_steps": (f"{_COUNT}, or null", lambda value: value is None or _is_count(value)),
    "resume": ("a file or null", lambda value: value is None or isinstance(value, str)),
    "on_nan": ("stop, skip or rollback", lambda value: value in ("stop", "skip", "rollback")),
    "final_average": ("true or false", _is_switch),
    "evaluation_memory": ("a positive number of MiB", lambda value: _is_number(value) and value > 0),
}
