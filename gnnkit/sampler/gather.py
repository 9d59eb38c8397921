"""Rows of a table by id: what fetches the features of a batch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core, storage
from gnnkit.graph import Ids


def gather_rows(
    source: npt.NDArray[
        Any
    ],  # [num_rows, ...] any type of fixed size: float32, float16, bfloat16 (ml_dtypes or its bits) ...
    ids: Ids,  # [num_ids] may repeat
    out: npt.NDArray[Any] | None = None,  # [num_ids, ...]
    *,
    threads: int = 1,
) -> npt.NDArray[Any]:  # [num_ids, ...] = out
    """`source[ids]` without the interpreter's lock, from memory or a memory-mapped file.

    A reused `out` saves most of the time: a fresh one costs more in page faults than the rows cost to copy. Raises
    `ValueError` naming the position of an id that is no row, and for arrays that are not C-contiguous or do not fit together.
    """
    if source.ndim == 0 or source.dtype.hasobject:
        raise ValueError(f"source must be an array of rows of fixed size, got {source.ndim} axes of {source.dtype}")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise ValueError(f"ids must be one axis of integers, got {ids.ndim} axes of {ids.dtype}")
    shape = (len(ids), *source.shape[1:])
    if out is None:
        out = np.empty(shape, source.dtype)
    if out.shape != shape or out.dtype != source.dtype:
        raise ValueError(f"out must be {source.dtype} of shape {shape}, got {out.dtype} of shape {out.shape}")
    if not out.flags.writeable or np.may_share_memory(source, out):
        raise ValueError("out must be writeable and apart from source")
    if threads < 1:
        raise ValueError(f"threads={threads} must be at least 1")
    ids = np.require(ids, ids.dtype if ids.dtype in (np.int32, np.int64) else np.int64, ("C", "A"))
    storage.expect_random_reads(source)
    _core.gather_rows(as_bytes("source", source), ids, as_bytes("out", out), threads)
    return out


def as_bytes(name: str, rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:  # [num_rows, row_bytes]
    """A view of `rows`. Raises `ValueError` that calls them `name` unless they are C-contiguous."""
    if not rows.flags.c_contiguous:
        raise ValueError(f"{name} must be C-contiguous")
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).view(np.uint8)
