"""Attributes of PyG and DGL graphs: masks, types and optional arrays."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.split import SPLITS, Split
from gnnkit.graph.times import are_times
from gnnkit.graph.types import Fields
from gnnkit.utils import checks
from gnnkit.utils.checks import Array, whole

TIME_NAMES = {
    f"{end}{name}" for end in ("", "node_", "edge_") for name in ("t", "ts", "time", "times", "timestamp", "timestamps")
}
_WORDS = re.compile(r"\w+")
Get = Callable[[str], Any]  # looks up an attribute, None if missing


def warn_unread(reader: str, names: Iterable[str], *, has_split: bool = True) -> None:
    """Warns about attributes that the reader ignores.

    Raises `UserError` for unreadable times without a split, because a random split
    would mix past and future.

    Args:
        reader: The reader, for messages.
        names: Attributes as users write them, such as `edata['time']`.
        has_split: Whether the graph has masks or edges to predict. Data sets that are
            published with a split keep the default.
    """
    unread = sorted(names)
    times = [name for name in unread if is_time(name)]
    if times and not has_split:
        raise UserError(
            f"{reader}: {times[0]} holds times, which are not read, and a random split would mix past and future: give one "
            "integer for each node or edge, or train, val and test masks, or remove the attribute"
        )
    if unread:
        warnings.warn(f"{reader}: ignores unknown attributes: {', '.join(unread)}", stacklevel=4)


def is_time(name: str) -> bool:
    """Checks whether a name's last word means a timestamp."""
    words = _WORDS.findall(name.lower())
    return bool(words) and words[-1] in TIME_NAMES


def times_of(prefix: str, get: Get, names: Iterable[str], count: int) -> tuple[Array | None, set[str]]:
    """Reads the attribute that is named like times, and returns its name.

    An attribute that is not one integer for each row is not read.

    Args:
        prefix: Prefix of the names in messages, such as "data.".
        get: Looks up an attribute.
        names: The attributes of nodes, or those of edges.
        count: Number of rows.
    """
    columns = {name: as_row(optional(prefix, get, name)) for name in sorted(names) if is_time(name)}
    times = {name: rows for name, rows in columns.items() if rows is not None and are_times(rows, count)}
    if len(times) > 1:
        raise UserError(f"{' and '.join(f'{prefix}{name}' for name in times)} hold times: remove all but one")
    return next(iter(times.values()), None), set(times)


def split_of(prefix: str, get: Get, num_nodes: int, column: int | None) -> tuple[npt.NDArray[np.int8], set[str]]:
    """Reads the split from masks or index arrays, and returns the names it read.

    Args:
        prefix: Prefix of the names in messages, such as "data.".
        column: Column to use if the masks hold several splits.
    """
    mask_names = [
        next((name for name in (f"{part}_mask", f"{part}_idx") if get(name) is not None), None) for part in SPLITS
    ]
    arrays = {name: checks.array(f"{prefix}{name}", get(name)) for name in mask_names if name is not None}
    if column is not None and all(values.ndim != 2 for values in arrays.values()):
        raise UserError(f"split={column}, but {prefix.rstrip('.')} holds no masks of several splits")
    none = np.zeros(num_nodes, np.bool_)
    masks = [
        none if name is None else _read_mask(f"{prefix}{name}", arrays[name], num_nodes, column) for name in mask_names
    ]
    return Split.of_masks(*masks), set(arrays)


def edge_labels_of(
    prefix: str, get: Get, num_edges: int, column: int | None, name: str = "edge_label"
) -> tuple[Fields, set[str]]:
    """Reads labels and masks of edges, as fields of a graph, and the names it read.

    Args:
        prefix: Prefix of the names in messages, such as "data.".
        get: Looks up an attribute of the edges.
        num_edges: Number of edges.
        column: Column to use if the masks hold several splits.
        name: Attribute of the labels.
    """
    labels = as_row(optional(prefix, get, name))
    if labels is None:
        return {}, set()
    split, masks = split_of(prefix, get, num_edges, column)
    return {"edge_labels": labels, "edge_split": split}, {name, *masks}


def _read_mask(name: str, values: Array, num_nodes: int, column: int | None) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Reads a mask [num_nodes], one column of [num_nodes, splits], or node ids."""
    if values.ndim == 2:
        last = values.shape[1] - 1
        if column is None:
            raise UserError(
                f"{name} has shape {list(values.shape)}, with one split per column: choose one with split=0..{last}"
            )
        values = values[:, whole("split", column, 0, last)]
    if values.dtype in (np.bool_, np.uint8):  # older torch versions made uint8 masks
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
    """Reads node or edge types. Returns None if all are equal."""
    types = optional(prefix, get, name)
    return types if types is not None and (types != types.ravel()[:1]).any() else None


def ranges_of(prefix: str, get: Get, name: str) -> tuple[tuple[str, int], ...] | None:
    """Reads sorted node types, as `to_homogeneous` of PyG and DGL returns them."""
    types = types_of(prefix, get, name)
    if types is None:
        return None
    numbers = checks.integers(f"{prefix}{name}", types)
    checks.check_range(f"{prefix}{name}", numbers, 0, len(numbers))
    if (np.diff(numbers.astype(np.int64)) < 0).any():
        raise UserError(f"{prefix}{name}: nodes must be sorted by type: sort them or remove {prefix}{name}")
    return tuple((str(number), count) for number, count in enumerate(np.bincount(numbers).tolist()))


def as_column(values: Array | None) -> Array | None:  # [n, width]
    """Turns a one-dimensional array into a column."""
    return values[:, None] if values is not None and values.ndim == 1 else values


def as_row(values: Array | None) -> Array | None:  # [n] or [n, 2 or more]
    """Turns a single column into a one-dimensional array."""
    return values[:, 0] if values is not None and values.shape[1:] == (1,) else values


def optional(prefix: str, get: Get, name: str) -> Array | None:
    """Reads an array. Returns None if it is missing."""
    value = get(name)
    return None if value is None else checks.array(f"{prefix}{name}", value)


def getter(values: Mapping[str, Any]) -> Get:
    """Returns a lookup into a mapping."""
    return lambda name: values[name] if name in values else None  # noqa: SIM401 - DGL's views have no `get`
