"""Reader for NetworkX graphs. NetworkX need not be installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa

from gnnkit.errors import UserError
from gnnkit.graph.cells import read_missing
from gnnkit.graph.graph import Graph
from gnnkit.graph.times import TIME_NAMES
from gnnkit_formats.attributes import warn_unread
from gnnkit_formats.columns import Columns, TableInMemory
from gnnkit_formats.pieces import join_pieces
from gnnkit_formats.table import Table
from gnnkit_formats.table_graph import TableNames
from gnnkit_formats.tables import FrameGraph, values_as_arrow

_Attributes = Mapping[object, object]  # of a node or an edge
_ID, _ENDS = "(node)", ("(source)", "(destination)")  # columns besides attributes
_NONE = "\0none"  # name of a column that no table has


def from_networkx(
    graph: Any,
    features: str | Sequence[str] | None,
    label: str | None,
    split: str | None,
    weight: str | None,
    edge_features: str | Sequence[str] | None,
    missing: Sequence[str | float] | None,
    edge_label: str | None,
    time: str | Sequence[str] | None,
) -> Graph:
    """Implements `Graph.from_networkx`. Nodes and edges become tables."""
    if not all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed")):
        raise UserError(f"expected a graph of networkx, got {type(graph).__name__}")
    wide, rows, times = _as_list(features), _as_list(edge_features), None if time is None else _as_list(time)
    build = partial(_build_table, missing=read_missing("missing", missing), split=split, times=times)
    ids = _ids_of(list(graph.nodes))
    nodes = build(
        {_ID: ids}, "nodes", [data for _, data in graph.nodes(data=True)], [*wide, *filter(None, (label, split))]
    )
    src, dst, edge_data = _list_edges(graph)
    ends = dict(zip(_ENDS, (ids.take(pa.array(end, pa.int64())) for end in (src, dst)), strict=True))
    edges = build(ends, "edges", edge_data, [*rows, *filter(None, (weight, edge_label))])
    names = TableNames(_ENDS, weight or _NONE, _NONE, edge_label, None, _ID, label or _NONE, split or _NONE)
    frames = FrameGraph(edges, nodes if len(ids) else None, bipartite=False)
    frames.id_hint = ""
    result = join_pieces(frames, **frames.use_columns(names, wide if len(ids) else [], rows, times))
    if edge_label is None:
        return result
    columns = result.edge_columns  # an undirected edge is one row, and reverse edges follow all of them
    return result.with_edges(result.csc, columns.without_labels(columns["position"] >= graph.number_of_edges()))


def _list_edges(graph: Any) -> tuple[list[int], list[int], list[_Attributes]]:
    """Returns source, destination and attributes of all edges, in both directions."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    links = [(number[u], number[v], data) for u, v, data in graph.edges(data=True)]
    if not graph.is_directed():
        links += [(v, u, data) for u, v, data in links if u != v]
    return [u for u, _, _ in links], [v for _, v, _ in links], [data for _, _, data in links]


def _ids_of(nodes: list[Any]) -> pa.Array:  # [num_nodes] int64 or string
    """Returns the nodes as 64-bit integers if possible, else as text."""
    if all(isinstance(node, int) and not isinstance(node, bool) and abs(node) < 2**63 for node in nodes):
        return pa.array(nodes, pa.int64())
    return pa.array([str(node) for node in nodes])


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
    table = Table(name, pa.table({**arrays, **columns}), missing=missing)
    if times is None:
        timed = list(filter(table.holds_times, timed))
    unread = known - {*wanted, *timed}
    warn_unread("Graph.from_networkx", [f"{name}[{str(key)!r}]" for key in unread], has_split=split is not None)
    return TableInMemory(table.without([str(key) for key in unread]))


def _column(name: str, key: object, attributes: list[_Attributes], missing: Sequence[str]) -> pa.Array:
    values: list[Any] = [attribute_map.get(key) for attribute_map in attributes]
    values = [value.tolist() if hasattr(value, "tolist") else value for value in values]
    return values_as_arrow(f"{name}, attribute {key!r}", values, missing)
