"""A configuration as text, without secrets."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gnnkit import keys
from gnnkit.config import HIDDEN, key_of

_NAMES = r"token|tokens|pwd|auth|authorization|(?:api|access|private)[_-]?keys?"  # of secrets, as words of a key
_SECRET = re.compile(rf"passw|passphrase|secret|credential|(?:^|[_.-])(?:{_NAMES})(?:$|[_.-])", re.IGNORECASE)
_SHORTEST = 6  # characters of a secret of the environment. Less is found everywhere
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_QUOTED = re.compile(r"='([\w./+-]*)'$")  # a word that needs no quotes
_URL_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_URL_QUERY = re.compile(r"(?<=[?&;])([^=&;#\s]+)=([^&;#\s]+)")


def shown(composed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration as plain data, without secrets."""
    plain: dict[str, Any] = _redacted(composed)
    return plain


def to_yaml(composed: Mapping[str, Any]) -> str:
    """Spells a configuration as YAML with a comment for each key, without secrets."""
    return keys.annotated(shown(composed))


def plain_yaml(node: Mapping[str, Any] | Sequence[Any]) -> str:
    """Spells plain data as YAML without comments and secrets."""
    import yaml

    text: str = yaml.safe_dump(_redacted(node), sort_keys=False, allow_unicode=True, width=2**31)
    return text


def override(text: str) -> str:
    """Spells an override without a secret."""
    key, is_value, value = text.partition("=")
    if not is_value or "${" in value:
        return text
    hidden = _redacted({key_of(key).rpartition(".")[2]: value})
    return f"{key}={next(iter(hidden.values()))}"


def command(overrides: Sequence[str], program: str = "gnnkit", options: Sequence[str] = ()) -> str:
    """Spells a command line for a shell, without secrets.

    Args:
        overrides: Arguments such as `model=gcn`.
        program: What was called. Default: the command.
        options: Such as `--config-dir=DIR`. Default: none.
    """
    return shlex.join([program, *options, *(_QUOTED.sub(r"=\1", override(text)) for text in overrides)])


def _redacted(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _hidden(value) if value and _is_secret(str(key), value) else _redacted(value)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_redacted(item) for item in node]
    return without_credentials(_by_environment(node)) if isinstance(node, str) else node


def _hidden(value: Any) -> str:
    """Names the variable that a secret comes from, or hides the secret."""
    named = _by_environment(value) if isinstance(value, str) else HIDDEN
    return named if re.fullmatch(r"\$\{oc\.env:\w+\}", named) else HIDDEN


def _by_environment(text: str) -> str:
    """Puts `${oc.env:NAME}` in the place of secrets of the environment.

    So no file holds the secret, and the file still makes the same run.
    """
    if len(text) < _SHORTEST:
        return text
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and value in text and _is_secret(name, value):
            text = text.replace(value, f"${{oc.env:{name}}}")
    return text


def _is_secret(key: str, value: object) -> bool:
    """Tells whether a key names a secret.

    A number is no token: `num_tokens` is a count.
    """
    is_count = isinstance(value, int | float) and "token" in key.lower()
    return not is_count and _SECRET.search(_CAMEL.sub("_", key)) is not None


def without_credentials(text: str) -> str:
    """Hides user and password of a URL, and the values of secrets in the query."""
    hidden = _URL_USER.sub("***@", text)
    return _URL_QUERY.sub(lambda part: f"{part[1]}={HIDDEN}" if _is_secret(part[1], part[2]) else part[0], hidden)
