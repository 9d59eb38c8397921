"""The grammar of sweeps: `seed=range(3)`, `partition=1d,2d`, `choice`, `interval`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.config.code import key_of, refuse_code, refuse_hydra
from gnnkit.config.compose import MAX_JOBS, parse_sweep, swept_values
from gnnkit.errors import UserError
from gnnkit.utils.ranges import shown

_TAGS = {"log", "int", "float"}


@dataclass(frozen=True, slots=True)
class Space:
    """A key's values in a sweep."""

    key: str  # as typed, such as `model` or `+model.options.x`
    values: tuple[str, ...]  # as typed. Empty: any number from low to high
    low: float = 0.0
    high: float = 0.0
    step: float | None = None  # difference between numbers. None: no steps
    is_log: bool = False  # whether to sample uniformly in the logarithm
    is_whole: bool = False  # whether to sample integers

    @property
    def is_numeric(self) -> bool:
        """Whether the values are numbers between low and high, not a list."""
        return self.step is not None or not self.values

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last value, as typed."""
        if self.values:
            return self.values[0], self.values[-1]
        low, high = (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)
        return repr(low), repr(high)


def expand(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Lists the overrides of each job: all combinations, in the order typed.

    Raises `UserError` for an interval, which cannot be enumerated.
    """
    axes = spaces(overrides)[1]
    for space in axes:
        if not space.values:
            raise UserError(
                f"{space.key}=interval({space.low:g},{space.high:g}) needs hydra/sweeper=optuna, which draws from an "
                f"interval: the basic sweeper runs all values of choice(...) or range(...)"
            )
    if (number := math.prod(len(space.values) for space in axes)) > MAX_JOBS:
        raise _too_many_jobs(number)
    parsed = [(text, space_of(text)) for text in overrides]
    choices = ([f"{space.key}={value}" for value in space.values] if space else [text] for text, space in parsed)
    return list(itertools.product(*choices))


def spaces(overrides: Sequence[str]) -> tuple[list[str], list[Space]]:
    """Separates overrides with one value from those with several."""
    constants: list[str] = []
    axes: list[Space] = []
    for text in overrides:
        refuse_code(text, f"override {text!r}")
        refuse_hydra(key_of(text), f"override {text!r}")
        space = space_of(text)
        if space is None:
            constants.append(text)
        else:
            axes.append(space)
    keys = [space.key for space in axes]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key} is swept twice: give all values at once, {key}=A,B")
    return constants, axes


def space_of(text: str) -> Space | None:
    """Parses an override's values. Returns None for a single value or invalid text."""
    if (override := parse_sweep(text)) is None:
        return None
    key = override.get_key_element()
    if override.is_interval_sweep():
        return _interval(text, key, override.value())
    values = _values(text, override)
    if override.is_range_sweep() and not override.value().shuffle:
        return _range(key, values, override.value())
    return Space(key, values)


def _values(text: str, override: Any) -> tuple[str, ...]:
    """Lists the values of a choice, range or glob, as typed."""
    values = tuple(itertools.islice(swept_values(override), MAX_JOBS + 1))
    if len(values) > MAX_JOBS:
        raise _too_many_jobs(len(values))
    if not values:
        raise UserError(f"{shown(text)} has no value")
    return values


def _range(key: str, values: tuple[str, ...], bounds: Any) -> Space:
    is_whole = all(isinstance(number, int) for number in (bounds.start, bounds.stop, bounds.step))
    if bounds.step < 0:
        return Space(key, values)
    low, high = float(values[0]), float(values[-1])
    return Space(key, values, low, high, float(bounds.step), is_whole=is_whole)


def _interval(text: str, key: str, interval: Any) -> Space:
    if unknown := sorted(interval.tags - _TAGS):
        raise UserError(f"{shown(text)}: unknown tag {unknown[0]}; the tags are: {', '.join(sorted(_TAGS))}")
    low, high = float(interval.start), float(interval.end)
    is_log = "log" in interval.tags
    is_whole = "int" in interval.tags or (isinstance(interval.start, int) and isinstance(interval.end, int))
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not is_log)):
        rule = "0 < low < high" if is_log else "low < high"
        raise UserError(f"{shown(text)}: interval(low,high) needs {rule}, both finite")
    return Space(key, (), low, high, is_log=is_log, is_whole=is_whole)


def _too_many_jobs(number: int) -> UserError:
    return UserError(f"the sweep has {number:,} jobs or more, at most {MAX_JOBS:,} are allowed")
