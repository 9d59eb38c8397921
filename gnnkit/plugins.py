"""From names to objects: plugins are found through entry points and made from plain arguments.

Listing imports nothing, loading imports the chosen plugin only; code comes from installed entry points alone.
"""

from __future__ import annotations

import difflib
import functools
import importlib.util
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gnnkit.errors import UserError

if TYPE_CHECKING:
    from gnnkit.settings import Choice

KINDS = ("dataset", "partition", "sampler", "strategy", "comm", "sync", "model")
CONF = Path(__file__).parent / "conf"
_GRID_KEYS = ("grid", "replication", "border")  # in the YAML of a partition, not the partitioner's arguments
_SCALARS: dict[Any, tuple[type, ...]] = {float: (int, float), int: (int,), str: (str,), Path: (str, Path)}


def names(kind: str) -> list[str]:
    """The installed plugins of a kind, sorted; none of them is imported."""
    return sorted({point.name for point in _points(kind)})


def options(kind: str) -> list[str]:
    """What `kind=...` accepts: the YAML files of that kind, and the plugins."""
    files = (path.stem for folder in conf_folders() for path in (folder / kind).glob("*.yaml"))
    return sorted({*files, *names(kind)})


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that does not exist: says the nearest one and lists all."""
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]}? " if near else ""
    return UserError(f"{what} is not known: {hint}there are: {', '.join(choices) or 'none'}")


def load(kind: str, name: str) -> type[Any]:
    """Imports the chosen plugin and returns its class.

    Raises `ValueError` if there is none of that name, if two distributions have one, or if it fails on import.
    """
    point = find(kind, name)
    try:
        return typing.cast("type[Any]", point.load())
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{_chosen(kind, name)}: {point.value} of {_owner(point)} fails on import: {reason}") from error


def find(kind: str, name: str) -> EntryPoint:
    """The one entry point of that name, not imported. Raises `ValueError` if there is none, or more than one."""
    found = [point for point in _points(kind) if point.name == name]
    if not found:
        raise unknown(_chosen(kind, name), name, names(kind))
    if len(found) > 1:
        raise UserError(f"{_chosen(kind, name)} is defined by {' and by '.join(map(_owner, found))}: uninstall one")
    return found[0]


def plugin_name(kind: str, config: Mapping[str, Any]) -> str:
    """The plugin that the configuration of one kind names: its `name`, or `nodes` in that of a partition."""
    name = config.get("nodes", config.get("name"))
    if not isinstance(name, str):
        raise UserError(f"{_chosen(kind, name)} must be one of: {', '.join(names(kind))}")
    return name


def create(choice: Choice, **extra: Any) -> Any:
    """Makes the plugin that `choice` names.

    `extra` are arguments that the caller knows better than the user. Raises `UserError`
    with the configuration key for unknown, missing or ill-typed arguments, and for
    arguments that the constructor refuses with a `ValueError`.
    """
    check(choice, extra)
    try:
        return choice.load()(**choice.arguments, **extra)
    except ValueError as error:
        raise _with_key(error, choice.kind, choice.name, choice.arguments) from error


def check(choice: Choice, extra: Iterable[str] = ()) -> None:
    """Raises `UserError` unless the arguments fit the constructor's signature."""
    check_arguments(choice.load(), choice.arguments, _section(choice.kind), extra)


def check_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], section: str, extra: Iterable[str] = ()
) -> None:
    """Raises `ValueError` unless `function(**arguments)` fits its signature and its simple annotations.

    `section` is the configuration key of `arguments`; parameters in `extra` come from elsewhere.
    """
    parameters = inspect.signature(function).parameters.values()
    own = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name not in extra}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    hints = _hints(function)
    for key, value in arguments.items():
        if key not in own and not takes_any:
            raise unknown(f"{section}.{key}", f"{section}.{key}", (f"{section}.{name}" for name in own))
        if key in hints and not _fits(value, hints[key]):
            raise UserError(f"{section}.{key}={value} must be {_spelt(hints[key])}")
    for key, parameter in own.items():
        if parameter.default is parameter.empty and key not in arguments:
            raise UserError(f"{section}.{key} is missing: set it with {section}.{key}=VALUE")


def conf_folders() -> list[Path]:
    """Our `conf/`, then that of each `gnnkit.conf` entry point, located without importing the package."""
    points = sorted(_points("conf"), key=lambda point: point.name)
    return [CONF, *(folder for point in points if (folder := _package_folder(point.value) / "conf").is_dir())]


def _points(kind: str) -> EntryPoints:
    return _scan(f"gnnkit.{kind}", tuple(sys.path))


@functools.cache
def _scan(group: str, path: tuple[str, ...]) -> EntryPoints:
    """Read once: it opens a file of every installed distribution, and a run asks dozens of times."""
    return entry_points(group=group)


def arguments_of(kind: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The constructor's arguments in one section: its keys, and those in `options`."""
    given = config.get("options") or {}
    if not isinstance(given, Mapping):
        raise UserError(f"{kind}.options={given} must be a mapping of arguments")
    skipped = ("nodes", *_GRID_KEYS) if "nodes" in config else ()
    keys = {key: value for key, value in config.items() if key not in ("name", "options", *skipped)}
    if both := sorted(keys.keys() & given.keys()):
        raise UserError(f"{kind}.{both[0]} is given twice, also as {kind}.options.{both[0]}")
    return {**keys, **given}


def _chosen(kind: str, name: object) -> str:
    return f"partition.nodes={name}" if kind == "partition" else f"{kind}={name}"


def _section(kind: str) -> str:
    return "partition.options" if kind == "partition" else kind


def _with_key(error: ValueError, kind: str, name: str, arguments: Iterable[str]) -> UserError:
    """The same error, its message starting with the configuration key."""
    text = str(error)
    if re.search(rf"\b{kind}[.=]", text):
        return UserError(text)
    first = re.match(r"\w*", text)
    if first and first[0] in arguments:
        return UserError(f"{_section(kind)}.{text}")
    return UserError(f"{_chosen(kind, name)}: {text}")


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the parameters; none where they cannot be resolved at run time."""
    target = inspect.getattr_static(function, "__init__") if isinstance(function, type) else function
    try:
        return typing.get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}


def _fits(value: Any, hint: Any) -> bool:
    """Whether plain data fits a simple annotation; other annotations accept all."""
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


def _spelt(hint: Any) -> str:
    plain = isinstance(hint, type) and not typing.get_args(hint)
    return hint.__name__ if plain else re.sub(r"(typing|collections\.abc)\.", "", str(hint))


def _owner(point: EntryPoint) -> str:
    return point.dist.name if point.dist else "an unknown distribution"


def _package_folder(package: str) -> Path:
    """The folder of package `a.b`, without running its code: only the finder of `a` is asked."""
    top, *rest = package.split(".")
    spec = importlib.util.find_spec(top)
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(*places[:1], *rest)
