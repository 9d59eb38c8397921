"""The native core: NumPy arrays in, NumPy arrays out. Bad input raises `ValueError` naming the value and its place."""

from typing import Any

import numpy as np
import numpy.typing as npt

_Ids = npt.NDArray[np.integer[Any]]
_Floats = npt.NDArray[np.floating[Any]]
_Bytes = npt.NDArray[np.uint8]

__version__: str

# graph
def check_csc(indptr: _Ids, indices: _Ids, num_sources: int) -> None: ...
def csc_from_edges(
    src: _Ids, dst: _Ids, num_nodes: int, num_sources: int, positions: bool, threads: int | None = None
) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_transpose(
    indptr: _Ids, indices: _Ids, num_sources: int, threads: int | None = None
) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_symmetrize(indptr: _Ids, indices: _Ids, threads: int | None = None) -> tuple[_Ids, _Ids, _Ids]: ...
def csc_degrees(
    indptr: _Ids, indices: _Ids, num_sources: int, weight: _Floats | None
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]: ...

# gather
def gather_rows(source: _Bytes, ids: _Ids, out: _Bytes, threads: int) -> None:
    """Writes row `ids[i]` of `source` [num_rows, row_bytes] to row i of `out` [len(ids), row_bytes]; both C-contiguous."""
