"""The order of each node's in-edges, and inverse edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnkit.graph.csc import CSC, sort_edges
from gnnkit.graph.edge_columns import REVERSE, EdgeColumns
from gnnkit.graph.graph import Graph
from gnnkit.graph.schema import Relation
from gnnkit.graph.times import ALWAYS, Times
from gnnkit.graph.types import Ids


def with_inverse_edges(graph: Graph) -> Graph:
    """Adds each edge's reverse, with relations numbered after the given ones.

    Batches then contain them as in-edges, which samplers draw like any others.
    """
    csc, names = graph.csc, graph.edge_type_names or ("",)
    src, dst = np.asarray(csc.indices), np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    types = np.zeros(csc.num_edges, np.int64) if graph.edge_types is None else graph.edge_types.astype(np.int64)
    ends = np.append(src, dst), np.append(dst, src)
    new_csc, order = sort_edges(*ends, csc.num_nodes, csc.num_nodes, True, None)
    columns = EdgeColumns({**graph.edge_columns, "relation": types})
    inverse_columns = EdgeColumns({**columns, "relation": types + len(names)})
    columns = EdgeColumns.concat([columns, inverse_columns]).take(order)
    relations, inverse_names = _inverse_relations(graph.relations, names)
    fields = {**columns.fields_of(Graph), "edge_type_names": (*names, *inverse_names), "relations": relations}
    return graph.derive(csc=new_csc.weighted(columns.get("weight")), **fields)


def _inverse_relations(
    relations: Sequence[Relation] | None, names: Sequence[str]
) -> tuple[tuple[Relation, ...] | None, list[str]]:
    """Returns all relations if they are known, with distinct names for inverse ones.

    PyG's `ToUndirected` has already used the prefix `rev_`.
    """
    prefix = "rev_"
    while True:
        inverse = [Relation(end, f"{prefix}{name}", start) for start, name, end in relations or ()]
        inverse_names = [relation.edge_type for relation in inverse] or [f"{prefix}{name}" for name in names]
        if not {*names} & {*inverse_names}:
            return None if relations is None else (*relations, *inverse), inverse_names
        prefix += "rev_"


def in_listed_order(graph: Graph) -> Graph:
    """Returns the graph with each node's in-edges in the order of the user's edge list.

    Aggregations such as PyG's `LSTMAggregation` depend on this order. Readers sort a
    node's in-edges by source instead. Edges with the same position, such as an edge and
    its added reverse, stay sorted by source.
    """
    csc, positions, dst = graph.csc, graph.edge_positions, _destinations(graph)
    if positions is None or _are_listed(positions, dst):
        return graph
    return _reorder(
        graph, sort_edges(positions.astype(np.int64), dst, csc.num_nodes, int(positions.max()) + 1, True, None)[1]
    )


def in_time_order(graph: Graph) -> Graph:
    """Returns the graph with each node's in-edges sorted by time.

    An edge is visible from its own time and its source's on, so `edge_time` becomes the
    later one. Edges with equal times are ordered as in the user's edge list.
    """
    return sort_by_time(graph)[0]


def sort_by_time(graph: Graph) -> tuple[Graph, Ids]:
    """Returns the graph as `in_time_order`, and its edges' former ids."""
    since, order = time_order(graph)
    return _reorder(graph.evolve(edge_time=since), order), order


def time_order(graph: Graph) -> tuple[Times, Ids]:
    """Returns the time from which each edge is visible, and the ids `in_time_order`."""
    since, dst, positions = visible_from(graph), _destinations(graph), graph.edge_positions
    if positions is None or _are_listed(positions, dst):
        return since, np.lexsort((since, dst))
    return since, np.lexsort((positions, since, dst))


def visible_from(graph: Graph) -> Times:  # [num_edges]
    """Returns the later one of each edge's own time and its source's."""
    since = np.full(graph.num_edges, ALWAYS) if graph.edge_time is None else graph.edge_time
    return since if graph.node_time is None else np.maximum(since, graph.node_time[graph.csc.indices])


def listed_edges(graph: Graph) -> Ids:
    """Returns the ids of edges as the user lists them, without added reverse edges."""
    edges = np.arange(graph.num_edges) if graph.edge_split is None else np.flatnonzero(graph.edge_split != REVERSE)
    return edges if graph.edge_positions is None else edges[np.argsort(graph.edge_positions[edges], kind="stable")]


def _destinations(graph: Graph) -> Ids:  # [num_edges]
    return np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))


def _are_listed(positions: Ids, dst: Ids) -> bool:
    """Returns whether each destination's in-edges are in the order of the edge list."""
    return not ((positions[1:] < positions[:-1]) & (dst[1:] == dst[:-1])).any()


def _reorder(graph: Graph, order: Ids) -> Graph:
    """Returns the graph with its edges in another order within each node."""
    csc, columns = graph.csc, graph.edge_columns.take(order)
    csc = CSC.trusted(csc.indptr, csc.indices[order], columns.get("weight"), csc.num_sources)
    return graph.derive(csc=csc, **columns.fields_of(Graph))
