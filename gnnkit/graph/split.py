"""Splits into training, validation and test rows: given, at random, and by time."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.times import NEVER, Times, has_time, is_time, parse_time, show_time
from gnnkit.graph.types import Ids
from gnnkit.utils import checks
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import real, shown

if TYPE_CHECKING:
    from gnnkit.graph.graph import Graph


class Split(IntEnum):
    """The part of the split that a node belongs to: one value of `Graph.split`.

    The loss reads TRAIN nodes. The best epoch, early stopping and decision thresholds
    depend on VAL nodes, and TEST nodes are only measured. NONE nodes pass messages and
    are predicted, but they are neither trained on nor measured.

    Examples:
        >>> from gnnkit.graph import Split
        >>> Split.of(["train", "val", "none"], num_nodes=3)
        array([1, 2, 0], dtype=int8)
    """

    NONE = 0
    TRAIN = 1
    VAL = 2
    TEST = 3

    @staticmethod
    def of(values: npt.ArrayLike, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
        """Converts names or codes to values of `Graph.split`.

        Names are train, val, test, none and the empty string. Codes are members of
        `Split` or their numbers. Data sets often number train as 0, so numbers that use
        nodes without any in train are rejected, unless they are int8, the dtype of
        `Graph.split`. Raises `UserError` with the position of an unknown name or code.

        Args:
            values: [num_nodes] names or codes.
            num_nodes: Expected number of entries.
        """
        dense = checks.array("split", values)
        if dense.dtype.kind == "U":
            return _parse_names(dense, num_nodes)
        if dense.dtype == np.bool_:
            raise UserError("split is a mask, expected names or codes: convert masks with Split.of_masks")
        codes = checks.integers("split", dense, num_nodes)
        checks.check_range("split", codes, 0, len(Split))
        if codes.dtype != np.int8 and codes.any() and not (codes == Split.TRAIN).any():
            meaning = ", ".join(f"{code} {code.name}" for code in Split)
            raise UserError(f"split has no train nodes: {meaning} (allowed for int8)")
        return np.ascontiguousarray(codes, np.int8)

    @staticmethod
    def of_masks(train: npt.ArrayLike, val: npt.ArrayLike, test: npt.ArrayLike) -> npt.NDArray[np.int8]:
        """Converts three masks to values of `Graph.split`.

        Raises `UserError` for a node in two masks, and for masks of different shapes.

        Args:
            train: [num_nodes] bool.
            val: [num_nodes] bool.
            test: [num_nodes] bool.

        Examples:
            >>> from gnnkit.graph import Split
            >>> Split.of_masks([True, False], [False, True], [False, False])
            array([1, 2], dtype=int8)
        """
        masks = [checks.array(f"{name} mask", mask) for name, mask in zip(SPLITS, (train, val, test), strict=True)]
        for name, mask in zip(SPLITS, masks, strict=True):
            if mask.dtype != np.bool_ or mask.shape != masks[0].shape or mask.ndim != 1:
                shape = list(masks[0].shape) if masks[0].ndim == 1 else "[num_nodes]"
                raise UserError(f"{name} mask has dtype {mask.dtype}, shape {list(mask.shape)}, expected bool, {shape}")
        twice = np.flatnonzero(np.sum(masks, axis=0, dtype=np.int8) > 1)
        if len(twice):
            raise UserError(f"node {twice[0]} is in more than one of the train, val and test masks")
        return np.select(masks, list(SPLITS.values()), Split.NONE).astype(np.int8)


SPLITS = {"train": Split.TRAIN, "val": Split.VAL, "test": Split.TEST}  # the parts in use
SPLIT_NAMES = {**SPLITS, "none": Split.NONE, "": Split.NONE}


def _parse_names(names: Array, num_nodes: int) -> npt.NDArray[np.int8]:  # [num_nodes]
    if names.shape != (num_nodes,):
        raise UserError(f"split has shape {list(names.shape)}, expected [{num_nodes}]")
    words, word = np.unique(names, return_inverse=True)
    codes = np.array([SPLIT_NAMES.get(str(name), -1) for name in words], np.int8)
    split = codes[word.reshape(-1)] if len(words) else np.empty(0, np.int8)
    bad = np.flatnonzero(split < 0)
    if len(bad):
        raise UserError(f"split[{bad[0]}] = {str(names[bad[0]])!r} is none of train, val, test, none")
    return split


def read_shares(name: str, values: Any) -> tuple[float, float, float]:
    """Reads the fractions of nodes in train, val and test.

    Args:
        name: Argument or configuration key, for the message.
        values: Three numbers from 0 to 1, the first above 0, with a sum of at most 1.
    """
    if isinstance(values, str) or not hasattr(values, "__len__") or len(values) != 3:
        raise UserError(f"{name}={shown(values)} must be three shares of nodes, such as [0.6,0.2,0.2]")
    train, val, test = (real(f"{name}[{place}]", value, 0, 1) for place, value in enumerate(values))
    if train == 0 or train + val + test > 1 + 1e-9:
        raise UserError(f"{name}={shown(list(values))} must train on some nodes and add up to at most 1")
    return train, val, test


def random_split(
    is_labelled: npt.NDArray[np.bool_],
    shares: Sequence[float],
    seed: int,
    classes: npt.NDArray[np.integer[Any]] | None = None,
) -> npt.NDArray[np.int8]:
    """Draws a random split. Unlabelled nodes get NONE.

    Args:
        is_labelled: [num_nodes] mask of the labelled nodes.
        shares: Fractions of the labelled nodes in train, val and test. The rest get
            NONE.
        classes: [num_nodes] class of each labelled node. Each class is then split by
            the shares, up to one node (a stratified split).
    """
    fractions = read_shares("split", shares)
    order = np.random.default_rng(seed % 2**64).permutation(np.flatnonzero(is_labelled))
    if classes is not None:
        order = _spread(order, classes[order])
    ends = [min(round(len(order) * sum(fractions[: part + 1])), len(order)) for part in range(3)]
    split = np.zeros(len(is_labelled), np.int8)
    for value, nodes in zip(SPLITS.values(), np.split(order, ends), strict=False):
        split[nodes] = value
    return split


def _spread(order: npt.NDArray[np.int64], classes: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.int64]:
    """Reorders nodes so that those of each class are evenly spaced.

    The i-th of a class's n nodes, in the given order, is placed at (i + 1/2) / n.
    """
    by_class = np.argsort(classes, kind="stable")
    _, starts, counts = np.unique(classes[by_class], return_index=True, return_counts=True)
    place = np.empty(len(order))
    place[by_class] = (np.arange(len(order)) - np.repeat(starts, counts) + 0.5) / np.repeat(counts, counts)
    return order[np.argsort(place, kind="stable")]


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


def read_split(name: str, value: object) -> tuple[float, float, float] | TimeSplit | None:
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


def warn_random_split(graph: Graph, noun: str = "edge") -> None:
    """Warns that a random split leaks the future if nodes or edges have times.

    Args:
        noun: What is split, node or edge.
    """
    own, other = (_find_times(graph, kind) for kind in ((noun, "node") if noun == "edge" else (noun, "edge")))
    if (source := own or other) is None:
        return
    column = "" if source.startswith("Graph.") else f"dataset.time={source} "
    remedy = f"give a split by time: {column}dataset.split='{BY_TIME}'"
    if own is None:
        remedy = f"a split by time needs times of {noun}s: dataset.time=COLUMN names their column"
    warnings.warn(
        f"the split is drawn at random, and {f'column {source!r}' if column else source} holds times: the model trains on "
        f"the future of nodes or edges that it is tested on; {remedy}",
        stacklevel=4,
    )


def _find_times(graph: Graph, noun: str) -> str | None:
    """Returns the field of times of nodes or edges, or else a feature with times."""
    if getattr(graph, f"{noun}_time") is not None:
        return f"Graph.{noun}_time"
    return next(iter(time_columns(graph, noun)), None)


def time_columns(graph: Graph, noun: str) -> list[str]:
    """Lists the features of nodes or edges that hold dates, or times by their name."""
    names = (graph.feature_names if noun == "node" else graph.edge_feature_names) or ()
    return [name for name in names if is_time(name) or f"dates: {name}" in (graph.column_forms or ())]


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
