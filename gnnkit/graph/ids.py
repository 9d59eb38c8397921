"""The numbers of the user's ids of nodes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gnnkit import _core
from gnnkit.checks import Array
from gnnkit.graph.arrow import numbers_of

_WIDTH = 8  # bytes of an id that is a number


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
        self._threads = threads
        self._table = _core.IdTable(*_texts(ids))

    def find(self, column: pa.Array) -> npt.NDArray[np.int64]:  # [len(column)]
        """Returns the position of each entry, -1 where there is none.

        Args:
            column: of the type of the ids, without nulls.
        """
        return self._table.find(*_texts(column), self._threads)


def _texts(ids: pa.Array) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns the bytes of all ids, and where each starts and ends."""
    if pa.types.is_integer(ids.type):
        numbers: Array = np.ascontiguousarray(numbers_of(ids))
        return numbers.view(np.uint8), np.arange(0, _WIDTH * (len(ids) + 1), _WIDTH)
    _, offsets, data = ids.buffers()
    ends = np.frombuffer(offsets, np.int64)[ids.offset : ids.offset + len(ids) + 1]
    text = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return text[ends[0] : ends[-1]], ends - ends[0]
