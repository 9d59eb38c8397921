"""The models that several folders of tests hold to one result."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from gnnkit_testing.graphs import EDGE_WIDTH
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.model.base import GraphModel
from gnnkit.model.functions import inherits, is_convolution, shared_padding
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.sage import GraphSAGE
from gnnkit.nn import call

MODELS: dict[str, Callable[..., nn.Module]] = {  # by name, for graphs with edge features
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": functools.partial(GAT, heads=2, edge_width=EDGE_WIDTH),
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=EDGE_WIDTH),
}


class PyG(GraphModel):
    """PyG's layers one after the other, as `docs/howto/own-model.md` calls them."""

    adds_rows_itself = True
    edge_order = True

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.num_layers = max(sum(map(is_convolution, layers)), 1)

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        hop = 0
        for layer in self.layers:
            if min(hop, self.num_layers - 1) == index:
                x = self._call(layer, x, adjacency)
            hop += is_convolution(layer)
        return x

    def _call(self, layer: nn.Module, x: Tensor, adjacency: Adjacency) -> Tensor:
        if isinstance(layer, nn.Dropout):
            return adjacency.dropout(x, layer.p, training=self.training)
        if not is_convolution(layer):
            return call(layer, x, adjacency)
        values = {}
        if inherits(layer, "GINEConv") or getattr(layer, "edge_dim", None) is not None:
            values["edge_attr"] = adjacency.edge_features
        elif inherits(layer, "GraphConv"):
            values["edge_weight"] = adjacency.rank_graph.weight
        with shared_padding(layer, adjacency):
            rows = (adjacency.with_halo(x), x[: adjacency.num_dst])
            return layer(rows, adjacency.rank_graph.edge_index, **values)  # type: ignore[no-any-return]
