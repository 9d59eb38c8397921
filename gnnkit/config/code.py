"""Rejects configuration text that would execute code.

Nothing in a configuration is evaluated or called. Only two resolvers are allowed, since
both return plain text: `${oc.env:NAME}`, with an optional default, and `${now:FORMAT}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
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


def refuse_code_in(node: Any, source: str) -> None:
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


def check_environment(node: Any) -> None:
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


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _texts(item)
