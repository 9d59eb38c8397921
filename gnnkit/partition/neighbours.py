"""The workers whose nodes share edges."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph
from gnnkit.partition.base import Partition

_CHUNK = 2**16  # nodes whose in-edges are read at once


def neighbours(graph: Graph, partition: Partition) -> list[list[int]]:
    """Lists the neighbours of each rank, ascending, by rank.

    Two ranks are neighbours if an edge joins a node of the one to a node of the other.
    """
    owner, csc, size = partition.node_rank, graph.csc, partition.grid.world_size
    linked = np.zeros((size, size), bool)
    for first in range(0, graph.num_nodes, _CHUNK):
        starts = csc.indptr[first : first + _CHUNK + 1]
        targets = np.repeat(owner[first : first + _CHUNK], np.diff(starts))
        linked[targets, owner[csc.indices[starts[0] : starts[-1]]]] = True
    linked |= linked.T
    np.fill_diagonal(linked, False)
    return [np.flatnonzero(row).tolist() for row in linked]
