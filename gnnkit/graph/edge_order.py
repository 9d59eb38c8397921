"""The order of each node's in-edges."""

from __future__ import annotations

import numpy as np

from gnnkit.graph.csc import CSC, sort_edges
from gnnkit.graph.graph import Graph
from gnnkit.graph.times import ALWAYS, Times
from gnnkit.graph.types import Ids


def in_listed_order(graph: Graph) -> Graph:
    """Returns the graph with each node's in-edges in the order of the user's edge list.

    Aggregations such as PyG's `LSTMAggregation` depend on this order. Readers sort a
    node's in-edges by source instead. Edges with the same position, such as an edge and
    its added reverse, stay sorted by source.
    """
    csc, positions = graph.csc, graph.edge_positions
    if positions is None or len(positions) == 0:
        return graph
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    if not ((positions[1:] < positions[:-1]) & (dst[1:] == dst[:-1])).any():
        return graph
    return _reorder(
        graph, sort_edges(positions.astype(np.int64), dst, csc.num_nodes, int(positions.max()) + 1, True, None)[1]
    )


def in_time_order(graph: Graph) -> Graph:
    """Returns the graph with each node's in-edges sorted by time.

    An edge is visible from its own time and its source's on, so `edge_time` becomes the
    later one. Edges with equal times are ordered as in the user's edge list.
    """
    return sort_by_time(in_listed_order(graph))[0]


def sort_by_time(graph: Graph) -> tuple[Graph, Ids]:
    """Returns a graph in listed order as `in_time_order`, and its edges' former ids."""
    csc, since = graph.csc, visible_from(graph)
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    order = np.lexsort((since, dst))
    return _reorder(graph.evolve(edge_time=since), order), order


def visible_from(graph: Graph) -> Times:  # [num_edges]
    """Returns the later one of each edge's own time and its source's."""
    since = np.full(graph.num_edges, ALWAYS) if graph.edge_time is None else graph.edge_time
    return since if graph.node_time is None else np.maximum(since, graph.node_time[graph.csc.indices])


def _reorder(graph: Graph, order: Ids) -> Graph:
    """Returns the graph with its edges in another order within each node."""
    csc, columns = graph.csc, graph.edge_columns.take(order)
    csc = CSC.trusted(csc.indptr, csc.indices[order], columns.get("weight"), csc.num_sources)
    return graph.derive(csc=csc, **columns.fields_of(Graph))
