"""Splits by time, and the warning about random splits of rows with times."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph.attributes import is_time
from gnnkit.graph.split import Split, read_shares
from gnnkit.graph.times import NEVER, Times, has_time, parse_time, show_time
from gnnkit.graph.types import Ids
from gnnkit.utils.ranges import shown

if TYPE_CHECKING:
    from gnnkit.graph.graph import Graph

_PARTS = {Split.TRAIN: "train before", Split.VAL: "val from", Split.TEST: "test from"}
BY_TIME = "{by: time, shares: [0.7,0.15,0.15]}"


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where to split rows by time: at shares of the rows, or at two times.

    `Graph.split_by_time` and `dataset.split` use it for nodes and for edges. Rows with
    equal times are on the same side of a border, so that no test row is as old as a
    training row.
    """

    name: str  # argument or configuration key, for messages
    shares: Sequence[float] | None  # of rows in train, val and test, which add up to 1
    borders: Sequence[int | str] | None  # the times of the first validation and the first test row

    def __post_init__(self) -> None:
        if (self.shares is None) == (self.borders is None):
            raise UserError(f"{self.name}: expected either shares or borders, such as {BY_TIME}")
        if self.shares is not None and abs(sum(read_shares(self.name, self.shares)) - 1) > 1e-9:
            raise UserError(f"{self.name}={shown(list(self.shares))}: shares of a split by time must add up to 1")
        if self.borders is not None and (isinstance(self.borders, str) or len(self.borders) != 2):
            raise UserError(
                f"{self.name}.borders={shown(self.borders)}: expected two times, of the first validation and the first test row"
            )

    def find_borders(self, times: Times, unit: str | None) -> tuple[int, int]:
        """Returns the times of the first validation and the first test row.

        Equal times are never separated, so the shares are approximate.

        Args:
            times: [n] times of the rows.
            unit: Their unit, as `Graph.time_unit`.
        """
        known_times = times[has_time(times)]
        if self.borders is not None:
            val, test = (parse_time(f"{self.name}.borders", border, unit) for border in self.borders)
        else:
            val, test = self._cut(known_times)
        if val > test or not (times < val).any():
            first = f", the first is {show_time(int(known_times.min()), unit)}" if len(known_times) else ""
            raise UserError(
                f"{self.name}: no row is before the first validation time {show_time(val, unit)}, or it is after the first "
                f"test time{first}"
            )
        return val, test

    def _cut(self, times: Times) -> tuple[int, int]:
        """Returns the distinct times at which parts have nearly the shares."""
        train, val, test = self.shares or (0, 0, 0)
        values, counts = np.unique(times, return_counts=True)
        num_parts = 1 + (val > 0) + (test > 0)
        if len(values) < num_parts:
            raise UserError(f"{self.name}: the rows have {len(values)} distinct times, and {num_parts} are needed")
        before = np.append(np.cumsum(counts) - counts, len(times))  # rows before each distinct time, or all
        values = np.append(values, NEVER)

        def nearest(share: float, first: int, last: int) -> int:
            return first + int(np.abs(before[first : last + 1] - share * len(times)).argmin())

        begins_val = nearest(train, 1, len(values) - num_parts if val or test else len(values) - 1)
        begins_test = nearest(train + val, begins_val + (val > 0), len(values) - 1 - (test > 0))
        return int(values[begins_val]), int(values[begins_test])


def read_split(name: str, value: Any) -> tuple[float, float, float] | TimeSplit | None:
    """Reads shares of a random split, or a split by time.

    Args:
        name: Argument or configuration key, for messages.
        value: Three shares, a mapping such as `BY_TIME`, or None.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        return read_shares(name, value)
    if value.get("by") != "time" or not value.keys() <= {"by", "shares", "borders"}:
        raise UserError(f"{name}={shown(dict(value))}: expected {BY_TIME}, or borders: [2020-01-31,2020-06-30]")
    return TimeSplit(name, value.get("shares"), value.get("borders"))


def parts_of(times: Times, borders: tuple[int, int]) -> Ids:  # [n] int8
    """Returns each row's part of the split, none for rows that are never visible."""
    parts = np.searchsorted(np.array(borders), times, side="right").astype(np.int8) + np.int8(Split.TRAIN)
    parts[times == NEVER] = Split.NONE
    return parts


def warn_random_split(graph: Graph) -> None:
    """Warns that a random split leaks the future if nodes or edges have times."""
    names = [*(graph.feature_names or ()), *(graph.edge_feature_names or ()), *(graph.date_columns or ())]
    column = next((name for name in names if is_time(name) or name in (graph.date_columns or ())), None)
    time_fields = [name for name in ("node_time", "edge_time") if getattr(graph, name) is not None]
    if time_fields or column is not None:
        source = f"Graph.{time_fields[0]}" if time_fields else f"column {column!r}"
        remedy = f"give a split by time: {'' if time_fields else f'dataset.time={column} '}dataset.split='{BY_TIME}'"
        warnings.warn(
            f"the split is drawn at random, and {source} holds times: the model trains on the future of nodes or edges that "
            f"it is tested on; {remedy}",
            stacklevel=4,
        )


def time_spans(graph: Graph) -> dict[Split, tuple[int, int]]:
    """Returns the first and last time of each part, or nothing if these overlap."""
    if graph.node_time is None:
        return {}
    times = {part: graph.node_time[graph.split == part] for part in _PARTS}
    spans = {part: (int(rows.min()), int(rows.max())) for part, rows in times.items() if len(rows)}
    overlap = any(first[1] >= second[0] for first, second in pairwise(spans.values()))
    return {} if overlap or len(spans) < 2 or Split.TRAIN not in spans else spans


def describe_parts(times: Times, parts: Ids, unit: str | None, noun: str) -> str:
    """Returns each part's true share, and the time where it begins."""
    sizes = {part: int(np.count_nonzero(parts == part)) for part in _PARTS}
    later = {part: int(times[parts == part].min()) for part, size in sizes.items() if size and part != Split.TRAIN}
    begins, total = later | {Split.TRAIN: min(later.values(), default=NEVER)}, max(sum(sizes.values()), 1)
    shares = {part: f"{100 * size / total:.1f} %" for part, size in sizes.items() if size}
    texts = [f"{_PARTS[part]} {show_time(begins[part], unit)} ({share})" for part, share in shares.items()]
    return f"split by time: {', '.join(texts)} of {total:,} {noun}"
