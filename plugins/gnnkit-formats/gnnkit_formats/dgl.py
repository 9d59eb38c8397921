"""Reader for DGL graphs. DGL need not be installed."""

from __future__ import annotations

from typing import Any

from gnnkit.errors import UserError
from gnnkit.graph.attributes import (
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
from gnnkit.utils.checks import Array, whole

_ID = "_ID"  # dgl.NID and dgl.EID: ids in the graph that a subgraph was taken from
_TYPE = "_TYPE"  # dgl.NTYPE and dgl.ETYPE: types kept by dgl.to_homogeneous


def is_dgl(value: Any) -> bool:
    """Checks whether a value is a DGL graph."""
    return all(hasattr(value, name) for name in ("ndata", "edata", "canonical_etypes"))


def from_dgl(
    graph: Any,
    features: str,
    labels: str,
    weight: str,
    edge_features: str,
    split: int | None,
    edge_label: str | None = None,
) -> Graph:
    """Implements `Graph.from_dgl`."""
    _check_graph(graph)
    num_nodes = whole("graph.num_nodes()", graph.num_nodes(), 0)
    nodes, edges = getter(graph.ndata), getter(graph.edata)
    src, dst = graph.edges(order="eid")
    splits, masks = split_of("ndata.", nodes, num_nodes, split)
    target = as_row(_read_field("ndata", nodes, labels, "label"))
    check_present(target, splits, f"ndata[{labels!r}]", [f"ndata[{name!r}]" for name in sorted(masks)])
    edge_labels, read_labels = _read_edge_labels(edges, len(src), split, edge_label)
    read = {features, labels, weight, edge_features, _ID, _TYPE, *masks, *read_labels}
    node_time, node_names = times_of("ndata.", nodes, set(graph.ndata) - read, num_nodes)
    edge_time, edge_names = times_of("edata.", edges, set(graph.edata) - read, len(src))
    unread = _list_unread("ndata", graph.ndata, {features, labels, _ID, _TYPE, *masks, *node_names})
    unread += _list_unread("edata", graph.edata, {weight, edge_features, _ID, _TYPE, *read_labels, *edge_names})
    warn_unread("Graph.from_dgl", unread, has_split=bool(masks) or len(read_labels) > 1)
    return Graph.from_edges(
        checks.array("src", src),
        checks.array("dst", dst),
        num_nodes,
        features=as_column(_read_field("ndata", nodes, features, "feat")),
        labels=target,
        split=splits,
        weight=as_row(_read_field("edata", edges, weight, "weight")),
        edge_features=as_column(_read_field("edata", edges, edge_features, "feat")),
        node_ids=optional("ndata.", nodes, _ID),
        edge_types=types_of("edata.", edges, _TYPE),
        node_types=ranges_of("ndata.", nodes, _TYPE),
        **edge_labels,
        node_time=node_time,
        edge_time=edge_time,
    )


def _read_edge_labels(edges: Get, count: int, split: int | None, name: str | None) -> tuple[Fields, set[str]]:
    """Returns the fields with labels of edges, and the names of their attributes."""
    fields, read = edge_labels_of("edata.", edges, count, split, name or "")
    if name is not None and not read:
        raise UserError(f"the DGLGraph has no edata[{name!r}]")
    return fields, read


def _check_graph(graph: Any) -> None:
    """Raises `UserError` for heterogeneous graphs, blocks and batches of graphs."""
    if not is_dgl(graph):
        raise UserError(f"expected a DGLGraph, got {type(graph).__name__}")
    types = ["-".join(edge_type) for edge_type in graph.canonical_etypes]
    if len(graph.ntypes) != 1 or len(types) != 1:
        raise UserError(
            f"the DGLGraph has types of nodes ({', '.join(graph.ntypes)}) and of edges ({', '.join(types)}), expected one of "
            "each: choose with graph.edge_type_subgraph, or make one graph with dgl.to_homogeneous, whose _TYPE is read"
        )
    if getattr(graph, "is_block", False):
        raise UserError("the DGLGraph is a block of a mini-batch: give the graph that the block was drawn from")
    if getattr(graph, "batch_size", 1) != 1:
        raise UserError(f"the DGLGraph is a batch of {graph.batch_size} graphs: labels of graphs are not supported yet")


def _read_field(view: str, get: Get, name: str, usual: str) -> Array | None:
    """Reads a field. Only the field with the default name may be missing."""
    values = optional(f"{view}.", get, name)
    if values is None and name != usual:
        raise UserError(f"the DGLGraph has no {view}[{name!r}]")
    return values


def _list_unread(view: str, fields: Any, read: set[str]) -> list[str]:
    return [f"{view}[{name!r}]" for name in fields if name not in read]
