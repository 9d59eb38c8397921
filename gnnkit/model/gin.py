"""Graph isomorphism network, with and without edge features."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.base import ConvStack, Norm


class GINConv(nn.Module):
    """Computes MLP((1 + eps) x + sum of in-neighbours' x) with learnable eps.

    The MLP's first product, which is linear like the sum, precedes it if this is
    cheaper.
    """

    def __init__(self, in_features: int, hidden: int, out_features: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_features, hidden, bias=False), nn.Linear(hidden, out_features)
        self.bias = Parameter(torch.zeros(hidden))
        self.eps = Parameter(torch.zeros(()))

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        weight = self.first.weight.t()
        project_first = adjacency.projects(x, weight.shape[1])
        z = adjacency.aggregate_with_own(x @ weight if project_first else x, 1 + self.eps)
        z = z + self.bias.to(z.dtype) if project_first else torch.addmm(self.bias, z, weight)
        out: Tensor = self.second(z.relu())
        return out


class GINEConv(nn.Module):
    """Computes MLP((1 + eps) x + sum over in-edges of relu(x_u + W e + b))."""

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


class GIN(ConvStack):
    """The graph isomorphism network (Xu et al., ICLR 2019).

    Its MLPs have one hidden layer. With `norm="batch"`, rows are normalised between
    layers, not within the MLPs as in the paper.
    """

    reads_sparse = True
    first_reads_hidden = True

    def make_conv(self, in_features: int, hidden: int, out_features: int) -> nn.Module:
        return GINConv(in_features, hidden, out_features)


class GINE(GIN):
    """GIN with edge features in its messages (Hu et al., ICLR 2020).

    Choose it for graphs with informative edge features, such as bond types. It requires
    edge features, and computes one message per edge.
    """

    reads_sparse = False  # a ReLU precedes the sum

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        edge_width: int,
        hidden: int = 64,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: Norm = "none",
        skip: bool = False,
    ) -> None:
        """Creates the layers.

        Args:
            in_features: Number of input features.
            num_classes: Number of outputs.
            edge_width: Number of edge features, at least 1.
            hidden: Number of hidden features, also of each layer's MLP.
            num_layers: Number of convolutions.
            dropout: Dropout probability of layer inputs, in [0, 1).
            norm: Normalisation between convolutions: "none", "batch" over all nodes of
                a step, or "layer" over a node's features.
            skip: Whether a perceptron of the node's own input row, with one hidden
                layer, is added to the outputs.
        """
        if edge_width == 0:
            raise UserError("model=gine needs a graph with edge features")
        self.edge_width = edge_width
        super().__init__(in_features, num_classes, hidden, num_layers, dropout, norm, skip)

    def make_conv(self, in_features: int, hidden: int, out_features: int) -> nn.Module:
        return GINEConv(in_features, hidden, out_features, self.edge_width)
