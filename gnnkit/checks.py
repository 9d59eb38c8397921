"""Checks of arrays and whole numbers that users hand over."""

from __future__ import annotations

import operator
import re
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError

Array = npt.NDArray[Any]

FLOAT32_MAX = float(np.finfo(np.float32).max)

MAX_THREADS = 1024  # of one call
_CHUNK = 1 << 20  # numbers looked at in one step of a check


def one_line(text: object) -> str:
    """Returns `text` with its line breaks replaced by spaces."""
    return re.sub(r"\s*[\r\n]+\s*", " ", str(text)).strip()


def whole(name: str, value: object, low: int | None = None, high: int | None = None) -> int:
    """Returns `value` as an int. Raises `UserError` for fractions, booleans and numbers out of range.

    Args:
        name: configuration key or argument, for the message.
        value: what the user gave. Integers of NumPy and of torch are taken too.
        low: smallest number allowed, or None.
        high: largest number allowed, or None.
    """
    number = _index(value)
    if number is None or (low is not None and number < low) or (high is not None and number > high):
        raise UserError(f"{name}={_shown(value)} must be a whole number{_limits(low, high)}")
    return number


def finite(name: str, value: object) -> float:
    """Returns `value` as a float. Raises `UserError` unless it is a finite number."""
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = np.nan
    if not np.isfinite(number):
        raise UserError(f"{name}={_shown(value)} must be finite")
    return number


def array(name: str, values: object) -> Array:
    """Views an array, a list or a dense tensor as NumPy's. Raises `UserError` naming `name` for anything else."""
    try:
        dense: Any = values.detach().cpu() if hasattr(values, "detach") else values
        return np.asarray(dense)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise UserError(f"{name} cannot be read as an array: {one_line(error)}") from error


def integers(name: str, values: object, length: int | None = None) -> Array:
    """Reads a row of integers of any type below 2^63.

    Args:
        name: argument, for the message.
        values: [length] integers. An empty row may have any type.
        length: number of entries expected, or None.
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
    """Reads a row of integers as contiguous int64 [length], as `integers` does."""
    return np.ascontiguousarray(integers(name, values, length), np.int64)


def ids(name: str, values: object) -> Array:
    """Reads a row of integers, contiguous: int32 where their type fits, else int64."""
    row = integers(name, values)
    narrow = row.dtype.kind in "iu" and np.can_cast(row.dtype, np.int32)
    return np.ascontiguousarray(row, dtype=np.int32 if narrow else np.int64)


def floats(name: str, values: object, shape: tuple[int | None, ...], *, bound: float = np.inf) -> Array:
    """Reads finite numbers, contiguous. Integers become float32 or float64.

    Args:
        name: argument, for the message.
        values: numbers of the given shape.
        shape: size expected of each axis, or None for any size.
        bound: largest absolute value allowed.
    """
    given = array(name, values)
    if given.dtype.kind not in "fiub":
        raise UserError(f"{name} has dtype {given.dtype}, expected numbers{_too_large(given)}")
    if given.ndim != len(shape) or any(want not in (None, have) for want, have in zip(shape, given.shape, strict=True)):
        expected = ", ".join("any" if want is None else str(want) for want in shape)
        raise UserError(f"{name} has shape {list(given.shape)}, expected [{expected}]")
    dtype = given.dtype if given.dtype.kind == "f" else np.result_type(given.dtype, np.float32)
    result = np.ascontiguousarray(given, dtype=np.float64 if dtype.itemsize > 8 else dtype.newbyteorder("="))
    check_finite(name, result, bound=bound)
    return result


def check_finite(name: str, values: Array, *, bound: float = np.inf) -> None:
    """Raises `UserError` with the place of the first number that is not finite or above `bound`.

    Looks at the array in chunks, because it may be larger than memory.
    """
    step = max(1, _CHUNK // max(1, values[:1].size))
    for start in range(0, len(values), step):
        chunk = values[start : start + step]
        good = np.isfinite(chunk) if values.itemsize <= 4 or bound == np.inf else np.abs(chunk) <= bound
        if not good.all():
            place = np.argwhere(~good)[0] + [start, 0][: values.ndim]
            value = values[tuple(place)]
            rule = "is too large for float32" if np.isfinite(value) else "is not finite"
            raise UserError(f"{name}{place.tolist()} = {value} {rule}")


def check_range(name: str, values: Array, low: int, high: int) -> None:
    """Raises `UserError` with the place of the first of the integers [n] that is not within low..high-1."""
    bad = np.flatnonzero((values < low) | (values >= high))
    if len(bad):
        raise UserError(f"{name}[{bad[0]}] = {values[bad[0]]} is out of range {low}..{high - 1}")


def _index(value: Any) -> int | None:
    """Returns `value` as an int, or None if it is no whole number."""
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None


def _shown(value: object) -> str:
    text = one_line(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _limits(low: int | None, high: int | None) -> str:
    if high is None:
        return "" if low is None else f" of at least {low}"
    return f" from {low} to {high}"


def _too_large(values: Array) -> str:
    """Says why integers have the type of Python objects."""
    entries = values.ravel()[:1000].tolist() if values.dtype == np.object_ else []
    large = [entry for entry in entries if isinstance(entry, int) and abs(entry) >= 2**63]
    return f" below 2^63, got {large[0]}" if large else ""
