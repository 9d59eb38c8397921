"""Whole runs that cost little: in the process of the test, without page and loggers."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import os
import re
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import gnnkit
from gnnkit import config, keys
from gnnkit.config import MAIN, compose
from gnnkit.errors import UserError
from gnnkit.keys import plain
from gnnkit.launch.processes import inline
from gnnkit.result import result

_VALUE = re.compile(  # of a key, as Hydra and YAML both read it
    r"(output|report|seed|workers|parts|threads|job|inputs|input_rows|types|cache|memory|(?!dataset|partition|sampler)[a-z]+\.\w+)=(true|false|null|\d+|0\.\d+|(?!(?:on|off|yes|no|nan|inf)$)[a-z][a-z_]+|'[\w/.-]*'|/[\w/.-]+)"
)
_ROOT = re.compile(r"dataset\.root='?(/[\w/.-]+)'?")
_ANY_ROOT = "dataset.root=/root"
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

    Plain values of known keys and the folder of the data are put in afterwards. The
    caller may change the result.
    """
    values = [text for text in overrides if _VALUE.fullmatch(text)]
    roots = [root[1] for text in overrides if (root := _ROOT.fullmatch(text))]
    others = tuple(_ROOT.sub(_ANY_ROOT, text) for text in overrides if text not in values)
    if config_dirs or config_name != MAIN or any("${" in text for text in overrides):
        return compose(overrides, config_dirs=config_dirs, config_name=config_name)
    try:
        found = copy.deepcopy(_composed(others))
    except UserError:
        return compose(overrides)  # raises an error with the folder
    if roots:
        found["dataset"]["root"] = roots[-1]
    for path, value in (text.split("=", 1) for text in values):
        *sections, key = path.split(".")
        section = functools.reduce(lambda inner, name: inner.get(name) or {}, sections, found)
        if key not in section or isinstance(section[key], dict | list):
            return compose(overrides)
        section[key] = yaml.safe_load(value)
    return found


def _plain(value: Any) -> str:
    """Is `keys.plain`, which every run calls for 160 keys and values, with a memory."""
    return plain(value) if isinstance(value, list | dict) else _spelt(value)


_spelt = functools.lru_cache(maxsize=None, typed=True)(plain)
_version = functools.cache(metadata.version)
_entry_points = functools.cache(metadata.entry_points)


@functools.cache
def _composed(overrides: tuple[str, ...]) -> dict[str, Any]:
    return compose(overrides)
