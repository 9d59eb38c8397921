"""Graph convolutional network."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.model.base import ConvModel, Norm
from gnnkit.utils.ranges import MAX_WIDTH, switch, whole


class GCNConv(nn.Module):
    """Computes D_in^-1/2 A D_out^-1/2 X W + b, one layer of a GCN.

    Multiplies by W first if this is cheaper, which all ranks decide alike from the
    widths.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(in_features, out_features))
        self.bias = Parameter(torch.zeros(out_features))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        if adjacency.projects(x, self.weight.shape[1]):
            z = adjacency.aggregate_normalized(x @ self.weight)
            return z + self.bias.to(z.dtype)
        return torch.addmm(self.bias, adjacency.aggregate_normalized(x), self.weight)


class GCN(ConvModel):
    """The graph convolutional network (Kipf & Welling, ICLR 2017).

    Directed graphs are normalised by the source's out-degree and the destination's
    in-degree, as in DGL's `norm="both"`. Weight decay applies to the first layer only,
    as published.
    """

    self_loops = True
    reads_sparse = True
    default_weight_decay = 5e-4

    def __init__(
        self,
        in_features: int,
        num_classes: int,
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
            hidden: Number of hidden features.
            num_layers: Number of convolutions.
            dropout: Dropout probability of layer inputs, in [0, 1).
            norm: Normalisation between convolutions: "none", "batch" over all nodes of
                a step, or "layer" over a node's features.
            skip: Whether a perceptron of the node's own input row, with one hidden
                layer, is added to the outputs.
        """
        whole("model.hidden", hidden, 1, MAX_WIDTH)
        super().__init__(num_layers, dropout, norm, hidden)
        widths = [in_features, *[hidden] * (num_layers - 1), num_classes]
        self.reads_sparse = widths[1] < in_features
        self.convs = nn.ModuleList(GCNConv(a, b) for a, b in pairwise(widths))
        if switch("model.skip", skip):
            self.skip_input(in_features, hidden, num_classes)

    def decayed_parameters(self) -> Iterable[Parameter]:
        return [*self.convs[0].parameters(), *self.skip.parameters()]
