"""Values of keys: paths, bytes, numbers that are spelt as text."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.ranges import local_path, number_of, shown, unknown_key

LEAST_MEMORY, MOST_MEMORY = 2**26, 2**60  # bytes that job=import may take
_UNITS = {None: 1, "GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


def path_or_none(name: str, value: object, more: str = "") -> str | None:
    """Reads the path of a file or folder of this machine. As `local_path`."""
    if value is None:
        return None
    if isinstance(value, str) and value:
        local_path(name, value, more)
        return value
    raise UserError(f"{name}={shown(value)} must be a path or null")


def cache_of(value: object) -> Path | None:
    """Reads the folder that keeps partitions and shards. None: none."""
    from gnnkit.storage import cache_folder

    if value == "auto":
        base = cache_folder()
        return None if base is None else base / "shards"
    if value is False or value is None:
        return None
    if isinstance(value, str) and value:
        return local_path("cache", value).expanduser().absolute()
    raise UserError(f"cache={shown(value)} must be auto, false or a folder")


def bytes_of(key: str, value: object, least: int) -> int:
    """Reads a number of bytes, such as 1GB. `least` is a number of MiB, in bytes."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(GB|GiB|MB|MiB)?", str(value))
    if found is None or isinstance(value, bool):
        raise UserError(f"{key}={shown(value)} must be auto, a number of bytes, or a text such as 1GB or 512MiB")
    size = float(found[1]) * _UNITS[found[2]]
    if not least <= size <= MOST_MEMORY:
        raise UserError(f"{key}={shown(value)} must be at least {least // 2**20}MiB, and less than 2^60 bytes")
    return int(size)


def expect_keys(
    section: str, given: Mapping[str, Any], needed: Collection[str], optional: Collection[str] = ()
) -> None:
    """Raises `UserError` for a key of a section that is missing or not known."""
    known = [f"{section}.{key}" for key in (*needed, *optional)]
    for key in given:
        if f"{section}.{key}" not in known:
            raise unknown_key(f"{section}.{key}", known)
    for key in needed:
        if key not in given:
            raise UserError(f"{section}.{key} is missing: do not remove it from the configuration")


def read_texts(section: dict[str, Any], keys: Iterable[str]) -> None:
    """Replaces texts that spell a number, in place."""
    for key in keys:
        if (number := number_of(section.get(key))) is not None:
            section[key] = number
