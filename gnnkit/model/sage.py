"""GraphSAGE."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.base import ConvModel


class SAGEConv(nn.Module):
    """W_self x + W_neighbour mean(x of in-edges) + b, or the maximum; a mean comes after the product where that makes the rows
    narrower."""

    def __init__(self, in_features: int, out_features: int, aggregator: Literal["mean", "max"] = "mean") -> None:
        super().__init__()
        self.aggregator = aggregator
        self.own = nn.Linear(in_features, out_features)
        self.neighbor = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        if self.aggregator == "mean" and self.neighbor.out_features < self.neighbor.in_features:
            z = adjacency.aggregate(self.neighbor(x), reduce="mean")
        else:
            z = self.neighbor(adjacency.aggregate(x, reduce=self.aggregator))
        out: Tensor = self.own(x[: adjacency.num_dst]) + z
        return out


class GraphSAGE(ConvModel):
    """Hamilton, Ying & Leskovec, NeurIPS 2017, with the mean or maximum aggregator. Serves graphs whose nodes differ from their
    neighbours, and nodes never seen in training."""

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        aggregator: Literal["mean", "max"] = "mean",
    ) -> None:
        super().__init__(num_layers, dropout)
        if aggregator not in ("mean", "max"):
            raise UserError(f"model.aggregator={aggregator} must be mean or max")
        widths = [in_features, *[hidden] * (num_layers - 1), num_classes]
        self.convs = nn.ModuleList(SAGEConv(a, b, aggregator) for a, b in pairwise(widths))
