"""Refuses text of a configuration that would run code.

Nothing in a configuration is evaluated or called. Two resolvers are allowed, because
both give plain text: `${oc.env:NAME}`, with or without a default, and `${now:FORMAT}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError

_ENVIRONMENT = re.compile(r"\$\{oc\.env:([A-Za-z_]\w*)(?:,[^${}]*)?\}")
_NOW = re.compile(r"\$\{now:[^${}]+\}")
_TEXT = "\0"  # in place of an allowed resolver
_HYDRA = re.compile(r"(override\s+)?/?hydra\b")


def key_of(text: str) -> str:
    """Returns the key of an override, without `+` and `~`."""
    return text.split("=", 1)[0].strip().lstrip("+~")


def refuse_code(text: str, where: str) -> None:
    """Raises `UserError` for `_target_`, and for resolvers that are not allowed.

    An allowed resolver inside another interpolation is refused too: otherwise the
    environment would choose what is resolved.
    """
    if "_target_" in text:
        raise UserError(f"{where}: _target_ is refused, a configuration names plugins, it does not call code")
    rest = _NOW.sub(_TEXT, _ENVIRONMENT.sub(_TEXT, text))
    if re.search(rf"\$\{{[^}}]*[:{_TEXT}]", rest):
        raise UserError(
            f"{where}: resolvers other than ${{oc.env:NAME}}, ${{oc.env:NAME,default}} and ${{now:FORMAT}} are "
            "refused, write the value itself"
        )


def refuse_hydra(key: str, where: str) -> None:
    """Raises `UserError` for a key of Hydra's own."""
    if _HYDRA.match(key):
        raise UserError(f"{where}: Hydra's own settings cannot be changed here")


def refuse_code_in(node: Any, where: str) -> None:
    """Raises `UserError` for code or keys of Hydra's in plain data."""
    if isinstance(node, str):
        refuse_code(node, where)
    elif isinstance(node, dict):
        for key, value in node.items():
            refuse_code(str(key), where)
            refuse_hydra(str(key), where)
            refuse_code_in(value, where)
    elif isinstance(node, list):
        for value in node:
            refuse_code_in(value, where)


def check_environment(node: Any) -> None:
    """Raises `UserError` for a variable whose value would be resolved once more.

    The value stands in `config.yaml`, from which a later run may be made.
    """
    for text in _texts(node):
        for name in _ENVIRONMENT.findall(text):
            if "${" in os.environ.get(name, ""):
                raise UserError(f"${{oc.env:{name}}}: the value of {name} holds ${{, which is refused")


def check_folder(folder: Path) -> None:
    """Refuses a user's folder whose YAML cannot be read or asks for code.

    Called before Hydra opens the folder.
    """
    import yaml

    if not folder.is_dir():
        raise UserError(f"--config-dir {folder} is not a folder")
    for path in sorted(folder.rglob("*.yaml")):
        if ".hydra" in path.relative_to(folder).parts:
            continue  # of a run, and no option
        try:
            text = path.read_text(encoding="utf-8")
            for document in yaml.safe_load_all(text):
                refuse_code_in(document, str(path))
        except (OSError, UnicodeDecodeError, RecursionError, yaml.YAMLError) as error:
            raise UserError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
        for package in re.findall(r"^\s*#\s*@package\s+(\S+)", text, re.MULTILINE):
            refuse_hydra(package, str(path))


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, str):
        yield node
    for item in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from _texts(item)
