"""Graph convolutional network."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import Adjacency
from gnnkit.model.base import ConvStack


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


class GCN(ConvStack):
    """The graph convolutional network (Kipf & Welling, ICLR 2017).

    Directed graphs are normalised by the source's out-degree and the destination's
    in-degree, as in DGL's `norm="both"`. Weight decay applies to the first layer only,
    as published.
    """

    self_loops = True
    reads_sparse = True
    default_weight_decay = 5e-4

    def make_conv(self, in_features: int, hidden: int, out_features: int) -> nn.Module:
        return GCNConv(in_features, out_features)

    def decayed_parameters(self) -> Iterable[Parameter]:
        return [*self.convs[0].parameters(), *self.skip.parameters()]
