"""Bounded parsing of JSON and YAML files from untrusted sources.

No other module parses these formats. Problems are reported as `UserError`s that name
the file: not a regular file (reading a pipe would never end), too large, malformed, or
nested too deeply.
"""

from __future__ import annotations

import hashlib
import json
import math
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown

Json = dict[str, Any]  # a JSON object, whose values are checked where they are read

MAX_JSON = 1 << 26  # maximum bytes of a JSON file
MAX_YAML = 1 << 20  # maximum bytes of a YAML file, which takes seconds to parse
MAX_VALUES = 100_000  # maximum number of values in a YAML document, with aliases expanded


def check_regular(path: Path, name: str = "") -> None:
    """Raises `UserError` for a folder, a pipe or a device.

    Args:
        path: The file.
        name: The file's name in messages. Default: the path.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise UserError(f"{name or path}: {_describe_error(error)}") from error
    if not stat.S_ISREG(mode):
        raise UserError(f"{name or path} is no regular file")


def read_bytes(path: Path, limit: int = MAX_JSON, name: str = "") -> bytes:
    """Reads a regular file of at most `limit` bytes.

    Args:
        path: The file.
        limit: Maximum number of bytes. Default: 64 MiB.
        name: The file's name in messages. Default: the path.
    """
    check_regular(path, name)
    try:
        with path.open("rb") as file:
            content = file.read(min(limit, max(path.stat().st_size, 2**16)) + 1)  # allocated at once
    except OSError as error:
        raise UserError(f"{name or path}: {_describe_error(error)}") from error
    if len(content) > limit:
        raise UserError(f"{name or path} has {path.stat().st_size:,} bytes, at most {limit:,} are read")
    return content


def read_or_empty(path: Path) -> str:
    """Reads a text file, such as one of the system. "" if it cannot be read."""
    with suppress(OSError):
        return path.read_text(encoding="utf-8", errors="replace")
    return ""


def read_json(path: Path, name: str = "", limit: int = MAX_JSON) -> Any:
    """Reads a JSON file. Takes the arguments of `read_bytes`."""
    return parse_json(read_bytes(path, limit, name), name or str(path))


def read_object(path: Path, name: str = "", limit: int = MAX_JSON) -> Json:
    """Reads a JSON object from a file. Takes the arguments of `read_bytes`."""
    content = read_json(path, name, limit)
    if not isinstance(content, dict):
        raise UserError(f"{name or path} holds no JSON object")
    return content


def _distinct(pairs: list[tuple[str, object]]) -> Json:
    """Rejects an object with a repeated key. Python would keep the last value."""
    unique = dict(pairs)
    if len(unique) < len(pairs):
        (key, _), *_ = Counter(key for key, _ in pairs).most_common(1)
        raise ValueError(f"an object has the key {key!r} twice")
    return unique


def parse_json(text: str | bytes, name: str) -> Any:
    """Parses JSON. `name` is the source of the text in messages."""
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as error:
        raise UserError(f"{name} cannot be read: it is nested too deeply") from error
    except ValueError as error:
        raise UserError(f"{name} is not JSON: {shown(error)}") from error


def json_digest(value: object) -> str:
    """Returns the SHA-256 of a value as JSON. Other types are hashed as text."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def read_yaml(path: Path, name: str = "") -> Any:
    """Reads a YAML file with one document. `name` is as in `read_json`."""
    return parse_yaml(read_bytes(path, MAX_YAML, name), name or str(path))


def parse_yaml(text: str | bytes, name: str) -> Any:
    """Parses YAML with one document, or none. `name` is as in `parse_json`."""
    contents = parse_yaml_documents(text, name)
    if len(contents) > 1:
        raise UserError(f"{name} cannot be read: it holds {len(contents)} YAML documents, expected one")
    return contents[0] if contents else None


def parse_yaml_documents(text: str | bytes, name: str) -> list[object]:
    """Parses YAML. An alias counts as a copy of its value, before it is expanded.

    A few hundred bytes with nested aliases can expand to more values than fit any
    memory.
    """
    import yaml

    if len(text) > MAX_YAML:
        raise UserError(f"{name} has {len(text):,} bytes of YAML, at most {MAX_YAML:,} are read")
    try:
        loader = yaml.SafeLoader(text)
        return list(_documents(loader, name))
    except RecursionError as error:
        raise UserError(f"{name} cannot be read: it is nested too deeply") from error
    except (yaml.YAMLError, ValueError, TypeError, OverflowError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{name} cannot be read: {' '.join(str(error).split())}") from error


def _documents(loader: Any, name: str) -> Iterator[Any]:
    while loader.check_node():
        node = loader.get_node()
        _count(node, {}, name)
        yield loader.construct_document(node)


def _count(node: Any, counts: dict[int, int | None], name: str) -> int:
    """Returns the number of values in a YAML node, with aliases expanded.

    Args:
        node: The node. Aliases of one value are one node.
        counts: Number of values by node id. If None, the node is being counted.
    """
    num_values = counts.get(id(node), 0)
    if num_values is None:
        raise UserError(f"{name} cannot be read: a value of it holds itself")
    if num_values:
        return num_values
    counts[id(node)] = None
    number = 1
    if isinstance(node.value, str):
        if len(node.value) > 1000 and not node.tag.endswith(":str"):
            raise UserError(f"{name} cannot be read: {shown(node.value)} is too long for a number")
    else:
        _check_distinct_keys(node, name)
        parts = (part for item in node.value for part in (item if isinstance(item, tuple) else (item,)))
        number += sum(_count(part, counts, name) for part in parts)
    if number > MAX_VALUES:
        raise UserError(f"{name} cannot be read: its aliases stand for more than {MAX_VALUES:,} values")
    counts[id(node)] = number
    return number


def _check_distinct_keys(node: Any, name: str) -> None:
    """Rejects a mapping with a repeated key. PyYAML would keep the last value."""
    keys = [item[0] for item in node.value if isinstance(item, tuple) and isinstance(item[0].value, str)]
    counts = Counter((key.tag, key.value) for key in keys if not key.tag.endswith(":merge"))
    if repeated_keys := [key for (_, key), count in counts.items() if count > 1]:
        raise UserError(f"{name} cannot be read: {shown(repeated_keys[0])!r} stands twice in a mapping; remove one")


def _describe_error(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


def number(value: object) -> float | None:
    """Returns a finite number, or None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
