"""Validation of configuration values: numbers, names and paths."""

from __future__ import annotations

import difflib
import errno
import functools
import hashlib
import itertools
import json
import math
import operator
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError

MAX_THREADS = 1024  # per rank, or per call
MAX_LAYERS = 1000  # layers of a model
MAX_WIDTH = 2**20  # width of a hidden layer
MAX_TIMEOUT = 1e9  # seconds, limited by torch's milliseconds
MAX_COUNT = 2**31 - 1  # limit of steps, epochs and other counts without a smaller bound
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?(e-?\d{1,3})?", re.ASCII | re.IGNORECASE)
_BREAKS = re.compile(r"\s*[\t\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+\s*")
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # one slash suffices, because `Path` collapses `//`
_FOREIGN_NAMES = Path(__file__).with_name("foreign_names.json")


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def even_ranges(count: int, parts: int) -> list[range]:
    """Splits 0, ..., count - 1 into ranges with lengths that differ by at most one."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def one_line(text: object) -> str:
    """Replaces line breaks and tabs by spaces, and escapes unprintable characters."""
    return printable(_BREAKS.sub(" ", str(text)).strip())


def printable(text: str) -> str:
    """Escapes control characters and invisible ones, except line ends and tabs.

    Names come from users' data. In a terminal, a log or a comment, they could otherwise
    start lines, move the cursor, or reverse the order of what follows.
    """
    return text if text.isprintable() else "".join(map(_printable, text))


def _printable(character: str) -> str:
    shows = character.isprintable() or character in "\n\t"
    return character if shows else character.encode("unicode_escape").decode()


def file_name(name: str) -> str:
    """Converts a name to a part of a file name, distinct for distinct names."""
    safe = "".join(character if character.isprintable() and character != "/" else "_" for character in name)[:50]
    return name if safe == name else f"{safe}-{hashlib.sha256(name.encode(errors='surrogatepass')).hexdigest()[:8]}"


def shown(value: object) -> str:
    """Formats a value for a message, on one line of at most 60 characters."""
    text = one_line(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown_names(names: Iterable[object]) -> str:
    """Lists as many names as fit in 60 characters."""
    words = [*map(str, names)]
    lists = (words[:count] + ["..."] * (count < len(words)) for count in range(min(len(words), 30), 0, -1))
    return next((text for part in lists if len(text := one_line(", ".join(part))) <= 60), shown(", ".join(words)))


def whole(
    name: str, value: object, low: int | None = None, high: int | None = None, *, what: str = "a whole number"
) -> int:
    """Returns `value` as an int.

    Raises `UserError` for fractions, booleans and numbers out of range.

    Args:
        name: Configuration key or argument, for the message.
        value: The user's value. NumPy and torch integers are accepted.
        low: Minimum. Default: unbounded.
        high: Maximum, used together with `low`. Default: unbounded.
        what: Expected kind of number, for the message.

    Examples:
        >>> from gnnkit.utils.ranges import whole
        >>> whole("sampler.fanout", 10, low=0)
        10
        >>> whole("sampler.fanout", -1, low=0)
        Traceback (most recent call last):
        gnnkit.errors.UserError: sampler.fanout=-1 must be a whole number of at least 0
    """
    number = _index(value)
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        limits = "" if low is None else f" of at least {low}" if high is None else f" from {low} to {high}"
        raise UserError(f"{name}={shown(value)} must be {what}{limits}{_if_text(value)}")
    return number


def real(
    name: str,
    value: object,
    low: float | None = None,
    high: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
) -> float:
    """Returns `value` as a float.

    Raises `UserError` unless `value` is a finite number in range.

    Args:
        name: Configuration key, for the message.
        value: The user's value. NumPy numbers are accepted.
        low: Inclusive minimum. Default: unbounded.
        high: Inclusive maximum. Default: unbounded.
        above: Exclusive minimum. Default: unbounded.
        below: Exclusive maximum. Default: unbounded.

    Examples:
        >>> from gnnkit.utils.ranges import real
        >>> real("trainer.lr", 1, above=0)
        1.0
    """
    bounds = (
        (low, "at least", operator.ge),
        (above, "above", operator.gt),
        (high, "at most", operator.le),
        (below, "below", operator.lt),
    )
    limits = [(bound, words, holds) for bound, words, holds in bounds if bound is not None]
    number = _float(value)
    if number is None or not all(holds(number, bound) for bound, _, holds in limits):
        raise UserError(f"{name}={shown(value)} must be {_describe_range(limits)}{_if_text(value)}")
    return number


def _describe_range(limits: Sequence[tuple[float, str, Callable[[float, float], bool]]]) -> str:
    """Describes bounds for a message, such as "a number from 0 to 1"."""
    if [words for _, words, _ in limits] == ["at least", "at most"]:
        return f"a number from {limits[0][0]:g} to {limits[1][0]:g}"
    rule = " and ".join(f"{words} {bound:g}" for bound, words, _ in limits)
    return f"a number {'of ' if rule.startswith('at ') else ''}{rule}" if rule else "finite"


def parse_scalar(value: object) -> bool | float | None:
    """Parses text as a number or boolean. Returns None for other values."""
    if value in ("true", "false"):
        return value == "true"
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    return int(value) if value.lstrip("-").isdecimal() else float(value)


def _if_text(value: object) -> str:
    """Returns a hint if the value is text that contains a number."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return ""
    return ", got text, as ${oc.env:NAME} returns: write the number, or let the shell insert it with $NAME"


def share(name: str, value: object) -> float:
    """Returns `value` as a float. Raises `UserError` outside [0, 1)."""
    return real(name, value, 0, below=1)


def one_of(name: str, value: Any, choices: Collection[Any]) -> Any:
    """Returns `value` if it is one of `choices`. Raises `UserError` otherwise.

    Args:
        name: Configuration key, for the message.
        choices: Allowed names or integers.

    Examples:
        >>> from gnnkit.utils.ranges import one_of
        >>> one_of("model.norm", "batch", ("none", "batch", "layer"))
        'batch'
    """
    if isinstance(value, str | int) and not isinstance(value, bool) and value in choices:
        return value
    if all(isinstance(item, str) for item in choices):
        raise unknown(f"{name}={shown(value)}", str(value), choices)
    raise UserError(f"{name}={shown(value)} must be {' or '.join(map(str, choices))}")


def switch(name: str, value: object, *, what: str = "true or false") -> bool:
    """Returns `value` if it is a boolean. Raises `UserError` otherwise.

    Args:
        name: Configuration key, for the message.
        what: Expected values, for the message.
    """
    if not isinstance(value, bool):
        raise UserError(f"{name}={shown(value)} must be {what}")
    return value


def is_url(text: str) -> bool:
    """Checks whether text is a URL and not a path."""
    return _URL.match(text) is not None


def local_path(name: str, value: str | Path, hint: str = "") -> Path:
    """Returns `value` as a path. Raises `UserError` for URLs and other types.

    Args:
        name: Configuration key or argument, for the message.
        hint: Hint that ends the message for URLs.
    """
    if not isinstance(value, str | os.PathLike) or not str(value) or not _names_file(str(value)):
        raise UserError(f"{name}={shown(repr(value))} must be a path")
    if is_url(str(value)):
        raise UserError(
            f"{name}={shown(value)} is a URL, but gnnkit reads and writes local files only: use a local folder{hint}"
        )
    return Path(value)


def _names_file(path: str) -> bool:
    """Returns whether the system can store a path: its bytes and its length."""
    try:
        os.lstat(path)
    except ValueError:  # a null byte or a lone surrogate
        return False
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    return True


def unknown(setting: str, name: str, names: Iterable[str]) -> UserError:
    """Returns the error for an unknown name, with the closest name and all names.

    Args:
        setting: The key with its value, for the message, such as `model=gcm`.
        name: The user's name.
        names: All valid names.
    """
    choices, word = sorted(names), name.lower()
    if choices == ["default"]:  # a section without options
        section = setting.partition("=")[0]
        return UserError(f"{setting} must be keys with values, as in {section}.KEY=VALUE or {section}={{'KEY': VALUE}}")
    lower = {choice.lower(): choice for choice in choices}
    synonyms = [lower[match] for match in known_words(word) if match in lower][:1]
    near = synonyms or [lower[match] for match in closest(word, lower, cutoff=0.5)]
    return _unknown(setting, near, choices)


def closest(word: str, choices: Collection[str], *, cutoff: float) -> list[str]:
    """Returns the closest choice, or an empty list.

    A choice with the same letters in another order precedes all others.

    Args:
        word: The user's word.
        choices: All valid words.
        cutoff: Minimum similarity, 0 to 1.
    """
    close = difflib.get_close_matches(word, choices, n=max(len(choices), 1), cutoff=cutoff)
    return sorted(close, key=lambda choice: sorted(choice) != sorted(word))[:1]


def known_words(word: str) -> tuple[str, ...]:
    """Returns a word, and the name that gnnkit uses for it, if any."""
    return (word, *(name for name, words in foreign_names().items() if word in words))


@functools.cache
def foreign_names() -> Mapping[str, list[str]]:
    """Maps gnnkit's names, of keys the last part, to those in other tools."""
    names: Mapping[str, list[str]] = json.loads(_FOREIGN_NAMES.read_text(encoding="utf-8"))
    return names


def unknown_key(key: str, keys: Collection[str]) -> UserError:
    """Returns the error for an unknown key, with the closest key.

    The message lists the keys of a section. At the top level, it names the closest keys
    and where all are listed. The closest key may be in another section, if its last
    part matches.

    Args:
        key: The user's key, such as `lr` or `model.hiden`.
        keys: All valid keys, such as `trainer` and `trainer.lr`.
    """
    section, _, last = key.rpartition(".")
    while section and section not in _sections(keys):
        section = section.rpartition(".")[0]
    choices = sorted(name for name in keys if name.rpartition(".")[0] == section)
    by_last = {name.rpartition(".")[2]: name for name in sorted(keys, key=lambda name: -name.count("."))}
    synonyms = [by_last[name] for name in known_words(last) if name in by_last][:1]
    far = [by_last[name] for name in closest(last, by_last, cutoff=0.7)]
    near = synonyms or closest(key, choices, cutoff=0.6) or far
    if not section:
        return UserError(f"{key} is not known: {_hint(near)}python -m gnnkit --help lists all keys")
    return _unknown(key, near, choices)


def _unknown(setting: str, near: list[str], choices: Iterable[str]) -> UserError:
    return UserError(f"{setting} is not known: {_hint(near)}there are: {', '.join(choices) or 'none'}")


def _hint(near: list[str]) -> str:
    return f"did you mean {near[0]}? " if near else ""


def _sections(keys: Iterable[str]) -> set[str]:
    return {key.rpartition(".")[0] for key in keys}


def _index(value: Any) -> int | None:
    """Returns integral numbers as int, and None for other values."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _float(value: Any) -> float | None:
    """Returns finite numbers as float, and None for other values."""
    if isinstance(value, bool | str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
