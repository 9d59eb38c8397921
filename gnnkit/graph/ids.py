"""Ids of nodes: how columns spell them, and a table that finds their positions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit import _core
from gnnkit.checks import Array
from gnnkit.graph.arrow import numbers_of

MAX_EXACT = 2**53 - 1  # floating-point numbers above this skip whole numbers
_WIDTH = 8  # bytes of an id that is a number
_FRACTION = r"\.0+\s*$"  # of a whole number in a column of floating-point numbers


class IdTable:
    """Finds the positions of many ids, with a table that is made once.

    Takes the bytes of the ids, and 16 to 32 bytes more of each.
    """

    def __init__(self, ids: pa.Array, threads: int) -> None:
        """Copies the ids.

        Args:
            ids: [num_ids] int64 or large_string, distinct and without nulls.
            threads: threads that search.
        """
        self.type = ids.type
        self.example = ids[0].as_py() if len(ids) else None  # for messages
        self._threads = threads
        self._table = _core.IdTable(*_texts(ids))

    def find(self, column: pa.Array) -> npt.NDArray[np.int64]:  # [len(column)]
        """Returns the position of each entry, -1 where there is none.

        Args:
            column: of the type of the ids, without nulls.
        """
        return self._table.find(*_texts(column), self._threads)


def find_ids(ids: pa.Array | IdTable, column: pa.Array) -> npt.NDArray[np.int64]:  # [len(column)]
    """Returns the position of each entry in `ids`, -1 where there is none."""
    if isinstance(ids, IdTable):
        return ids.find(column)
    return numbers_of(pc.index_in(column, value_set=ids).fill_null(-1)).astype(np.int64, copy=False)


def whole_numbers(text: pa.Array, *, fraction: bool = False) -> pa.Array | None:  # [rows] int64
    """Reads text as whole numbers, exactly.

    Returns None where a cell is not spelt as Python spells the number: `007`, `+7` and
    `0x7` are not 7. Surrounding blanks do not count.

    Args:
        text: cells without nulls.
        fraction: whether each cell ends with a fraction of zeros, as in `7.0`.
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
    return numbers if _are_plain(text) else None


def narrow_text(text: pa.ChunkedArray) -> pa.ChunkedArray:
    """Returns a column of text as int64, where all cells are spelt as whole numbers.

    The cells may all have a fraction of zeros, as pandas writes a column of whole
    numbers with an empty cell.
    """
    cells = text.combine_chunks()
    if cells.null_count:
        return text
    numbers = whole_numbers(cells)
    numbers = whole_numbers(cells, fraction=True) if numbers is None else numbers
    return text if numbers is None else pa.chunked_array([numbers])


def first_row(column: pa.Array, is_good: Callable[[pa.Array], bool]) -> int:
    """Returns the first row that makes a column bad, which must exist, by bisection."""
    low, high = 0, len(column)
    while high - low > 1:
        middle = (low + high) // 2
        if is_good(column.slice(low, middle - low)):
            low = middle
        else:
            high = middle
    return low


def is_consecutive(column: pa.Array, first: int) -> bool:
    """Returns whether the column is `first`, `first` + 1, ..."""
    if not pa.types.is_integer(column.type) or column.null_count:
        return False
    return np.array_equal(numbers_of(column), np.arange(first, first + len(column)))


def _are_plain(text: pa.Array) -> bool:
    """Returns whether no number has a leading zero or a needless sign.

    Args:
        text: large_string that can be cast to int64.
    """
    if not len(text):
        return True
    data, offsets = _texts(text)
    starts, lengths = offsets[:-1], np.diff(offsets)
    first = data[starts]
    if np.any((first == ord("0")) & (lengths > 1)):
        return False
    return not np.any(data[starts[first == ord("-")] + 1] == ord("0"))


def _texts(ids: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns the bytes of all ids, and where each starts and ends."""
    if pa.types.is_integer(ids.type):
        numbers: Array = np.ascontiguousarray(numbers_of(ids))
        return numbers.view(np.uint8), np.arange(0, _WIDTH * (len(ids) + 1), _WIDTH)
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    text = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return text[ends[0] : ends[-1]], ends - ends[0]
