"""Array types of graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.integer[Any]]
Floats = npt.NDArray[np.floating[Any]]
Labels = npt.NDArray[Any]  # int64 [n] classes, bool [n, classes], or floating [n] or [n, numbers]
Fields = dict[str, Any]  # arguments of `Graph.from_edges`, by name


def take(values: npt.NDArray[Any] | None, positions: Ids) -> npt.NDArray[Any] | None:
    """Indexes an optional array."""
    return None if values is None else values[positions]


def offsets_of(counts: npt.ArrayLike) -> npt.NDArray[np.int64]:  # [n] -> [n + 1]
    """Returns where each of consecutive ranges begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts, dtype=np.int64)])


def set_fields(value: object, **fields: object) -> None:
    """Sets validated fields of a frozen dataclass, in its constructor."""
    for name, array in fields.items():
        object.__setattr__(value, name, array)
