"""Columns of pyarrow as arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gnnkit.checks import Array

_NUMPY = {"halffloat": "float16", "float": "float32", "double": "float64"}  # types by their names in pyarrow


def numbers_of(column: pa.Array) -> Array:  # [rows]
    """Returns the numbers of a column, those with nulls as floats.

    pyarrow's own `to_numpy` imports pandas where it is installed, for a second or two.
    """
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    dtype = np.dtype(_NUMPY.get(str(kind), str(kind)))
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_]:  # [rows]
    """Says which cells of a column are empty."""
    if not column.null_count:
        return np.zeros(len(column), bool)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))
