"""Relational graph attention network."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

from gnnkit.engine import AddedRelations, Adjacency, TypedEdges
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.model.base import ConvModel, Norm, attention_dropout
from gnnkit.model.relation_weights import RelationWeights, check_parts
from gnnkit.utils.ranges import MAX_WIDTH, real, whole


class RGATConv(nn.Module):
    """Sums W_r x over the in-edges of all relations with multi-head attention.

    Attention is softmax(leaky_relu(k_r . W_r x_u + q_r . W_r x_v)) over the in-edges of
    all relations.
    """

    def __init__(
        self,
        weights: RelationWeights,
        num_relations: int,
        width: int,
        heads: int,
        new_relations: AddedRelations,
        *,
        concat: bool,
    ) -> None:
        """Creates the parameters.

        Args:
            weights: The relations' weights, with `heads * width` outputs.
            num_relations: Number of relations, including the added ones.
            width: Number of output features per head.
            heads: Number of attention heads.
            new_relations: Relations added to the graph's.
            concat: Whether heads are concatenated (`heads * width` outputs) or
                averaged.
        """
        super().__init__()
        self.relations, self.width, self.added, self.concat = weights, width, new_relations, concat
        self.dropout, self.negative_slope = 0.0, 0.2
        self.key = Parameter(torch.empty(num_relations, heads, width))
        self.query = Parameter(torch.empty(num_relations, heads, width))
        self.bias = Parameter(torch.zeros(heads * width if concat else width))
        for parameter in (self.key, self.query):
            for of_relation in parameter:
                nn.init.xavier_uniform_(of_relation)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        z = adjacency.attend_relations(x, self, p=self.dropout, training=self.training)
        return (z.flatten(1) if self.concat else z.mean(1)) + self.bias.to(z.dtype)

    def scores(self, rows: Tensor, targets: Tensor, edges: TypedEdges) -> Tensor:  # [num_edges, H]
        """Computes the scores from x W_r k_r, without the messages' columns."""
        weight = self._heads()
        keys, queries = ((weight * part[:, None]).sum(-1) for part in (self.key, self.query))
        of_sources = edges.of_sources(edges.sources.products(rows, keys))
        of_targets = edges.of_targets(edges.targets.products(targets, queries))
        return F.leaky_relu(of_sources + of_targets, self.negative_slope)

    def messages(self, rows: Tensor, edges: TypedEdges, columns: slice) -> tuple[Tensor, HeldEdges]:
        """Computes W_r x for each pair of a source and a relation."""
        weight = self._heads()[..., columns]
        products = edges.sources.products(rows, weight.flatten(2))
        return torch.unflatten(products, 1, weight.shape[2:]), edges.from_pairs

    def _heads(self) -> Tensor:  # [num_relations, f, H, d]
        weight: Tensor = self.relations.matrices()
        return weight.reshape(*weight.shape[:2], *self.key.shape[1:])


class RGAT(ConvModel):
    """The relational GAT (Busbridge et al., 2019), for typed edges.

    This is the paper's additive attention across relations (ARGAT). Its attention
    within each relation, and the multiplicative form, are not available. Keys and
    queries differ by relation, as in the paper, and unlike PyG's `RGATConv`.

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
        bases: Number of basis matrices. Default: unconstrained weights.
        inverse: Whether to add inverse edges, each type as a separate relation.
        self_loop: Whether to add a self-loop to every node, as another relation.
        project: Whether a shared weight first projects input rows to `hidden *
            heads` features. If node types have separate columns, this is one weight
            per node type.
        norm: Normalisation between convolutions: "none", "batch" over all nodes of
            a step, or "layer" over a node's features.
        skip: Whether a perceptron of the node's own input row, with one hidden layer,
            is added to the outputs.
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
        hidden: int = 8,
        heads: int = 8,
        out_heads: int = 1,
        num_layers: int = 2,
        dropout: float | None = None,
        negative_slope: float = 0.2,
        bases: int | None = None,
        inverse: bool = True,
        self_loop: bool = True,
        project: bool = True,
        norm: Norm = "none",
        skip: bool = False,
        embeds: bool = False,
    ) -> None:
        for name, value in (("hidden", hidden), ("heads", heads), ("out_heads", out_heads)):
            whole(f"model.{name}", value, 1, MAX_WIDTH)
        dropout = attention_dropout(dropout, embeds=embeds)
        super().__init__(num_layers, dropout, norm, hidden * heads)
        real("model.negative_slope", negative_slope)
        check_parts(bases, None, [])
        self.num_relations, self.inverse = num_relations, inverse
        self.project = Parameter(torch.empty(in_features, hidden * heads)) if project else None
        if self.project is not None:
            nn.init.xavier_uniform_(self.project)
        self.reads_sparse = project
        new_relations = AddedRelations.of_model(inverse, self_loop)
        total, convs = new_relations.count(num_relations), []
        inputs = [hidden * heads if project else in_features, *[hidden * heads] * (num_layers - 1)]
        for layer, width in enumerate(inputs):
            last = layer + 1 == num_layers
            size, count = (num_classes, out_heads) if last else (hidden, heads)
            weights = RelationWeights(width, size * count, total, bases, None)
            conv = RGATConv(weights, total, size, count, new_relations, concat=not last)
            conv.dropout, conv.negative_slope = dropout, negative_slope
            convs.append(conv)
        self.convs = nn.ModuleList(convs)
        self.skip_input(in_features, hidden * heads, num_classes, skip=skip)

    def drop(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        x = super().drop(x, adjacency)
        return x if self.project is None else x @ self.project
