"""GraphSAGE."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gnnkit.engine import Adjacency
from gnnkit.model.base import ConvStack, Norm
from gnnkit.utils.ranges import one_of

Aggregator = Literal["mean", "max", "none"]


class SAGEConv(nn.Module):
    """Computes W_self x + W_neighbour mean(x of in-neighbours) + b, or the maximum.

    The mean follows the product if this is cheaper. Otherwise, one product computes
    both terms.
    """

    def __init__(
        self, in_features: int, out_features: int, aggregator: Aggregator = "mean", dropout: float = 0
    ) -> None:
        """Creates the weights.

        Args:
            in_features: Number of input features.
            out_features: Number of output features.
            aggregator: "mean" or "max" over in-neighbours, or "none" of them.
            dropout: Dropout probability of the input.
        """
        super().__init__()
        self.aggregator, self.dropout = aggregator, dropout
        self.own = nn.Linear(in_features, out_features)
        self.neighbor = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        own_weight, neighbor = self.own.weight, self.neighbor.weight
        mean, p = self.aggregator == "mean", self.dropout if self.training else 0
        if mean and not adjacency.projects(x, neighbor.shape[0]):
            weight = torch.cat([neighbor, own_weight], 1).t()
            return torch.addmm(self.own.bias, adjacency.concat_mean(x, p), weight)
        x = adjacency.dropout(x, p, training=True)
        if self.aggregator == "none":
            z = (x @ own_weight.t())[: adjacency.num_dst]
        elif not mean:
            z = x[: adjacency.num_dst] @ own_weight.t() + F.linear(adjacency.aggregate(x, reduce="max"), neighbor)
        elif x.shape[0] == adjacency.num_dst:  # one product reads the rows once
            rows, sources = (x @ torch.cat([own_weight, neighbor]).t()).chunk(2, 1)
            z = rows + adjacency.aggregate(sources, reduce="mean")
        else:
            z = x[: adjacency.num_dst] @ own_weight.t() + adjacency.aggregate(x @ neighbor.t(), reduce="mean")
        return z + self.own.bias.to(z.dtype)


class GraphSAGE(ConvStack):
    """GraphSAGE (Hamilton, Ying & Leskovec, NeurIPS 2017).

    Aggregates by mean or maximum. Suits graphs whose nodes differ from their
    neighbours, and predictions for new nodes.
    """

    reads_sparse = True
    default_weight_decay = 5e-4

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        aggregator: Aggregator = "mean",
        norm: Norm = "none",
        skip: bool = False,
    ) -> None:
        """Creates the layers.

        Args:
            in_features: Number of input features.
            num_classes: Number of outputs.
            hidden: Number of hidden features.
            num_layers: Number of convolutions.
            dropout: Dropout probability of layer inputs, in [0, 1).
            aggregator: "mean" or "max" over in-neighbours. "none": nodes read only
                their own rows, for comparison.
            norm: Normalisation between convolutions: "none", "batch" over all nodes of
                a step, or "layer" over a node's features.
            skip: Whether a perceptron of the node's own input row, with one hidden
                layer, is added to the outputs.
        """
        self.aggregator = one_of("model.aggregator", aggregator, get_args(Aggregator))
        super().__init__(in_features, num_classes, hidden, num_layers, dropout, norm, skip)
        self.reads_sparse = self.reads_sparse and aggregator != "max"
        self.convs[0].dropout = self.dropout  # type: ignore[assignment]

    def make_conv(self, in_features: int, hidden: int, out_features: int) -> nn.Module:
        return SAGEConv(in_features, out_features, self.aggregator)

    def drop(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return x  # the first convolution applies dropout itself
