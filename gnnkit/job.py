"""One job: checks its configuration before anything heavy is imported, settles what is `auto`, gives it a folder, runs it."""

from __future__ import annotations

import copy
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

from gnnkit import plugins

JOBS = ("train", "verify", "plan", "partition")
BORDERS = ("none", "min_words")
DEFAULT_WORKERS = 4
_SECRET = re.compile(r"token|passw|secret|credential|api_?key", re.IGNORECASE)


def settle(config: Mapping[str, Any]) -> dict[str, Any]:
    """A checked copy of a composed configuration in which nothing is `auto` any more.

    Raises `ValueError` with the configuration key for what can be known without the data: keys, names of plugins, simple
    values, and whether the grid fits the number of workers. Imports torch only on machines with GPUs.
    """
    settled: dict[str, Any] = copy.deepcopy(dict(config))
    _check_keys(settled)
    _check_scalars(settled)
    _check_trainer(settled["trainer"])
    _replace_auto(settled)
    for kind in plugins.KINDS:
        plugins.find(kind, plugins.plugin_name(kind, settled[kind]))
    _check_grid(settled)
    return settled


def _replace_auto(config: dict[str, Any]) -> None:
    from gnnkit.training.launcher import external_ranks

    gpus = num_gpus()
    external = external_ranks()
    if external is not None and config["workers"] not in ("auto", external[1]):
        raise ValueError(f"workers={config['workers']} but {external[1]} ranks were started")
    if config["workers"] == "auto" and external is not None:
        config["workers"] = external[1]
    if config["workers"] == "auto":
        config["workers"] = gpus if gpus > 1 else DEFAULT_WORKERS
    if config["threads"] == "auto":
        config["threads"] = max(_num_cores() // config["workers"], 1)
    if config["comm"]["name"] == "auto":
        config["comm"]["name"] = "nccl" if gpus >= config["workers"] else "gloo"
    if config["trainer"]["progress_bar"] == "auto":
        config["trainer"]["progress_bar"] = sys.stderr.isatty()


def num_gpus() -> int:
    """GPUs that torch can use; torch is asked only if the machine has a driver for them."""
    if not any(Path(driver).exists() for driver in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg")):
        return 0
    import torch

    return torch.cuda.device_count()


def start(config: Mapping[str, Any], folder: str | Path | None = None, **given: Any) -> dict[str, Any]:
    """Runs the job of a settled configuration in a new folder; `given` may hold a `graph` and a `model`."""
    from gnnkit.training.launcher import external_ranks

    external = external_ranks()
    if external is not None and config["job"] in ("plan", "partition"):  # one process does them
        if external[0] != 0:
            return {}
        external = None
    run_folder = None
    if external is None or external[0] == 0:
        run_folder = new_run_folder() if folder is None else _make_folder(Path(folder).absolute())
        (run_folder / "config.yaml").write_text(to_yaml(config), encoding="utf-8")
    if external is not None:
        from gnnkit.training.run import join

        return join(config, run_folder, **given)
    assert run_folder is not None
    from gnnkit.training.run import run

    return run(config, run_folder, **given)


def new_run_folder(base: Path = Path("outputs")) -> Path:
    """Makes `base/<date>/<time>`, with a number behind if another run has that; never returns a folder twice."""
    parent = base / time.strftime("%Y-%m-%d")
    stem = time.strftime("%H-%M-%S")
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for number in range(10_000):
            folder = parent / (f"{stem}-{number}" if number else stem)
            try:
                folder.mkdir()
            except FileExistsError:
                continue
            return folder.absolute()
    except OSError as error:
        raise ValueError(f"cannot make a run folder in {parent.absolute()}: {error.strerror}") from error
    raise ValueError(f"{parent.absolute()} holds 10000 runs of {stem}")


def _make_folder(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise ValueError(f"cannot make the run folder {folder}: {error.strerror}") from error
    return folder


def to_yaml(config: Mapping[str, Any]) -> str:
    """The configuration as text to keep: values of keys that look like secrets are left out."""
    import yaml

    text: str = yaml.safe_dump(_redacted(config), sort_keys=False)
    return text


def _redacted(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {k: "***" if _SECRET.search(str(k)) and v else _redacted(v) for k, v in node.items()}
    return [_redacted(item) for item in node] if isinstance(node, list) else node


def _check_keys(config: Mapping[str, Any]) -> None:
    sections = (*plugins.KINDS, "trainer")
    known = (*sections, "workers", "threads", "seed", "job")
    for key in config:
        if key not in known:
            raise plugins.unknown(str(key), str(key), known)
    for key in known:
        if key not in config:
            raise ValueError(f"{key} is missing: do not remove it from the configuration")
    for key in sections:
        if not isinstance(config[key], dict):
            raise ValueError(f"{key}={config[key]} must be one of: {', '.join(plugins.options(key))}")


def _check_scalars(config: Mapping[str, Any]) -> None:
    for key in ("workers", "threads"):
        if config[key] != "auto" and not _is_int(config[key], 1):
            raise ValueError(f"{key}={config[key]} must be auto or a whole number of at least 1")
    if not _is_int(config["seed"], 0) or config["seed"] >= 2**63:
        raise ValueError(f"seed={config['seed']} must be a whole number from 0 to 2^63 - 1")
    if config["job"] not in JOBS:
        raise plugins.unknown(f"job={config['job']}", str(config["job"]), JOBS)
    timeout = config["comm"].get("timeout", 1)
    if not _is_number(timeout) or timeout <= 0:
        raise ValueError(f"comm.timeout={timeout} must be a positive number of seconds")


def _check_trainer(trainer: Mapping[str, Any]) -> None:
    for key in trainer:
        if key not in _TRAINER:
            raise plugins.unknown(f"trainer.{key}", str(key), _TRAINER)
    for key, (rule, holds) in _TRAINER.items():
        if not holds(trainer.get(key)):
            raise ValueError(f"trainer.{key}={trainer.get(key)} must be {rule}")


def _check_grid(config: Mapping[str, Any]) -> None:
    from gnnkit.partition.grid import make_grid

    chosen = config["partition"]
    if chosen["border"] not in BORDERS:
        raise plugins.unknown(f"partition.border={chosen['border']}", str(chosen["border"]), BORDERS)
    make_grid(chosen["grid"], config["workers"], chosen["replication"])


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_int(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: object) -> bool:
    return _is_int(value, 1)


_TRAINER: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "max_epochs": ("a whole number of at least 1", _is_count),
    "optimizer": ("adam or sgd", lambda value: value in ("adam", "sgd")),
    "lr": ("a positive number", lambda value: _is_number(value) and value > 0),
    "weight_decay": ("a number of at least 0", lambda value: _is_number(value) and value >= 0),
    "precision": ("32 or 64", lambda value: value in (32, 64)),
    "check_val_every_n_epoch": ("a whole number of at least 1", _is_count),
    "log_every_n_steps": ("a whole number of at least 1", _is_count),
    "progress_bar": ("auto, true or false", lambda value: value == "auto" or isinstance(value, bool)),
    "checkpoint": ("true or false", lambda value: isinstance(value, bool)),
    "checkpoint_every": ("a whole number of at least 1", _is_count),
    "resume": ("a file or null", lambda value: value is None or isinstance(value, str)),
}
