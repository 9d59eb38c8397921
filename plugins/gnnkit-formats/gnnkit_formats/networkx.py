"""Reader for NetworkX graphs. NetworkX need not be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gnnkit.errors import UserError
from gnnkit.graph.attributes import TIME_NAMES, warn_unread
from gnnkit.graph.edge_columns import EdgeColumns
from gnnkit.graph.graph import Graph
from gnnkit.graph.missing import read_missing
from gnnkit.graph.types import Fields
from gnnkit.utils.checks import Array
from gnnkit_formats.columns import Columns, TableInMemory
from gnnkit_formats.frames import values_as_arrow
from gnnkit_formats.id_columns import as_ids
from gnnkit_formats.pieces import Room, join_pieces
from gnnkit_formats.table import Table
from gnnkit_formats.table_graph import ONE, GraphTables, TableGraph, TableNames, labels_of

_Attributes = Mapping[object, object]  # of a node or an edge
_ENDS = ("\0source", "\0destination")  # columns of the edge table besides attributes
_NONE = "\0none"  # name of a column that no table has


def from_networkx(
    graph: Any,
    features: str | Sequence[str] | None,
    label: str | None,
    split: str | None,
    weight: str | None,
    edge_features: str | Sequence[str] | None,
    missing: Sequence[str] | None,
    edge_label: str | None,
    time: str | Sequence[str] | None,
) -> Graph:
    """Implements `Graph.from_networkx`."""
    src, dst, edge_data = _list_edges(graph)
    wide, rows, times = _as_list(features), _as_list(edge_features), None if time is None else _as_list(time)
    build = partial(_build_table, missing=read_missing("missing", missing), split=split, times=times)
    nodes = build({}, "nodes", [data for _, data in graph.nodes(data=True)], [*wide, *filter(None, (label, split))])
    ends = {_ENDS[0]: pa.array(src, pa.int64()), _ENDS[1]: pa.array(dst, pa.int64())}
    edges = build(ends, "edges", edge_data, [*rows, *filter(None, (weight, edge_label))])
    names = TableNames(_ENDS, weight or _NONE, _NONE, edge_label, None, _NONE, label or _NONE, split or _NONE)
    names = names.with_times(edges, nodes, times, "time")
    tables = GraphTables(names, {ONE: edges}, nodes, rows, wide)
    return join_pieces(_Networkx(graph, tables))


class _Networkx(TableGraph):
    """A graph whose nodes and edges have attributes, in tables."""

    def __init__(self, graph: Any, tables: GraphTables) -> None:
        super().__init__(Path())
        self._graph, self._tables = graph, tables

    def open_tables(self) -> GraphTables:
        return self._tables

    def open(self, room: Room) -> int:
        nodes = list(self._graph.nodes)
        self._node_ids, self._opened[0].num_nodes = _read_ids(nodes), len(nodes)
        return len(nodes)

    def edge_labels(self) -> Fields:
        (edges,) = self.tables.edges.values()
        return _read_edge_labels(edges, self.tables.names.edge_label, self._graph.number_of_edges())


def _read_edge_labels(edges: Columns, name: str | None, num_edges: int) -> Fields:
    """Reads labels of edges. An undirected edge is one row, from its first node.

    Args:
        edges: The edges, followed by added reverse edges.
        name: Attribute of labels, or None.
        num_edges: Number of edges without the added ones.
    """
    if name is None:
        return {}
    labels, names = labels_of(edges, name)
    columns = EdgeColumns({"label": labels, "split": np.zeros(len(labels), np.int8)})
    return {**columns.without_labels(np.arange(len(labels)) >= num_edges).arrays(), "edge_class_names": names}


def _list_edges(graph: Any) -> tuple[list[int], list[int], list[_Attributes]]:
    """Returns source, destination and attributes of all edges, in both directions."""
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise UserError(f"expected a graph of networkx, got {type(graph).__name__}")
    number = {node: i for i, node in enumerate(graph.nodes)}
    links = [(number[u], number[v], data) for u, v, data in graph.edges(data=True)]
    if not graph.is_directed():
        links += [(v, u, data) for u, v, data in links if u != v]
    return [u for u, _, _ in links], [v for _, v, _ in links], [data for _, _, data in links]


def _as_list(names: str | Sequence[str] | None) -> list[str]:
    return [names] if isinstance(names, str) else list(names or ())


def _build_table(
    columns: Mapping[str, pa.Array],
    name: str,
    attributes: list[_Attributes],
    wanted: list[str],
    missing: Sequence[str],
    split: str | None,
    times: Sequence[str] | None,
) -> Columns:
    """Adds the requested attributes to columns, with empty cells for missing ones.

    Also those that may hold times, which are named or None.
    """
    known = {key for attribute_map in attributes for key in attribute_map}
    absent = [key for key in wanted if key not in known]
    if absent and attributes:
        raise UserError(f"the {name} of the networkx graph have no attribute {absent[0]!r}")
    timed = [str(key) for key in known if (str(key).lower() in TIME_NAMES if times is None else key in times)]
    arrays = {key: _column(name, key, attributes, missing) for key in dict.fromkeys([*wanted, *timed])}
    table = Table(name, pa.table({**columns, **arrays}), missing=missing)
    if times is None:
        timed = list(filter(table.holds_times, timed))
    unread = known - {*wanted, *timed}
    warn_unread("Graph.from_networkx", [f"{name}[{str(key)!r}]" for key in unread], has_split=split is not None)
    return TableInMemory(table.without([str(key) for key in unread]))


def _column(name: str, key: object, attributes: list[_Attributes], missing: Sequence[str]) -> pa.Array:
    values: list[Any] = [attribute_map.get(key) for attribute_map in attributes]
    values = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    return values_as_arrow(f"{name}, attribute {key!r}", values, missing)


def _read_ids(nodes: list[Any]) -> Array | None:
    """Returns the nodes as 64-bit integers if possible, else as distinct text."""
    if not nodes:
        return None
    if all(isinstance(node, int) and not isinstance(node, bool) and abs(node) < 2**63 for node in nodes):
        column = pa.array(nodes)
    else:
        column = pa.array([str(node) for node in nodes])
    return as_ids(Table("graph", pa.table({"nodes": column})).ids("nodes").ids)
