"""A table of edges and a table of nodes as a graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from gnnkit.checks import Array, array
from gnnkit.errors import UserError
from gnnkit.graph.graph import Graph
from gnnkit.graph.missing import read_missing
from gnnkit.graph.table import Table, as_ids, table_of, warn_of_readings


def from_tables(
    edges: Any,
    nodes: Any,
    ends: tuple[str, str],
    weight: str | None,
    edge_type: str,
    columns: tuple[str, str, str],
    features: str | Sequence[str] | Array | None,
    edge_features: Sequence[str] | None,
    missing: Sequence[str] | None,
) -> Graph:
    """Reads data frames, as `Graph.from_tables` says.

    Args:
        edges: table of edges.
        nodes: table of nodes, or None.
        ends: columns of source and destination.
        weight: column of weights. None: "weight", if there is one.
        edge_type: column of types, which may be missing.
        columns: columns of id, label and split.
        features: columns of numbers, rows, or None for all other columns.
        edge_features: columns of edges, or None for all other columns.
        missing: words for missing values, or None for `missing.MISSING`.
    """
    words, way = read_missing("missing", missing), "=[NAME, ...] names the columns to read, without {}"
    links = table_of("edges", edges, f": edge_features{way}", words)
    named = None if nodes is None else table_of("nodes", nodes, f": features{way}", words)
    if weight is None:
        weight = "weight" if "weight" in links.names else None
    if edge_features is None:
        edge_features = [name for name in links.others((*ends, edge_type)) if name != weight]
    ids = node_ids(links, named, ends, columns[0])
    labels, class_names = named.labels(columns[1]) if named else (None, None)
    given, names, category_of, cells = _features(named, columns, features)
    types, type_names = links.types(edge_type)
    rows = links.rows(edge_features)
    for table in (named, links):
        if table is not None:
            warn_of_readings(table.name, table.readings)
    return Graph.from_edges(
        links.positions(ends[0], ids),
        links.positions(ends[1], ids),
        None if ids is None else len(ids),
        features=given,
        labels=labels,
        split=named.splits(columns[2]) if named else None,
        weight=None if weight is None else links.weights(weight),
        edge_features=rows,
        edge_types=types,
        edge_type_names=type_names,
        feature_names=names,
        category_of=category_of,
        edge_feature_names=links.column_names(edge_features),
        edge_category_of=links.category_of(edge_features),
        class_names=class_names,
        node_ids=None if ids is None else as_ids(ids),
        missing=cells,
    )


def node_ids(edges: Table, nodes: Table | None, ends: tuple[str, str], name: str) -> pa.Array | None:
    """Returns the ids of nodes, or None where ids are 0, 1, ...

    Without a table of nodes, text names the nodes, in the order of code points.
    """
    if nodes is not None:
        return nodes.ids(name)
    return edges.distinct(ends) if all(map(edges.is_text, ends)) else None


def _features(
    nodes: Table | None, columns: tuple[str, str, str], features: str | Sequence[str] | Array | None
) -> tuple[Array | None, list[str] | None, list[str] | None, Array | None]:
    """Returns rows of features, names of columns and of texts, and empty cells."""
    if features is None:
        names: Any = [] if nodes is None else nodes.others(columns)
    else:
        names = [features] if isinstance(features, str) else features
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return array("features", features), None, None, None
    if nodes is None and names:
        raise UserError(f"features={names} are columns of a table of nodes: give nodes too")
    if nodes is None:
        return None, None, None, None
    rows, missing = nodes.cells(names)
    return rows, nodes.column_names(names), nodes.category_of(names), missing
