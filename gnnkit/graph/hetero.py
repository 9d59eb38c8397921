"""Reader for heterogeneous PyG graphs."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph.attributes import (
    Get,
    as_column,
    as_row,
    edge_labels_of,
    getter,
    optional,
    split_of,
    times_of,
    warn_unread,
)
from gnnkit.graph.graph import Graph
from gnnkit.graph.labels import check_present, unlabelled
from gnnkit.graph.schema import Relation, pack_tables
from gnnkit.graph.split import SPLITS
from gnnkit.graph.times import ALWAYS, to_unit
from gnnkit.graph.types import Fields
from gnnkit.utils import checks
from gnnkit.utils.checks import Array, whole

_MASKS = {f"{part}_{form}" for part in SPLITS for form in ("mask", "idx")}
_READ_OF_NODES = {"x", "y", "num_nodes"}
_READ_OF_EDGES = {"edge_index", "edge_weight", "edge_attr"}


def is_hetero(value: Any) -> bool:
    """Returns whether a value is a `HeteroData`."""
    return hasattr(value, "node_types") and hasattr(value, "edge_types") and hasattr(value, "to_homogeneous")


def from_hetero(data: Any, split: int | None, links: Set[str] = frozenset()) -> Graph:
    """Converts a `HeteroData`, as documented by `Graph.from_pyg`.

    The node types are concatenated in order.

    Args:
        data: The `HeteroData`.
        split: Column to use if masks hold several splits, or None.
        links: Attributes of edge types that the caller reads.
    """
    counts, edges = _read_structure(data)
    starts, total = _starts(counts), sum(counts.values())
    predicted = _find_predicted(data)
    target = slice(starts[predicted], starts[predicted] + counts[predicted])
    prefix, counted = f"data[{predicted!r}].", [ends.shape[1] for ends in edges]
    part, masks = split_of(prefix, getter(_present_attributes(data[predicted])), counts[predicted], split)
    splits = np.zeros(total, np.int8)
    splits[target] = part
    labels = _read_labels(data, predicted, target, total)
    check_present(labels, splits, f"{prefix}y", [f"{prefix}{name}" for name in sorted(masks)])
    weight, edge_features, unread = _read_edge_columns(data, counted)
    features, tables = pack_tables(_read_tables(data, counts), list(counts.values()))
    edge_labels, read = ({}, set[str]()) if links else _read_edge_labels(data, counted, split)
    times, names = _read_times(data, counts, edges)
    unread = [*_list_unread(data, predicted, masks, links | read), *unread]
    warn_unread("Graph.from_pyg", {*unread} - names, has_split=bool(masks) or len(read) > 1)
    return _build(
        data,
        counts,
        edges,
        features=features,
        labels=labels,
        split=splits,
        weight=weight,
        edge_features=edge_features,
        feature_tables=tables,
        **edge_labels,
        **times,
    )


def _read_edge_labels(data: Any, counts: list[int], split: int | None) -> tuple[Fields, set[str]]:
    """Reads labels and masks of all types, like `edge_labels_of`.

    Edges of a type without `edge_label` are unlabelled.
    """
    stores = zip(_edge_stores(data).items(), counts, strict=True)
    parts = [edge_labels_of(f"data[{name!r}].", get, count, split) for (name, get), count in stores]
    labels = [fields["edge_labels"] for fields, _ in parts if fields]
    if not labels:
        return {}, set()
    lacking = [(unlabelled(labels[0], count), np.zeros(count, np.int8)) for count in counts]
    columns = [tuple(fields.values()) or default for (fields, _), default in zip(parts, lacking, strict=True)]
    joined = (np.concatenate(column) for column in zip(*columns, strict=True))
    return dict(zip(("edge_labels", "edge_split"), joined, strict=True)), set().union(*(read for _, read in parts))


def read_topology(data: Any) -> Graph:
    """Converts the types, edges and edge weights of a `HeteroData`.

    The node types are concatenated in order.
    """
    counts, edges = _read_structure(data)
    weight = _read_weights(data, [ends.shape[1] for ends in edges])
    has_split = any(_MASKS & _present_attributes(data[name]).keys() for name in data.node_types)
    warn_unread("Loader", _list_unread(data, None, _MASKS, frozenset()), has_split=has_split)
    return _build(data, counts, edges, weight=weight)


def _read_structure(data: Any) -> tuple[dict[str, int], list[Array]]:
    """Returns each type's number of nodes, and each edge type's ends [2, num_edges]."""
    counts = {name: _count_nodes(data, name) for name in data.node_types}
    starts = _starts(counts)
    kinds = data.edge_types
    by_name: dict[str, tuple[str, str, str]] = {}
    for kind in kinds:
        if (other := by_name.setdefault("-".join(kind), kind)) != kind:
            raise UserError(f"data.edge_types: {other} and {kind} are both named {'-'.join(kind)}: rename one of them")
    for end in (end for kind in kinds for end in (kind[0], kind[2]) if end not in counts):
        raise UserError(f"data.edge_types: there is no node type {end!r}: set data[{end!r}].num_nodes")
    firsts = [np.array([[starts[source]], [starts[destination]]]) for source, _, destination in kinds]
    return counts, [_read_ends(data, kind, counts) + first for kind, first in zip(kinds, firsts, strict=True)]


def _starts(counts: Mapping[str, int]) -> dict[str, int]:
    """Returns the id of each type's first node."""
    return dict(zip(counts, np.cumsum([0, *counts.values()]).tolist(), strict=False))


def _build(data: Any, counts: Mapping[str, int], edges: list[Array], **fields: Any) -> Graph:
    src, dst = np.concatenate(edges, axis=1) if edges else np.zeros((2, 0), np.int64)
    return Graph.from_edges(
        src,
        dst,
        sum(counts.values()),
        edge_types=np.repeat(np.arange(len(edges)), [ends.shape[1] for ends in edges]),
        edge_type_names=["-".join(kind) for kind in data.edge_types],
        node_types=tuple(counts.items()),
        relations=tuple(Relation(*kind) for kind in data.edge_types),
        **fields,
    )


def _count_nodes(data: Any, name: str) -> int:
    """Counts the nodes of a type, by `y` if needed, which PyG ignores."""
    attributes = _present_attributes(data[name])
    rows = attributes.get("x", attributes.get("y"))
    count = attributes.get("num_nodes", data[name].num_nodes if rows is None else len(rows))
    return whole(f"data[{name!r}].num_nodes", count, 0)


def _present_attributes(store: Any) -> Mapping[str, Any]:
    """Returns the attributes of one type that are not None."""
    return {name: value for name, value in store.items() if value is not None}


def _read_ends(data: Any, kind: tuple[str, str, str], counts: Mapping[str, int]) -> Array:  # [2, num_edges]
    """Reads the edges of a type, with node ids local to their types."""
    name = f"data[{'-'.join(kind)!r}].edge_index"
    ends = optional("", getter({name: _present_attributes(data[kind]).get("edge_index")}), name)
    if ends is None or ends.ndim != 2 or len(ends) != 2:
        raise UserError(f"{name} must have shape [2, num_edges]: other formats are unsupported")
    for row, end in enumerate((kind[0], kind[2])):
        checks.check_range(f"{name}[{row}]", checks.integers(f"{name}[{row}]", ends[row]), 0, counts[end])
    return ends.astype(np.int64)


def _find_predicted(data: Any) -> str:
    """Returns the node type to predict: labelled and, if several are, with a split.

    Raises `UserError` if several types remain. Without labels, it is the first type.
    """
    labelled = [name for name in data.node_types if "y" in _present_attributes(data[name])]
    split = [name for name in labelled if _MASKS & _present_attributes(data[name]).keys()]
    candidates = split or labelled or list(data.node_types)[:1]
    if not candidates:
        raise UserError("HeteroData has no nodes")
    if len(candidates) > 1:
        raise UserError(
            f"HeteroData has labels of nodes of several types ({', '.join(candidates)}), of which one can be predicted: "
            f"del data[{candidates[-1]!r}].y"
        )
    return str(candidates[0])


def _read_labels(data: Any, name: str, target: slice, total: int) -> Array | None:  # [total, ...]
    """Reads the labels of one node type, with all other nodes unlabelled."""
    labels = as_row(optional(f"data[{name!r}].", getter(_present_attributes(data[name])), "y"))
    if labels is None:
        return None
    if labels.shape[:1] != (target.stop - target.start,):
        raise UserError(
            f"data[{name!r}].y has shape {list(labels.shape)} for {target.stop - target.start} nodes: expected one label of each"
        )
    if labels.ndim == 1 and labels.dtype == np.bool_:
        labels = labels.astype(np.int64)
    result = unlabelled(labels, total)
    result[target] = labels
    return result


def _read_tables(data: Any, counts: Mapping[str, int]) -> list[Array | None]:  # [count, width] each
    """Reads the features of each node type, None for a type without any."""
    rows = {
        name: as_column(optional(f"data[{name!r}].", getter(_present_attributes(data[name])), "x"))
        for name in data.node_types
    }
    return [
        None
        if table is None
        else checks.floats(f"data[{name!r}].x", table, (counts[name], None), bound=checks.FLOAT32_MAX)
        for name, table in rows.items()
    ]


def _read_edge_columns(data: Any, counts: list[int]) -> tuple[Array | None, Array | None, list[str]]:
    """Reads edge weights and edge features, and returns the unread attributes.

    Edges of a type without weights have weight 1. Features are read only if all types
    have the same number of columns.
    """
    weight = _read_weights(data, counts)
    stores = _edge_stores(data)
    rows = [as_column(optional(f"data[{name!r}].", get, "edge_attr")) for name, get in stores.items()]
    tables = [table for table in rows if table is not None]
    if len(tables) == len(rows) and len({table.shape[1:] for table in tables}) == 1:
        return weight, np.concatenate(tables), []
    unread = [f"data[{name!r}].edge_attr" for name, table in zip(stores, rows, strict=True) if table is not None]
    return weight, None, unread


def _read_weights(data: Any, counts: list[int]) -> Array | None:  # [num_edges]
    """Reads edge weights, 1 for edges of a type without. None: no type has weights."""
    weights = [as_row(optional(f"data[{name!r}].", get, "edge_weight")) for name, get in _edge_stores(data).items()]
    if all(column is None for column in weights):
        return None
    parts = zip(weights, counts, strict=True)
    return np.concatenate([np.ones(count, np.float32) if column is None else column for column, count in parts])


def _read_times(data: Any, counts: Mapping[str, int], edges: list[Array]) -> tuple[dict[str, Array], set[str]]:
    """Reads the times of all types, where a type without times is always visible.

    Also returns the names of the attributes, as in messages.
    """
    sizes = {"node_time": list(counts.values()), "edge_time": [ends.shape[1] for ends in edges]}
    names, fields = set[str](), dict[str, Array]()
    for (field, rows), kinds in zip(sizes.items(), (data.node_types, data.edge_types), strict=True):
        columns = []
        for kind, count in zip(kinds, rows, strict=True):
            prefix = f"data[{kind if isinstance(kind, str) else '-'.join(kind)!r}]."
            attributes = _present_attributes(data[kind])
            times, read = times_of(prefix, getter(attributes), attributes, count)
            columns.append(np.full(count, ALWAYS) if times is None else to_unit(field, times, None))
            names |= {f"{prefix}{name}" for name in read}
            if times is not None:
                fields[field] = times
        if field in fields:
            fields[field] = np.concatenate(columns)
    return fields, names


def _edge_stores(data: Any) -> dict[str, Get]:
    """Returns a lookup into the attributes of each edge type."""
    return {"-".join(kind): getter(_present_attributes(data[kind])) for kind in data.edge_types}


def _list_unread(data: Any, predicted: str | None, masks: set[str], links: Set[str]) -> list[str]:
    """Lists unread attributes, or None if any node type may be predicted."""
    unread, read_of_edges = [], _READ_OF_EDGES | links
    for name in data.node_types:
        read = _READ_OF_NODES | masks if predicted in (name, None) else _READ_OF_NODES - {"y"}
        unread += [
            f"data[{name!r}].{attribute}" for attribute in _present_attributes(data[name]) if attribute not in read
        ]
    for kind in data.edge_types:
        attributes = _present_attributes(data[kind])
        unread += [
            f"data[{'-'.join(kind)!r}].{attribute}" for attribute in attributes if attribute not in read_of_edges
        ]
    return unread
