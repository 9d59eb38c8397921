"""Keys of earlier versions that no longer exist.

`removed.json` lists each key with its former defaults and with advice for users who set
it. A plugin's key counts as removed if the plugin's YAML file does not contain it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnnkit.config.keys import file_of, read, run_keys
from gnnkit.errors import UserError
from gnnkit.plugins import KINDS, SEVERAL, load, parts
from gnnkit.utils.documents import Json, read_json

TABLE = Path(__file__).with_suffix(".json")


@functools.cache
def removed_keys() -> Mapping[str, tuple[list[Any], str]]:
    """Returns former defaults and advice by key."""
    table: Mapping[str, tuple[list[Any], str]] = read_json(TABLE)
    return table


def removed_error(key: str) -> UserError | None:
    """Returns the error for a removed key, or None for other keys."""
    return UserError(f"{key} was removed: {removed_keys()[key][1]}") if key in removed_keys() else None


def check_removed(config: Mapping[str, Any]) -> None:
    """Raises `UserError` for a removed key, unless a plugin accepts it in `options`."""
    for key, _ in _present(config):
        plugin = _plugin(key, config)
        # A choice of `auto` accepts no options. Another check reports them.
        if ".options." not in key or (plugin != "auto" and key.rpartition(".")[2] not in _arguments(key, plugin)):
            raise removed_error(key) or AssertionError


def without_removed(config: Json, *, convert: bool, keep: bool) -> Json:
    """Omits the removed keys of a recorded configuration.

    Args:
        convert: Whether keys that a plugin's class still accepts become its `options`.
        keep: Whether removed keys with other values are kept, so that composing rejects
            them.
    """
    for name, section in list(_present(config)):
        plugin, key = _plugin(name, config), name.rpartition(".")[2]
        value = section.pop(key)
        if is_former_default(name, value, plugin):
            continue
        if convert and key in _arguments(name, plugin):
            (section if ".options." in name else section.setdefault("options", {}))[key] = value
        elif keep:
            section[key] = value
    return config


def is_former_default(key: str, value: Any, plugin: str | None) -> bool:
    """Returns whether a value is a removed key's former default.

    For keys that remain arguments of a plugin's class, the argument's default counts.

    Args:
        key: Any key.
        value: Its recorded value.
        plugin: The plugin that had the key, or None for a key of no plugin.
    """
    name = key.rpartition(".")[2]
    return value in _arguments(key, plugin).get(name, removed_keys().get(key, ((), ""))[0])


def is_default(key: str, value: Any, plugin: str | None) -> bool:
    """Returns whether a value is the default in the YAML file that has the key."""
    kind, _, name = key.partition(".")
    options = run_keys() if plugin is None else {option.name: option for option in read(kind, plugin).keys}
    option = options.get(key if plugin is None else name)
    return option is not None and option.value == value


def _present(config: Json | Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """Yields a configuration's removed keys, each with its section.

    Skips keys of unnamed plugins, because it is unknown whether these are removed.
    """
    for key in removed_keys():
        *parents, name = key.split(".")
        section: Any = config
        for parent in parents:
            section = section.get(parent) if isinstance(section, Mapping) else None
        if isinstance(section, dict) and name in section and not _is_read(key, config):
            yield key, section


def _is_read(key: str, config: Mapping[str, Any]) -> bool:
    """Returns whether a plugin reads a key, or may read it because it has no YAML."""
    kind, _, name = key.partition(".")
    if kind not in KINDS:
        return False
    plugin_names = parts(kind, _plugin(key, config) or "")
    return any(
        file_of(kind, part) is None or name in {option.name for option in read(kind, part).keys}
        for part in plugin_names
    )


def _plugin(key: str, config: Mapping[str, Any]) -> str | None:
    """Returns the name of the plugin that a key belongs to, or None."""
    kind, _, subkey = key.partition(".")
    if kind in SEVERAL:
        return subkey.partition(".")[0]
    name = config[kind].get("nodes", config[kind].get("name")) if kind in KINDS else None
    return name if isinstance(name, str) else None


def _arguments(key: str, plugin: str | None) -> Mapping[str, tuple[Any, ...]]:
    """Returns the defaults of a plugin's arguments, or none if `plugin` is None."""
    kind = key.partition(".")[0]
    if kind not in KINDS or plugin is None:
        return {}
    signatures = (inspect.signature(load(kind, part)).parameters for part in parts(kind, plugin))
    return {argument: (value.default,) for parameters in signatures for argument, value in parameters.items()}
