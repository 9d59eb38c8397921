"""Validates a composed configuration and converts it to typed settings."""

import copy
import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self, TypedDict

from gnnkit import plugins
from gnnkit.config import SECTIONS, JobFacts, check_removed, dotted_keys, keys, of_option, read_otherwise
from gnnkit.config.settings.choice import Choice, choice_of, exchange_of, move_task_keys, several_of
from gnnkit.config.settings.fields import KeyRule, Section, expect_keys, key_rules, missing, read_texts
from gnnkit.config.settings.inputs import DEFAULT_EMBEDDING
from gnnkit.config.settings.launchers import started_of
from gnnkit.config.settings.layout import partition_of
from gnnkit.config.settings.ranks import num_ranks, replace_auto
from gnnkit.config.settings.settings import Settings, job_class
from gnnkit.errors import UserError
from gnnkit.utils.documents import Json
from gnnkit.utils.ranges import MAX_TIMEOUT, parse_scalar, real, shown, unknown_key

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
    read_otherwise_texts = _read_otherwise(values["checkpoint"], values["dataset"])
    values["dataset"], values["task"] = move_task_keys(values["dataset"], values["task"])
    values |= {kind: several_of(kind, config) for kind in plugins.SEVERAL}
    values["workers"] = num_ranks(config)
    if values["embedding"] is None and values["inputs"] == "learned":
        values["embedding"] = values["task"].arguments.get("width", DEFAULT_EMBEDDING)
    settings = Settings(
        processes=None if config["parts"] is None else config["workers"],
        auto_workers=auto_workers,
        partition=partition_of(config, values["workers"]),
        sampler=None if config["sampler"] is None else choice_of("sampler", config),
        exchange=exchange_of(config),
        **_communicator(choice_of("comm", config)),
        launcher=launcher,
        started=started_rank,
        composed=config,
        job_keys=None if job.keys is None else job.keys.read("", config),
        notes=notes,
        read_otherwise=read_otherwise_texts,
        **values,
    )
    run_keys = keys.run_keys()
    for key, value, rule in _conditional_keys(config, job_keys):
        if value != run_keys[key].value:
            rule.check_read(key, value, settings)
    return settings


def _conditional_keys(config: Mapping[str, Any], job_keys: _Keys) -> Iterator[tuple[str, Any, KeyRule]]:
    """Yields name, value and rule of each conditional key."""
    yield from ((rule.name, config[rule.name], rule) for rule in job_keys.rules if rule.conditions)
    for section, kind in job_keys.sections.items():
        yield from (
            (f"{section}.{rule.name}", config[section][rule.name], rule) for rule in key_rules(kind) if rule.conditions
        )


class _CommunicatorFields(TypedDict):
    """The fields of `Settings` that the section `comm` determines."""

    comm: Choice
    timeout: float


def _communicator(choice: Choice) -> _CommunicatorFields:
    """Reads the section `comm`, which may contain keys of the selected backend."""
    keys = dict(choice.arguments)
    timeout = real("comm.timeout", keys.pop("timeout", 120.0), high=MAX_TIMEOUT, above=0)
    check = choice.load().check_keys if keys else None
    expect_keys("comm", choice.arguments, (), ("timeout", *(inspect.signature(check).parameters if check else ())))
    if check is not None:
        plugins.check_arguments(check, keys, "comm")
        check(**keys)
    return {"comm": replace(choice, arguments=keys), "timeout": timeout}


def _read_otherwise(checkpoint: str | None, dataset: Choice) -> tuple[str, ...]:
    return () if checkpoint is None else read_otherwise(checkpoint, dataset.name, dataset.arguments)


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
