"""Reader for SciPy sparse matrices. SciPy need not be installed."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph.graph import Graph


def from_scipy(matrix: Any, **fields: Any) -> Graph:
    """Implements `Graph.from_scipy`."""
    if not hasattr(matrix, "tocoo"):
        raise UserError(
            f"expected a sparse matrix of SciPy, got {type(matrix).__name__}: scipy.sparse.coo_array(x) makes one"
        )
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise UserError(f"the matrix has shape {list(matrix.shape)}, expected one row and one column for each node")
    entries = matrix.tocoo()
    if entries.data.dtype.kind not in "fiub":
        raise UserError(f"the matrix holds {entries.data.dtype}, expected numbers")
    weight = None if np.all(entries.data == 1) else entries.data
    return Graph.from_edges(entries.row, entries.col, matrix.shape[0], weight=weight, **fields)
