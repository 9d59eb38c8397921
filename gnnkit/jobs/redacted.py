"""A configuration as text, without secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gnnkit.config import key_of, keys
from gnnkit.redaction import (
    HIDDEN,
    as_interpolation,
    is_interpolation,
    is_secret,
    secret_variables,
    without_credentials,
    without_items,
)

_QUOTED = re.compile(r"='([\w./+-]*)'$")  # a word that needs no quotes


def shown(composed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration as plain data, without secrets."""
    plain: dict[str, Any] = _redacted(composed, secret_variables())
    return plain


def to_yaml(composed: Mapping[str, Any]) -> str:
    """Spells a configuration as YAML with a comment for each key, without secrets."""
    return keys.annotated(shown(composed))


def plain_yaml(node: Mapping[str, Any] | Sequence[Any]) -> str:
    """Spells plain data as YAML without comments and secrets."""
    import yaml

    text: str = yaml.safe_dump(_redacted(node, secret_variables()), sort_keys=False, allow_unicode=True, width=2**31)
    return text


def override(text: str) -> str:
    """Spells an override without a secret."""
    key, is_value, value = text.partition("=")
    if not is_value or is_interpolation(value):
        return text
    node = {key_of(key).rpartition(".")[2]: without_items(value) if value[:1] in "{[" else value}
    hidden = _redacted(node, secret_variables())
    return f"{key}={next(iter(hidden.values()))}"


def command(overrides: Sequence[str], program: str = "gnnkit", options: Sequence[str] = ()) -> str:
    """Spells a command line for a shell, without secrets.

    Args:
        overrides: Arguments such as `model=gcn`.
        program: What was called. Default: the command.
        options: Such as `--config-dir=DIR`. Default: none.
    """
    return shlex.join([program, *options, *(_QUOTED.sub(r"=\1", override(text)) for text in overrides)])


def _redacted(node: Any, secrets: Mapping[str, str]) -> Any:
    if isinstance(node, Mapping):
        return {
            key: _hidden(value, secrets) if value and is_secret(str(key), value) else _redacted(value, secrets)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_redacted(item, secrets) for item in node]
    if not isinstance(node, str):
        return node
    return without_credentials(node if "${" in node else as_interpolation(node, secrets))


def _hidden(value: Any, secrets: Mapping[str, str]) -> str:
    """Names the variable that a secret comes from, or hides the secret."""
    named = as_interpolation(value, secrets) if isinstance(value, str) else HIDDEN
    return named if is_interpolation(named) else HIDDEN
