"""The configuration in a run folder, which later jobs read from any folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.config import RECORD
from gnnkit.jobs.redacted import plain_yaml, to_yaml
from gnnkit.ranges import is_url
from gnnkit.storage import write_atomically

FILE = "config.yaml"  # in the run folder
_AS_GIVEN = ("output", "upload")  # keys that no later job reads
_PATHS = ("root", "path", "checkpoint", "resume")  # keys whose value is a path, even without a slash


def write(folder: Path, composed: Mapping[str, Any]) -> None:
    """Writes `config.yaml`, without secrets, with paths that hold in any folder."""
    write_atomically(folder / FILE, to_yaml(with_absolute_paths(composed)).encode())


def record(folder: Path, composed: Mapping[str, Any], overrides: list[str]) -> None:
    """Writes the configuration and the overrides as Hydra keeps them."""
    own = folder / RECORD
    own.mkdir(exist_ok=True)
    write_atomically(own / "config.yaml", plain_yaml(with_absolute_paths(composed)).encode())
    write_atomically(own / "overrides.yaml", plain_yaml(overrides).encode())


def with_absolute_paths(composed: Mapping[str, Any]) -> dict[str, Any]:
    """Makes paths that exist absolute. `output` and `upload` stay as they are given."""
    return {key: value if key in _AS_GIVEN else absolute(key, value) for key, value in composed.items()}


def absolute(key: str, value: Any) -> Any:
    """Makes a path that exists absolute, also inside mappings and lists.

    A name without a slash stays, as it may be that of a column, unless `key` is one of
    a path. A URL stays.
    """
    if isinstance(value, Mapping):
        return {name: absolute(str(name), item) for name, item in value.items()}
    if isinstance(value, list):
        return [absolute(key, item) for item in value]
    if not isinstance(value, str) or not (key in _PATHS or "/" in value) or is_url(value):
        return value
    try:
        return str(Path(value).absolute()) if value and Path(value).exists() else value
    except (OSError, ValueError):
        return value
