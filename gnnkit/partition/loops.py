"""Self-loops: which nodes have one, and how missing ones are added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC, Floats, Ids

_EDGES_AT_A_TIME = 1 << 22


def looped(csc: CSC) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Says which nodes have a loop.

    Reads some million edges at a time, because the edges may be a file larger than
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
    """Yields ranges of nodes, from the first to the last, with some million in-edges.

    A node's in-edges are never divided, so a range may have more of them.

    Args:
        indptr: [num_nodes + 1] in-edges of each node.
        edges: edges of a range, about. Default: 4 million.
    """
    num_nodes, pieces = len(indptr) - 1, np.arange(0, int(indptr[-1]), edges)
    bounds = np.unique([0, *np.searchsorted(indptr, pieces), num_nodes])
    yield from pairwise(bounds.tolist())


def mean_in_edges(indptr: Ids, edge_features: Floats | None) -> Floats | None:  # [num_nodes, edge_width]
    """Returns the mean features of each node's in-edges, which an added loop gets.

    Nodes without in-edges have zeros.

    Args:
        indptr: [num_nodes + 1] in-edges of each node.
        edge_features: [num_edges, edge_width]. None: there are none.
    """
    if edge_features is None:
        return None
    degree = np.diff(indptr)
    mean = np.zeros((len(degree), edge_features.shape[1]), edge_features.dtype)
    read = degree > 0  # reduceat has no empty ranges
    if read.any():
        mean[read] = np.add.reduceat(edge_features, indptr[:-1][read], axis=0) / degree[read, None]
    return mean


@dataclass(frozen=True, slots=True, eq=False)
class AddedLoops:
    """Loops added to some rows of a CSC, each at the end of its row."""

    rows: Ids  # [num_added] that get a loop
    indptr: Ids  # [num_rows + 1] with the loops
    last: Ids  # [num_added] places of the loops among all edges
    kept: npt.NDArray[np.bool_]  # [num_edges] True: an edge that was there before

    @classmethod
    def to(cls, rows: Ids, degree: Ids) -> AddedLoops:
        """Adds a loop to each of some rows.

        Args:
            rows: [num_added] rows that get a loop.
            degree: [num_rows] edges of each row before.
        """
        degree = degree.copy()
        degree[rows] += 1
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(degree, dtype=np.int64)])
        last = indptr[rows + 1] - 1
        kept = np.ones(indptr[-1], bool)
        kept[last] = False
        return cls(rows, indptr, last, kept)

    def insert(self, old: npt.NDArray[Any], new: npt.NDArray[Any] | float) -> npt.NDArray[Any]:  # [num_edges, ...]
        """Puts values of edges and of loops in order.

        Args:
            old: [num_edges before, ...] values of the edges. Sets the type of the
                result.
            new: [num_added, ...] values of the loops, or one value for all.
        """
        values = np.empty((len(self.kept), *old.shape[1:]), old.dtype)
        values[self.kept] = old
        values[self.last] = new
        return values
