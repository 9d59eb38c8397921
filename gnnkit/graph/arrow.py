"""NumPy views of pyarrow columns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gnnkit.utils.checks import Array

_NUMPY = {"halffloat": "float16", "float": "float32", "double": "float64"}  # pyarrow type name -> NumPy type name


def numbers_of(column: pa.Array) -> Array:  # [rows]
    """Returns a column's numbers as an array, with nulls as NaN.

    `pyarrow.Array.to_numpy` imports pandas where installed, which takes a second or
    more, so columns without nulls are read from their buffer.
    """
    kind = column.type
    if column.null_count or not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return np.asarray(column.to_numpy(zero_copy_only=False))
    dtype = np.dtype(_NUMPY.get(str(kind), str(kind)))
    if not len(column):
        return np.empty(0, dtype)
    return np.frombuffer(column.buffers()[1], dtype, len(column), column.offset * dtype.itemsize)


def nulls_of(column: pa.Array) -> npt.NDArray[np.bool_]:  # [rows]
    """Returns a mask of the null cells."""
    if not column.null_count:
        return np.zeros(len(column), bool)
    return np.asarray(column.is_null().to_numpy(zero_copy_only=False))
