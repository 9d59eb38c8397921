"""Degrees of edges' ends within the edge's relation."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import CSC, Floats, Ids
from gnnkit.graph.csc import sort_edges


def relation_degrees(csc: CSC, destinations: Ids, types: Ids) -> Floats:  # [num_edges, 2] float64
    """Sums, for each edge, the weights of its relation's edges at its two ends.

    Column 0 covers the destination's in-edges, column 1 the source's out-edges.
    Unweighted edges count 1.

    Args:
        csc: All edges of a graph.
        destinations: [num_edges] each edge's destination.
        types: [num_edges] each edge's relation.
    """
    ends = (destinations, csc.indices)
    return np.stack([shared_weights(nodes, types, csc.num_nodes, csc.weight) for nodes in ends], axis=1)


def shared_weights(nodes: Ids, types: Ids, num_nodes: int, weight: Floats | None) -> Floats:  # [num_edges] float64
    """Sums, for each edge, the weights of all edges with its node and type.

    Args:
        nodes: [num_edges] one end of each edge.
        types: [num_edges] each edge's relation.
        weight: [num_edges] weights. If None, 1.
    """
    order, first = by_pair(nodes, types, num_nodes)
    pair = np.empty(len(nodes), np.int64)
    pair[order] = np.cumsum(first) - 1
    return np.bincount(pair, weight)[pair].astype(np.float64, copy=False)


def by_pair(nodes: Ids, types: Ids, num_nodes: int) -> tuple[Ids, np.ndarray]:
    """Sorts edges by (type, node).

    Also returns which sorted edges are the first of their pair [num_edges].

    Args:
        nodes: [num_edges] one end of each edge.
        types: [num_edges] each edge's relation.
    """
    num_relations = int(types.max(initial=-1)) + 1
    by_type = np.ascontiguousarray(types, np.int32)
    pairs, order = sort_edges(nodes, by_type, num_relations, num_nodes, True, None)
    first = np.ones(len(nodes), bool)
    first[1:] = pairs.indices[1:] != pairs.indices[:-1]
    first[pairs.indptr[:-1][np.diff(pairs.indptr) > 0]] = True
    return order, first
