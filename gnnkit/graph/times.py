"""Times of nodes and edges: exact integers in the data's own unit."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.types import Fields, Ids
from gnnkit.utils import checks
from gnnkit.utils.checks import Array, whole
from gnnkit.utils.ranges import one_of, shown

_SAMPLE = 10_000  # times in a sample to check the unit
Times = npt.NDArray[np.int64]
ALWAYS, NEVER = int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).max)  # static, and without a time
TIME_FIELDS = ("edge_time", "node_time")
_SPAN = re.compile(r"(\d{1,9})\s*(second|minute|hour|day|week)s?")
_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800}
TIME_NAMES = {
    f"{end}{name}" for end in ("", "node_", "edge_") for name in ("t", "ts", "time", "times", "timestamp", "timestamps")
}
_WORDS = re.compile(r"\w+")
UNITS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}  # of dates, per second


def read_time_fields(values: Mapping[str, object]) -> Fields:
    """Converts the time fields of `EdgeListFields` to integers with one unit.

    If edges and nodes have dates of different units, the coarser ones are converted.
    Raises `UserError` if one has dates and the other has plain numbers.
    """
    unit = _check_unit(values.get("time_unit"))
    read = {name: _read(name, values[name]) for name in TIME_FIELDS if values.get(name) is not None}
    units = {name: date_unit or unit for name, (_, date_unit) in read.items()}
    if len({unit is None for unit in units.values()}) > 1:
        dates, numbers = sorted(units, key=lambda name: units[name] is None)
        raise UserError(
            f"{numbers} holds numbers and {dates} holds dates: expected the same unit in both; time=COLUMN (dataset.time) "
            "reads one of them"
        )
    finest = max(filter(None, units.values()), key=lambda name: UNITS[name], default=unit)
    times = {name: _rescale(name, rows, units[name], finest) for name, (rows, _) in read.items()}
    warn_units(times, finest)
    return {**times, "time_unit": finest} if times else {}


def to_unit(name: str, values: object, unit: str | None) -> Times:
    """Reads times like `read_time_fields`, in a unit that is fine enough."""
    times, own_unit = _read(name, values)
    if (own_unit is None) != (unit is None):
        raise UserError(f"{name} holds {'numbers' if own_unit is None else 'dates'}, unlike other times of the data")
    return _rescale(name, times, own_unit, unit)


def check_fields(values: Mapping[str, Any], num_nodes: int) -> Fields:
    """Checks the time fields of a `Graph`, except edge times."""
    node_time, borders = values["node_time"], values["time_borders"]
    return {
        "node_time": None if node_time is None else checks.int64s("node_time", node_time, num_nodes),
        "time_unit": _check_unit(values["time_unit"]),
        "time_borders": None if borders is None else tuple(checks.int64s("time_borders", list(borders), 2).tolist()),
    }


def warn_units(times: Mapping[str, Times | None], unit: str | None) -> None:
    """Warns about times that seem to have another unit than they are read in.

    Args:
        times: Edge and node times, by field.
        unit: As `Graph.time_unit`.
    """
    middles = {name: _middle(rows) for name, rows in times.items() if rows is not None}
    texts = " and ".join(f"{name} is {show_time(int(middle), unit)}" for name, middle in middles.items())
    low, high = min(middles.values(), default=0), max(middles.values(), default=0)
    if unit is None and low > 0 and high / low > UNITS["ms"] / 2:
        warnings.warn(f"the median {texts}: give nodes and edges the same unit", stacklevel=4)
    if unit is not None and 0 < high < 31 * 86_400 * UNITS[unit]:
        warnings.warn(f"the median {texts}: convert numbers to dates with the unit that they have", stacklevel=4)


def _middle(times: Times) -> float:
    """Returns the median known time in a sample, or 0."""
    sample = times[:: len(times) // _SAMPLE + 1]  # the file may be larger than memory
    sample = sample[has_time(sample)]
    return float(np.median(sample)) if len(sample) else 0.0


def has_time(times: Times) -> npt.NDArray[np.bool_]:  # [n]
    """Returns which times are neither `ALWAYS` nor `NEVER`."""
    return np.asarray((times != ALWAYS) & (times != NEVER))


def latest_visible(times: Times, rule: str) -> Times:
    """Returns the latest edge time that each seed sees.

    A seed without a time sees all edges that have one. Raises `UserError` if it has no
    window.

    Args:
        times: [n] the seeds' times.
        rule: `Sampler.time`.
    """
    is_untimed = ~has_time(times)
    if rule == "window" and is_untimed.any():
        raise UserError(
            f"sampler.time=window: {np.count_nonzero(is_untimed):,} of {len(times):,} seeds have no time, so no window: give "
            "each one a time, or use sampler.time=strict"
        )
    return np.where(is_untimed, NEVER - 1, np.where(is_untimed, 0, times) - (rule != "inclusive"))


def before_window(bounds: Times, window: int) -> Times:
    """Returns the latest time that is too old for a window up to each bound."""
    return np.maximum(bounds, ALWAYS + window) - window


def newest(times: Times) -> int:
    """Returns the latest time other than `NEVER`, or `ALWAYS` if there is none."""
    return int(times.max(initial=ALWAYS, where=times != NEVER))


@dataclass(slots=True, eq=False)
class Occurrences:
    """Numbers nodes in trees, which are a step's times: node * num_trees + tree."""

    times: Times  # [num_trees]

    @classmethod
    def of(cls, times: Times, *, disjoint: bool = False) -> tuple[Occurrences, Ids]:
        """Returns trees for seeds at times [n], and each seed's tree.

        Args:
            times: [n] the seeds' times.
            disjoint: Whether each seed has its own tree. Otherwise, those at one time
                share a tree.
        """
        if disjoint:
            return cls(times), np.arange(len(times))
        distinct, trees = np.unique(times, return_inverse=True)
        return cls(distinct), trees

    @property
    def num_trees(self) -> int:
        """The tree count, at least 1."""
        return max(len(self.times), 1)

    def codes(self, nodes: Ids, trees: Ids) -> Ids:
        """Encodes nodes in trees."""
        return nodes.astype(np.int64) * self.num_trees + trees

    def nodes(self, codes: Ids) -> Ids:
        """Decodes nodes."""
        return codes // self.num_trees

    def trees(self, codes: Ids) -> Ids:
        """Decodes trees."""
        return codes % self.num_trees


class PathOccurrences(Occurrences):
    """Numbers nodes in trees of paths, each of the time of the edge that led to it.

    Trees are added on the way (`follow`). Seeds of equal trees share them.
    """

    def __init__(self, times: Times, num_nodes: int, *, disjoint: bool) -> None:
        """Stores the trees of seeds.

        Args:
            times: [num_trees] as of `Occurrences.of`.
            num_nodes: Number of nodes, which limits the number of trees.
            disjoint: As for `Occurrences.of`.
        """
        self.times, self._most = times, NEVER // max(num_nodes, 1)
        self._roots = np.arange(len(times)) if disjoint else np.zeros(len(times), np.int64)

    @property
    def num_trees(self) -> int:
        return self._most

    def follow(self, trees: Ids, times: Times) -> Ids:  # [k]
        """Returns the trees that edges with times [k] lead to from trees [k]."""
        num_trees, timed_edges = len(self.times), np.flatnonzero(times != ALWAYS)
        pairs = np.stack(
            [np.append(self._roots, self._roots[trees[timed_edges]]), np.append(self.times, times[timed_edges])], 1
        )
        distinct, first, places = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        is_new = first >= num_trees
        numbers = np.where(is_new, num_trees + np.cumsum(is_new) - 1, first)
        self._roots, self.times = (np.append(pairs[:num_trees, i], distinct[is_new, i]) for i in (0, 1))
        result = trees.copy()
        result[timed_edges] = numbers[places.reshape(-1)[num_trees:]]
        return result


def at_times(nodes: Ids, times: Ids) -> tuple[Ids, Times, Ids]:
    """Returns distinct (node, time) pairs, and each pair's place among them.

    Args:
        nodes: [n] ids.
        times: [n] times.
    """
    pairs = np.stack([nodes.astype(np.int64), times.astype(np.int64)], 1)
    distinct, places = np.unique(pairs, axis=0, return_inverse=True)
    return distinct[:, 0], distinct[:, 1], places.reshape(-1)


def show_time(time: int, unit: str | None) -> str:
    """Formats a time as a date, or as a number if there is no unit."""
    if unit is None:
        return str(time)
    text = str(np.datetime64(time, unit)).replace("T", " ")  # type: ignore[call-overload]
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.removesuffix(" 00:00:00")


def parse_time(name: str, value: object, unit: str | None) -> int:
    """Reads a number or, if times have a unit, a date.

    Args:
        name: Argument or configuration key, for messages.
        value: The number or date.
        unit: As `Graph.time_unit`.
    """
    if unit is None:
        return whole(f"{name} (times are numbers here)", value)
    try:
        with warnings.catch_warnings(action="ignore"):  # numpy converts to UTC, and warns
            date = np.datetime64(str(value).strip())
        if not isinstance(value, int) and date.astype(f"M8[{unit}]") == date:
            return int(date.astype(f"M8[{unit}]").astype(np.int64))
    except ValueError:
        pass
    raise UserError(f"{name}={shown(value)}: expected a date such as 2026-01-31 or 2026-01-31 12:30: times are dates")


def check_span(name: str, value: object, limit: int = 2**62) -> str | int | None:
    """Returns a span such as `30 days`, or a number of units of plain times.

    Args:
        name: Argument or configuration key, for messages.
        value: The span, or None.
        limit: Bound of numbers, which are below it.
    """
    is_number = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < limit
    if value is None or is_number or (isinstance(value, str) and _SPAN.fullmatch(value.strip())):
        return value  # type: ignore[return-value]
    units = ", ".join(f"{unit}s" for unit in _SECONDS)
    raise UserError(f"{name}={shown(value)}: expected a span such as '30 days' in {units}, or a number for plain times")


def read_span(name: str, value: str | int | None, unit: str | None) -> int | None:
    """Returns a span in the unit of times.

    Args:
        name: Argument or configuration key, for messages.
        value: A span such as `30 days`, or a number if times are plain numbers. 0 is
            either.
        unit: As `Graph.time_unit`.
    """
    value = check_span(name, value)
    if value is None or value == 0:
        return None if value is None else 0
    if isinstance(value, int) and unit is None:
        return value
    if isinstance(value, str) and unit is not None and (match := _SPAN.fullmatch(value.strip())):
        return int(match[1]) * _SECONDS[match[2]] * UNITS[unit]
    expected = "a number, as times are numbers" if unit is None else "a span such as '30 days', as times are dates"
    raise UserError(f"{name}={value}: expected {expected}")


def _check_unit(unit: object) -> str | None:
    return None if unit is None else one_of("time_unit", unit, tuple(UNITS))


def _read(name: str, values: object) -> tuple[Times, str | None]:
    """Reads integers, exact floats or dates, with `NEVER` for NaN and NaT.

    Returns the unit of dates, too.
    """
    rows = checks.array(name, values)
    rows = rows[:, 0] if rows.shape[1:] == (1,) else rows
    if rows.ndim == 1 and rows.dtype.kind == "M":
        return _read_dates(name, rows)
    return _read_floats(name, rows) if rows.ndim == 1 and rows.dtype.kind == "f" else checks.int64s(name, rows), None


def _read_floats(name: str, rows: Array) -> Times:
    """Reads floating-point numbers that are exact integers."""
    bad, reason = find_inexact(rows)
    if bad.any():
        raise UserError(f"{name}[{np.argmax(bad)}] = {rows[np.argmax(bad)]!s} {reason}")
    return from_exact(rows)


def find_inexact(rows: Array) -> tuple[npt.NDArray[np.bool_], str]:
    """Marks floating-point numbers that are not exact integers, and returns why."""
    digits = np.finfo(rows.dtype).nmant + 1
    bad = ~np.isnan(rows) & ~((np.abs(rows) < 2.0**digits) & (rows == np.floor(rows)))
    return bad, f"is no whole number below 2^{digits}, as times in {rows.dtype} must be; use integers"


def is_time(name: str) -> bool:
    """Checks whether a name's last word means a timestamp."""
    words = _WORDS.findall(name.lower())
    return bool(words) and words[-1] in TIME_NAMES


def are_times(rows: Array, count: int) -> bool:
    """Returns whether an array holds one exact integer or date for each row."""
    is_exact = rows.dtype.kind in "iuM" or (rows.dtype.kind == "f" and not find_inexact(rows)[0].any())
    return rows.shape == (count,) and is_exact


def from_exact(rows: Array) -> Times:
    """Converts floats that are integers, with `NEVER` for NaN."""
    missing = np.isnan(rows)
    return np.where(missing, NEVER, np.where(missing, 0, rows).astype(np.int64))


def _read_dates(name: str, rows: Array) -> tuple[Times, str]:
    unit, count = np.datetime_data(rows.dtype)
    missing = np.isnat(rows)
    if unit not in UNITS or count != 1:
        unit, dates = "s", rows.astype("M8[s]")
        if (bad := np.flatnonzero(~missing & (dates != rows))).size:
            raise UserError(f"{name}[{bad[0]}] = {rows[bad[0]]}: expected dates in s, ms, us or ns")
        rows = dates
    return np.where(missing, NEVER, rows.astype(np.int64)), unit


def _rescale(name: str, rows: Times, unit: str | None, finest: str | None) -> Times:
    if unit == finest or unit is None or finest is None:
        return rows
    factor = UNITS[finest] // UNITS[unit]
    is_special = ~has_time(rows)
    if len(bad := np.flatnonzero(~is_special & (np.abs(rows) > NEVER // factor - 1))):
        raise UserError(f"{name}[{bad[0]}] = {shown(int(rows[bad[0]]))} in {unit} exceeds 64 bits in {finest}")
    return np.where(is_special, rows, np.where(is_special, 0, rows) * factor)
