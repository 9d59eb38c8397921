"""Bounds on what a few lines of configuration may make Hydra and OmegaConf compute.

Files that include others, and values that refer to others, multiply along a chain: each
of thirty files may include the next one twice.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gnnkit.errors import UserError

MAX_INCLUDES = 200  # files that one file may include, all together. Each takes some 20 ms
MAX_REFERENCES = 1000  # values that all values refer to, those of a chain included. Each takes some 4 ms
_UNKNOWN = 40  # counted for a file or a value whose name is itself an interpolation
_WORDS = re.compile(r"^(?:(?:optional|override)\s+)*|@.*$")  # of an entry of a list of defaults, not of the name
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")


def check_includes(defaults: Mapping[str, Any]) -> None:
    """Raises `UserError` for a file that includes too many files, or one outside.

    Args:
        defaults: The lists of defaults, by the file's path in its folder, without
            `.yaml`.
    """
    counts: dict[str, int | None] = {}

    def count(name: str) -> int:
        if name not in defaults:
            return 1
        known = counts.get(name, 0)
        if known is None:
            raise UserError(f"{name}.yaml includes itself by its defaults")
        if known:
            return known
        counts[name] = None
        number = 1 + sum(_UNKNOWN if "${" in target else count(target) for target in _targets(name, defaults[name]))
        if number > MAX_INCLUDES:
            raise UserError(f"{name}.yaml includes more than {MAX_INCLUDES} files by its defaults: leave some out")
        counts[name] = number
        return number

    for name in defaults:
        count(name)


def _targets(name: str, entries: Any) -> Iterator[str]:
    """Yields the paths of the files that a list of defaults includes."""
    for entry in entries if isinstance(entries, list) else ():
        for group, option in entry.items() if isinstance(entry, dict) else [("", entry)]:
            for value in option if isinstance(option, list) else [option]:
                if not isinstance(value, str) or value == "_self_":
                    continue
                parts = [_WORDS.sub("", str(group).strip()), _WORDS.sub("", value.strip()).removesuffix(".yaml")]
                target = posixpath.join("/", posixpath.dirname(name), *parts if parts[0] else parts[1:])
                if {"..", ".hydra"} & set(target.split("/")):
                    raise UserError(
                        f"{name}.yaml includes {value!r} by its defaults: only options of a folder are read"
                    )
                yield posixpath.normpath(target).lstrip("/")


def check_references(node: Mapping[str, Any]) -> None:
    """Raises `UserError` where values refer to too many others, all together.

    Args:
        node: The configuration, composed and not resolved.
    """
    counts: dict[tuple[str, ...], int] = {}

    def count(place: tuple[str, ...], value: Any) -> int:
        if place not in counts:
            counts[place] = 1  # of a value that refers to itself, which OmegaConf refuses
            counts[place] = 1 + sum(count(other, item) for other, item in _parts(node, place, value))
        return _UNKNOWN if isinstance(value, str) and re.search(r"\$\{[^}]*\$\{", value) else counts[place]

    total = 0
    for place, value in _strings(node, ()):
        total += count(place, value) - 1
        if total > MAX_REFERENCES:
            raise UserError(f"{'.'.join(place)} refers to more than {MAX_REFERENCES:,} values: write the value itself")


def _strings(node: Any, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, str):
        yield place, node
    for key, item in _items(node):
        yield from _strings(item, (*place, key))


def _items(node: Any) -> list[tuple[str, Any]]:
    pairs = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    return [(str(key), item) for key, item in pairs]


def _parts(root: Any, place: tuple[str, ...], value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yields what a value is made of: the items of a container, the targets of text."""
    for key, item in _items(value):
        yield (*place, key), item
    for reference in _REFERENCE.findall(value) if isinstance(value, str) else ():
        if ":" in reference:
            continue  # of the environment or the time, which hold no reference
        dots = len(reference) - len(reference.lstrip("."))
        base = place[: len(place) - dots] if dots else ()
        target = (*base, *filter(None, re.split(r"[.\[\]]+", reference)))
        target_value = root
        for key in target:
            target_value = dict(_items(target_value)).get(key)
        yield target, target_value
