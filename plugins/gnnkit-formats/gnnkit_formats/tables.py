"""Reader for data frames of edges and nodes."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from gnnkit.errors import UserError
from gnnkit.graph.features import rows_of
from gnnkit.graph.graph import EdgeListFields, Graph
from gnnkit.graph.labels import check_present
from gnnkit.graph.missing import read_missing
from gnnkit.graph.types import Fields
from gnnkit.graph.unfit_columns import UnfitColumns
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import one_of
from gnnkit_formats.bipartite import check_one_type, read_bipartite
from gnnkit_formats.column_table import require
from gnnkit_formats.duplicates import DUPLICATES, FIRST, node_hint, without_duplicates
from gnnkit_formats.edge_fields import EdgeNames, read_edge_fields
from gnnkit_formats.frames import table_of
from gnnkit_formats.id_columns import as_ids, joined_ids, joined_numbers
from gnnkit_formats.index_columns import warn_index
from gnnkit_formats.label_columns import read_labels
from gnnkit_formats.table import Table
from gnnkit_formats.time_columns import find_times


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
    duplicates: str,
    bipartite: bool | None,
    edge_label: str | None,
    time: str | Sequence[str] | None,
) -> Graph:
    """Implements `Graph.from_tables`. `columns` are those of id, label and split."""
    one_of("duplicates", duplicates, DUPLICATES)
    words = read_missing("missing", missing)
    links = table_of("edges", edges, words)
    named = None if nodes is None else table_of("nodes", nodes, words)
    names = _name_columns(links, named, ends, weight, edge_type, edge_label, [time] if isinstance(time, str) else time)
    if edge_features is None:
        edge_features = _default_features(links, names.known, "edge_features=[NAME, ...] reads it")
    if named and bipartite:
        raise UserError("bipartite=True reads edges only, and nodes are given: leave nodes out, or use a HeteroData")
    if named is None and _is_bipartite(links, ends, bipartite):
        graph = read_bipartite(links, ends, _read_edges(links, names, edge_features))
    else:
        named = named.first_rows(columns[0]) if named and duplicates == FIRST else named
        ids = node_ids(links, named, ends, columns[0], node_hint("duplicates", duplicates))
        fields = _read_nodes(named, (*columns, names.node_time), features)
        fields |= _read_edges(links, names, edge_features, named)
        fields["node_ids"] = None if ids is None else as_ids(ids)
        src, dst = (links.positions(end, ids) for end in ends)
        graph = Graph.from_edges(src, dst, None if ids is None else len(ids), one_class=True, **fields)
    return without_duplicates(graph, duplicates, "duplicates=first, sum or mean keeps one of them")


def _name_columns(
    links: Table,
    nodes: Table | None,
    ends: tuple[str, str],
    weight: str | None,
    edge_type: str,
    edge_label: str | None,
    time: Sequence[str] | None,
) -> EdgeNames:
    """Returns the edge columns. Raises `UserError` for missing ones."""
    for name in filter(None, (weight, edge_label)):
        require(links.name, links.names, name)
    times = find_times([table.facts for table in (links, nodes) if table is not None], time, "time")
    return EdgeNames(ends, weight or "weight", edge_type, edge_label, *times)


def _read_edges(links: Table, names: EdgeNames, features: Sequence[str], nodes: Table | None = None) -> Fields:
    with _name_remedy("edge_features"):
        return read_edge_fields({"": links}, names, list(features), nodes)


def _read_nodes(
    nodes: Table | None, columns: tuple[str, str, str, str | None], features: str | Sequence[str] | Array | None
) -> Fields:
    """Reads the node fields. `columns` hold id, label, split and time."""
    _, label, split, _ = columns
    with _name_remedy("features"):
        names = _feature_names(nodes, columns, features)
        fields: Fields = {**read_node_fields(nodes, label, split, names or ())}
    if names is None:
        fields["features"] = rows_of(features)
    if nodes:
        place, remedy = f"{nodes.name}: column {label!r}", ", set label=COLUMN for another column"
        check_present(fields["labels"], fields["split"], place, [f"column {split!r}"], remedy)
    return fields


def _is_bipartite(edges: Table, ends: tuple[str, str], bipartite: bool | None) -> bool:
    """Returns whether the table's ends are two node types."""
    if bipartite is not None:
        return bipartite
    if hint := check_one_type(edges.name, [edges.plain(end) for end in ends], ends, "bipartite"):
        warnings.warn(hint, stacklevel=4)
    return False


@contextmanager
def _name_remedy(argument: str) -> Iterator[None]:
    """Appends the argument that excludes columns to an error about unfit columns."""
    try:
        yield
    except UnfitColumns as error:
        without = f"without {', '.join(error.names)}"
        raise UserError(f"{error}: {argument}=[NAME, ...] names the columns to read, {without}") from error


def read_node_fields(nodes: Table | None, label: str, split: str, features: Sequence[str]) -> EdgeListFields:
    """Reads the node fields except ids and times.

    Args:
        nodes: The table, if there is one.
        label: Label column, if the table has it.
        split: Split column, if the table has it.
        features: Feature columns, which the table has.
    """
    if nodes is None:
        return {}
    labels, class_names = read_labels(lambda: [nodes], label) if label in nodes.names else (None, None)
    rows, missing = nodes.cells(features)
    return {
        "labels": labels,
        "split": nodes.splits(split),
        "class_names": class_names,
        "features": rows,
        "feature_names": nodes.column_names(features),
        "category_of": nodes.category_of(features),
        "missing": missing,
    }


def node_ids(edges: Table, nodes: Table | None, ends: tuple[str, str], name: str, hint: str) -> pa.Array | None:
    """Returns the node ids, or None if they are 0, 1, ...

    Without a node table, the distinct ids are sorted, text by code point.
    """
    if nodes is not None:
        return nodes.ids(name, hint)
    if all(map(edges.is_text, ends)):
        return joined_ids([edges], ends)
    return joined_numbers(edges.name, [edges.whole_ids(end) for end in ends])


def _default_features(table: Table, known: Collection[str | None], hint: str) -> list[str]:
    """Returns all columns except `known`, and warns about an index."""
    index = table.index_columns(known)
    warn_index(table.name, index, hint)
    return table.others({*known, *index})


def _feature_names(
    nodes: Table | None, known: Sequence[str | None], features: str | Sequence[str] | Array | None
) -> Sequence[str] | None:
    """Returns the feature columns, or None for a feature array."""
    if features is None:
        return [] if nodes is None else _default_features(nodes, known, "features=[NAME, ...] reads it")
    names: Any = [features] if isinstance(features, str) else features
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        return None
    if nodes is None and names:
        raise UserError(f"features={names} are columns of a table of nodes: give nodes too")
    return names
