"""Node and edge rows by type, from which a typed loader gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt
from gnnkit_formats.hetero import is_hetero, read_topology

from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids, MiniBatch, Relation, RelationGroups, SparseFeatures
from gnnkit.graph.attributes import optional
from gnnkit.partition.relations import by_pair
from gnnkit.sampler.tables import first_rows, rows_per_node
from gnnkit.sampler.typed_batch import TypedBatch
from gnnkit.utils.checks import Array, array

UNNAMED = "node"  # the node type of a graph without node types


@dataclass(frozen=True, slots=True, eq=False)
class TypeTable:
    """One type's nodes, with consecutive ids."""

    name: str
    first: int  # id of the first node in the graph
    count: int
    x: Array | None = None  # [count, ...] C-contiguous
    y: Array | None = None  # [count, ...]


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTable:
    """One relation's edges."""

    relation: Relation
    edge_attr: Array | None = None  # [num_rows, ...], by `TypedTables.edge_rows`
    edge_weight: Array | None = None  # [num_rows]


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class TypedArrays:
    """The arrays that a graph's loaders share, grouped and divided by type."""

    rows: RelationGroups
    nodes: tuple[TypeTable, ...]
    edges: tuple[EdgeTable, ...]
    edge_positions: Ids  # [num_edges] position among the edges of its relation, in the original order
    edge_rows: Ids | None  # [num_edges] row of each edge in the tables of its relation. None: its id

    @classmethod
    def of(cls, graph: Any) -> TypedArrays:
        """Reads a `HeteroData`, or a `Graph`.

        A `Graph` does not change, so its loaders share one result while any of them
        exists.
        """
        if is_hetero(graph):
            topology = read_topology(graph)
            positions = _positions_by_relation(topology)
            nodes, edges = _of_hetero(graph, _node_ranges(topology)), _edges_of_hetero(graph, topology)
            return cls(RelationGroups.of_graph(topology), nodes, edges, positions, positions)
        topology = Graph.of(graph)
        reference = _SHARED.get(topology)
        arrays = None if reference is None else reference()
        if arrays is None:
            rows, positions = RelationGroups.of_graph(topology), _positions_by_relation(topology)
            arrays = cls(rows, _of_graph(topology), _edges_of_graph(topology), positions, None)
            _SHARED[topology] = ref(arrays)
        return arrays


_SHARED: WeakKeyDictionary[Graph, ref[TypedArrays]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True, eq=False)
class TypedTables:
    """The rows of all nodes and edges of a graph, by type."""

    nodes: tuple[TypeTable, ...]
    seed_type: TypeTable
    arrays: TypedArrays

    @property
    def features(self) -> None:
        """Tables by type, which samplers do not compare."""
        return None

    def gather(self) -> list[tuple[int | None, str, Array]]:
        """Returns first node, name and rows of each table that batches contain."""
        present = [(table, table.x) for table in self.nodes if table.x is not None]
        return [(table.first, f"features[{table.name!r}]", x) for table, x in present]

    def load(self, minibatch: MiniBatch, positions: Ids, buffers: Sequence[npt.NDArray[np.uint8]]) -> TypedBatch:
        """Joins a batch with its gathered rows, one buffer per table of `gathered`."""
        batch = TypedBatch(minibatch, positions, {}, self)
        tables = [table for table in self.nodes if table.x is not None]
        for table, buffer in zip(tables, buffers, strict=True):
            assert table.x is not None
            batch.x[table.name] = first_rows(buffer, table.x, len(batch.input_nodes[table.name]))
        return batch


@dataclass(frozen=True, slots=True, eq=False)
class TypedSource:
    """A loader's graph, tables and seeds, if the seeds have a type."""

    rows: RelationGroups
    tables: TypedTables
    seeds: object  # ids within the type or a mask. None: all nodes of the type

    @classmethod
    def of(cls, graph: Any, seeds: Any, features: object | None, labels: object | None) -> TypedSource:
        """Reads a `HeteroData`, or a `Graph` with node types at the ends of relations.

        Raises `UserError` for an unknown node type, and for a table that does not have
        a row of fixed size for each node.

        Args:
            graph: The graph.
            seeds: Node type, or pair of a node type and its seeds.
            features: {node type: [count, ...]} replacements of features, or None.
            labels: {node type: [count, ...]} replacements of labels, or None.
        """
        seed_type, seeds = (seeds, None) if isinstance(seeds, str) else seeds
        arrays = TypedArrays.of(graph)
        nodes = arrays.nodes
        x, y = _tables_by_type("features", features, nodes), _tables_by_type("labels", labels, nodes)
        nodes = tuple(replace(table, x=x.get(table.name, table.x), y=y.get(table.name, table.y)) for table in nodes)
        names = {table.name: table for table in nodes}
        if seed_type not in names:
            raise UserError(f"seeds={seed_type!r} is not a node type: expected one of {', '.join(names)}")
        return cls(arrays.rows, TypedTables(nodes, names[seed_type], arrays), seeds)


def names_a_type(seeds: object) -> bool:
    """Returns whether seeds are a node type, or a pair of a node type and seeds."""
    return isinstance(seeds, str) or (isinstance(seeds, tuple) and len(seeds) == 2 and isinstance(seeds[0], str))


def _node_ranges(graph: Graph) -> tuple[TypeTable, ...]:
    types = graph.node_types or ((UNNAMED, graph.num_nodes),)
    firsts = np.cumsum([0, *(count for _, count in types)]).tolist()
    return tuple(TypeTable(name, first, count) for (name, count), first in zip(types, firsts, strict=False))


def _of_hetero(data: Any, ranges: Sequence[TypeTable]) -> tuple[TypeTable, ...]:
    def read(table: TypeTable, name: str) -> Array | None:
        return _attribute(data[table.name], f"data[{table.name!r}].", name, table.count)

    return tuple(replace(table, x=read(table, "x"), y=read(table, "y")) for table in ranges)


def _attribute(store: Any, prefix: str, name: str, count: int) -> Array | None:
    rows = optional(prefix, store.get, name)
    return None if rows is None else np.ascontiguousarray(rows_per_node(f"{prefix}{name}", rows, count))


def _of_graph(graph: Graph) -> tuple[TypeTable, ...]:
    is_labelled = graph.labelled
    features = graph.whole_features
    if not isinstance(features, SparseFeatures):
        features = np.asarray(features)
    tables = []
    for number, table in enumerate(_node_ranges(graph)):
        ids = slice(table.first, table.first + table.count)
        y = graph.labels[ids] if is_labelled[ids].any() else None
        tables.append(replace(table, x=_typed_rows(graph, number, features[ids]), y=y))
    return tuple(tables)


def _typed_rows(graph: Graph, number: int, rows: Array | SparseFeatures) -> Array | None:
    """Returns the columns of one node type, dense, from its rows of `features`."""
    tables = graph.schema.feature_tables
    columns = slice(0, rows.shape[1]) if tables is None else tables[number].columns
    width = columns.stop - columns.start
    if width == 0 or (tables is not None and tables[number].kind in ("none", "learned")):
        return None
    if not isinstance(rows, SparseFeatures):
        return np.ascontiguousarray(rows[:, columns])
    dense = np.zeros((len(rows), width), rows.dtype)
    row = np.repeat(np.arange(len(rows)), np.diff(rows.csr.indptr))
    dense[row, rows.csr.indices - columns.start] = rows.values
    return dense


def _tables_by_type(argument: str, by_type: object | None, nodes: Sequence[TypeTable]) -> dict[str, Array]:
    """Checks the tables that an argument contains, by node type."""
    counts = {table.name: table.count for table in nodes}
    if by_type is None:
        return {}
    if not isinstance(by_type, Mapping) or not by_type.keys() <= counts.keys():
        value = list(by_type) if isinstance(by_type, Mapping) else type(by_type).__name__
        raise UserError(f"{argument}={value} must be a mapping from node types ({', '.join(counts)}) to their rows")
    names = {node_type: f"{argument}[{node_type!r}]" for node_type in by_type}
    tables = {key: rows_per_node(name, array(name, by_type[key]), counts[key]) for key, name in names.items()}
    return {key: np.ascontiguousarray(table) if argument == "labels" else table for key, table in tables.items()}


def _relations(graph: Graph) -> tuple[Relation, ...]:
    """Returns the graph's relations. Raises `UserError` if their ends are unknown."""
    if graph.relations is not None:
        return graph.relations
    if graph.node_types is not None and len(graph.node_types) > 1:
        raise UserError(
            "graph.relations is None, so the node types at the ends of edges are unknown: "
            "pass PyG's HeteroData, or a Graph made from it"
        )
    (node_type,) = _node_ranges(graph)
    return tuple(Relation(node_type.name, name or "to", node_type.name) for name in graph.schema.edge_types)


def _edges_of_graph(graph: Graph) -> tuple[EdgeTable, ...]:
    return tuple(EdgeTable(relation, graph.edge_features, graph.csc.weight) for relation in _relations(graph))


def _edges_of_hetero(data: Any, graph: Graph) -> tuple[EdgeTable, ...]:
    relations = _relations(graph)
    counts = np.bincount(_types(graph), minlength=len(relations))
    tables = []
    for relation, count in zip(relations, counts.tolist(), strict=True):
        store, prefix = data[tuple(relation)], f"data[{relation.edge_type!r}]."
        edge_attr, edge_weight = (_attribute(store, prefix, name, count) for name in ("edge_attr", "edge_weight"))
        tables.append(EdgeTable(relation, edge_attr, edge_weight))
    return tuple(tables)


def _types(graph: Graph) -> Ids:  # [num_edges]
    return np.zeros(graph.num_edges, np.int16) if graph.edge_types is None else graph.edge_types


def _positions_by_relation(graph: Graph) -> Ids:  # [num_edges]
    """Numbers the edges of each relation in their original order.

    Edges of a relation that share a position share their number.
    """
    positions = np.arange(graph.num_edges) if graph.edge_positions is None else graph.edge_positions
    types, numbers = _types(graph), np.empty_like(positions)
    order, first = by_pair(positions, types, int(positions.max(initial=-1)) + 1)
    by_relation = types[order]
    counts = np.bincount(by_relation[first], minlength=graph.num_relations)
    numbers[order] = np.cumsum(first) - 1 - (np.cumsum(counts) - counts)[by_relation]
    return numbers
