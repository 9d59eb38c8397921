"""New nodes next to a graph, and the part of the graph that these read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gnnkit.graph import CSC, EdgeColumns, Graph, Ids
from gnnkit.graph.edge_order import in_listed_order
from gnnkit.graph.schema import NodeTypes, types_of_nodes
from gnnkit.partition.degrees import Degrees
from gnnkit.utils.checks import Array


@dataclass(frozen=True, slots=True, eq=False)
class Extension:
    """New nodes, numbered after a graph's nodes, and their edges."""

    types: Ids  # [num_new] number of each node's type
    src: Ids  # [num_added]
    dst: Ids  # [num_added]
    columns: EdgeColumns  # those of the graph

    def with_inverse_edges(self, num_relations: int) -> Extension:
        """Adds the reverse of each edge, like the function for graphs."""
        types = self.columns.get("relation", np.zeros(len(self.src), np.int64))
        parts = [EdgeColumns({**self.columns, "relation": types + first}) for first in (0, num_relations)]
        return Extension(
            self.types, np.append(self.src, self.dst), np.append(self.dst, self.src), EdgeColumns.concat(parts)
        )

    def in_edges(self, graph: Graph, nodes: Ids) -> tuple[Ids, Ids, EdgeColumns]:
        """Returns source, destination and columns of the nodes' in-edges."""
        csc, old, new = graph.csc, nodes[nodes < graph.num_nodes], np.flatnonzero(np.isin(self.dst, nodes))
        positions, degree = csc.in_edges(old)
        columns = [graph.edge_columns.without("position").take(positions), self.columns.take(new)]
        src = np.concatenate([csc.indices[positions], self.src[new]])
        return src, np.concatenate([np.repeat(old, degree), self.dst[new]]), EdgeColumns.concat(columns)


@dataclass(frozen=True, slots=True, eq=False)
class ReadPart:
    """The nodes that new nodes' outputs depend on, with their in-edges."""

    nodes: Ids  # [num_rows] number of each in the extended graph, by type
    seeds: Ids  # [num_new] row of each new node
    graph: Graph  # without features. Its degrees are those of the extended graph

    @classmethod
    def of(cls, graph: Graph, extension: Extension, hops: int | None) -> ReadPart:
        """Follows in-edges from the new nodes.

        Args:
            graph: The graph without the new nodes.
            extension: The new nodes and their edges.
            hops: Number of layers. If None, the whole graph is read.
        """
        last = nodes = new = np.arange(graph.num_nodes, graph.num_nodes + len(extension.types))
        if hops is None:
            last = nodes = np.append(nodes, np.arange(graph.num_nodes))
        pieces = []
        for _ in range(hops or 1):
            pieces.append(extension.in_edges(graph, last))
            last = np.setdiff1d(pieces[-1][0], nodes)
            nodes = np.append(nodes, last)
        types = types_in_extension(nodes, graph.schema.type_sizes, extension.types)
        nodes = nodes[np.argsort(types, kind="stable")]
        rows = _RowIndex(nodes)
        src, dst, columns = zip(*pieces, strict=True)
        part = in_listed_order(
            Graph.from_edges(
                rows.of(np.concatenate(src)),
                rows.of(np.concatenate(dst)),
                len(nodes),
                threads=1,
                edge_type_names=graph.edge_type_names,
                node_types=None if graph.node_types is None else _with_counts(graph.node_types, types),
                relations=graph.relations,
                **EdgeColumns.concat(columns).arrays(),  # type: ignore[arg-type]
            )
        )
        Degrees.set(part.csc, _degrees(graph.csc, extension, rows))
        return cls(nodes, rows.of(new), part)


class _RowIndex:
    """Finds the rows of nodes."""

    def __init__(self, nodes: Ids) -> None:
        self.nodes, self._order = nodes, np.argsort(nodes)

    def of(self, nodes: Ids) -> Ids:
        return self._order[np.searchsorted(self.nodes, nodes, sorter=self._order)]

    def sums(self, nodes: Ids, values: Array) -> Array:  # [k], [k] -> [num_rows] float64
        """Adds up each row's values. Other nodes are ignored."""
        inside = np.isin(nodes, self.nodes)
        return np.bincount(self.of(nodes[inside]), values[inside], len(self.nodes)) + 0.0  # integers without nodes


def _with_counts(node_types: NodeTypes, types: Ids) -> NodeTypes:
    counts = np.bincount(types, minlength=len(node_types)).tolist()
    return tuple((name, count) for (name, _), count in zip(node_types, counts, strict=True))


def types_in_extension(nodes: Ids, type_sizes: Sequence[int], new_types: Ids) -> Ids:  # [k] -> [k]
    """Returns the number of each node's type in an extended graph.

    Args:
        nodes: [k] numbers of nodes. New ones follow the others.
        type_sizes: [num_node_types] as `Schema.type_sizes`, without the new nodes.
        new_types: [num_new] as `Extension.types`.
    """
    places = nodes - sum(type_sizes)
    return np.where(places < 0, types_of_nodes(nodes, type_sizes), new_types[np.maximum(places, 0)])


def _degrees(csc: CSC, extension: Extension, rows: _RowIndex) -> dict[str, Array]:
    """Returns the rows' degrees in the extended graph, as `Degrees` stores them."""
    src, dst = extension.src, extension.dst
    weight = extension.columns.get("weight", np.ones(len(src)))
    sums = {"out_degree": rows.sums(src, weight), "in_degree": rows.sums(dst, weight)}
    sums["looped"] = rows.sums(src, src == dst)
    degrees, old = Degrees.of(csc), rows.nodes < csc.num_nodes
    for name, values in sums.items():
        values[old] += getattr(degrees, name)(rows.nodes[old])
    return sums | {"looped": sums["looped"] > 0}
