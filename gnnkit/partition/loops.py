"""Self-loops: detects existing loops and adds missing ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC, Floats, Ids
from gnnkit.graph.types import offsets_of

_EDGES_AT_A_TIME = 1 << 22


def looped(csc: CSC) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Returns whether each node has a loop.

    Reads a few million edges at a time, because the edges may be in a file that exceeds
    memory.
    """
    result = np.zeros(csc.num_nodes, bool)
    for first, last in stretches(csc.indptr):
        degree = np.diff(csc.indptr[first : last + 1])
        destinations = np.repeat(np.arange(first, last, dtype=csc.indices.dtype), degree)
        sources = csc.indices[csc.indptr[first] : csc.indptr[last]]
        result[sources[sources == destinations]] = True
    return result


def stretches(indptr: Ids, edges: int = _EDGES_AT_A_TIME) -> Iterator[tuple[int, int]]:
    """Yields consecutive node ranges with about `edges` in-edges each.

    A node's in-edges are never split, so a range may have more.

    Args:
        indptr: [num_nodes + 1] offsets of each node's in-edges.
        edges: Approximate number of edges per range. Default: 4 million.
    """
    num_nodes, pieces = len(indptr) - 1, np.arange(0, int(indptr[-1]), edges)
    bounds = np.unique([0, *np.searchsorted(indptr, pieces), num_nodes])
    yield from pairwise(bounds.tolist())


def mean_in_edges(indptr: Ids, edge_features: Floats | None) -> Floats | None:  # [num_nodes, edge_width]
    """Returns each node's mean in-edge features, or zeros without in-edges.

    An added loop gets these features.

    Args:
        indptr: [num_nodes + 1] offsets of each node's in-edges.
        edge_features: [num_edges, edge_width], or None.
    """
    if edge_features is None:
        return None
    degree = np.diff(indptr)
    mean = np.zeros((len(degree), edge_features.shape[1]), edge_features.dtype)
    read = degree > 0  # reduceat does not support empty ranges
    if read.any():
        mean[read] = np.add.reduceat(edge_features, indptr[:-1][read], axis=0) / degree[read, None]
    return mean


@dataclass(frozen=True, slots=True, eq=False)
class AddedLoops:
    """Loops appended to some rows of a CSC."""

    rows: Ids  # [num_added] rows with an added loop
    indptr: Ids  # [num_rows + 1] offsets, including the loops
    last: Ids  # [num_added] positions of the loops among all edges
    exists: npt.NDArray[np.bool_]  # [num_edges] whether the edge existed before

    @classmethod
    def to(cls, rows: Ids, degree: Ids) -> AddedLoops:
        """Adds a loop to each of some rows.

        Args:
            rows: [num_added] rows without a loop.
            degree: [num_rows] number of edges per row, without the loops.
        """
        degree = degree.copy()
        degree[rows] += 1
        indptr = offsets_of(degree)
        last = indptr[rows + 1] - 1
        exists = np.ones(indptr[-1], bool)
        exists[last] = False
        return cls(rows, indptr, last, exists)

    def insert(self, old: npt.NDArray[Any], new: npt.NDArray[Any] | float) -> npt.NDArray[Any]:  # [num_edges, ...]
        """Merges the values of edges and loops.

        Args:
            old: [num_old_edges, ...] values of the existing edges, which set the
                result's dtype.
            new: [num_added, ...] values of the loops, or one value for all.
        """
        values = np.empty((len(self.exists), *old.shape[1:]), old.dtype)
        values[self.exists] = old
        values[self.last] = new
        return values
