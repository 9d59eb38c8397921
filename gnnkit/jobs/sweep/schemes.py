"""The training schemes of job=compare: a strategy's name with further overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gnnkit.config import key_of
from gnnkit.errors import UserError
from gnnkit.jobs.redacted import override
from gnnkit.ranges import shown

_JOB_KEYS = ("job", "output", "on_exists", "seed", "strategy", "runs", "checkpoint")  # set by job=compare
_SHARED_SECTIONS = ("dataset", "task")  # figures are comparable only if these are equal
_NAME_LENGTH = 80  # of a folder


@dataclass(frozen=True, slots=True)
class Scheme:
    """One training scheme."""

    strategy: str
    overrides: tuple[str, ...]  # further ones
    stem: str  # of the names of run folders

    @property
    def name(self) -> str:
        """The scheme as typed, without secrets."""
        return " ".join([self.strategy, *map(override, self.overrides)])

    def over(self, common: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
        """Returns the overrides of a run.

        A key of the scheme replaces the same key in `common`. An option, such as
        `partition=hash`, also replaces the keys of its section.

        Args:
            common: Overrides for all schemes.
            more: Keys that the job sets.
        """
        keys = [key_of(text) for text in self.overrides]
        rest = [text for text in common if not any(_covers(key, key_of(text)) for key in keys)]
        return (*rest, f"strategy={self.strategy}", *self.overrides, *more)


def parse(texts: Sequence[str]) -> list[Scheme]:
    """Parses `compare.ways`. Raises `UserError` for an invalid scheme."""
    split = [_split(text) for text in texts]
    seen: dict[tuple[str, frozenset[str]], str] = {}
    for text, (strategy, *overrides) in zip(texts, split, strict=True):
        same = seen.setdefault((strategy, frozenset(overrides)), text)
        if same is not text:
            raise UserError(f"compare.ways: {shown(text)} is there twice, each way must differ")
    stems = [re.sub(r"[^\w.=,\[\]-]+", "_", " ".join(words))[:_NAME_LENGTH] for words in split]
    return [
        Scheme(words[0], tuple(words[1:]), stem if stems.count(stem) == 1 else f"{stem}-{index}")
        for index, (words, stem) in enumerate(zip(split, stems, strict=True))
    ]


def _split(text: str) -> list[str]:
    words = text.split()
    if not words or "=" in words[0]:
        raise UserError(f"compare.ways: {shown(text)!r} must begin with the name of a strategy")
    for word in words[1:]:
        key = key_of(word)
        if "=" not in word:
            raise UserError(f"compare.ways: {shown(text)}: {shown(word)} must be KEY=VALUE")
        if key.partition(".")[0] in _SHARED_SECTIONS or is_job_key(key):
            raise UserError(f"compare.ways: {shown(text)}: {key} is the same for all ways, leave it out of the way")
    return words


def is_job_key(key: str) -> bool:
    """Returns whether job=compare sets the key of its runs."""
    return key in _JOB_KEYS or key.partition(".")[0] == "compare"


def _covers(key: str, other: str) -> bool:
    return other == key or other.startswith(f"{key}.")
