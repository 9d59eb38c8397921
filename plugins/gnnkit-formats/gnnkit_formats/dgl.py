"""Reader for DGL graphs. DGL need not be installed."""

from __future__ import annotations

from typing import Any

from gnnkit.errors import UserError
from gnnkit.graph.graph import Graph
from gnnkit.utils import checks
from gnnkit.utils.checks import whole
from gnnkit_formats.attributes import AttributeNames, Attributes, TypedAttributes, warn_unread

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
    ends = [checks.array(name, end) for name, end in zip(("src", "dst"), graph.edges(order="eid"), strict=True)]
    num_nodes = whole("graph.num_nodes()", graph.num_nodes(), 0)
    nodes = Attributes("ndata['{}']", {name: graph.ndata[name] for name in graph.ndata}, num_nodes)
    edges = Attributes("edata['{}']", {name: graph.edata[name] for name in graph.edata}, len(ends[0]))
    pairs = [
        (nodes, features, "feat"),
        (nodes, labels, "label"),
        (edges, weight, "weight"),
        (edges, edge_features, "feat"),
    ]
    for rows, name, usual in [*pairs, *([] if edge_label is None else [(edges, edge_label, "")])]:
        if name not in rows.values and name != usual:  # only a field with the default name may be missing
            raise UserError(f"the DGLGraph has no {rows.shown(name)}")
    attributes = TypedAttributes({"": nodes}, {("", "", ""): edges}, [ends], is_typed=False)
    names = AttributeNames(features, labels, "", _ID, _TYPE, weight, edge_features, _TYPE, edge_label or "")
    result = attributes.convert(split, names)
    edges.read.add(_ID)
    warn_unread("Graph.from_dgl", attributes.unread, has_split=result.is_split)
    return result


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
