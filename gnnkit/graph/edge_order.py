"""Orders of each node's in-edges: as listed, by time and by relation; inverse edges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnnkit.graph.csc import CSC, sort_edges
from gnnkit.graph.edge_columns import REVERSE, EdgeColumns
from gnnkit.graph.graph import Graph
from gnnkit.graph.schema import Relation
from gnnkit.graph.times import ALWAYS, Times
from gnnkit.graph.types import Floats, Ids, offsets_of, take


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


@dataclass(frozen=True, eq=False)
class RelationGroups:
    """A graph's in-edges, grouped by relation within each node.

    A group holds the in-edges of one node and relation, and samplers draw from each
    group separately. Groups without edges are not stored.
    """

    csc: CSC  # in-edges of each node, in order of relation, and otherwise in the graph's order
    order: Ids | None  # [num_edges] position of each edge in the graph's CSC. None: the same
    types: Ids  # [num_edges] relation of each edge of the graph's CSC
    codes: Ids  # [num_groups] int64 node * num_relations + relation, ascending
    starts: Ids  # [num_groups + 1] int64 where each group's edges begin in `csc`
    names: tuple[str, ...]  # [num_relations]

    @classmethod
    def of(cls, csc: CSC, types: Ids | None, names: Sequence[str]) -> RelationGroups:
        """Groups the edges, in time linear in their number.

        Args:
            csc: In-edges of all nodes.
            types: [num_edges] each edge's relation. If None, all have relation 0.
            names: [num_relations] names of the relations.
        """
        num_relations = max(len(names), 1)
        types = np.zeros(csc.num_edges, np.int16) if types is None else types
        rows = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        codes, order = rows * num_relations + types, None
        if np.any(codes[1:] < codes[:-1]):
            numbers = np.ascontiguousarray(types, np.int32)
            order = sort_edges(numbers, rows, csc.num_nodes, num_relations, True, None)[1]
            codes = codes[order]
            weight = None if csc.weight is None else csc.weight[order]
            csc = CSC.trusted(csc.indptr, csc.indices[order], weight, csc.num_sources, take(csc.time, order))
        starts = np.flatnonzero(np.append(True, codes[1:] != codes[:-1])) if len(codes) else np.zeros(0, np.int64)
        return cls(csc, order, types, codes[starts], np.append(starts, len(codes)), tuple(names) or ("",))

    @classmethod
    def of_graph(cls, graph: Graph) -> RelationGroups:
        """Groups a graph's edges. A graph without types has one relation."""
        return cls.of(graph.csc, graph.edge_types, graph.edge_type_names or ("",))

    @property
    def num_relations(self) -> int:
        return len(self.names)

    @cached_property
    def indptr(self) -> Ids:  # [num_nodes + 1] int64
        """Where each node's groups begin."""
        return np.searchsorted(self.codes, np.arange(self.csc.num_nodes + 1) * self.num_relations)

    def counts(self, nodes: Ids, relations: Ids) -> Ids:  # [k]
        """Counts in-edges of nodes [k] with relations [k]. Each group must exist."""
        return np.diff(self.starts)[self.groups(nodes, relations)]

    def degrees(self, nodes: Ids, relations: Ids) -> Floats:  # [k] float64
        """Sums the weights of these in-edges, 1 each without weights."""
        return self._degrees[self.groups(nodes, relations)]

    def groups(self, nodes: Ids, relations: Ids) -> Ids:  # [k]
        """Returns the positions of groups in `codes`. Each must exist."""
        return np.searchsorted(self.codes, nodes.astype(np.int64) * self.num_relations + relations)

    @cached_property
    def by_relation(self) -> tuple[tuple[CSC, Ids], ...]:  # [num_relations]
        """Each relation's in-edges, and their positions [k] in the graph's CSC."""
        counts, relation_edges = np.diff(self.starts), []
        nodes, relations = np.divmod(self.codes, self.num_relations)
        for relation in range(self.num_relations):
            is_listed = relations == relation
            sizes = np.zeros(self.csc.num_nodes, np.int64)
            sizes[nodes[is_listed]] = counts[is_listed]
            edges = np.flatnonzero(np.repeat(is_listed, counts))
            weight = take(self.csc.weight, edges)
            csc = CSC.trusted(offsets_of(sizes), self.csc.indices[edges], weight, self.csc.num_sources)
            relation_edges.append((csc, edges if self.order is None else self.order[edges]))
        return tuple(relation_edges)

    @cached_property
    def _degrees(self) -> Floats:  # [num_groups] float64
        counts = np.diff(self.starts)
        if self.csc.weight is None:
            return counts.astype(np.float64)
        groups = np.repeat(np.arange(len(counts)), counts)  # added in the graph's order, as for shards
        return np.bincount(groups, self.csc.weight, len(counts)).astype(np.float64, copy=False)
