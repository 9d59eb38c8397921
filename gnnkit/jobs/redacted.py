"""A configuration as text, without secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gnnkit import keys

_NAMES = r"token|tokens|pwd|auth|authorization|(?:api|access|private)[_-]?keys?"  # of secrets, as words of a key
_SECRET = re.compile(rf"passw|passphrase|secret|credential|(?:^|[_.-])(?:{_NAMES})(?:$|[_.-])", re.IGNORECASE)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLAIN = re.compile(r"'([\w./+-]*)'")  # a word that needs no quotes
_URL_USER = re.compile(r"(?<=://)[^/?#\s]*@")
_URL_QUERY = re.compile(r"(?<=[?&;])([^=&;#\s]+)=([^&;#\s]+)")


def to_yaml(composed: Mapping[str, Any]) -> str:
    """Spells a configuration as YAML with a comment for each key, without secrets."""
    return keys.annotated(_redacted(composed))


def command(overrides: Sequence[str], program: str = "gnnkit") -> str:
    """Spells a command line for a shell, without secrets.

    Args:
        overrides: Arguments such as `model=gcn`.
        program: What was called. Default: the command.
    """
    return shlex.join([program, *map(_argument, overrides)])


def _argument(text: str) -> str:
    key, equals, value = text.partition("=")
    value = _PLAIN.sub(r"\1", value)
    text = f"{key}{equals}{value}"
    return f"{key}=***" if equals and value and _is_secret(key, value) else _without_credentials(text)


def _redacted(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {
            key: "***" if value and _is_secret(str(key), value) else _redacted(value) for key, value in node.items()
        }
    if isinstance(node, list):
        return [_redacted(item) for item in node]
    return _without_credentials(node) if isinstance(node, str) else node


def _is_secret(key: str, value: object) -> bool:
    """Tells whether a key names a secret.

    A number is no token: `num_tokens` is a count.
    """
    is_count = isinstance(value, int | float) and "token" in key.lower()
    return not is_count and _SECRET.search(_CAMEL.sub("_", key)) is not None


def _without_credentials(text: str) -> str:
    """Hides user and password of a URL, and the values of secrets in the query."""
    hidden = _URL_USER.sub("***@", text)
    return _URL_QUERY.sub(lambda part: f"{part[1]}=***" if _is_secret(part[1], part[2]) else part[0], hidden)
