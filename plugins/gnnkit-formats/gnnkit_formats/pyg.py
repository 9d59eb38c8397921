"""Reader for PyTorch Geometric (PyG) graphs. PyG need not be installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.attributes import (
    TIME_NAMES,
    Get,
    as_column,
    as_row,
    edge_labels_of,
    getter,
    optional,
    ranges_of,
    split_of,
    times_of,
    types_of,
    warn_unread,
)
from gnnkit.graph.graph import Graph
from gnnkit.graph.labels import check_present
from gnnkit.graph.types import Fields
from gnnkit.utils import checks
from gnnkit.utils.checks import Array, check_range, whole
from gnnkit_formats.hetero import from_hetero, is_hetero

_TYPES = ("node_type", "edge_type")
_READ = {"edge_index", "x", "y", "edge_weight", "edge_attr", "n_id", "num_nodes", *_TYPES}
_LINKS = {"edge_label", "edge_label_index", "pos_edge_label", "pos_edge_label_index"}
_NEGATIVE = {"neg_edge_label", "neg_edge_label_index"}


def is_pyg(value: Any) -> bool:
    """Checks whether a value is a PyG graph."""
    homogeneous = hasattr(value, "edge_index") and hasattr(value, "num_nodes")
    return homogeneous or is_hetero(value) or _is_temporal(value)


def from_pyg(data: Any, split: int | None, val: Any, test: Any) -> Graph:
    """Implements `Graph.from_pyg`."""
    if _is_temporal(data):
        return _convert_events(data)
    splits = {name: value for name, value in (("val", val), ("test", test)) if value is not None}
    data = data if splits else _homogeneous(data)
    if is_hetero(data):
        graph = from_hetero(data, split, {*_LINKS, *_NEGATIVE} if splits else set())
        return _with_links_of_relation(graph, data, splits) if splits else graph
    num_nodes = whole("data.num_nodes", data.num_nodes, 0)
    attributes = _list_attributes(data)
    links = attributes & {*_LINKS, *_NEGATIVE}
    if links - {"edge_label"} and not splits:
        raise UserError(
            f"data.{min(links - {'edge_label'})}: for edges to predict, pass the three Data of RandomLinkSplit as Graph.from_pyg(train, val=val, test=test)"
        )
    graph, read = _convert_data(data, num_nodes, split, labels_edges=not splits)
    has_split = bool(splits) or graph.is_split
    warn_unread("Graph.from_pyg", [f"data.{name}" for name in attributes - read - links], has_split=has_split)
    if not splits:
        return graph
    _check_supervision(data, num_nodes)
    for name, part in splits.items():
        if whole(f"{name}.num_nodes", part.num_nodes) != num_nodes:
            raise UserError(f"{name} has {part.num_nodes} nodes, the graph that trains has {num_nodes}")
    return graph.evolve(**{f"{name}_edges": _read_positives(name, part) for name, part in splits.items()})


def _homogeneous(data: Any) -> Any:
    """Returns a graph of one type as `Data`, and others unchanged."""
    if not is_hetero(data):
        return data
    if len(data.node_types) != 1 or len(data.edge_types) != 1:
        return data
    plain = data.to_homogeneous(add_node_type=False, add_edge_type=False)
    stores = {"node_": data[data.node_types[0]], "edge_": data[data.edge_types[0]]}
    times = {f"{prefix}{name}": store[name] for prefix, store in stores.items() for name in TIME_NAMES if name in store}
    for name in [name for name in times if name in TIME_NAMES]:  # PyG merges equal names of nodes and edges
        plain[name] = times[name]
        plain[name.partition("_")[2]] = None
    return plain


def _with_links_of_relation(graph: Graph, data: Any, splits: Mapping[str, Any]) -> Graph:
    """Adds the edges to predict, which belong to one relation.

    Args:
        graph: The converted `data`.
        data: The `HeteroData` that trains.
        splits: `val` and `test`, if present.
    """
    kind = _predicted_relation(splits)
    ranges = [graph.schema.nodes(kind[row]) for row in (0, 2)]
    _check_supervision(data[kind], graph.num_nodes)
    edges = {}
    for name, part in splits.items():
        counts = [whole(f"{name}.num_nodes", part[kind[row]].num_nodes) for row in (0, 2)]
        if counts != [nodes.stop - nodes.start for nodes in ranges]:
            raise UserError(f"{name} has {counts} nodes at the ends of {'-'.join(kind)}, unlike the graph that trains")
        pairs = _read_positives(name, part[kind])
        for row, nodes in enumerate(ranges):
            check_range(f"{name}.edge_label_index[{row}]", pairs[:, row], 0, nodes.stop - nodes.start)
        edges[f"{name}_edges"] = pairs + [nodes.start for nodes in ranges]
    return graph.evolve(**edges)


def _predicted_relation(splits: Mapping[str, Any]) -> tuple[str, str, str]:
    """Returns the relation of the edges to predict, of which there must be one."""
    for name, part in splits.items():
        if not is_hetero(part):
            raise UserError(f"{name} is a {type(part).__name__}, expected a HeteroData as the graph that trains")
    kinds = {kind for part in splits.values() for kind in part.edge_types if _list_attributes(part[kind]) & _LINKS}
    if len(kinds) != 1:
        names = ", ".join(sorted("-".join(kind) for kind in kinds)) or "no relation"
        raise UserError(
            f"HeteroData: {names} has edge_label_index, expected one relation: use RandomLinkSplit(edge_types=[(...)])"
        )
    kind: tuple[str, str, str] = kinds.pop()
    return kind


def _convert_data(data: Any, num_nodes: int, split: int | None, *, labels_edges: bool) -> tuple[Graph, set[str]]:
    """Converts a `Data`, and returns the names of the attributes it read.

    With `labels_edges`, `edge_label` are labels of the edges in `edge_index`. If nodes
    have no labels, the masks then divide edges.
    """

    def get(name: str) -> Any:
        return getattr(data, name, None)

    edge_index = _read_edge_index(get)
    of_edges = labels_edges and get("edge_label") is not None and get("y") is None
    label = getter({"edge_label": get("edge_label") if labels_edges else None})
    of_nodes, column = (getter({}), None) if of_edges else (get, split)
    edge_labels, read = edge_labels_of(
        "data.", get if of_edges else label, edge_index.shape[1], split if of_edges else None
    )
    splits, masks = split_of("data.", of_nodes, num_nodes, column)
    pos = optional("data.", get, "pos")
    labels = _read_labels(get, num_nodes)
    check_present(labels, splits, "data.y", [f"data.{name}" for name in sorted(masks)])
    has_place = pos is not None and pos.shape[1:] in ((2,), (3,))
    times, time_names = _read_times(get, _list_attributes(data), num_nodes, edge_index.shape[1])
    graph = Graph.from_edges(
        edge_index[0],
        edge_index[1],
        num_nodes,
        features=optional("data.", get, "x"),
        labels=labels,
        split=splits,
        weight=optional("data.", get, "edge_weight"),
        edge_features=as_column(optional("data.", get, "edge_attr")),
        coordinates=pos if has_place else None,
        node_ids=optional("data.", get, "n_id"),
        edge_types=types_of("data.", get, "edge_type"),
        node_types=ranges_of("data.", get, "node_type"),
        **edge_labels,
        **times,
    )
    return graph, {*_READ, *masks, *read, *time_names, *({"pos"} if has_place else ())}


def _read_times(get: Get, attributes: set[str], num_nodes: int, num_edges: int) -> tuple[Fields, set[str]]:
    """Reads times of nodes and edges, and returns the names of the attributes.

    An attribute such as `time` belongs to the rows whose number it has, or to nodes if
    there are as many edges, as in PyG.
    """
    of_nodes = {name for name in attributes if not name.lower().startswith("edge_")}
    nodes, node_names = times_of("data.", get, of_nodes, num_nodes)
    of_edges = {name for name in attributes - node_names if not name.lower().startswith("node_")}
    edges, edge_names = times_of("data.", get, of_edges, num_edges)
    return {"node_time": nodes, "edge_time": edges}, node_names | edge_names


def _convert_events(data: Any) -> Graph:
    """Converts a `TemporalData`: events from `src` to `dst` at time `t`."""
    unread = _list_attributes(data) - {"src", "dst", "t", "msg", "num_nodes"}
    warn_unread("Graph.from_pyg", [f"data.{name}" for name in unread])
    return Graph.from_edges(
        checks.array("data.src", data.src),
        checks.array("data.dst", data.dst),
        whole("data.num_nodes", data.num_nodes, 0),
        edge_features=as_column(optional("data.", lambda name: getattr(data, name, None), "msg")),
        edge_time=checks.array("data.t", data.t),
    )


def _read_edge_index(get: Get) -> Array:  # [2, num_edges]
    if get("edge_index") is None and get("adj_t") is not None:
        raise UserError("data.adj_t is unsupported, expected data.edge_index: remove the transform ToSparseTensor")
    edge_index = optional("data.", get, "edge_index")
    if edge_index is None or edge_index.ndim != 2 or len(edge_index) != 2:
        raise UserError("data.edge_index must have shape [2, num_edges]: other formats are unsupported")
    return edge_index


def _read_labels(get: Get, num_nodes: int) -> Array | None:
    """Reads node labels. Raises `UserError` for several graphs and for graph labels."""
    batch, labels = optional("data.", get, "batch"), as_row(optional("data.", get, "y"))
    several = batch is not None and (batch != batch.ravel()[:1]).any()
    if several or (labels is not None and labels.shape[:1] != (num_nodes,) and labels.size):
        what = "data.batch holds several graphs" if several else f"data.y has shape {list(labels.shape)}"  # type: ignore[union-attr]
        raise UserError(f"{what} for {num_nodes} nodes: graph labels are not supported yet, only node labels")
    return labels


def _is_temporal(value: Any) -> bool:
    return type(value).__name__ == "TemporalData"


def _list_attributes(data: Any) -> set[str]:
    """Returns the attributes that are not None. Older PyG has `keys` as a property."""
    keys = data.keys() if callable(data.keys) else data.keys
    return {name for name in keys if getattr(data, name, None) is not None}


def _read_positives(name: str, data: Any) -> npt.NDArray[np.int64]:  # [k, 2]
    """Reads the edges to predict, without their negative pairs.

    Args:
        name: Name of the data, for messages.
        data: A `Data`, or one edge type of a `HeteroData`.
    """
    for index, label in (("edge_label_index", "edge_label"), ("pos_edge_label_index", "pos_edge_label")):
        pairs = getattr(data, index, None)
        if pairs is not None:
            return _select_positives(f"{name}.{index}", pairs, f"{name}.{label}", getattr(data, label, None))
    raise UserError(f"{name} has no edge_label_index, which RandomLinkSplit makes")


def _select_positives(index: str, pairs: Any, name: str, labels: Any) -> npt.NDArray[np.int64]:  # [k, 2]
    ends = checks.array(index, pairs)
    if ends.ndim != 2 or len(ends) != 2:
        raise UserError(f"{index} has shape {list(ends.shape)}, expected [2, num_pairs]")
    marks = np.ones(ends.shape[1]) if labels is None else checks.array(name, labels)
    if marks.shape != ends.shape[1:]:
        raise UserError(f"{name} has shape {list(marks.shape)}, expected {list(ends.shape[1:])}")
    if not np.isin(marks, (0, 1)).all():
        raise UserError(
            f"{name} has other values than 0 and 1: to predict labels of edges, pass the undivided graph, whose edge_label "
            "has one value per edge, with train_mask, val_mask and test_mask of edges"
        )
    return np.ascontiguousarray(ends[:, marks == 1].T, np.int64)


def _check_supervision(data: Any, num_nodes: int) -> None:
    """Raises `UserError` if supervision edges are not message-passing edges.

    Args:
        data: A `Data`, or one edge type of a `HeteroData`.
        num_nodes: More than the largest node id.
    """
    if not _list_attributes(data) & _LINKS:
        return
    trained = _read_positives("data", data) @ np.array([num_nodes, 1])
    edges = checks.array("data.edge_index", data.edge_index).astype(np.int64)
    if not np.isin(trained, np.array([num_nodes, 1]) @ edges).all():
        raise UserError(
            "data.edge_label_index holds edges that are not in data.edge_index: RandomLinkSplit(disjoint_train_ratio=0) keeps "
            "them, and gnnkit leaves out the edges of each step itself"
        )
