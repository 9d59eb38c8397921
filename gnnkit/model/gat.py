"""Graph attention network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

from gnnkit.engine import Adjacency
from gnnkit.model.base import ConvModel, Norm
from gnnkit.utils.ranges import MAX_WIDTH, real, whole


class GATConv(nn.Module):
    """Multi-head attention over in-edges, one layer of a GAT.

    Attention is softmax(leaky_relu(a_src . W x_u + a_dst . W x_v [+ a_edge . e])) over
    the in-edges of a node, on all ranks. On CPUs, nothing is stored per edge for the
    backward pass.
    """

    def __init__(
        self,
        in_features: int,
        width: int,
        heads: int,
        *,
        concat: bool,
        dropout: float,
        negative_slope: float,
        edge_width: int,
    ) -> None:
        """Creates the parameters.

        Args:
            in_features: Number of input features.
            width: Number of output features per head.
            heads: Number of attention heads.
            concat: Whether heads are concatenated (`heads * width` outputs) or
                averaged.
            dropout: Dropout probability of attention weights.
            negative_slope: Negative slope of the leaky ReLU.
            edge_width: Number of edge features. 0: none.
        """
        super().__init__()
        self.concat, self.dropout, self.negative_slope = concat, dropout, negative_slope
        self.weight = Parameter(torch.empty(in_features, heads * width))
        self.source = Parameter(torch.empty(heads, width))
        self.destination = Parameter(torch.empty(heads, width))
        self.edge = nn.Linear(edge_width, heads, bias=False) if edge_width else None
        self.bias = Parameter(torch.zeros(heads * width if concat else width))
        for parameter in (self.weight, self.source, self.destination):
            nn.init.xavier_uniform_(parameter)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        h = (x @ self.weight).view(-1, *self.source.shape)
        source, destination = (h * self.source).sum(-1), (h[: adjacency.num_dst] * self.destination).sum(-1)
        edge = None
        if self.edge is not None and adjacency.edge_features is not None:
            edge = self.edge(adjacency.edge_features)
        slope, p = self.negative_slope, self.dropout
        z = adjacency.attend(h, source, destination, edge, slope=slope, p=p, training=self.training)
        return (z.flatten(1) if self.concat else z.mean(1)) + self.bias.to(z.dtype)


class GAT(ConvModel):
    """The graph attention network (Velickovic et al., ICLR 2018).

    Attention includes edge features if the graph has them.

    Args:
        in_features: Number of input features.
        num_classes: Number of outputs.
        hidden: Number of hidden features per head.
        heads: Attention heads of hidden layers, concatenated.
        out_heads: Attention heads of the last layer, averaged.
        num_layers: Number of convolutions.
        dropout: Dropout probability of layer inputs and attention weights, in [0,
            1).
        negative_slope: Negative slope of the leaky ReLU.
        edge_width: Number of edge features. 0: none.
        norm: Normalisation between convolutions: "none", "batch" over all nodes of
            a step, or "layer" over a node's features.
        skip: Whether a perceptron of the node's own input row, with one hidden layer,
            is added to the outputs.
    """

    reads_sparse = True
    default_weight_decay = 5e-4
    self_loops = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: int = 8,
        heads: int = 8,
        out_heads: int = 1,
        num_layers: int = 2,
        dropout: float = 0.6,
        negative_slope: float = 0.2,
        edge_width: int = 0,
        norm: Norm = "none",
        skip: bool = False,
    ) -> None:
        for name, value in (("hidden", hidden), ("heads", heads), ("out_heads", out_heads)):
            whole(f"model.{name}", value, 1, MAX_WIDTH)
        super().__init__(num_layers, dropout, norm, hidden * heads)
        real("model.negative_slope", negative_slope)
        convs = []
        for layer in range(num_layers):
            last = layer + 1 == num_layers
            convs.append(
                GATConv(
                    in_features if layer == 0 else hidden * heads,
                    num_classes if last else hidden,
                    out_heads if last else heads,
                    concat=not last,
                    dropout=dropout,
                    negative_slope=negative_slope,
                    edge_width=edge_width,
                )
            )
        self.convs = nn.ModuleList(convs)
        self.skip_input(in_features, hidden * heads, num_classes, skip=skip)

    def activate(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return adjacency.dropout(F.elu(x), self.dropout, training=self.training)
