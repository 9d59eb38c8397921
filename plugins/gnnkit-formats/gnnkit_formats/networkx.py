"""Reader for NetworkX graphs. NetworkX need not be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
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
from gnnkit_formats.feature_columns import warn_readings
from gnnkit_formats.frames import values_as_arrow
from gnnkit_formats.id_columns import as_ids
from gnnkit_formats.label_columns import read_labels
from gnnkit_formats.table import Table
from gnnkit_formats.time_columns import find_times, time_fields

_Attributes = Mapping[object, object]  # of a node or an edge


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
    wide, rows, names = _as_list(features), _as_list(edge_features), None if time is None else _as_list(time)
    build = partial(_build_table, missing=read_missing("missing", missing), split=split, times=names)
    nodes = build("nodes", [data for _, data in graph.nodes(data=True)], [*wide, *filter(None, (label, split))])
    edges = build("edges", edge_data, [*rows, *filter(None, (weight, edge_label))])
    (features_of_nodes, cells), features_of_edges = nodes.cells(wide), edges.rows(rows)
    for table in (nodes, edges):
        warn_readings(table.name, table.readings)
    labels, class_names = read_labels(lambda: [nodes], label) if label else (None, None)
    return Graph.from_edges(
        src,
        dst,
        len(graph.nodes),
        features=features_of_nodes,
        labels=labels,
        one_class=True,
        split=nodes.splits(split) if split else None,
        weight=edges.weights(weight) if weight else None,
        edge_features=features_of_edges,
        class_names=class_names,
        node_ids=_read_ids(list(graph.nodes)),
        feature_names=nodes.column_names(wide),
        category_of=nodes.category_of(wide),
        missing=cells,
        edge_feature_names=edges.column_names(rows),
        edge_category_of=edges.category_of(rows),
        **_read_edge_labels(edges, edge_label, graph.number_of_edges()),
        **time_fields([edges], nodes, *find_times([edges.facts, nodes.facts], names, "time")),
    )


def _read_edge_labels(edges: Table, name: str | None, num_edges: int) -> Fields:
    """Reads labels of edges. An undirected edge is one row, from its first node.

    Args:
        edges: The edges, followed by added reverse edges.
        name: Attribute of labels, or None.
        num_edges: Number of edges without the added ones.
    """
    if name is None:
        return {}
    labels, names = read_labels(lambda: [edges], name)
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
    name: str,
    attributes: list[_Attributes],
    wanted: list[str],
    missing: Sequence[str],
    split: str | None,
    times: Sequence[str] | None,
) -> Table:
    """Builds a table of the requested attributes, with empty cells for missing ones.

    Also of those that may hold times, which are named or None.
    """
    known = {key for attribute_map in attributes for key in attribute_map}
    absent = [key for key in wanted if key not in known]
    if absent and attributes:
        raise UserError(f"the {name} of the networkx graph have no attribute {absent[0]!r}")
    timed = [str(key) for key in known if (str(key).lower() in TIME_NAMES if times is None else key in times)]
    columns = {key: _column(name, key, attributes, missing) for key in dict.fromkeys([*wanted, *timed])}
    table = Table(name, pa.table(columns), missing=missing)
    if times is None:
        timed = list(filter(table.holds_times, timed))
    unread = known - {*wanted, *timed}
    warn_unread("Graph.from_networkx", [f"{name}[{str(key)!r}]" for key in unread], has_split=split is not None)
    return table.without([str(key) for key in unread])


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
    return as_ids(Table("graph", pa.table({"nodes": column})).ids("nodes"))
