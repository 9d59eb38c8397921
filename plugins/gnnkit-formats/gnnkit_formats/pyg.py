"""Reader for PyTorch Geometric (PyG) graphs. PyG need not be installed."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph.graph import Graph
from gnnkit.graph.times import is_time
from gnnkit.utils import checks
from gnnkit.utils.checks import Array, check_range, whole
from gnnkit.utils.ranges import shown_names
from gnnkit_formats.attributes import MASKS, AttributeNames, Attributes, EdgeType, TypedAttributes, warn_unread

_STRUCTURE = {"edge_index", "num_nodes"}  # attributes that are no fields
_LINKS = {"edge_label", "edge_label_index", "pos_edge_label", "pos_edge_label_index"}
_NEGATIVE = {"neg_edge_label", "neg_edge_label_index"}


def is_hetero(value: Any) -> bool:
    """Returns whether a value is a `HeteroData`."""
    return hasattr(value, "node_types") and hasattr(value, "edge_types") and hasattr(value, "to_homogeneous")


def is_pyg(value: Any) -> bool:
    """Checks whether a value is a PyG graph."""
    homogeneous = hasattr(value, "edge_index") and hasattr(value, "num_nodes")
    return homogeneous or is_hetero(value) or _is_temporal(value)


def from_pyg(data: Any, split: int | None, val: Any, test: Any) -> Graph:
    """Implements `Graph.from_pyg`."""
    if _is_temporal(data):
        return _convert_events(data)
    splits = {name: value for name, value in (("val", val), ("test", test)) if value is not None}
    links = {*_LINKS, *_NEGATIVE} if splits else set()
    attributes = (
        _attributes_by_type(data, links, is_typed=bool(splits)) if is_hetero(data) else _attributes(data, links)
    )
    graph = attributes.convert(split, AttributeNames())
    warn_unread("Graph.from_pyg", attributes.unread, has_split=bool(splits) or graph.is_split)
    return _with_links(graph, data, splits) if splits else graph


def _attributes(data: Any, links: Set[str]) -> TypedAttributes:
    """Returns the attributes of a `Data`, divided into those of nodes and of edges.

    An attribute such as `time` belongs to the rows whose number it has, or to nodes if
    there are as many edges, as in PyG. Masks belong to edges if these have labels, and
    nodes have none.

    Args:
        data: The `Data`.
        links: Attributes that the caller reads.
    """
    num_nodes, names = whole("data.num_nodes", data.num_nodes, 0), _list_attributes(data)
    if not links and (pairs := names & {*_LINKS, *_NEGATIVE} - {"edge_label"}):
        raise UserError(
            f"data.{min(pairs)}: for edges to predict, pass the three Data of RandomLinkSplit as Graph.from_pyg(train, val=val, test=test)"
        )
    if "adj_t" in names and "edge_index" not in names:
        raise UserError("data.adj_t is unsupported, expected data.edge_index: remove the transform ToSparseTensor")
    ends = _read_ends("data.edge_index", data)
    values = {name: getattr(data, name) for name in names - links - _STRUCTURE}
    masks = MASKS if "edge_label" in values and "y" not in values else set[str]()
    of_nodes = {name for name in values if not name.lower().startswith("edge_")} - masks
    rows = {name: len(values[name]) for name in ("y", *sorted(MASKS)) if name in of_nodes and np.ndim(values[name])}
    if len(rows) > 1 and set(rows.values()).isdisjoint({num_nodes}) and len(set(rows.values())) == 1:
        raise UserError(
            f"data.x has {num_nodes} rows (nodes), and {shown_names([f'data.{name}' for name in rows])} have "
            f"{rows.popitem()[1]}: expected one row per node in each"
        )
    nodes = Attributes("data.{}", {name: values[name] for name in of_nodes}, num_nodes)
    times = {name for name in of_nodes if is_time(name) and not name.lower().startswith("node_")}
    of_edges = (values.keys() - of_nodes) | (times - nodes.find_times().keys())
    nodes.read.update(of_edges)
    edges = Attributes("data.{}", {name: values[name] for name in of_edges}, ends.shape[1])
    return TypedAttributes({"": nodes}, {("", "", ""): edges}, [ends], is_typed=False)


def _attributes_by_type(data: Any, links: Set[str], *, is_typed: bool) -> TypedAttributes:
    """Returns the attributes of a `HeteroData` by type.

    Args:
        data: The `HeteroData`.
        links: Attributes of edge types that the caller reads.
        is_typed: Keep the names if there is one type of nodes and of edges.
    """
    nodes = {
        name: Attributes(f"data[{name!r}].{{}}", _present(data[name], _STRUCTURE), _count(data, name))
        for name in data.node_types
    }
    starts = dict(zip(nodes, np.cumsum([0, *(rows.count for rows in nodes.values())]).tolist(), strict=False))
    edges, ends, by_name = dict[EdgeType, Attributes](), list[Array](), dict[str, EdgeType]()
    for kind in data.edge_types:
        source, _, destination = kind
        if (other := by_name.setdefault("-".join(kind), kind)) != kind:
            raise UserError(f"data.edge_types: {other} and {kind} are both named {'-'.join(kind)}: rename one of them")
        for end in (source, destination):
            if end not in nodes:
                raise UserError(f"data.edge_types: there is no node type {end!r}: set data[{end!r}].num_nodes")
        name = f"data[{'-'.join(kind)!r}]"
        rows = _read_ends(f"{name}.edge_index", data[kind])
        for row, end in enumerate((source, destination)):
            place = f"{name}.edge_index[{row}]"
            check_range(place, checks.integers(place, rows[row]), 0, nodes[end].count)
        ends.append(rows.astype(np.int64) + np.array([[starts[source]], [starts[destination]]]))
        edges[kind] = Attributes(f"{name}.{{}}", _present(data[kind], links | _STRUCTURE), rows.shape[1])
    return TypedAttributes(nodes, edges, ends, is_typed or len(nodes) != 1 or len(edges) != 1)


def _present(store: Any, others: Set[str] = frozenset()) -> Mapping[str, Any]:
    """Returns the attributes of one type that are not None, except some."""
    return {name: value for name, value in store.items() if value is not None and name not in others}


def _count(data: Any, name: str) -> int:
    """Counts the nodes of a type, by `y` if needed, which PyG ignores."""
    values = _present(data[name])
    rows = values.get("x", values.get("y"))
    count = values.get("num_nodes", data[name].num_nodes if rows is None else len(rows))
    return whole(f"data[{name!r}].num_nodes", count, 0)


def _read_ends(name: str, store: Any) -> Array:  # [2, num_edges]
    ends = checks.array(name, getattr(store, "edge_index", ()))
    if ends.ndim != 2 or len(ends) != 2:
        raise UserError(f"{name} must have shape [2, num_edges]: other formats are unsupported")
    return ends


def _with_links(graph: Graph, data: Any, splits: Mapping[str, Any]) -> Graph:
    """Adds the edges to predict, which belong to one relation of a `HeteroData`.

    Args:
        graph: The converted `data`.
        data: The `Data` or `HeteroData` that trains.
        splits: `val` and `test`, if present.
    """
    kind = _predicted_relation(splits) if is_hetero(data) else None
    ranges = [slice(0, graph.num_nodes)] * 2 if kind is None else [graph.schema.nodes(kind[row]) for row in (0, 2)]
    sizes, edges = [nodes.stop - nodes.start for nodes in ranges], {}
    _check_supervision(data if kind is None else data[kind], graph.num_nodes)
    for name, part in splits.items():
        stores = [part, part] if kind is None else [part[kind[row]] for row in (0, 2)]
        counts = [whole(f"{name}.num_nodes", store.num_nodes) for store in stores]
        if counts != sizes:
            relation = "edges" if kind is None else "-".join(kind)
            raise UserError(f"{name} has {counts} nodes at the ends of {relation}, the graph that trains has {sizes}")
        pairs = _read_positives(name, part if kind is None else part[kind])
        for row, size in enumerate(sizes):
            check_range(f"{name}.edge_label_index[{row}]", pairs[:, row], 0, size)
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


def _convert_events(data: Any) -> Graph:
    """Converts a `TemporalData`: events from `src` to `dst` at time `t`."""
    names = _list_attributes(data)
    events = Attributes("data.{}", {name: getattr(data, name) for name in names}, len(data.src))
    warn_unread("Graph.from_pyg", map(events.shown, names - {"src", "dst", "t", "msg", "num_nodes"}))
    return Graph.from_edges(
        checks.array("data.src", data.src),
        checks.array("data.dst", data.dst),
        whole("data.num_nodes", data.num_nodes, 0),
        edge_features=events.column("msg"),
        edge_time=checks.array("data.t", data.t),
    )


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
