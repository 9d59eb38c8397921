"""Rows without their zeros in records of one size, to be sent and cached."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from gnnkit.comm import Communicator
from gnnkit.graph import CSC, Features, SparseFeatures

COLUMNS, VALUES = "columns", "values"
_NONE = -1  # column of a place that holds no number


def fields(features: Features, comm: Communicator) -> list[tuple[Any, ...]]:
    """Returns the fields of a record with a row of sparse features. Collective.

    None for dense rows, and where the longest row of all ranks has so many numbers that
    records would take more than dense rows do.

    Args:
        features: Of this rank, kept as on all others.
        comm: The ranks.
    """
    if not isinstance(features, SparseFeatures):
        return []
    longest = torch.zeros(comm.world_size, dtype=torch.int64, device=comm.device)
    longest[comm.rank] = int(np.diff(features.csr.indptr).max(initial=0))
    most, width = int(comm.all_reduce(longest).max()), features.shape[1]
    if most * (np.dtype(np.int32).itemsize + features.dtype.itemsize) >= width * features.dtype.itemsize:
        return []
    return [(COLUMNS, np.int32, (most,)), (VALUES, features.dtype, (most,))]


def write(rows: npt.NDArray[Any], table: SparseFeatures) -> None:
    """Writes rows of a table [n, width] into the fields of records [n]."""
    inside = np.arange(rows[COLUMNS].shape[1]) < np.diff(table.csr.indptr)[:, None]
    rows[COLUMNS] = _NONE
    rows[VALUES] = 0  # no byte that is sent is left from before
    rows[COLUMNS][inside] = table.csr.indices
    rows[VALUES][inside] = table.values


def read(rows: npt.NDArray[Any], width: int) -> SparseFeatures:  # [n] records -> [n, width]
    """Reads the rows of records."""
    columns = rows[COLUMNS]
    inside = columns != _NONE
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(inside.sum(axis=1))])
    return SparseFeatures(CSC(indptr, columns[inside], rows[VALUES][inside], width))
