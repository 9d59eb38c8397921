"""Limits on the work that a configuration may cause in Hydra and OmegaConf.

Includes and references multiply along a chain: thirty files that each include the next
one twice cause a billion includes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gnnkit.errors import UserError

MAX_INCLUDES = 200  # transitive includes of one file, about 20 ms each
MAX_REFERENCES = 1000  # transitive references of all values, about 4 ms each
_UNKNOWN = 40  # counted for a file or value whose name is itself an interpolation
_WORDS = re.compile(r"^(?:(?:optional|override)\s+)*|@.*$")  # the parts of a defaults entry that are not its name
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")


def check_includes(defaults: Mapping[str, Any]) -> None:
    """Raises `UserError` if a file has too many includes, a cycle or an outside path.

    Args:
        defaults: Each file's defaults list, by the file's path in its folder, without
            `.yaml`.
    """
    counts: dict[str, int | None] = {}

    def count(name: str) -> int:
        if name not in defaults:
            return 1
        num_includes = counts.get(name, 0)
        if num_includes is None:
            raise UserError(f"{name}.yaml includes itself through its defaults: remove the cycle")
        if num_includes:
            return num_includes
        counts[name] = None
        number = 1 + sum(_UNKNOWN if "${" in target else count(target) for target in _targets(name, defaults[name]))
        if number > MAX_INCLUDES:
            raise UserError(f"{name}.yaml includes more than {MAX_INCLUDES} files through its defaults: remove some")
        counts[name] = number
        return number

    for name in defaults:
        count(name)


def _targets(name: str, entries: Any) -> Iterator[str]:
    """Yields the paths of the files that a defaults list includes."""
    for entry in entries if isinstance(entries, list) else ():
        for group, option in entry.items() if isinstance(entry, dict) else [("", entry)]:
            for value in option if isinstance(option, list) else [option]:
                if not isinstance(value, str) or value == "_self_":
                    continue
                parts = [_WORDS.sub("", str(group).strip()), _WORDS.sub("", value.strip()).removesuffix(".yaml")]
                target = posixpath.join("/", posixpath.dirname(name), *parts if parts[0] else parts[1:])
                if {"..", ".hydra"} & set(target.split("/")):
                    raise UserError(
                        f"{name}.yaml includes {value!r} through its defaults: only options in the folder are read"
                    )
                yield posixpath.normpath(target).lstrip("/")


def check_references(node: Mapping[str, Any]) -> None:
    """Raises `UserError` if the values contain too many references.

    Args:
        node: The composed, unresolved configuration.
    """
    counts: dict[tuple[str, ...], int] = {}

    def count(place: tuple[str, ...], value: Any) -> int:
        if place not in counts:
            counts[place] = 1  # for a value that refers to itself, which OmegaConf rejects
            counts[place] = 1 + sum(count(target, item) for target, item in _parts(node, place, value))
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
    """Yields a container's items, or the values that a text refers to."""
    for key, item in _items(value):
        yield (*place, key), item
    for reference in _REFERENCE.findall(value) if isinstance(value, str) else ():
        if ":" in reference:
            continue  # resolvers for environment and time contain no references
        dots = len(reference) - len(reference.lstrip("."))
        base = place[: len(place) - dots] if dots else ()
        target = (*base, *filter(None, re.split(r"[.\[\]]+", reference)))
        target_value = root
        for key in target:
            target_value = dict(_items(target_value)).get(key)
        yield target, target_value
