"""Columns that models cannot read, reported together in one error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Self

from gnnkit.errors import UserError

_MAX_REASONS = 32  # columns listed in a message
_PLAIN = re.compile(r"(?!true$|false$|null$|none$|nan$|inf$)[a-z_][\w-]*", re.ASCII | re.IGNORECASE)


class UnfitColumns(UserError):
    """An error about columns that cannot be read as features or weights."""

    def __init__(self, message: object = "", names: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.names = tuple(names)  # the columns


class IgnorableColumns(UserError):
    """An error about unfit columns, with the remedy."""

    def __init__(self, unfit: Sequence[tuple[str, str]], ignored_names: Sequence[str] | None) -> None:
        """Composes the message.

        Args:
            unfit: The columns, each with its reason.
            ignored_names: As for `remedy`.
        """
        self.names, self.reasons, self.ignored = [name for name, _ in unfit], join_reasons(unfit), ignored_names
        super().__init__(f"{self.reasons}: {remedy(self.names, ignored_names)}")

    @classmethod
    def of(cls, error: BaseException | None) -> Self | None:
        """Returns the first such error among an error and its causes."""
        while error is not None and not isinstance(error, cls):
            error = error.__cause__
        return error


@contextmanager
def collect_unfit(unfit: dict[str, str], name: str) -> Iterator[None]:
    """Stores an error about a column, so that further columns can be checked."""
    try:
        yield
    except UserError as error:
        unfit[name] = str(error)


def raise_unfit(unfit: Mapping[str, str]) -> None:
    """Raises `UnfitColumns` if there are any. `unfit` maps columns to reasons."""
    if unfit:
        raise UnfitColumns(join_reasons(list(unfit.items())), list(unfit))


def remedy(names: Sequence[str], ignored_names: Sequence[str] | None) -> str:
    """Describes how to exclude columns from a data set.

    Args:
        names: The columns.
        ignored_names: The value of `dataset.ignore`. If None, the data set has no such
            key.
    """
    columns = "the column" if len(names) == 1 else "these columns"
    if ignored_names is None:
        return f"remove {columns} from the data"
    return f"{ignore_key([*ignored_names, *names])} leaves {columns} out"


def ignore_key(names: Sequence[str]) -> str:
    """Returns `dataset.ignore=[...]` as one argument of a shell command."""
    distinct = dict.fromkeys(names)
    key = f"dataset.ignore=[{','.join(map(_quote, distinct))}]"
    if all(map(_PLAIN.fullmatch, distinct)):
        return key
    if key.isprintable():
        return "'" + key.replace("'", "'\\''") + "'"
    characters = (c if c.isprintable() and c not in "\\'" else f"\\U{ord(c):08x}" for c in key)
    return f"$'{''.join(characters)}'"  # of bash and zsh


def join_reasons(unfit: Sequence[tuple[str, str]]) -> str:
    """Joins the columns' reasons into a message that counts the columns."""
    if len(unfit) == 1:
        return unfit[0][1]
    names: dict[str, list[str]] = {}  # columns with equal reasons
    for name, reason in unfit[:_MAX_REASONS]:
        names.setdefault(reason.replace(repr(name), "\0"), []).append(repr(name))
    reasons = [
        reason.replace("\0", first) + (f" (also {', '.join(other_names)})" if other_names else "")
        for reason, (first, *other_names) in names.items()
    ]
    suffix = [f"{len(unfit) - _MAX_REASONS} more"] if len(unfit) > _MAX_REASONS else []
    return f"{len(unfit)} columns cannot be used: {'; '.join([*reasons, *suffix])}"


def has_many_values(num_values: int, num_nodes: int) -> bool:
    """Returns whether a text column identifies nodes, as names do."""
    # A text column of a graph of any size may have 10 values.
    return num_values > max(10, num_nodes / 2)


def describe_many(name: str, num_values: int, num_nodes: int) -> str:
    """Describes a text column for which `has_many_values` holds."""
    return f"column {name!r} is text with {num_values:,} values for {num_nodes:,} nodes, which no model learns from"


def _quote(name: str) -> str:
    """Quotes a name for Hydra unless it is a plain word."""
    return name if _PLAIN.fullmatch(name) else '"' + re.sub(r'(\\*)("|\Z)', _double, name) + '"'


def _double(end: re.Match[str]) -> str:
    """Escapes the backslashes before a quote, and the quote."""
    return 2 * end[1] + (end[2] and '\\"')
