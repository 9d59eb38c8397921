"""Whole runs that cost little: in the process of the test, without page and loggers."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import inspect
import os
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gnnkit
from gnnkit import config
from gnnkit.config import MAIN, compose, keys
from gnnkit.config.code import key_of
from gnnkit.config.compose import EXPERIMENT
from gnnkit.config.keys import plain
from gnnkit.errors import UserError
from gnnkit.launch.processes import inline
from gnnkit.plugins import CONF, KINDS, SEVERAL
from gnnkit.result import result
from gnnkit.utils.documents import read_yaml

_PLAIN = r"(?:true|false|null|\d+(?:\.\d+)?|(?!(?:on|off|yes|no|nan|inf)\b)[a-z][a-z_]+|'[\w/.-]*'|/[\w/.-]+)"
_VALUE = re.compile(rf"(?:\+\+)?([a-z_]+(?:\.\w+)*)=({_PLAIN}|\[(?:{_PLAIN}(?:,{_PLAIN})*)?\])")  # as YAML reads it too
_CHOICE = re.compile(rf"(?:{'|'.join({*KINDS} - {'strategy'})})='?\w+'?|(?:{'|'.join(SEVERAL)})=\['\w+'\]")
MANY = 300  # open files
BARE: dict[str, Any] = {"report": False, "logger": "none"}  # keys of a run whose page and loggers nobody reads


@contextlib.contextmanager
def within_process() -> Iterator[None]:
    """Lets runs whose ranks are threads do all work in the process of the test.

    The data are prepared here too, and equal configurations are composed once. A run of
    two epochs takes half the time. Restores what a run sets in a process of its own.
    What is installed is read once: each trainer opens a file of every distribution.
    """
    from lightning.fabric.utilities import registry

    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    with inline(), pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        patch.setattr(config, "compose", compose_once)
        patch.setattr(keys, "plain", _plain)
        patch.setattr(result, "version", _version)
        patch.setattr(registry, "entry_points", _entry_points)
        patch.setattr(os, "fsync", lambda _: None)  # no test turns the machine off
        patch.setattr(inspect, "signature", _signature)
        patch.setattr(yaml, "safe_dump", _safe_dump)
        if not torch.cuda.is_available():  # else each seed is kept, with the stack, for a device to come
            patch.setattr(torch.cuda, "manual_seed_all", lambda _: None)
        yield
    if len(os.listdir("/dev/fd")) > MANY:
        gc.collect()  # mapped files stay open as long as cycles of a run hold these
    torch.set_num_threads(threads)
    torch.set_float32_matmul_precision(precision)


def train_on_threads(data: Any, model: Any, folder: Path, epochs: int, **keys: Any) -> gnnkit.Result:
    """Trains on three ranks that are threads, unless keys say otherwise."""
    usual: dict[str, Any] = {"strategy": "vertex_centric", "workers": 3, "comm": "threads", **BARE}
    with within_process():
        return gnnkit.train(data, model=model, folder=folder, **(usual | {"trainer": {"max_epochs": epochs}} | keys))


def compose_once(
    overrides: Sequence[str] = (), *, config_dirs: Sequence[Path] = (), config_name: str = MAIN
) -> dict[str, Any]:
    """Is `config.compose`, which takes a tenth of a second, with a memory of sections.

    What an option brings stands in a section of its own, and plain values of known keys
    are put in afterwards. All else is composed as a whole. The caller may change the
    result.
    """
    if config_dirs or config_name != MAIN or any("${" in text for text in overrides):
        return compose(overrides, config_dirs=config_dirs, config_name=config_name)
    actual = _joined(overrides)
    return compose(overrides) if actual is None else actual


def _joined(overrides: Sequence[str]) -> dict[str, Any] | None:
    """Joins sections and values. Returns None for what only Hydra composes."""
    run_keys = {key_of(text): text for text in overrides if _CHOICE.fullmatch(text)}
    values = [text for text in overrides if key_of(text) not in (*KINDS, "job") and _VALUE.fullmatch(text)]
    other_overrides = [text for text in overrides if text not in run_keys.values() and text not in values]
    if {*run_keys, EXPERIMENT}.intersection(key_of(text).partition(".")[0] for text in other_overrides):
        return None
    try:
        own = {kind: _section(kind, text) for kind, text in run_keys.items()}
        actual = _composed(tuple(other_overrides))
    except UserError:
        return None  # with other words
    actual = copy.deepcopy({kind: own.get(kind, actual.get(kind)) for kind in _order()} | {**actual, **own})
    actual = {key: value for key, value in actual.items() if value is not None or key not in KINDS}
    for path, value in (_VALUE.fullmatch(text).groups() for text in values):  # type: ignore[union-attr]
        *sections, key = path.split(".")
        section = functools.reduce(lambda inner, name: inner.get(name) or {}, sections, actual)
        if key not in section or isinstance(section[key], dict):
            return None
        section[key] = yaml.safe_load(value)
    return None if "'???'" in repr(actual) else actual  # a value that is missing


@functools.cache
def _order() -> list[str]:
    """Returns the kinds in the order of the main configuration."""
    return [next(iter(entry)) for entry in read_yaml(CONF / "config.yaml")["defaults"] if isinstance(entry, dict)]


@functools.cache
def _section(kind: str, text: str) -> dict[str, Any] | None:
    """Returns the section that a choice brings, or None if it brings none."""
    path = CONF / kind / f"{text.partition('=')[2].strip(chr(39))}.yaml"
    if kind in SEVERAL or not path.is_file():
        return _composed(("strategy=auto", text)).get(kind)
    section = read_yaml(path) or {}
    return (read_yaml(CONF / "layout.yaml") if section.pop("defaults", None) else {}) | section


def _plain(value: Any) -> str:
    """Is `keys.plain`, which every run calls for 160 keys and values, with a memory."""
    return plain(value) if isinstance(value, list | dict) else _spelt(value)


def _signature(callable_object: Any, **options: Any) -> inspect.Signature:
    """Is `inspect.signature`, with a memory of classes."""
    if isinstance(callable_object, type) and not options:
        return _signature_of_class(callable_object)
    return signature(callable_object, **options)


def _safe_dump(data: Any, stream: Any = None, *, width: int = 80, **options: Any) -> Any:
    """Is `yaml.safe_dump` in C, whose width has 31 bits."""
    return yaml.dump(data, stream, Dumper=yaml.CSafeDumper, width=min(width, 2**31 - 1), **options)


_signature_of_class = functools.cache(signature)
_spelt = functools.lru_cache(maxsize=None, typed=True)(plain)
_version = functools.cache(metadata.version)
_entry_points = functools.cache(metadata.entry_points)


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return compose(overrides)
