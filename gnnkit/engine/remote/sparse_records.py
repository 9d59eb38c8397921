"""Sparse rows in records of fixed size, for messages and caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.comm import Communicator
from gnnkit.graph import CSC, Features, SparseFeatures
from gnnkit.graph.types import offsets_of

COLUMNS, VALUES = "columns", "values"
_NONE = -1  # column index of padding


def fields(features: Features, comm: Communicator) -> list[tuple[Any, ...]]:
    """Returns the record fields of a sparse feature row. Collective.

    The list is empty for dense rows, and if the longest row of all ranks has so many
    numbers that records would be larger than dense rows.

    Args:
        features: This rank's features, stored as on all other ranks.
        comm: The ranks.
    """
    if not isinstance(features, SparseFeatures):
        return []
    longest = comm.all_gather(np.diff(features.csr.indptr).max(initial=0))
    max_length, width = int(longest.max()), features.shape[1]
    if max_length * (np.dtype(np.int32).itemsize + features.dtype.itemsize) >= width * features.dtype.itemsize:
        return []
    return [(COLUMNS, np.int32, (max_length,)), (VALUES, features.dtype, (max_length,))]


def write(rows: npt.NDArray[Any], table: SparseFeatures) -> None:
    """Writes rows of a table [n, width] into the fields of records [n]."""
    inside = np.arange(rows[COLUMNS].shape[1]) < np.diff(table.csr.indptr)[:, None]
    rows[COLUMNS] = _NONE
    rows[VALUES] = 0  # initialises every byte that is sent
    rows[COLUMNS][inside] = table.csr.indices
    rows[VALUES][inside] = table.values


def read(rows: npt.NDArray[Any], width: int) -> SparseFeatures:  # [n] records -> [n, width]
    """Reads the rows of records."""
    columns = rows[COLUMNS]
    inside = columns != _NONE
    indptr = offsets_of(inside.sum(axis=1))
    return SparseFeatures(CSC(indptr, columns[inside], rows[VALUES][inside], width))
