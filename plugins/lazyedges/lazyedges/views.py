"""Changes of shape that apply to each row of a tensor alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lazyedges.deferred import Call

VIEWS = {"view", "reshape", "unsqueeze", "flatten", "__getitem__", "contiguous", "view_as"}


def change_of_rows(call: Call, count: int, shape: tuple[int, ...]) -> Callable[[Tensor], Tensor] | None:
    """Returns a change of shape as a function of [n, ...] rows. If None, not by row.

    Args:
        call: The change, one of `VIEWS`.
        count: Number of rows.
        shape: Shape of a row.
    """
    args, change = call.args[1:], None
    if call.name == "__getitem__":
        index = args[0]
        if _is_by_row(index, count):
            change = lambda rows: rows[(slice(None), *index[1:])]  # noqa: E731
    elif call.name in ("view", "reshape"):
        tail = tail_of(args[0] if args and isinstance(args[0], list | tuple) else args, count, shape)
        change = None if tail is None or call.kwargs else lambda rows: rows.reshape(len(rows), *tail)
    elif call.name == "flatten" and args[:1] == (1,):
        change = lambda rows: rows.flatten(*args, **call.kwargs)  # noqa: E731
    elif call.name == "unsqueeze":
        dim = call.kwargs.get("dim", args[0] if args else 0)
        change = None if dim in (0, -len(shape) - 2) else lambda rows: rows.unsqueeze(dim)
    return change


def tail_of(sizes: Sequence[Any], count: int, shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns a row's shape in a view of all rows, or None if the view mixes rows."""
    if not sizes or not all(isinstance(size, int) for size in sizes) or sizes[0] not in (-1, count):
        return None
    tail, total = list(sizes[1:]), math.prod(shape)
    if -1 in tail:
        fixed_size = -math.prod(tail)
        tail[tail.index(-1)] = total // fixed_size if fixed_size > 0 else -1
    return tuple(tail) if math.prod(tail) == total else None


def _is_by_row(index: Any, count: int) -> bool:
    """Whether an index takes all rows, and columns of each without a tensor."""
    if not isinstance(index, tuple) or not index or _has_tensor(index):
        return False
    return index[0] is Ellipsis or (isinstance(index[0], slice) and range(count)[index[0]] == range(count))


def _has_tensor(index: tuple[Any, ...]) -> bool:
    return any(not isinstance(item, int | slice | type(None) | type(Ellipsis)) for item in index)
