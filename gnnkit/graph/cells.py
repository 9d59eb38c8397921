"""Cells of Arrow columns: numbers, node ids and missing values."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import shown

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


_WIDTH = 8  # bytes of a numeric id
_FRACTION = r"\.0+\s*$"  # suffix of whole numbers in a floating-point column


class IdTable:
    """A hash table from node ids to positions.

    It copies the bytes of the ids, and needs 19 to 30 more bytes per id.
    """

    def __init__(self, ids: pa.Array, threads: int) -> None:
        """Builds the table. Raises `UserError` for an id that occurs twice.

        Args:
            ids: [num_ids] int64 or large_string, distinct and without nulls.
            threads: Threads used by lookups.
        """
        self.ids, self._threads = ids, threads
        self._table = _core.IdTable(*_id_bytes(ids))

    def find(self, column: pa.Array) -> npt.NDArray[np.int64]:  # [len(column)]
        """Returns each entry's position, or -1 for unknown ids.

        Args:
            column: Entries of the same type as the ids, without nulls.
        """
        return self._table.find(*_id_bytes(column), self._threads)


def find_ids(ids: pa.Array, column: pa.Array) -> npt.NDArray[np.int64]:  # [len(column)]
    """Returns each entry's first position in `ids`, or -1 for unknown ids."""
    return numbers_of(pc.index_in(column, value_set=ids).fill_null(-1)).astype(np.int64, copy=False)


def whole_numbers(text: pa.Array, *, fraction: bool = False) -> pa.Array | None:  # [rows] int64
    """Parses text as integers, exactly.

    Returns None if a cell is not the canonical form of its number: `007`, `+7` and
    `0x7` are not 7. Surrounding blanks are ignored.

    Args:
        text: Cells without nulls.
        fraction: Whether each cell ends with a zero fraction, as in `7.0`.
    """
    text = text.cast(pa.large_string())
    if fraction:
        if not pc.all(pc.match_substring_regex(text, _FRACTION)).as_py():
            return None
        text = pc.replace_substring_regex(text, _FRACTION, "")
    try:
        numbers = text.cast(pa.int64())
    except pa.ArrowException:
        text = pc.utf8_trim_whitespace(text)
        try:
            numbers = text.cast(pa.int64())
        except pa.ArrowException:
            return None
    return numbers if _are_canonical(text) else None


def narrow_text(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Converts a text column to int64 if all cells are integers.

    All cells may have a zero fraction, because pandas writes integers that way if the
    column has an empty cell.
    """
    cells = text.combine_chunks()
    if cells.null_count:
        return text
    numbers = whole_numbers(cells)
    numbers = whole_numbers(cells, fraction=True) if numbers is None else numbers
    return text if numbers is None else pa.chunked_array([numbers])


def first_row(column: pa.Array, read: Callable[[pa.Array], object]) -> int:
    """Finds the first row that makes a column invalid, by bisection.

    The column must be invalid.

    Args:
        column: The cells.
        read: Returns None or raises `pyarrow.ArrowException` for invalid cells.
    """
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        part = None
        with suppress(pa.ArrowException):
            part = read(column.slice(low, middle - low))
        low, high = (low, middle) if part is None else (middle, high)
    return low


def is_consecutive(column: pa.Array, first: int) -> bool:
    """Checks whether the column is `first`, `first` + 1, ..."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    return np.array_equal(numbers_of(column), np.arange(first, first + len(column)))


def _are_canonical(text: pa.Array) -> bool:
    """Checks that castable text has no leading zeros or redundant signs."""
    if not len(text):
        return True
    data, offsets = _id_bytes(text)
    starts, lengths = offsets[:-1], np.diff(offsets)
    first = data[starts]
    if np.any((first == ord("0")) & (lengths > 1)):
        return False
    return not np.any(data[starts[first == ord("-")] + 1] == ord("0"))


def _id_bytes(ids: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns the concatenated bytes of all ids, and their offsets."""
    if pa.types.is_integer(ids.type):
        numbers: Array = np.ascontiguousarray(numbers_of(ids))
        return numbers.view(np.uint8), np.arange(0, _WIDTH * (len(ids) + 1), _WIDTH)
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    text = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return text[ends[0] : ends[-1]], ends - ends[0]


# Compared in lower case, without surrounding blanks. SQL dumps write \N for NULL.
MISSING = ("", "#n/a", "-", "<na>", "?", "\\n", "missing", "n/a", "na", "nan", "nil", "none", "null", "unknown")

_NUMBER = r"^[+-]?(?:0|[1-9]\d*)(?:\.\d*)?(?:[eE][+-]?\d+)?$"


def normalize(text: pa.Array) -> pa.Array:
    """Strips surrounding blanks, and converts to lower case."""
    return pc.utf8_lower(pc.utf8_trim_whitespace(text))


def quote(cell: object) -> str:
    """Quotes a cell for a message, with backslashes as in the file."""
    return repr(cell).replace("\\\\", "\\")


def read_missing(key: str, value: object) -> tuple[str, ...]:
    """Reads a list of words for missing values, and adds the empty cell.

    YAML parses the words null, nan and numbers as values, which are converted back.
    Raises `UserError` for other values.

    Args:
        key: Configuration key or argument, for the message.
        value: List of words and numbers. If None, `MISSING`.
    """
    if value is None:
        return MISSING
    words = value if isinstance(value, list | tuple) else [value]
    known = [
        word for word in words if word is None or (isinstance(word, str | int | float) and not isinstance(word, bool))
    ]
    plain = ["null" if word is None else str(word).strip().lower() for word in known]
    if not isinstance(value, list | tuple) or len(plain) < len(words):
        raise UserError(f"{key}={shown(value)} must be a list of words and numbers, such as [none,-999]")
    return tuple(sorted({"", *plain}))


def missing_cells(column: pa.Array, words: Sequence[str] = MISSING) -> npt.NDArray[np.bool_]:  # [rows]
    """Marks the cells of a text column that are null or a word for missing values.

    Args:
        column: Text cells.
        words: Words for missing values, in lower case. A number matches the same number
            in another form, such as -999.0.
    """
    missing = pc.or_(pc.is_null(column), pc.is_in(normalize(column), value_set=pa.array(words, column.type)))
    if len(numbers := _numbers(words)):
        text = pc.utf8_trim_whitespace(column)
        is_number = pc.match_substring_regex(text, _NUMBER)
        values = pc.if_else(is_number, text, pa.scalar(None, text.type)).cast(pa.float64())
        missing = pc.or_(missing, pc.is_in(values, value_set=numbers))
    return np.asarray(missing.to_numpy(zero_copy_only=False))


def without_missing(column: pa.Array, words: Sequence[str]) -> pa.Array:
    """Replaces the numbers that stand for missing values by null, in a typed column."""
    numbers, kind = _numbers(words), column.type
    if not len(numbers) or not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        return column
    is_word = pc.is_in(column.cast(pa.float64(), safe=False), value_set=numbers)
    return pc.if_else(is_word, pa.scalar(None, kind), column)


def _numbers(words: Sequence[str]) -> pa.Array:  # float64
    return pa.array([float(word) for word in words if re.match(_NUMBER, word)], pa.float64())
