"""Undirected graphs with node weights, for multilevel partitioners."""

from __future__ import annotations

from typing import Literal

import numpy as np

from gnnkit.graph import CSC, Graph, Ids, Split
from gnnkit.graph.types import offsets_of

Balance = Literal["nodes", "edges", "train"]


def undirected(csc: CSC) -> tuple[CSC, Ids]:
    """Returns the simple undirected graph, and its edge weights [num_edges].

    Each edge is stored in both directions. Its weight counts the edges of `csc` between
    the two nodes. `CSC.from_edges` checks every id, because the libraries read outside
    their arrays if an id is out of range or a direction is missing. The result is
    symmetric, without self-loops and parallel edges.
    """
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    apart = csc.indices != dst
    src, dst = csc.indices[apart], dst[apart]
    symmetric = CSC.from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), csc.num_nodes)
    rows = np.repeat(np.arange(symmetric.num_nodes), np.diff(symmetric.indptr))
    first = np.ones(symmetric.num_edges, bool)  # from_edges sorts each row, so copies of an edge are adjacent
    first[1:] = (np.diff(rows) != 0) | (np.diff(symmetric.indices) != 0)
    starts = np.flatnonzero(first)
    weight: Ids = np.diff(starts, append=symmetric.num_edges)
    indptr = offsets_of(np.bincount(rows[starts], minlength=symmetric.num_nodes))
    return CSC(indptr, symmetric.indices[starts]), weight


def node_weights(graph: Graph, balance: Balance) -> Ids:  # [num_nodes] at least 1
    """Returns node weights, whose sums partitioners balance over the parts.

    Args:
        graph: The graph.
        balance: "nodes" weighs all nodes alike, "edges" by in-edges. Otherwise the
            training nodes together weigh as much as all nodes.
    """
    if balance == "nodes":
        return np.ones(graph.num_nodes, np.int64)
    if balance == "edges":
        return 1 + np.diff(graph.csc.indptr)
    train = graph.split == Split.TRAIN
    weight: Ids = 1 + train * (graph.num_nodes // max(int(np.count_nonzero(train)), 1))
    return weight
