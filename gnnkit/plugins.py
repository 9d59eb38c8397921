"""Plugins: entry points map names to classes, and plain arguments create instances.

Listing plugins imports nothing. Loading imports only the selected plugin. Code comes
only from installed entry points.
"""

from __future__ import annotations

import functools
import importlib.util
import inspect
import json
import operator
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown, unknown, unknown_key

if TYPE_CHECKING:
    from gnnkit.config.settings import Choice

KINDS = (
    "dataset",
    "partition",
    "order",
    "sampler",
    "strategy",
    "exchange",
    "comm",
    "launcher",
    "sync",
    "model",
    "task",
    "logger",
    "callback",
)  # sections of the configuration
SEVERAL = ("logger", "callback")  # kinds of which a run may have several, each under its name in the section
OPTIONAL = ("sampler", "exchange")  # kinds that a run may omit
JOBS = "jobs"  # the folder in `conf/` with a file for each job that has keys
SEARCH = "search"  # the kind of the search over configurations by job=init
PLANNER = "planner"  # the kind that chooses keys: resolves `auto`, and recommends for users and items
COMMAND = "command"  # the kind of commands other than jobs
FUNCTION = "function"  # the kind of `gnnkit.NAME`, called from Python
JOINED = ("exchange",)  # kinds in which A+B combines two plugins, with the keys of both
# This project's separate packages, by kind and name.
PACKAGES: Mapping[str, Mapping[str, str]] = json.loads(Path(__file__).with_name("packages.json").read_text())
CONF = Path(__file__).parent / "conf"
GRID_KEYS = ("grid", "replication", "border")  # keys in a partition's YAML that are not arguments of the partitioner
# Other keys that name a plugin.
_NAMED_BY = {"partition": "partition.nodes", "aggregation": "sync.average", "text": "dataset.text"}
_BY_EVENTS = "its state depends on the order of events, so on the workers; use model=mixer or model=tgat"
# What to use instead of names that no plugin has.
_ADVICE = {
    **{f"model={name}": _BY_EVENTS for name in ("dyrep", "jodie", "tgn")},
    **{f"sync={mode}": f"use sync=parameter_server sync.mode={mode}" for mode in ("async", "ssp")},
    "dataset=graphar": "its package was removed; read its chunks as tables (docs/howto/own-graph.md#apache-graphar)",
}
PARTITION_KEYS = ("path",)  # a partitioner's arguments that are not in `options`
TASK_KEYS = ("table", "freeze")  # keys of the section `task` that a data set with several tasks reads
_SCALARS: dict[object, tuple[type, ...]] = {float: (int, float), int: (int,), str: (str,), Path: (str, Path)}
_WORDS: dict[object, str] = {
    float: "a number",
    int: "a whole number",
    str: "text",
    bool: "true or false",
    Path: "a path",
    types.NoneType: "null",
}


def names(kind: str) -> list[str]:
    """Returns a kind's installed plugins by name, sorted. Imports nothing."""
    return sorted({point.name for point in _points(kind)})


def options(kind: str, folders: Iterable[Path] | None = None) -> list[str]:
    """Returns the valid values for `kind=...`: the kind's YAML files and plugins.

    Args:
        kind: A section.
        folders: Folders with YAML files. Default: those of installed packages.
    """
    search_folders = conf_folders() if folders is None else folders
    files = (path.stem for folder in search_folders for path in (folder / kind).glob("*.yaml"))
    return sorted({*files, *names(kind)})


def load(kind: str, name: str) -> type[Any]:
    """Imports a plugin and returns its class.

    Raises `UserError` if no plugin or two packages have the name, or if the import
    fails.
    """
    point = find(kind, name)
    try:
        return typing.cast("type[Any]", point.load())
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{_describe_choice(kind, name)}: {point.value} of {_owner(point)} fails on import: "
            f"{type(error).__name__}: {shown(error)} (python -c 'import {point.module}' shows where)"
        ) from error


def find(kind: str, name: str) -> EntryPoint:
    """Returns a plugin's entry point, without importing it.

    Raises `UserError` if there is none, or more than one.
    """
    matches = [point for point in _points(kind) if point.name == name]
    if not matches:
        raise unknown_plugin(kind, name, names(kind))
    if len(matches) > 1:
        raise UserError(
            f"{_describe_choice(kind, name)} is defined by {' and by '.join(map(_owner, matches))}: uninstall one"
        )
    return matches[0]


def unknown_plugin(kind: str, name: str, valid_names: Iterable[str], setting: str = "") -> UserError:
    """Makes the error for a name that no installed plugin has.

    The message names the package to install if one of this project's has the name.

    Args:
        kind: A section.
        name: Name that the user gave.
        valid_names: All names that exist.
        setting: The key with its value, for the message. Default: by `kind` and `name`.
    """
    setting = setting or _describe_choice(kind, name)
    if advice := _ADVICE.get(f"{kind}={name}"):
        return UserError(f"{setting}: {advice}")
    if package := PACKAGES.get(kind, {}).get(name):
        return UserError(f"{setting}: the package {package} is not installed: pip install {package}")
    return unknown(setting, name, valid_names)


def parts(kind: str, name: str) -> list[str]:
    """Splits a name such as A+B into names of plugins."""
    return name.split("+") if kind in JOINED else [name]


def plugin_name(kind: str, config: Mapping[str, object]) -> str:
    """Returns the plugin's name in a section: `name`, or a partition's `nodes`."""
    name = config.get(_key_of_name(kind, config))
    if name is None and config:
        raise UserError(
            f"{kind} is missing: the YAML that is chosen has no line name: NAME, there are: {', '.join(names(kind))}"
        )
    if name is None:
        raise UserError(f"{kind} is missing: choose one with {kind}=NAME, there are: {', '.join(options(kind))}")
    if not isinstance(name, str):
        raise UserError(f"{_describe_choice(kind, shown(name))} must be one of: {', '.join(names(kind))}")
    return name


def name_of(kind: str, plugin: object) -> str:
    """Returns the name that selects an object's class, or the class's own name."""
    cls = type(plugin)
    found = (point for point in _points(kind) if getattr(sys.modules.get(point.module), point.attr, None) is cls)
    return next((point.name for point in found), cls.__name__)


def create(choice: Choice, **extra: object) -> Any:
    """Creates the plugin given by `choice`.

    `extra` are arguments provided by the caller. Raises `UserError`, with the
    configuration key, for unknown, missing or wrongly typed arguments, and for
    arguments that the constructor rejects with a `ValueError`.
    """
    if len(choices := _parts(choice)) > 1:
        return functools.reduce(operator.add, (create(part, **extra) for part in choices))
    check(choice, extra)
    try:
        return choice.load()(**choice.arguments, **extra)
    except ValueError as error:
        raise _with_key(error, choice.kind, choice.name, choice.arguments) from error
    except TypeError as error:  # of a constructor that passes `**keys` on
        match = re.search(r"unexpected keyword argument '(\w+)'", str(error))
        if match is None or match[1] not in choice.arguments:
            raise
        section = _section(choice.kind, choice.name)
        raise unknown_key(
            f"{section}.{match[1]}", [f"{section}.{key}" for key in choice.arguments if key != match[1]]
        ) from error


def check(choice: Choice, extra: Iterable[str] = ()) -> None:
    """Raises `UserError` unless the arguments fit the constructor's signature."""
    for part in _parts(choice):
        check_arguments(part.load(), part.arguments, _section(part.kind, part.name), extra)


def _parts(choice: Choice) -> list[Choice]:
    """Splits a combined plugin, each part with the arguments that it accepts.

    Raises `UserError` for an argument that none accepts.
    """
    part_names = parts(choice.kind, choice.name)
    if len(part_names) == 1:
        return [choice]
    takes = {name: inspect.signature(load(choice.kind, name)).parameters for name in part_names}
    for key in choice.arguments:
        if not any(key in parameters for parameters in takes.values()):
            raise unknown_key(
                f"{choice.kind}.{key}",
                [f"{choice.kind}.{parameter}" for parameters in takes.values() for parameter in parameters],
            )
    return [
        replace(choice, name=name, arguments={k: v for k, v in choice.arguments.items() if k in takes[name]})
        for name in part_names
    ]


def check_arguments(
    function: Callable[..., object], arguments: Mapping[str, object], section: str, extra: Iterable[str] = ()
) -> None:
    """Raises `UserError` for arguments that do not fit signature or annotations.

    Args:
        function: A class or a function.
        arguments: The configured values, by name.
        section: The configuration key for `arguments`.
        extra: Names of parameters that are not configured.
    """
    parameters = inspect.signature(function).parameters.values()
    by_name = {
        p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in extra
    }
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    hints = _hints(function)
    for key, value in arguments.items():
        if key not in by_name and not takes_any:
            raise unknown_key(f"{section}.{key}", [f"{section}.{name}" for name in by_name])
        if key in hints and not _fits(value, hints[key]):
            raise UserError(f"{_key(section, key)}={shown(value)} must be {_describe_annotation(hints[key])}")
    for key, parameter in by_name.items():
        if parameter.default is parameter.empty and key not in arguments:
            name = _key(section, key)
            raise UserError(f"{name} is missing: set it with {name}=VALUE")


def conf_folders() -> list[Path]:
    """Returns gnnkit's `conf/`, then that of each `gnnkit.conf` entry point.

    Imports no package. Raises `UserError` if gnnkit's folder is missing.
    """
    if not CONF.is_dir():
        raise UserError(f"{CONF} is missing, and was a symbolic link to ../conf: make it with ln -s ../conf {CONF}")
    points = sorted(_points("conf"), key=lambda point: point.name)
    return [
        CONF,
        *(folder for point in points if (folder := _package_folder(point.value, tuple(sys.path)) / "conf").is_dir()),
    ]


def _points(kind: str) -> EntryPoints:
    return _scan(f"gnnkit.{kind}", tuple(sys.path))


@functools.cache
def _scan(group: str, path: tuple[str, ...]) -> EntryPoints:
    return _read(path).select(group=group)


# Reads all entry points at once, because each read opens a file per distribution.
_read = functools.cache(lambda path: entry_points())


def arguments_of(kind: str, config: Mapping[str, object]) -> dict[str, Any]:
    """Returns the constructor's arguments: a section's keys and its `options`."""
    extra_options = config.get("options") or {}
    if not isinstance(extra_options, Mapping):
        raise UserError(f"{kind}.options={shown(extra_options)} must be a mapping of arguments")
    name = _key_of_name(kind, config)
    other_keys = (name, "options", *(GRID_KEYS if name == "nodes" else ()))
    keys = {key: value for key, value in config.items() if key not in other_keys}
    if duplicates := sorted(keys.keys() & extra_options.keys()):
        raise UserError(f"{kind}.{duplicates[0]} is given twice, also as {kind}.options.{duplicates[0]}")
    return {**keys, **extra_options}


def _key_of_name(kind: str, config: Mapping[str, object]) -> str:
    return "nodes" if kind == "partition" and "nodes" in config else "name"


def _describe_choice(kind: str, name: object) -> str:
    return f"gnnkit.{name}" if kind == FUNCTION else f"{_NAMED_BY.get(kind, kind)}={name}"


def _section(kind: str, name: str) -> str:
    """Returns the configuration key for a plugin's arguments."""
    if kind in SEVERAL:
        return f"{kind}.{name}"
    return "partition.options" if kind == "partition" else kind


def _key(section: str, key: str) -> str:
    """Returns an argument's configuration key."""
    beside = section == "partition.options" and key in PARTITION_KEYS
    return f"partition.{key}" if beside else f"{section}.{key}"


def _with_key(error: ValueError, kind: str, name: str, arguments: Iterable[str]) -> UserError:
    """Creates a `UserError` that starts with the configuration key."""
    text = str(error)
    if re.search(rf"\b{kind}[.=]", text):
        return UserError(text)
    first = re.match(r"\w*", text)
    if first and first[0] in arguments:
        return UserError(f"{_section(kind, name)}.{text}")
    return UserError(f"{_describe_choice(kind, name)}: {text}")


def _hints(function: Callable[..., object]) -> dict[str, object]:
    """Returns the parameters' annotations.

    Returns none if annotations cannot be resolved at run time.
    """
    target = inspect.getattr_static(function, "__init__") if isinstance(function, type) else function
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}


def _fits(value: object, hint: object) -> bool:
    """Returns whether a value fits a simple annotation. Others accept all values."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in inner)
    if origin is typing.Literal:
        return value in inner
    if origin in (list, Sequence):
        return isinstance(value, list | tuple) and all(_fits(item, inner[0]) for item in value)
    if hint in _SCALARS:
        return isinstance(value, _SCALARS[hint]) and not isinstance(value, bool)
    return isinstance(value, hint) if hint in (bool, types.NoneType) else True


def _describe_annotation(hint: object) -> str:
    """Describes a simple annotation."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(str, inner))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_describe_annotation, inner))
    if origin in (list, Sequence):
        return f"a list, each entry {_describe_annotation(inner[0])}"
    return _WORDS.get(hint, str(getattr(hint, "__name__", hint)))


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"


@functools.cache
def _package_folder(package: str, path: tuple[str, ...]) -> Path:
    """Returns the folder of package `a.b` without importing it.

    Asks only the finder of `a`, once for each `sys.path`.
    """
    top, *subpackages = package.split(".")
    spec = importlib.util.find_spec(top)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(*places[:1], *subpackages)
