"""Graph isomorphism network, without and with edge features."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.base import ConvModel


class GINConv(nn.Module):
    """MLP((1 + eps) x + sum of in-edges' x) with a learnt eps. The MLP's first product comes before the sum where it makes the rows
    narrower; both are linear."""

    def __init__(self, in_features: int, hidden: int, out_features: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_features, hidden, bias=False), nn.Linear(hidden, out_features)
        self.bias = Parameter(torch.zeros(hidden))
        self.eps = Parameter(torch.zeros(()))

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        project_first = self.first.out_features < self.first.in_features
        h = self.first(x) if project_first else x
        z = (1 + self.eps) * h[: adjacency.num_dst] + adjacency.aggregate(h)
        out: Tensor = self.second(((z if project_first else self.first(z)) + self.bias).relu())
        return out


class GINEConv(nn.Module):
    """MLP((1 + eps) x + sum over in-edges of relu(x_u + W e + b))."""

    def __init__(self, in_features: int, hidden: int, out_features: int, edge_width: int) -> None:
        super().__init__()
        self.edge = nn.Linear(edge_width, in_features)
        self.first, self.second = nn.Linear(in_features, hidden), nn.Linear(hidden, out_features)
        self.eps = Parameter(torch.zeros(()))

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        if adjacency.edge_features is None:
            raise UserError("model=gine needs edge features, and the edges of this batch have none")
        edge = self.edge(adjacency.edge_features)
        z = adjacency.aggregate_messages(x, lambda rows, columns: (rows + edge[:, columns]).relu())
        out: Tensor = self.second(self.first((1 + self.eps) * x[: adjacency.num_dst] + z).relu())
        return out


class GIN(ConvModel):
    """Xu et al., ICLR 2019. Its MLPs have one hidden layer and no batch normalisation."""

    def __init__(
        self, in_features: int, num_classes: int, hidden: int = 64, num_layers: int = 2, dropout: float = 0.5
    ) -> None:
        super().__init__(num_layers, dropout)
        widths = [in_features, *[hidden] * (num_layers - 1), num_classes]
        self.convs = nn.ModuleList(self.make_conv(a, hidden, b) for a, b in pairwise(widths))

    def make_conv(self, in_features: int, hidden: int, out_features: int) -> nn.Module:
        """One layer."""
        return GINConv(in_features, hidden, out_features)


class GINE(GIN):
    """Hu et al., ICLR 2020: GIN whose messages carry edge features."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        edge_width: int,
        hidden: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
    ) -> None:
        if edge_width == 0:
            raise UserError("model=gine needs a graph with edge features")
        self.edge_width = edge_width
        super().__init__(in_features, num_classes, hidden, num_layers, dropout)

    def make_conv(self, in_features: int, hidden: int, out_features: int) -> nn.Module:
        return GINEConv(in_features, hidden, out_features, self.edge_width)
