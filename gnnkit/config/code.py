"""Rejects configuration text that would execute code, or cause too much work.

Nothing in a configuration is evaluated or called. Only two resolvers are allowed, since
both return plain text: `${oc.env:NAME}`, with an optional default, and `${now:FORMAT}`.
Includes and references multiply along a chain: thirty files that each include the next
one twice cause a billion includes. Both are therefore limited.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.utils.documents import MAX_YAML, Json, parse_yaml_documents, read_bytes

_ENVIRONMENT = re.compile(r"\$\{oc\.env:([A-Za-z_]\w*)(?:,[^${}]*)?\}")
_NOW = re.compile(r"\$\{now:[^${}]+\}")
_TEXT = "\0"  # replaces an allowed resolver
_HYDRA = re.compile(r"(override\s+)?/?hydra\b")


def key_of(text: str) -> str:
    """Returns an override's key, without `+` and `~`."""
    return text.split("=", 1)[0].strip().lstrip("+~")


def refuse_code(text: str, source: str) -> None:
    """Raises `UserError` for `_target_` and for disallowed resolvers.

    An allowed resolver inside another interpolation is rejected too, since the
    environment would otherwise control what is resolved.
    """
    if "_target_" in text:
        raise UserError(f"{source}: _target_ is refused: a configuration selects plugins and does not call code")
    remainder = _NOW.sub(_TEXT, _ENVIRONMENT.sub(_TEXT, text))
    if re.search(rf"\$\{{[^}}]*[:{_TEXT}]", remainder):
        raise UserError(
            f"{source}: resolvers other than ${{oc.env:NAME}}, ${{oc.env:NAME,default}} and ${{now:FORMAT}} are "
            "refused: write the value itself"
        )


def refuse_hydra(key: str, source: str) -> None:
    """Raises `UserError` for a key in Hydra's own section."""
    if _HYDRA.match(key):
        raise UserError(f"{source}: Hydra's own settings cannot be changed here")


def refuse_code_in(node: object, source: str) -> None:
    """Raises `UserError` if plain data contains code or Hydra's keys."""
    if isinstance(node, str):
        refuse_code(node, source)
    elif isinstance(node, dict):
        for key, value in node.items():
            refuse_code(str(key), source)
            refuse_hydra(str(key), source)
            refuse_code_in(value, source)
    elif isinstance(node, list):
        for value in node:
            refuse_code_in(value, source)


def check_environment(node: object) -> None:
    """Raises `UserError` if an environment variable contains an interpolation.

    Its value is written to `config.yaml`, where a later run would resolve it.
    """
    for text in _texts(node):
        for name in _ENVIRONMENT.findall(text):
            if "${" in os.environ.get(name, ""):
                raise UserError(f"${{oc.env:{name}}}: the value of {name} holds ${{, which is refused")


def check_folder(folder: Path) -> Json:
    """Rejects a user's folder if its YAML is unreadable or contains code.

    This runs before Hydra opens the folder. Returns each file's defaults list, by the
    file's path in the folder, without `.yaml`.
    """
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder} is not a folder")
    defaults: Json = {}
    for path in _files(folder):
        content = read_bytes(path, MAX_YAML)
        for document in parse_yaml_documents(content, str(path)):
            refuse_code_in(document, str(path))
            if isinstance(document, dict) and "defaults" in document:
                defaults[path.relative_to(folder).with_suffix("").as_posix()] = document["defaults"]
        text = content.decode(errors="replace")
        for package in re.findall(r"^\s*#\s*@package\s+(\S+)", text, re.MULTILINE):
            refuse_hydra(package, str(path))
    return defaults


def _files(folder: Path) -> Iterator[Path]:
    """Yields the YAML files that Hydra may open, following links to folders.

    Skips `.hydra`, where Hydra records a run.
    """
    real_paths: set[str] = set()
    for root, folders, names in os.walk(folder, followlinks=True):
        folders[:] = sorted(name for name in folders if name != ".hydra")
        if (place := os.path.realpath(root)) in real_paths:
            folders.clear()  # a link to a parent folder
            continue
        real_paths.add(place)
        yield from (Path(root, name) for name in sorted([*names, *folders]) if name.endswith((".yaml", ".yml")))


def _texts(node: object) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _texts(item)


MAX_INCLUDES = 200  # transitive includes of one file, about 20 ms each
MAX_REFERENCES = 1000  # transitive references of all values, about 4 ms each
_UNKNOWN = 40  # counted for a file or value whose name is itself an interpolation
_WORDS = re.compile(r"^(?:(?:optional|override)\s+)*|@.*$")  # the parts of a defaults entry that are not its name
_REFERENCE = re.compile(r"\$\{([^${}]*)\}")


def check_includes(defaults: Mapping[str, object]) -> None:
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


def _targets(name: str, entries: object) -> Iterator[str]:
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


def check_references(node: Mapping[str, object]) -> None:
    """Raises `UserError` if the values contain too many references.

    Args:
        node: The composed, unresolved configuration.
    """
    counts: dict[tuple[str, ...], int] = {}

    def count(place: tuple[str, ...], value: object) -> int:
        if place not in counts:
            counts[place] = 1  # for a value that refers to itself, which OmegaConf rejects
            counts[place] = 1 + sum(count(target, item) for target, item in _parts(node, place, value))
        return _UNKNOWN if isinstance(value, str) and re.search(r"\$\{[^}]*\$\{", value) else counts[place]

    total = 0
    for place, value in _strings(node, ()):
        total += count(place, value) - 1
        if total > MAX_REFERENCES:
            raise UserError(f"{'.'.join(place)} refers to more than {MAX_REFERENCES:,} values: write the value itself")


def _strings(node: object, place: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(node, str):
        yield place, node
    for key, item in _items(node):
        yield from _strings(item, (*place, key))


def _items(node: object) -> list[tuple[str, object]]:
    pairs = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    return [(str(key), item) for key, item in pairs]


def _parts(root: object, place: tuple[str, ...], value: object) -> Iterator[tuple[tuple[str, ...], Any]]:
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
