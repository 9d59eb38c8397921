"""Gathering of table rows by id, such as a batch's features."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import Ids
from gnnkit.utils import storage
from gnnkit.utils.checks import MAX_THREADS, whole


def gather_rows(
    source: npt.NDArray[Any], ids: Ids, out: npt.NDArray[Any] | None = None, *, threads: int = 1
) -> npt.NDArray[Any]:  # [num_ids, ...] = out
    """Copies `source[ids]` from memory or a mapped file, without Python's lock.

    Reusing `out` saves most of the time, because page faults in a new array cost more
    than the copy. Raises `UserError` with the position of an id that is out of range,
    and if arrays are not C-contiguous or do not match.

    Args:
        source: [num_rows, ...] of any fixed-size type, including ml_dtypes' bfloat16.
        ids: [num_ids] row ids, possibly repeated.
        out: [num_ids, ...] output array. Default: a new array.
        threads: Number of copying threads.

    Examples:
        >>> import numpy
        >>> from gnnkit.sampler import gather_rows
        >>> gather_rows(numpy.eye(3), numpy.array([2, 0])).tolist()
        [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    if source.ndim == 0 or source.dtype.hasobject:
        raise UserError(f"source must be an array of rows of fixed size, got {source.ndim} axes of {source.dtype}")
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise UserError(f"ids must be one axis of integers, got {ids.ndim} axes of {ids.dtype}")
    threads = whole("threads", threads, 1, MAX_THREADS)
    out = _output(source, len(ids), out)
    ids = np.require(ids, ids.dtype if ids.dtype in (np.int32, np.int64) else np.int64, ("C", "A"))
    storage.expect_random_reads(source)
    _core.gather_rows(as_bytes("source", source), ids, as_bytes("out", out), threads)
    return out


def _output(source: npt.NDArray[Any], num_ids: int, out: npt.NDArray[Any] | None) -> npt.NDArray[Any]:
    """Checks `out`, or allocates the output array."""
    shape = (num_ids, *source.shape[1:])
    if out is None:
        return np.empty(shape, source.dtype)
    if out.shape != shape or out.dtype != source.dtype:
        raise UserError(f"out must be {source.dtype} of shape {shape}, got {out.dtype} of shape {out.shape}")
    if not out.flags.writeable or np.may_share_memory(source, out):
        raise UserError("out must be writeable and must not overlap source")
    return out


def as_bytes(name: str, rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:  # [num_rows, row_bytes]
    """Views `rows` as bytes.

    Raises `UserError` with `name` unless `rows` are C-contiguous.
    """
    if not rows.flags.c_contiguous:
        raise UserError(f"{name} must be C-contiguous")
    return rows.reshape(len(rows), math.prod(rows.shape[1:])).view(np.uint8)
