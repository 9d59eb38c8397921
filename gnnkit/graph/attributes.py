"""What graphs of other libraries hold under a name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import checks
from gnnkit.checks import Array, whole
from gnnkit.errors import UserError
from gnnkit.graph.split import SPLITS, Split

_TIMES = {
    f"{end}{name}" for end in ("", "node_", "edge_") for name in ("t", "ts", "time", "times", "timestamp", "timestamps")
}
_WORDS = re.compile(r"\w+")
Get = Callable[[str], Any]  # name -> value, None where there is none


def warn_unread(what: str, names: Iterable[str], *, has_split: bool = True) -> None:
    """Warns, in one line, of attributes that are not read.

    Raises `UserError` for times without a split: a random split would mix past and
    future.

    Args:
        what: The reader, for messages.
        names: Names of attributes as users write these, such as `edata['time']`.
        has_split: Whether the graph has masks, or edges to predict. Default: yes, as
            data sets that are published with a split.
    """
    unread = sorted(names)
    times = [name for name in unread if _is_time(name)]
    if times and not has_split:
        raise UserError(
            f"{what}: {times[0]} holds times, which are not supported yet, and a random split would mix past and future: "
            "give train, val and test masks, or remove the attribute"
        )
    if unread:
        warnings.warn(f"{what}: not read, as gnnkit knows no meaning of: {', '.join(unread)}", stacklevel=4)


def warn_times(columns: Iterable[str]) -> None:
    """Warns of columns with times, whose split is drawn at random.

    Args:
        columns: Names of the columns that a model reads.
    """
    times = [name for name in columns if _is_time(name)]
    if times:
        warnings.warn(
            f"the split is drawn at random, and column {times[0]!r} holds times: the model trains on the future of nodes "
            "or edges that it is tested on; give a split by time",
            stacklevel=4,
        )


def _is_time(name: str) -> bool:
    """Whether the last word of a name stands for times."""
    words = _WORDS.findall(name.lower())
    return bool(words) and words[-1] in _TIMES


def split_of(prefix: str, get: Get, num_nodes: int, column: int | None) -> tuple[npt.NDArray[np.int8], set[str]]:
    """Reads masks or indices of train, val and test. Also returns the names read.

    Args:
        prefix: before the names, for messages, such as "data.".
        get: finds an attribute.
        num_nodes: number of nodes.
        column: split wanted of masks that hold several.
    """
    found = [next((name for name in (f"{part}_mask", f"{part}_idx") if get(name) is not None), None) for part in SPLITS]
    given = {name: checks.array(f"{prefix}{name}", get(name)) for name in found if name is not None}
    if column is not None and all(values.ndim != 2 for values in given.values()):
        raise UserError(f"split={column}, but {prefix.rstrip('.')} holds no masks of several splits")
    none = np.zeros(num_nodes, np.bool_)
    masks = [none if name is None else _mask(f"{prefix}{name}", given[name], num_nodes, column) for name in found]
    return Split.of_masks(*masks), set(given)


def _mask(name: str, values: Array, num_nodes: int, column: int | None) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Reads a mask [num_nodes], a column of masks [num_nodes, splits], or node ids."""
    if values.ndim == 2:
        last = values.shape[1] - 1
        if column is None:
            raise UserError(f"{name} has shape {list(values.shape)}, one column a split: choose with split=0..{last}")
        values = values[:, whole("split", column, 0, last)]
    if values.dtype in (np.bool_, np.uint8):  # torch's masks were uint8 once
        if values.shape != (num_nodes,):
            raise UserError(f"{name} has shape {list(values.shape)}, expected [{num_nodes}]")
        return values.astype(np.bool_)
    ids = checks.integers(name, values)
    checks.check_range(name, ids, 0, num_nodes)
    mask = np.bincount(ids, minlength=num_nodes) if len(ids) else np.zeros(num_nodes, np.int64)
    if mask.max(initial=0) > 1:
        raise UserError(f"{name} names node {mask.argmax()} twice: masks must be bool, node ids distinct")
    return mask.astype(np.bool_)


def types_of(prefix: str, get: Get, name: str) -> Array | None:
    """Reads types of nodes or edges, if there are several."""
    types = optional(prefix, get, name)
    return types if types is not None and (types != types.ravel()[:1]).any() else None


def ranges_of(prefix: str, get: Get, name: str) -> tuple[tuple[str, int], ...] | None:
    """Reads types of nodes, as `to_homogeneous` of PyG and DGL orders these."""
    types = types_of(prefix, get, name)
    if types is None:
        return None
    numbers = checks.integers(f"{prefix}{name}", types)
    checks.check_range(f"{prefix}{name}", numbers, 0, len(numbers))
    if (np.diff(numbers.astype(np.int64)) < 0).any():
        raise UserError(
            f"{prefix}{name}: nodes of one type must stand together, in the order of types: remove {prefix}{name}"
        )
    return tuple((str(number), count) for number, count in enumerate(np.bincount(numbers).tolist()))


def as_column(values: Array | None) -> Array | None:  # [n, width]
    """Makes a row of numbers a column."""
    return values[:, None] if values is not None and values.ndim == 1 else values


def as_row(values: Array | None) -> Array | None:  # [n] or [n, 2 or more]
    """Makes a single column a row."""
    return values[:, 0] if values is not None and values.shape[1:] == (1,) else values


def optional(prefix: str, get: Get, name: str) -> Array | None:
    """Reads an array, if there is one."""
    value = get(name)
    return None if value is None else checks.array(f"{prefix}{name}", value)


def getter(values: Mapping[str, Any]) -> Get:
    """Looks names up in a mapping."""
    return lambda name: values[name] if name in values else None  # noqa: SIM401 - DGL's views have no `get`
