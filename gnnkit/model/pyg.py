"""Unmodified PyTorch Geometric (PyG) layers.

PyG does not have to be installed, because its classes are recognised by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.base import GraphModel
from gnnkit.model.padding import shared_padding
from gnnkit.nn import call

BIPARTITE = (
    "SAGEConv", "GATConv", "GATv2Conv", "GINConv", "GINEConv", "GraphConv", "TransformerConv", "ResGatedGraphConv",
)  # fmt: skip
NORMALIZED = ("GCNConv", "TAGConv")  # use normalize=False: gnnkit normalises by the complete graph's degrees
WHOLE_GRAPH = (
    "BatchNorm", "BatchNorm1d", "SyncBatchNorm", "HeteroBatchNorm", "InstanceNorm", "InstanceNorm1d", "GraphNorm",
    "GraphSizeNorm", "PairNorm", "MeanSubtractionNorm", "DiffGroupNorm",
)  # fmt: skip


class PyG(GraphModel):
    """A sequence of PyG layers, for grids with one column and one slice.

    The halo is gathered before each convolution. Other modules, such as `nn.ReLU()`,
    are applied to rows. `nn.Dropout` is keyed by global ids, so it is exact on any
    number of ranks. Dropout within a convolution is torch's, and differs between ranks.

    Layers with `edge_dim`, and GINEConv, receive edge features. GraphConv, GCNConv and
    TAGConv receive edge weights. GCNConv and TAGConv must be created with
    `normalize=False`. They then equal the same layers with `normalize=True` on the
    complete graph.

    Use it for models that are a list of PyG layers. For other PyG models, pass the
    module itself to `gnnkit.train`: its `forward(x, edge_index)` is called with the
    rank's edges.

    Examples:
        >>> from torch import nn
        >>> from torch_geometric.nn import SAGEConv
        >>> from gnnkit.model.pyg import PyG
        >>> model = PyG([SAGEConv(8, 16), nn.ReLU(), nn.Dropout(0.5), SAGEConv(16, 3)])
        >>> model.num_layers
        2
    """

    adds_rows_itself = True
    edge_order = True  # as `EdgeIndexModel.edge_order`

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """Stores the layers.

        Raises `UserError`, which names a layer that cannot be computed per rank.
        """
        super().__init__()
        for layer in layers:
            _check(layer)
        self.layers = nn.ModuleList(layers)
        self.num_layers = max(sum(map(_is_convolution, layers)), 1)

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        """Computes a convolution and the modules before it.

        The last convolution includes the modules after it.
        """
        hop = 0
        for layer in self.layers:
            if min(hop, self.num_layers - 1) == index:
                x = self._module(layer, x, adjacency)
            hop += _is_convolution(layer)
        return x

    def _module(self, layer: nn.Module, x: Tensor, adjacency: Adjacency) -> Tensor:
        if _is_convolution(layer):
            return _convolve(layer, x, adjacency)
        if isinstance(layer, nn.Dropout):
            return adjacency.dropout(x, layer.p, training=self.training)
        return call(layer, x, adjacency)


def _convolve(conv: nn.Module, x: Tensor, adjacency: Adjacency) -> Tensor:
    if _is(conv, NORMALIZED):
        edge_index, weight = _normalize_edges(conv, x, adjacency)
        return (_tag if _is(conv, ("TAGConv",)) else _square)(conv, x, adjacency, edge_index, weight)
    graph = adjacency.rank_graph
    options: dict[str, Any] = {}
    if _is(conv, ("GINEConv",)) or getattr(conv, "edge_dim", None) is not None:
        options["edge_attr"] = adjacency.edge_features
    elif _is(conv, ("GraphConv",)):
        options["edge_weight"] = graph.weight
    with shared_padding(conv, adjacency):
        out: Tensor = conv((adjacency.with_halo(x), x[: adjacency.num_dst]), graph.edge_index, **options)
    return out


def _square(conv: nn.Module, x: Tensor, adjacency: Adjacency, edge_index: Tensor, weight: Tensor) -> Tensor:
    """Calls a layer that rejects bipartite input, and drops the halo's rows."""
    out: Tensor = conv(adjacency.with_halo(x), edge_index, weight)
    return out[: adjacency.num_dst]


def _tag(conv: Any, x: Tensor, adjacency: Adjacency, edge_index: Tensor, weight: Tensor) -> Tensor:
    """Computes TAGConv's hops like its `forward`, gathering the halo for each hop."""
    if len(x) != adjacency.num_dst and conv.K > 1:
        raise UserError(f"model: TAGConv(K={conv.K}) reads {conv.K} hops, a sampled block has one: use K=1")
    out: Tensor = conv.lins[0](x[: adjacency.num_dst])
    for lin in conv.lins[1:]:
        x = conv.propagate(edge_index, x=adjacency.with_halo(x), edge_weight=weight)[: adjacency.num_dst]
        out = out + lin(x)
    return out if conv.bias is None else out + conv.bias


def _normalize_edges(conv: Any, x: Tensor, adjacency: Adjacency) -> tuple[Tensor, Tensor]:
    """Computes PyG's `gcn_norm` with the complete graph's degrees.

    Returns edges [2, num_edges] and weights [num_edges]. For GCNConv, every node gets a
    self-loop.
    """
    graph, fill = adjacency.rank_graph, 0.0
    edge_index = graph.edge_index
    weight = x.new_ones(edge_index.shape[1]) if graph.weight is None else graph.weight
    if _is(conv, ("GCNConv",)):
        lacks = adjacency.lacks_loop
        fill = 2.0 if conv.improved else 1.0
        edge_index = torch.cat([edge_index, lacks.nonzero().T.expand(2, -1)], 1)
        weight = torch.cat([weight, weight.new_full((int(lacks.sum()),), fill)])
    degree = adjacency.degree_with_halo(fill)
    inverse = torch.where(degree > 0, degree, torch.inf).rsqrt()
    source, destination = edge_index
    return edge_index, inverse[source] * weight * inverse[destination]


def reads_whole_graph(module: nn.Module) -> bool:
    """Returns whether a module computes statistics over rows, which differ per rank."""
    if getattr(module, "reads_adjacency", False):
        return False
    return _is(module, WHOLE_GRAPH) or (_is(module, ("LayerNorm",)) and getattr(module, "mode", "node") == "graph")


def _check(layer: nn.Module) -> None:
    name = type(layer).__name__
    for part in layer.modules():
        if reads_whole_graph(part):
            raise UserError(
                f"model: {type(part).__name__} needs statistics of the whole graph, a rank has its own rows only: "
                "use gnnkit.nn.BatchNorm"
            )
    if not _is_convolution(layer):
        _check_rows(layer)
        return
    if not _is(layer, (*BIPARTITE, *NORMALIZED)):
        raise UserError(
            f"model: {name} is not one of the layers of PyG that work: {', '.join((*BIPARTITE, *NORMALIZED))}"
        )
    if _is(layer, NORMALIZED) and layer.normalize:
        raise UserError(
            f"model: {name}(normalize=True) needs degrees of the whole graph: use normalize=False, gnnkit normalises"
        )
    if getattr(layer, "flow", "source_to_target") != "source_to_target":
        raise UserError(f"model: {name}(flow={layer.flow!r}) reads against the edges: turn the graph's edges instead")


def _check_rows(layer: nn.Module) -> None:
    """Rejects modules between convolutions that are not applied row by row."""
    name = type(layer).__name__
    if "JumpingKnowledge" in _names(layer):
        raise UserError(
            f"model: {name} reads the rows of all layers, PyG([...]) takes layers one after the other: write a module "
            "with num_layers and forward(x, adjacencies), and use gnnkit.nn.JumpingKnowledge there"
        )
    if any(map(_is_convolution, layer.modules())):
        raise UserError(
            f"model: {name} has convolutions inside, PyG([...]) takes layers one after the other: list its layers"
        )


def _is_convolution(layer: nn.Module) -> bool:
    return "MessagePassing" in _names(layer)


def _is(layer: nn.Module, names: Sequence[str]) -> bool:
    return any(name in names for name in _names(layer))


def _names(layer: nn.Module) -> Iterator[str]:
    return (base.__name__ for base in type(layer).__mro__)
