"""Rules for configured values: ranges of numbers, known names, cores at hand."""

from __future__ import annotations

import difflib
import itertools
import math
import operator
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError

MAX_THREADS = 1024  # of one rank, or of one call
MAX_LAYERS = 1000  # layers of a model
MAX_WIDTH = 2**20  # numbers in a row of a hidden layer
MAX_COUNT = 2**31 - 1  # steps, epochs and other counts without a smaller bound
_NUMBER = re.compile(r"-?\d{1,18}(\.\d{1,18})?(e-?\d{1,3})?", re.ASCII | re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.-]+:/", re.IGNORECASE)  # `Path` takes one of the two slashes away

_ALSO_CALLED = {
    "learning_rate": "lr",
    "epochs": "max_epochs",
    "num_epochs": "max_epochs",
    "num_workers": "workers",
    "num_threads": "threads",
    "hidden_dim": "hidden",
    "hidden_channels": "hidden",
    "layers": "num_layers",
    "n_layers": "num_layers",
    "fanout": "fanouts",
    "num_neighbors": "fanouts",
    "early_stopping": "patience",
    "l2": "weight_decay",
    "gradient_clip_val": "clip_norm",
    "accumulate_grad_batches": "accumulate",
    "devices": "workers",
}  # last parts of keys elsewhere, and ours


def num_cores() -> int:
    """Counts the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def even_ranges(count: int, parts: int) -> list[range]:
    """Cuts 0, ..., count - 1 into ranges, whose lengths differ by one at most."""
    bounds = [count * part // parts for part in range(parts + 1)]
    return [range(first, last) for first, last in itertools.pairwise(bounds)]


def one_line(text: object) -> str:
    """Returns `text` with spaces instead of line breaks."""
    return re.sub(r"\s*[\r\n]+\s*", " ", str(text)).strip()


def shown(value: object) -> str:
    """Spells a value for a message, in one line of at most 60 characters."""
    text = one_line(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def whole(
    name: str, value: object, low: int | None = None, high: int | None = None, *, what: str = "a whole number"
) -> int:
    """Returns `value` as an int.

    Raises `UserError` for fractions, booleans and numbers out of range.

    Args:
        name: Configuration key or argument, for the message.
        value: Value of the user. Integers of NumPy and of torch are taken too.
        low: Smallest number allowed. Default: no bound.
        high: Largest number allowed, where `low` is given. Default: no bound.
        what: The rule without bounds, for the message.
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

    Raises `UserError` for a value that is no finite number or out of range.

    Args:
        name: Configuration key, for the message.
        value: Value of the user. Numbers of NumPy are taken too.
        low: Smallest number allowed. Default: no bound.
        high: Largest number allowed. Default: no bound.
        above: Every number allowed is larger. Default: no bound.
        below: Every number allowed is smaller. Default: no bound.
    """
    bounds = (
        (low, "of at least", operator.ge),
        (above, "above", operator.gt),
        (high, "of at most", operator.le),
        (below, "below", operator.lt),
    )
    given = [(bound, words, holds) for bound, words, holds in bounds if bound is not None]
    number = _float(value)
    if number is None or not all(holds(number, bound) for bound, _, holds in given):
        rule = " and ".join(f"{words} {bound:g}" for bound, words, _ in given)
        raise UserError(f"{name}={shown(value)} must be {f'a number {rule}' if rule else 'finite'}{_if_text(value)}")
    return number


def number_of(value: object) -> bool | float | None:
    """Returns what text spells: a number, true or false. None for all other values."""
    if value in ("true", "false"):
        return value == "true"
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return None
    return int(value) if value.lstrip("-").isdecimal() else float(value)


def _if_text(value: object) -> str:
    """Says what to do about text that spells a number."""
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return ""
    return ", and is text, as ${oc.env:NAME} gives: write the number, or let the shell put it in with $NAME"


def share(name: str, value: object) -> float:
    """Returns `value` as a float. Raises `UserError` outside [0, 1)."""
    return real(name, value, 0, below=1)


def one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    """Returns `value`. Raises `UserError` for a value that is not known.

    Args:
        name: Configuration key, for the message.
        value: Value of the user.
        known: Names or whole numbers.
    """
    if isinstance(value, str | int) and not isinstance(value, bool) and value in known:
        return value
    if all(isinstance(item, str) for item in known):
        raise unknown(f"{name}={shown(value)}", str(value), known)
    raise UserError(f"{name}={shown(value)} must be {' or '.join(map(str, known))}")


def switch(name: str, value: object, *, what: str = "true or false") -> bool:
    """Returns `value`. Raises `UserError` for a value that is no boolean.

    Args:
        name: Configuration key, for the message.
        value: Value of the user.
        what: The rule, for the message.
    """
    if not isinstance(value, bool):
        raise UserError(f"{name}={shown(value)} must be {what}")
    return value


def is_url(text: str) -> bool:
    """Tells whether a text is a URL rather than a path."""
    return _URL.match(text) is not None


def local_path(name: str, value: str | Path, more: str = "") -> Path:
    """Returns `value` as a path. Raises `UserError` for a URL.

    Args:
        name: Configuration key or argument, for the message.
        value: Value of the user.
        more: What else helps, for the message.
    """
    if is_url(str(value)):
        raise UserError(
            f"{name}={shown(value)} is a URL, and gnnkit reads and writes files of this machine: name a folder{more}"
        )
    return Path(value)


def unknown(what: str, name: str, known: Iterable[str]) -> UserError:
    """Makes the error for a name that does not exist.

    The message says the nearest name and lists all.

    Args:
        what: The key with the name, for the message, such as `model=gcm`.
        name: Name that the user gave.
        known: All names that exist.
    """
    choices = sorted(known)
    near = difflib.get_close_matches(name, choices, n=1, cutoff=0.5)
    return _unknown(what, near, choices)


def unknown_key(key: str, known: Collection[str]) -> UserError:
    """Makes the error for a key that does not exist.

    The message says the nearest key and lists the keys of the section. The nearest key
    may be in another section if the last part has the same name.

    Args:
        key: Key that the user gave, such as `lr` or `model.hiden`.
        known: All keys that exist, such as `trainer` and `trainer.lr`.
    """
    section, _, last = key.rpartition(".")
    while section and section not in _sections(known):
        section = section.rpartition(".")[0]
    choices = sorted(name for name in known if name.rpartition(".")[0] == section)
    by_last = {name.rpartition(".")[2]: name for name in sorted(known, key=lambda name: -name.count("."))}
    same = [by_last[name] for name in (last, _ALSO_CALLED.get(last, last)) if name in by_last][:1]
    close = difflib.get_close_matches(key, choices, n=1, cutoff=0.6)
    far = [by_last[name] for name in difflib.get_close_matches(last, by_last, n=1, cutoff=0.7)]
    near = same or close or far
    return _unknown(key, near, choices)


def _unknown(what: str, near: list[str], choices: list[str]) -> UserError:
    hint = f"did you mean {near[0]}? " if near else ""
    return UserError(f"{what} is not known: {hint}there are: {', '.join(choices) or 'none'}")


def _sections(keys: Iterable[str]) -> set[str]:
    return {key.rpartition(".")[0] for key in keys}


def _index(value: Any) -> int | None:
    """Returns `value` as an int. Returns None for other values than whole numbers."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _float(value: Any) -> float | None:
    """Returns `value` as a float. Returns None for other values than finite numbers."""
    if isinstance(value, bool | str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
