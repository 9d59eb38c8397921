"""Rules for paths, sizes, URLs and lists."""

import re
from pathlib import Path
from typing import Annotated, Any

from gnnkit.errors import UserError
from gnnkit.utils.ranges import is_url, local_path, one_of, shown

AUTO = "auto"
WRITTEN = ("predictions", "logits", "probabilities", "embeddings", "vectors")
MAX_RUNS = 64  # compared in one report
MOST_MEMORY = 2**60  # bytes
UPLOADED = ", and upload=URL for a copy of it"  # appended to the message if output is a URL
_UNITS = {None: 1, "GB": 10**9, "GiB": 2**30, "MB": 10**6, "MiB": 2**20}


def path(key: str, value: object, hint: str = "") -> str:
    """Checks a local path. `hint` is as in `local_path`."""
    if not isinstance(value, str) or not value:
        raise UserError(f"{key}={shown(value)} must be a path or null")
    local_path(key, value, hint)
    return value


LocalPath = Annotated[str, path]


def cache_folder(key: str, value: object) -> Path | None:
    """Returns the folder for cached partitions and shards, or None."""
    from gnnkit.utils import storage

    if value == AUTO:
        base = storage.cache_folder()
        return None if base is None else base / "shards"
    if value is False or value is None:
        return None
    if value == "none":
        raise UserError(f"{key}=none: use {key}=false, or {key}=./none for a folder of this name")
    if isinstance(value, str) and value:
        return local_path(key, value).expanduser().absolute()
    raise UserError(f"{key}={shown(value)} must be auto, false or a folder")


def size(key: str, value: object, least: int = 0) -> int | None:
    """Parses a size such as 1GB to bytes. Returns None for `auto`.

    Args:
        key: Configuration key, for the message.
        least: Smallest size in bytes, a multiple of 1 MiB. Default: 0.
    """
    if value == AUTO:
        return None
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) *(GB|GiB|MB|MiB)?", str(value))
    if match is None or isinstance(value, bool):
        raise UserError(f"{key}={shown(value)} must be auto, a number of bytes, or a text such as 1GB or 512MiB")
    num_bytes = float(match[1]) * _UNITS[match[2]]
    if not least <= num_bytes <= MOST_MEMORY:
        raise UserError(f"{key}={shown(value)} must be at least {least // 2**20}MiB, and less than 2^60 bytes")
    return int(num_bytes)


def output_names(key: str, value: object) -> tuple[str, ...]:
    """Reads one name, or a list of names, of output files."""
    return tuple(one_of(key, name, WRITTEN) for name in (value if isinstance(value, list) else [value]))


def url(key: str, value: object) -> str:
    """Checks a remote folder's URL."""
    if not isinstance(value, str) or not is_url(value) or value.startswith("file:"):
        raise UserError(
            f"{key}={shown(value)} must be a URL such as s3://bucket/folder, or null: output names a local folder"
        )
    return value


Url = Annotated[str, url]


def run_folders(key: str, value: Any) -> tuple[str, ...]:
    """Reads a path or a list of paths."""
    folders = [] if value is None else value if isinstance(value, list) else [value]
    if len(folders) > MAX_RUNS:
        raise UserError(f"{key} has {len(folders)} folders, at most {MAX_RUNS} are compared")
    return tuple(path(key, folder) for folder in folders if folder is not None)
