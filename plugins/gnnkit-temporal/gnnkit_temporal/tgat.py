"""Attention over sampled earlier edges, whose ages are encoded."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.base import GraphModel
from gnnkit.utils.ranges import MAX_LAYERS, MAX_WIDTH, share, whole

LONGEST = 12  # decimal logarithm of the longest initial period, such as a year of microseconds with some room


class TimeEncoding(nn.Module):
    """Encodes lengths of time as cosines, and their logarithm.

    Frequencies are learned as logarithms, so that a step of the optimizer changes each
    of them by the same share. The encoding of a static edge is zero.

    Args:
        width: Number of cosines.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.log_frequency = nn.Parameter(-torch.linspace(0, LONGEST, width) * math.log(10))
        self.phase = nn.Parameter(torch.zeros(width))

    def forward(self, age: Tensor) -> Tensor:  # [k] -> [k, width + 1]
        is_static = age.isnan()
        age = age.masked_fill(is_static, 0)[:, None]
        encoded = torch.cat([torch.cos(age * self.log_frequency.exp() + self.phase), torch.log1p(age)], 1)
        return encoded.masked_fill(is_static[:, None], 0)


class TGATConv(nn.Module):
    """Attends over in-edges, and joins the result with the node's own row.

    Args:
        in_features: Number of input features.
        out_features: Number of outputs.
        hidden: Number of columns of all heads together, a multiple of `heads`.
        heads: Number of attention heads.
        edge_features: Number of columns of an edge's features and encoded age.
        dropout: Dropout probability of attention weights.
    """

    def __init__(
        self, in_features: int, out_features: int, hidden: int, heads: int, edge_features: int, dropout: float
    ) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query = nn.Linear(in_features, hidden)
        self.row = nn.Linear(in_features, 2 * hidden, bias=False)
        self.edge = nn.Linear(edge_features, 2 * hidden)
        self.out = nn.Sequential(nn.Linear(hidden + in_features, hidden), nn.ReLU(), nn.Linear(hidden, out_features))

    def forward(self, x: Tensor, edges: Tensor, adjacency: Adjacency) -> Tensor:  # [num_src, f] -> [num_dst, width]
        """Computes the rows of destinations.

        Args:
            x: [num_src, in_features] rows.
            edges: [held edges, edge_features] features and encoded ages.
            adjacency: The edges.
        """
        own, (source, target) = x[: adjacency.num_dst], adjacency.rank_graph.edge_index
        key, value = (self.row(adjacency.with_halo(x))[source] + self.edge(edges)).chunk(2, 1)
        query = self.query(own)
        key, value, query = (rows.unflatten(1, (self.heads, -1)) for rows in (key, value, query))
        scores = torch.linalg.vecdot(query[target], key) / math.sqrt(key.shape[-1])  # [held edges, heads]
        weight = adjacency.edge_dropout(adjacency.softmax(scores), self.dropout, training=self.training)
        attended = torch.zeros_like(query).index_add(0, target, weight[..., None] * value).flatten(1)
        out: Tensor = self.out(torch.cat([attended, own], 1))
        return out


class TGAT(GraphModel):
    """The temporal graph attention network (Xu et al., ICLR 2020).

    Choose this model for rows or edges with labels at a time, if it matters when their
    neighbours' edges occurred. A node attends over the sampled earlier edges, by the
    rows of their sources, their features, and an encoding of the time from the edge to
    the prediction. Batches must be sampled by time (`sampler.time=strict`). Unlike in
    the paper, the time of the prediction bounds all layers, and the encoding includes
    the logarithm of the age. Edge weights are not read.

    Args:
        in_features: Number of input features.
        num_classes: Number of outputs.
        hidden: Number of hidden features of all heads together.
        heads: Number of attention heads.
        num_layers: Number of layers.
        time_width: Number of cosines that encode an edge's age.
        dropout: Dropout probability of layer inputs and attention weights, in [0, 1).
        edge_width: Number of edge features. 0: none.
    """

    reads_edge_age = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        hidden: int = 64,
        heads: int = 2,
        num_layers: int = 2,
        time_width: int = 32,
        dropout: float = 0.1,
        edge_width: int = 0,
    ) -> None:
        for name, value in (("hidden", hidden), ("heads", heads), ("time_width", time_width)):
            whole(f"model.{name}", value, 1, MAX_WIDTH)
        if hidden % heads:
            raise UserError(f"model.hidden={hidden} must be a multiple of model.heads={heads}")
        super().__init__()
        self.num_layers = whole("model.num_layers", num_layers, 1, MAX_LAYERS)
        self.dropout, self.edge_width = share("model.dropout", dropout), edge_width
        self.time = TimeEncoding(time_width)
        widths = [in_features, *[hidden] * (num_layers - 1), num_classes]
        edge_features = time_width + 1 + edge_width
        self.convs = nn.ModuleList(
            TGATConv(first, last, hidden, heads, edge_features, dropout) for first, last in pairwise(widths)
        )

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        if adjacency.edge_age is None:
            raise UserError("model=tgat reads edge times: use sampler.time=strict, and a strategy that samples")
        x = adjacency.dropout(x.relu() if index else x, self.dropout, training=self.training)
        edges = [self.time(adjacency.edge_age)]
        if self.edge_width and adjacency.edge_features is not None:
            edges.append(adjacency.edge_features)
        out: Tensor = self.convs[index](x, torch.cat(edges, 1), adjacency)
        return out
