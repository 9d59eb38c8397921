"""Removes secrets from displayed and written text."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

HIDDEN = "***"  # replaces a secret

_WORDS = r"token|tokens|auth|authorization|sig|signature|pwd|(?:api|access|private|secret|account|shared)[_-]?keys?"
_KEY = re.compile(rf"passw|passphrase|secret|credential|(?:^|[_.-])(?:{_WORDS})(?:$|[_.-])", re.IGNORECASE)
_IN_QUERIES = re.compile(
    r"key|AWSAccessKeyId|GoogleAccessId", re.IGNORECASE
)  # additional secret names in the query of a URL
_VARIABLE = re.compile(
    r"(?:^|_)(?:PASSWORD|PASSWD|PASSPHRASE|PASS|PWD|TOKEN|SECRET|KEY|APIKEY|CREDENTIALS?|AUTH)(?:$|_)", re.IGNORECASE
)
_NO_SECRET_IN = re.compile(r"^(?:OLD)?PWD$|_(?:FILE|PATH|DIR|SOCK|SOCKET|FORMAT|TYPE|NAME)$", re.IGNORECASE)
_MIN_LENGTH = 8  # minimum length of a secret variable's value. Shorter values occur in ordinary text
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PLACEHOLDERS = (HIDDEN, "VALUE")
_INTERPOLATION = re.compile(r"\$\{oc\.env:\w+\}")

# A user name without a slash, or a user name with a password, which may contain
# slashes. A port followed by a path is neither.
_URL_USER = re.compile(r"(?<=://)(?:[^/?#\s'\"@]*@|[^/:@?#\s'\"]+:(?!\d{1,5}/)[^@?#\s'\"]*@)")
_PARAMETER = re.compile(r"(?<![\w.-])([+~]*[\w.-]+)=('[^'\n]*'|\"[^\"\n]*\"|[^\s&;,'\"#)}\]]*[^\s&;,'\"#)}\].:])")
_QUERY = re.compile(r"(?<=[?&;])([\w.-]+)=([^=&;#\s'\"]+)")
_HEADER = re.compile(
    r"\b((?:proxy-)?authorization|x-api-key)(['\"]?\s*:\s*['\"]?)(?:(bearer|basic)\s+)?[^\s'\"]+", re.I
)
_ITEM = re.compile(r"([\w.-]+)(['\"]?\s*:\s*)([^,{}\[\]\s]+)")


def is_secret(key: str, value: object) -> bool:
    """Returns whether a key holds a secret. Numbers (`num_tokens`) do not count."""
    is_count = "token" in key.lower() and (isinstance(value, int | float) or str(value).isdecimal())
    return not is_count and _KEY.search(_CAMEL.sub("_", key)) is not None


def redact(text: str) -> str:
    """Replaces secrets in a message, a traceback or a command by `***`.

    Secrets are credentials in a URL, the value in `KEY=VALUE` for a secret key,
    authorisation headers, and the values of secret environment variables.
    """
    if len(text) < _MIN_LENGTH and "=" not in text:
        return text
    for value in secret_variables().values():
        text = re.sub(_alone(value), HIDDEN, text) if value in text else text
    text = _PARAMETER.sub(_without_value, without_credentials(text))
    return _HEADER.sub(rf"\1\2{HIDDEN}", text)


def without_credentials(text: str) -> str:
    """Hides the user and password in a URL, and secret values in its query."""
    hidden = _URL_USER.sub(f"{HIDDEN}@", text)
    return _QUERY.sub(
        lambda part: f"{part[1]}={HIDDEN}" if _IN_QUERIES.fullmatch(part[1]) else _without_value(part), hidden
    )


def without_items(text: str) -> str:
    """Hides secret values in a mapping formatted as `{key: value}`."""
    return _ITEM.sub(lambda part: f"{part[1]}{part[2]}{HIDDEN}" if is_secret(part[1], part[3]) else part[0], text)


def as_interpolation(text: str, secrets: Mapping[str, str] | None = None) -> str:
    """Replaces values of secret environment variables by `${oc.env:NAME}`.

    A file then contains no secrets and still describes the same run.

    Args:
        text: Any text.
        secrets: Values by name. Default: `secret_variables()`, which reads the complete
            environment.
    """
    for name, value in (secret_variables() if secrets is None else secrets).items():
        if value in text:
            text = re.sub(_alone(value), f"${{oc.env:{name}}}", text)
    return text


def is_interpolation(text: str) -> bool:
    """Returns whether a text is exactly `${oc.env:NAME}`."""
    return _INTERPOLATION.fullmatch(text) is not None


def secret_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Returns the environment variables that hold secrets, longest values first.

    Paths are not secrets, so that paths in a run folder remain readable. Neither are
    values of fewer than 8 characters.

    Args:
        environment: Values by name. Default: this process's environment.
    """
    secrets = {
        name: value
        for name in environment
        if _VARIABLE.search(name)
        and not _NO_SECRET_IN.search(name)
        and len(value := environment[name]) >= _MIN_LENGTH
        and not _is_path(value)
    }
    return dict(sorted(secrets.items(), key=lambda item: -len(item[1])))


def _is_path(value: str) -> bool:
    """Returns whether a value is a path, not a secret that starts with a slash."""
    if value.startswith("/"):
        return os.path.isdir("/" + value.lstrip("/").partition("/")[0]) or os.path.exists(value)
    return value.startswith(("~", "./", "../"))


def _alone(value: str) -> str:
    """Returns a pattern for a value that is not part of a longer word."""
    return rf"(?<![A-Za-z0-9]){re.escape(value)}(?![A-Za-z0-9])"


def _without_value(part: re.Match[str]) -> str:
    """Hides the value of a (key, value) match if the key is secret."""
    value = part[2].strip("'\"")
    shows = value in _PLACEHOLDERS or value.startswith("${oc.env:") or not is_secret(part[1], value)
    return part[0] if shows else f"{part[1]}={HIDDEN}"
