"""LightGCN."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.model.base import GraphModel
from gnnkit.utils.ranges import MAX_LAYERS, switch, whole


class LightGCN(GraphModel):
    """LightGCN (He et al., SIGIR 2020), which recommends items by learned rows.

    A layer computes D^-1/2 A D^-1/2 x, where A holds each edge of any relation in both
    directions. It has no weight and no activation. Outputs are the mean of the input
    rows and the rows of all layers.

    Args:
        in_features: Number of input features. Unless equal to `num_classes`, a weight
            multiplies the input rows first.
        num_classes: Number of outputs.
        num_relations: Number of edge types, which are not distinguished.
        num_layers: Number of layers.
        inverse: Whether to add inverse edges. Not needed if the graph has them.
    """

    reads_relations = True
    decays_rows = True

    def __init__(
        self, in_features: int, num_classes: int, num_relations: int = 1, num_layers: int = 3, inverse: bool = True
    ) -> None:
        super().__init__()
        self.num_layers = whole("model.num_layers", num_layers, 1, MAX_LAYERS)
        self.num_relations, self.inverse = num_relations, switch("model.inverse", inverse)
        self.undirected = self.inverse
        self.project = None
        if in_features != num_classes:
            self.project = Parameter(nn.init.xavier_uniform_(torch.empty(in_features, num_classes)))
        self.reads_sparse = num_classes < in_features
        self.share = Parameter(torch.tensor(1 / (num_layers + 1)))  # constant, because optimisers need a parameter

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        """Computes all layers, without the copies that `layer` makes."""
        rows = total = self._first_rows(x)
        for adjacency in adjacencies:
            rows = adjacency.aggregate_normalized(rows)
            total = total[: adjacency.num_dst] + rows
        return total / (self.num_layers + 1)

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        """Computes layer `index`, from rows [previous layer's row | sum so far]."""
        if index:
            rows, total = x.chunk(2, 1)
        else:
            rows = total = self._first_rows(x)
        rows = adjacency.aggregate_normalized(rows)
        total = total[: adjacency.num_dst] + rows
        if index + 1 == self.num_layers:
            return total / (self.num_layers + 1)
        return torch.cat([rows, total], 1)

    def _first_rows(self, x: Tensor) -> Tensor:  # [num_src, in_features] -> [num_src, num_classes]
        return x if self.project is None else x @ self.project

    def decayed_parameters(self) -> Iterable[Parameter]:
        return () if self.project is None else (self.project,)
