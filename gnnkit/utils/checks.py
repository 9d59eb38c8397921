"""Validation of arrays from users. `ranges` validates single numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.utils import ranges

Array = npt.NDArray[Any]

FLOAT32_MAX = float(np.finfo(np.float32).max)

MAX_THREADS = ranges.MAX_THREADS
_NUMBERS = 1 << 20  # that are processed at once

one_line, whole, finite = ranges.one_line, ranges.whole, ranges.real


def array(name: str, values: object) -> Array:
    """Converts an array, a list or a dense tensor to NumPy, without a copy if possible.

    Raises `UserError` for anything else.
    """
    try:
        dense: Any = values.detach().cpu() if hasattr(values, "detach") else values
        if str(getattr(dense, "dtype", "")) == "torch.bfloat16":  # unsupported by NumPy, and exact in float32
            dense = dense.float()
        return np.asarray(dense)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{name} cannot be read as an array: {one_line(error)}") from error


def integers(name: str, values: object, length: int | None = None) -> Array:
    """Reads a one-dimensional array of integers below 2^63, of any type.

    Args:
        name: Argument, for the message.
        values: [length] integers. An empty array may have any type.
        length: Expected length. Default: any.
    """
    row = array(name, values)
    if row.ndim != 1:
        raise UserError(f"{name} has shape {list(row.shape)}, expected one dimension of integers")
    if row.dtype.kind not in "iu" and row.size:
        raise UserError(f"{name} has dtype {row.dtype}, expected integers{_too_large(row)}")
    if length is not None and len(row) != length:
        raise UserError(f"{name} has {len(row)} entries, expected {length}")
    if row.dtype == np.uint64:
        check_range(name, row, 0, 2**63)
    return row


def int64s(name: str, values: object, length: int | None = None) -> npt.NDArray[np.int64]:
    """Reads integers like `integers`, as contiguous int64."""
    return np.ascontiguousarray(integers(name, values, length), np.int64)


def ids(name: str, values: object) -> Array:
    """Reads integers like `integers`, as contiguous int32 or, if too wide, int64."""
    row = integers(name, values)
    narrow = row.dtype.kind in "iu" and np.can_cast(row.dtype, np.int32)
    return np.ascontiguousarray(row, dtype=np.int32 if narrow else np.int64)


def floats(name: str, values: object, shape: tuple[int | None, ...], *, bound: float = np.inf) -> Array:
    """Reads finite numbers, contiguous. Integers become float32 or float64.

    Args:
        name: Argument, for the message.
        values: Numbers of the given shape.
        shape: Expected length of each axis, or None for any length.
        bound: Largest absolute value allowed.
    """
    result = numbers(name, values, shape)
    check_finite(name, result, bound=bound)
    return result


def numbers(name: str, values: object, shape: tuple[int | None, ...]) -> Array:
    """Reads numbers like `floats`, without checking that they are finite."""
    dense = array(name, values)
    if dense.dtype.kind not in "fiub":
        raise UserError(f"{name} has dtype {dense.dtype}, expected numbers{_too_large(dense)}")
    if dense.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, dense.shape, strict=True)):
        lengths = ", ".join("any" if want is None else str(want) for want in shape)
        raise UserError(f"{name} has shape {list(dense.shape)}, expected [{lengths}]")
    dtype = dense.dtype if dense.dtype.kind == "f" else np.result_type(dense.dtype, np.float32)
    return np.ascontiguousarray(dense, dtype=np.float64 if dtype.itemsize > 8 else dtype.newbyteorder("="))


def rows_at_once(width: int) -> int:
    """Returns how many rows of `width` numbers are processed at once."""
    return max(_NUMBERS // max(width, 1), 1)


def check_finite(name: str, values: Array, *, bound: float = np.inf, first: int = 0) -> None:
    """Raises `UserError` with the position of the first invalid number.

    The array is checked in chunks, because it may be larger than memory.

    Args:
        name: Argument, for the message.
        values: [n, ...] numbers that must be finite.
        bound: Largest absolute value allowed.
        first: Number of the first row, for the message.
    """
    step = rows_at_once(values[:1].size)
    for start in range(0, len(values), step):
        chunk = values[start : start + step]
        good = np.isfinite(chunk) if values.itemsize <= 4 or bound == np.inf else np.abs(chunk) <= bound
        if not good.all():
            place = np.argwhere(~good)[0] + [start, 0][: values.ndim]
            value = values[tuple(place)]
            place[0] += first
            rule = "is too large for float32" if np.isfinite(value) else "is not finite"
            raise UserError(f"{name}{place.tolist()} = {value} {rule}")


def check_range(name: str, values: Array, low: int, high: int, *, first: int = 0) -> None:
    """Raises `UserError` with the position of the first integer out of range.

    The array is checked in chunks, because it may be larger than memory.

    Args:
        name: Argument, for the message.
        values: [n] integers.
        low: Minimum.
        high: Maximum plus one.
        first: Position of the first value, for the message.
    """
    for start in range(0, len(values), _NUMBERS):
        chunk = values[start : start + _NUMBERS]
        bad = np.flatnonzero((chunk < low) | (chunk >= high))
        if len(bad):
            place = first + start + bad[0]
            raise UserError(f"{name}[{place}] = {chunk[bad[0]]} is out of range {low}..{high - 1}")


def _too_large(values: Array) -> str:
    """Returns the first integer that only a Python object can hold, for the message."""
    entries = values.ravel()[:1000].tolist() if values.dtype == np.object_ else []
    large = [entry for entry in entries if isinstance(entry, int) and abs(entry) >= 2**63]
    return f" below 2^63, got {large[0]}" if large else ""
