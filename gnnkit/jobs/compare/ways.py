"""The ways that are compared: each a strategy's name and further overrides."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gnnkit.config import key_of
from gnnkit.errors import UserError
from gnnkit.jobs.redacted import override
from gnnkit.ranges import shown

_OF_JOB = ("job", "output", "on_exists", "seed", "strategy", "runs", "checkpoint")  # keys that a run gets from the job
_OF_GRAPH = ("dataset", "task")  # sections that say what the figures mean
_NAME_LENGTH = 80  # of a folder


@dataclass(frozen=True, slots=True)
class Way:
    """One way of training."""

    strategy: str
    overrides: tuple[str, ...]  # further ones
    stem: str  # of the folders of the runs

    @property
    def name(self) -> str:
        """The way as it was typed, without secrets."""
        return " ".join([self.strategy, *map(override, self.overrides)])

    def over(self, common: Sequence[str], more: Sequence[str]) -> tuple[str, ...]:
        """Returns the overrides of a run.

        A key of the way stands in the place of the same key of all ways. So does an
        option, such as `partition=hash`, with the keys of its section.

        Args:
            common: Of all ways.
            more: Keys that the job sets.
        """
        own = [key_of(text) for text in self.overrides]
        kept = [text for text in common if not any(_covers(key, key_of(text)) for key in own)]
        return (*kept, f"strategy={self.strategy}", *self.overrides, *more)


def parse(texts: Sequence[str]) -> list[Way]:
    """Reads `compare.ways`. Raises `UserError` for a way that cannot be one."""
    split = [_split(text) for text in texts]
    seen: dict[tuple[str, frozenset[str]], str] = {}
    for text, (strategy, *overrides) in zip(texts, split, strict=True):
        same = seen.setdefault((strategy, frozenset(overrides)), text)
        if same is not text:
            raise UserError(f"compare.ways: {shown(text)} is there twice, each way must differ")
    stems = [re.sub(r"[^\w.=,\[\]-]+", "_", " ".join(words))[:_NAME_LENGTH] for words in split]
    return [
        Way(words[0], tuple(words[1:]), stem if stems.count(stem) == 1 else f"{stem}-{index}")
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
        if key.partition(".")[0] in _OF_GRAPH or is_of_job(key):
            raise UserError(f"compare.ways: {shown(text)}: {key} is the same for all ways, leave it out of the way")
    return words


def is_of_job(key: str) -> bool:
    """Says whether the runs get a key from the job."""
    return key in _OF_JOB or key.partition(".")[0] == "compare"


def _covers(key: str, other: str) -> bool:
    return other == key or other.startswith(f"{key}.")
