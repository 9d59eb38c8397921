"""The workers whose nodes share edges."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import Partition

_CHUNK = 2**16  # nodes whose in-edges are read at once


def crossings(graph: Graph, partition: Partition) -> Ids:
    """Counts the edges from nodes of each rank to nodes of each rank.

    Returns [world_size, world_size], by target and source.
    """
    owner, csc, size = partition.node_rank.astype(np.int64), graph.csc, partition.grid.world_size
    counts = np.zeros(size * size, np.int64)
    for first in range(0, graph.num_nodes, _CHUNK):
        starts = csc.indptr[first : first + _CHUNK + 1]
        targets = np.repeat(owner[first : first + _CHUNK], np.diff(starts))
        pairs = targets * size + owner[csc.indices[starts[0] : starts[-1]]]
        counts += np.bincount(pairs, minlength=size * size)
    return counts.reshape(size, size)


def neighbours(counts: Ids) -> list[list[int]]:
    """Lists the neighbours of each rank, ascending, by rank.

    Two ranks are neighbours if an edge joins a node of the one to a node of the other.

    Args:
        counts: As `crossings` returns.
    """
    linked = (counts + counts.T) > 0
    np.fill_diagonal(linked, False)
    return [np.flatnonzero(row).tolist() for row in linked]
