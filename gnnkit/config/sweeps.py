"""The grammar of a sweep: `seed=range(3)`, `partition=1d,2d`, `choice`, `interval`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gnnkit.config.code import key_of, refuse_code, refuse_hydra
from gnnkit.errors import UserError
from gnnkit.plugins import options
from gnnkit.ranges import shown

MAX_JOBS = 10_000  # of one sweep
_TAGS = {"log", "int", "float"}


@dataclass(frozen=True, slots=True)
class Space:
    """The values that one key may take in a sweep."""

    key: str  # as typed, such as `model` or `+model.options.x`
    values: tuple[str, ...]  # as typed. Empty: any number from low to high
    low: float = 0.0
    high: float = 0.0
    step: float | None = None  # between numbers. None: there are no steps
    is_log: bool = False  # whether orders of magnitude are drawn evenly
    is_whole: bool = False  # whether numbers are whole

    @property
    def is_numeric(self) -> bool:
        """Whether numbers between low and high are meant, not a list of names."""
        return self.step is not None or not self.values

    @property
    def ends(self) -> tuple[str, str]:
        """The first and the last value, as typed."""
        if self.values:
            return self.values[0], self.values[-1]
        low, high = (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)
        return repr(low), repr(high)


def expand(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """Lists the overrides of every job, all combinations in the order typed.

    Raises `UserError` for an interval, which has no list of values.
    """
    fixed, swept = spaces(overrides)
    for space in swept:
        if not space.values:
            raise UserError(
                f"{space.key}=interval({space.low:g},{space.high:g}) needs hydra/sweeper=optuna, which draws from an "
                f"interval: the basic sweeper runs all values of choice(...) or range(...)"
            )
    if (number := math.prod(len(space.values) for space in swept)) > MAX_JOBS:
        raise _too_many(number)
    sets = {space.key: [f"{space.key}={value}" for value in space.values] for space in swept}
    sets |= {text: [text] for text in fixed}
    return list(itertools.product(*(sets[key] for key in _in_order(overrides, sets))))


def spaces(overrides: Sequence[str]) -> tuple[list[str], list[Space]]:
    """Separates overrides with one value from those with several."""
    fixed: list[str] = []
    swept: list[Space] = []
    for text in overrides:
        refuse_code(text, f"override {text!r}")
        refuse_hydra(key_of(text), f"override {text!r}")
        space = space_of(text)
        if space is None:
            fixed.append(text)
        else:
            swept.append(space)
    keys = [space.key for space in swept]
    for key in keys:
        if keys.count(key) > 1:
            raise UserError(f"{key} is swept twice: give all values at once, {key}=A,B")
    return fixed, swept


def space_of(text: str) -> Space | None:
    """Reads the values of one override. None for one value, and for unreadable text."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override: Any = OverridesParser.create().parse_override(text)
    except (HydraException, RecursionError):  # compose says what is wrong
        return None
    if not override.is_sweep_override():
        return None
    key = override.get_key_element()
    if override.is_interval_sweep():
        return _interval(text, key, override.value())
    values = _values(text, override)
    if override.is_range_sweep() and not override.value().shuffle:
        return _range(key, values, override.value())
    return Space(key, values)


def _values(text: str, override: Any) -> tuple[str, ...]:
    """Lists the values of a choice, a range or a glob, as typed."""
    if override.value_type.name == "GLOB_CHOICE_SWEEP":
        values = tuple(override.value().filter(options(override.key_or_group)))
    else:
        values = tuple(itertools.islice(override.sweep_string_iterator(), MAX_JOBS + 1))
    if len(values) > MAX_JOBS:
        raise _too_many(len(values))
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
        raise UserError(f"{shown(text)}: tag {unknown[0]} is not known: there are: {', '.join(sorted(_TAGS))}")
    low, high = float(interval.start), float(interval.end)
    is_log = "log" in interval.tags
    is_whole = "int" in interval.tags or (isinstance(interval.start, int) and isinstance(interval.end, int))
    if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not is_log)):
        rule = "0 < low < high" if is_log else "low < high"
        raise UserError(f"{shown(text)}: interval(low,high) needs {rule}, both finite")
    return Space(key, (), low, high, is_log=is_log, is_whole=is_whole)


def _in_order(overrides: Sequence[str], sets: Iterable[str]) -> list[str]:
    """Sorts the keys of sweeps and the fixed overrides as they were typed."""
    known = set(sets)
    return [text if text in known else text.partition("=")[0].strip() for text in overrides]


def _too_many(number: int) -> UserError:
    return UserError(f"the sweep has {number:,} jobs or more, at most {MAX_JOBS:,} are allowed")
