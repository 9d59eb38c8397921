"""Reads a composed configuration: each key is known, and has a value in its range."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any

from gnnkit import plugins
from gnnkit.config import JOBS, SECTIONS, dotted, of_option, read_otherwise
from gnnkit.errors import UserError
from gnnkit.ranges import MAX_THREADS, number_of, one_of, real, shown, switch, unknown_key, whole
from gnnkit.settings.choice import Choice, choice_of, exchange_of, several_of
from gnnkit.settings.inputs import (
    INPUTS,
    TYPES,
    FeaturesSettings,
    LearnedSettings,
    embedding_of,
    features_of,
    input_rows_of,
    learned_of,
)
from gnnkit.settings.jobs import (
    CompareSettings,
    InitSettings,
    LeaderSettings,
    PlanSettings,
    checkpoint_of,
    compare_of,
    init_of,
    link_of,
    memory_of,
    plan_of,
    runs_of,
)
from gnnkit.settings.launchers import started_of
from gnnkit.settings.layout import partition_of
from gnnkit.settings.outputs import FORMATS, ON_EXISTS, PERMISSIONS, UPLOADED, port_of, report_of, upload_of, written_of
from gnnkit.settings.ranks import count_of, num_ranks, replace_auto
from gnnkit.settings.settings import Settings
from gnnkit.settings.trainer import TrainerSettings
from gnnkit.settings.values import cache_of, expect_keys, path_or_none, read_texts

DEFAULT_TIMEOUT = 120.0  # seconds
MAX_RESTARTS = 1000
MAX_TIMEOUT = 1e9  # seconds. More would not fit torch's milliseconds
_CHOICES = ("dataset", "strategy", "sync", "model", "task")  # sections with one plugin
# What reads the value of a key that depends on no other one.
_ALONE: dict[str, Callable[[Any], Any]] = {
    "inputs": lambda value: one_of("inputs", value, INPUTS),
    "types": lambda value: one_of("types", value, TYPES),
    "threads": lambda value: count_of("threads", value, MAX_THREADS),
    "seed": lambda value: whole("seed", value, 0, 2**63 - 1),
    "output": lambda value: path_or_none("output", value, UPLOADED),
    "on_exists": lambda value: one_of("on_exists", value, ON_EXISTS),
    "permissions": lambda value: one_of("permissions", value, PERMISSIONS),
    "cache": cache_of,
    "write": written_of,
    "write_format": lambda value: one_of("write_format", value, FORMATS),
    "report": report_of,
    "profile": lambda value: switch("profile", value),
    "restarts": lambda value: whole("restarts", value, 0, MAX_RESTARTS),
    "trainer": lambda section: TrainerSettings(**section),
    "leader": lambda section: LeaderSettings(**section),
}
_FOR_INPUTS = {"input_rows": input_rows_of, "embedding": embedding_of, "learned": learned_of}  # by the value of inputs
_FOR_JOB = {
    "memory": memory_of,
    "checkpoint": checkpoint_of,
    "compare": compare_of,
    "init": init_of,
    "runs": runs_of,
    "upload": upload_of,
}
_WITH_OTHERS = ("features", "workers", "parts", "job", "plan", "report_port")
_KEYS = (*dict.fromkeys((*SECTIONS, *_ALONE, *_FOR_INPUTS, *_FOR_JOB, *_WITH_OTHERS)),)
_NUMBERS = ("workers", "parts", "threads", "seed", "embedding", "restarts", "report", "profile")  # keys at the top
_TYPED = {
    "trainer": TrainerSettings,
    "features": FeaturesSettings,
    "learned": LearnedSettings,
    "leader": LeaderSettings,
    "compare": CompareSettings,
    "init": InitSettings,
    "plan": PlanSettings,
}  # sections of ours


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
    launcher = choice_of("launcher", config)
    started = started_of(launcher)
    notes, auto_workers = replace_auto(config, launcher, started)
    job, workers = JOBS[one_of("job", config["job"], JOBS)], num_ranks(config)
    read: dict[str, Any] = {key: reader(config[key]) for key, reader in _ALONE.items()}
    read |= {key: reader(read["inputs"], config[key]) for key, reader in _FOR_INPUTS.items()}
    read |= {key: reader(job, config[key]) for key, reader in _FOR_JOB.items()}
    read |= {kind: choice_of(kind, config) for kind in _CHOICES}
    read |= {kind: several_of(kind, config) for kind in plugins.SEVERAL}
    return Settings(
        job=job,
        features=features_of(job, read["inputs"], config["features"]),
        workers=workers,
        processes=None if config["parts"] is None else config["workers"],
        auto_workers=auto_workers,
        partition=partition_of(config, workers),
        order=choice_of("order", config),
        sampler=None if config["sampler"] is None else choice_of("sampler", config),
        exchange=exchange_of(config),
        **_communicator(choice_of("comm", config)),
        launcher=launcher,
        started=started,
        plan=plan_of(job, config),
        report_port=port_of(read["report"], config["report_port"]),
        composed=config,
        notes=notes,
        read_otherwise=_read_otherwise(read["checkpoint"], read["dataset"]),
        **read,
    )


def _communicator(choice: Choice) -> dict[str, Any]:
    """Reads the section `comm`, whose keys are not those of a constructor."""
    expect_keys("comm", choice.arguments, (), ("timeout", "link"))
    timeout = choice.arguments.get("timeout", DEFAULT_TIMEOUT)
    return {
        "comm": replace(choice, arguments={}),
        "timeout": real("comm.timeout", timeout, high=MAX_TIMEOUT, above=0),
        "link": link_of("comm.link", choice.arguments.get("link")),
    }


def _read_otherwise(checkpoint: str | None, dataset: Choice) -> tuple[str, ...]:
    return () if checkpoint is None else read_otherwise(checkpoint, dataset.name, dataset.arguments)


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
    for section, kind in _TYPED.items():
        expect_keys(section, config[section], [field.name for field in fields(kind)])
    expect_keys("partition", config["partition"], ("nodes", *plugins.GRID_KEYS), ("options", *plugins.PARTITION_KEYS))


def _read_numbers(config: dict[str, Any]) -> None:
    """Replaces text that spells a number or a switch, as `${oc.env:NAME}` gives.

    Only where a key takes no text: by the type of a key of ours, by the default of a
    plugin's key.
    """
    read_texts(config, _NUMBERS)
    for section, kind in _TYPED.items():
        read_texts(config[section], [field.name for field in fields(kind) if "str" not in str(field.type)])
    for section in SECTIONS:
        texts = [key for key, value in (config[section] or {}).items() if number_of(value) is not None]
        if texts:
            name = "default" if section == "trainer" else plugins.plugin_name(section, config[section])
            defaults = of_option(section, name)
            read_texts(config[section], [key for key in texts if isinstance(defaults.get(key), int | float)])
