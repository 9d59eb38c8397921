"""In-edges grouped by relation within each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from gnnkit.graph.csc import CSC, sort_edges
from gnnkit.graph.graph import Graph
from gnnkit.graph.types import Floats, Ids, take


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
    def _degrees(self) -> Floats:  # [num_groups] float64
        counts = np.diff(self.starts)
        if self.csc.weight is None:
            return counts.astype(np.float64)
        groups = np.repeat(np.arange(len(counts)), counts)  # added in the graph's order, as for shards
        return np.bincount(groups, self.csc.weight, len(counts)).astype(np.float64, copy=False)
