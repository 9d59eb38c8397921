"""Simple heterogeneous graph network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

from gnnkit.engine import AddedRelations, Adjacency, TypedEdges
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.model.base import GraphModel, attention_dropout
from gnnkit.utils.ranges import MAX_LAYERS, MAX_WIDTH, real, share, whole


class SimpleHGNConv(nn.Module):
    """Sums W x over in-edges with attention that also depends on the relation.

    Attention is softmax(leaky_relu(a_src . W x_u + a_dst . W x_v + a_r . W_r r)) over
    the in-edges of all relations, where r is the embedding of the edge's relation. If
    the previous layer's attention is passed, the result is (1 - beta) times this
    attention plus beta times that one.
    """

    dropout = 0.0
    negative_slope = 0.05
    beta = 0.0

    def __init__(
        self,
        in_features: int,
        width: int,
        heads: int,
        relation_width: int,
        num_relations: int,
        new_relations: AddedRelations,
    ) -> None:
        """Creates the parameters.

        Args:
            in_features: Number of input features.
            width: Number of output features per head.
            heads: Number of attention heads.
            relation_width: Width of a relation's embedding.
            num_relations: Number of relations of the graph.
            new_relations: Relations added to the graph's.
        """
        super().__init__()
        self.width, self.heads, self.added = width, heads, new_relations
        self.weight = Parameter(torch.empty(in_features, heads * width))
        self.source, self.destination = (Parameter(torch.empty(heads, width)) for _ in range(2))
        self.relation = Parameter(torch.empty(heads, relation_width))
        self.relations = nn.Embedding(new_relations.count(num_relations), relation_width)
        self.edge_weight = Parameter(torch.empty(relation_width, heads * relation_width))
        for parameter in (self.weight, self.source, self.destination, self.relation, self.edge_weight):
            nn.init.xavier_normal_(parameter, gain=nn.init.calculate_gain("relu"))

    def forward(
        self, x: Tensor, adjacency: Adjacency, earlier: Tensor, terms: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Computes a layer.

        Args:
            x: [num_src, in_features].
            adjacency: The edges.
            earlier: [num_src, m * 2 * heads] parts of the scores in m earlier layers,
                the first layer first, without gradient.
            terms: The relations' parts in these layers, [num_relations, heads] each.

        Returns:
            [num_dst, heads, width] sums, and [num_dst, (m + 1) * 2 * heads] parts of
                the scores up to this layer.
        """
        h = x @ self.weight
        heads = torch.unflatten(h, 1, (self.heads, self.width))
        parts = torch.cat([earlier, (heads * self.source).sum(-1), (heads * self.destination).sum(-1)], 1)
        attention = EdgeTypeAttention(self, (*terms, self.relation_term()))
        z = adjacency.attend_relations(torch.cat([h, parts], 1), attention, p=self.dropout, training=self.training)
        out = z[:, : self.heads]
        for layer in range(1, len(terms) + 1):
            of_layer = z[:, layer * self.heads : (layer + 1) * self.heads]
            out = self.beta * out + (1 - self.beta) * of_layer
        return out, parts[: adjacency.num_dst].detach()

    def relation_term(self) -> Tensor:  # [num_relations, heads]
        """Computes the relations' parts of the scores."""
        embedded = (self.relations.weight @ self.edge_weight).view(-1, *self.relation.shape)
        return (embedded * self.relation).sum(-1)


@dataclass(frozen=True, slots=True, eq=False)
class EdgeTypeAttention:
    """The attention of a layer and of earlier ones, with the layer's messages.

    Rows are [W x | parts of the scores]. Each layer's attention has its own heads.
    """

    conv: SimpleHGNConv
    terms: tuple[Tensor, ...]  # [num_relations, heads] of each layer

    @property
    def width(self) -> int:
        return self.conv.width

    @property
    def added(self) -> AddedRelations:
        return self.conv.added

    def scores(self, rows: Tensor, targets: Tensor, edges: TypedEdges) -> Tensor:  # [num_edges, layers * heads]
        parts = slice(self.conv.heads * self.width, None)
        sources, destinations = (self._by_layer(x[:, parts], end) for end, x in enumerate((rows, targets)))
        z = edges.of_rows(sources) + edges.of_destinations(destinations) + edges.of_relations(torch.cat(self.terms, 1))
        return F.leaky_relu(z, self.conv.negative_slope)

    def _by_layer(self, parts: Tensor, end: int) -> Tensor:  # [n, layers * 2 * heads] -> [n, layers * heads]
        return torch.unflatten(parts, 1, (len(self.terms), 2, self.conv.heads))[:, :, end].flatten(1)

    def messages(self, rows: Tensor, edges: TypedEdges, columns: slice) -> tuple[Tensor, HeldEdges]:
        heads = self.conv.heads
        h = torch.unflatten(rows[:, : heads * self.width], 1, (heads, self.width))[..., columns]
        return h.repeat(1, len(self.terms), 1), edges.rows


class SimpleHGN(GraphModel):
    """Simple-HGN (Lv et al., KDD 2021), for typed edges.

    Follows the authors' code: layers after the first one have a residual. Attention has
    a residual too, without gradient, in all layers but the last. Input rows are
    projected by one weight for all types. This is one weight for each node type if
    types have separate columns. With `normalize`, logits are divided by their L2 norm,
    as published, so probabilities stay away from 0 and 1.

    Args:
        in_features: Number of input features.
        num_classes: Number of outputs.
        num_relations: Number of edge types.
        hidden: Number of hidden features per head.
        heads: Attention heads of hidden layers, concatenated.
        out_heads: Attention heads of the last layer, averaged.
        num_layers: Number of convolutions.
        dropout: Dropout probability of layer inputs and attention weights, in [0,
            1). If None, 0.5, or 0 for embeddings.
        negative_slope: Negative slope of the leaky ReLU.
        relation_width: Width of the relations' embeddings.
        beta: Share of the layer before in a layer's attention, in [0, 1).
        residual: Whether a layer's input is added to its output, from the second
            layer on.
        normalize: Whether logits are divided by their length.
        inverse: Whether to add inverse edges, each type as a separate relation.
        self_loop: Whether to add a self-loop to every node, as another relation.
        embeds: Whether outputs are node embeddings, whose pairs are scored, instead of
            logits.
    """

    reads_relations = True
    reads_sparse = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_relations: int = 1,
        hidden: int = 64,
        heads: int = 8,
        out_heads: int = 1,
        num_layers: int = 3,
        dropout: float | None = None,
        negative_slope: float = 0.05,
        relation_width: int = 64,
        beta: float = 0.05,
        residual: bool = True,
        normalize: bool = True,
        inverse: bool = True,
        self_loop: bool = True,
        embeds: bool = False,
    ) -> None:
        super().__init__()
        dropout = attention_dropout(dropout, embeds=embeds)
        sizes = {"hidden": hidden, "heads": heads, "out_heads": out_heads, "relation_width": relation_width}
        for name, value in sizes.items():
            whole(f"model.{name}", value, 1, MAX_WIDTH)
        real("model.negative_slope", negative_slope)
        self.num_layers = whole("model.num_layers", num_layers, 1, MAX_LAYERS)
        self.dropout, share_before = share("model.dropout", dropout), share("model.beta", beta)
        self.num_relations, self.inverse = num_relations, inverse
        self.residual, self.normalize = residual, normalize
        new_relations, width = AddedRelations.of_model(inverse, self_loop), hidden * heads
        self.project = nn.Parameter(torch.empty(in_features, hidden))
        nn.init.xavier_normal_(self.project, gain=nn.init.calculate_gain("relu"))
        self.inputs = [hidden, *[width] * (num_layers - 1)]
        shapes = [(heads, hidden)] * (num_layers - 1) + [(out_heads, num_classes)]
        self.convs, self.residuals = nn.ModuleList(), nn.ModuleList()
        for number, (columns, (count, size)) in enumerate(zip(self.inputs, shapes, strict=True)):
            conv = SimpleHGNConv(columns, size, count, relation_width, num_relations, new_relations)
            conv.dropout, conv.negative_slope, conv.beta = dropout, negative_slope, share_before
            self.convs.append(conv)
            self.residuals.append(_residual(columns, count * size) if residual and number else nn.Identity())

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        last, x = index + 1 == self.num_layers, x if index else x @ self.project
        columns = self.inputs[index]
        rows, earlier = adjacency.dropout(x[:, :columns], self.dropout, training=self.training), x[:, columns:].detach()
        terms = () if last else tuple(before.relation_term().detach() for before in self._convs[:index])
        z, parts = self._convs[index](rows, adjacency, earlier, terms)
        if index and self.residual:
            z = z + self.residuals[index](rows[: adjacency.num_dst]).view_as(z)
        if last:
            logits: Tensor = z.mean(1)
            return F.normalize(logits, dim=1) if self.normalize else logits
        hidden = F.elu(z.flatten(1))
        return hidden if index + 2 == self.num_layers else torch.cat([hidden, parts.to(hidden.dtype)], 1)

    @property
    def _convs(self) -> list[SimpleHGNConv]:
        return list(self.convs)  # type: ignore[arg-type]


def _residual(in_features: int, out_features: int) -> nn.Module:
    if in_features == out_features:
        return nn.Identity()
    linear = nn.Linear(in_features, out_features, bias=False)
    nn.init.xavier_normal_(linear.weight, gain=nn.init.calculate_gain("relu"))
    return linear
