"""Inverse edges, with separate relations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gnnkit.graph.csc import sort_edges
from gnnkit.graph.edge_columns import EdgeColumns
from gnnkit.graph.graph import Graph
from gnnkit.graph.schema import Relation


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
