"""Heterogeneous graph transformer."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

from gnnkit.engine import AddedRelations, Adjacency, TypedEdges
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.model.base import ConvModel, Norm
from gnnkit.utils.ranges import MAX_WIDTH, whole


class TypedLinear(nn.Module):
    """A linear layer with one weight and one bias per node type.

    Each row is multiplied by the weight of its type, which follows from its node id. As
    PyG's `HeteroLinear`, but for rows of an adjacency.
    """

    def __init__(self, in_features: int, out_features: int, num_node_types: int) -> None:
        super().__init__()
        self.weight = Parameter(torch.empty(num_node_types, in_features, out_features))
        self.bias = Parameter(torch.zeros(num_node_types, out_features))
        for of_type in self.weight:
            nn.init.xavier_uniform_(of_type)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:  # [num_rows, f] -> [num_rows, k]
        """Multiplies the first source rows, each by the weight of its node type."""
        return adjacency.row_types(x.shape[0], len(self.weight)).products(x, self.weight, self.bias)


class HGTConv(nn.Module):
    """Attends to in-edges by node types and relations, with a gated residual.

    Attention is softmax((W_r^K k_u) . q_v mu_r / sqrt(d)) over the in-edges of all
    relations, per head. Keys, queries and values are linear by node type, and messages
    are W_r^V v_u. A node without in-edges keeps a share of its row.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        num_node_types: int,
        num_relations: int,
        new_relations: AddedRelations,
        dropout: float,
    ) -> None:
        """Creates the parameters.

        Args:
            width: Number of features per head.
            heads: Number of attention heads.
            num_node_types: Number of node types.
            num_relations: Number of relations of the graph.
            new_relations: Relations added to the graph's.
            dropout: Dropout probability of outputs before the residual.
        """
        super().__init__()
        self.width, self.heads, self.added, self.dropout = width, heads, new_relations, dropout
        rows, total = heads * width, new_relations.count(num_relations)
        self.key_value = TypedLinear(rows, 2 * rows, num_node_types)
        self.query, self.out = (TypedLinear(rows, rows, num_node_types) for _ in range(2))
        self.key_relation, self.value_relation = (Parameter(torch.empty(total, heads, width, width)) for _ in range(2))
        for matrix in [*self.key_relation.flatten(0, 1), *self.value_relation.flatten(0, 1)]:
            nn.init.xavier_uniform_(matrix)
        self.prior = Parameter(torch.ones(total, heads))  # mu in eq. 3
        self.skip = Parameter(torch.ones(num_node_types, 1))

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        rows = x[: adjacency.num_dst]
        keys_values, queries = self.key_value(x, adjacency), self.query(rows, adjacency)
        z = adjacency.attend_relations(keys_values, self, queries, p=0.0, training=self.training)
        out = self.out(F.gelu(z.flatten(1)), adjacency)
        out = adjacency.dropout(out, self.dropout, training=self.training, draw=1)
        gate = adjacency.row_types(rows.shape[0], len(self.skip)).spread(self.skip.sigmoid()).to(out.dtype)
        return gate * out + (1 - gate) * rows

    def scores(self, rows: Tensor, targets: Tensor, edges: TypedEdges) -> Tensor:  # [num_edges, H]
        """Computes attention scores: queries times keys, transformed by relation."""
        keys = rows[:, : self.heads * self.width].view(-1, self.heads, self.width)
        weight = self.key_relation * (self.prior / math.sqrt(self.width))[..., None, None]
        return edges.dot(edges.sources.head_products(keys, weight), targets.view(-1, self.heads, self.width))

    def messages(self, rows: Tensor, edges: TypedEdges, columns: slice) -> tuple[Tensor, HeldEdges]:
        """Computes W_r^V v for each pair of a source and a relation."""
        values = rows[:, self.heads * self.width :].view(-1, self.heads, self.width)
        return edges.sources.head_products(values, self.value_relation[..., columns]), edges.from_pairs


class HGT(ConvModel):
    """The heterogeneous graph transformer (Hu et al., WWW 2020), for typed graphs.

    Follows the paper and PyG's `HGTConv`, whose attention is a softmax across the
    in-edges of all relations, unlike DGL's, which averages the relations. The relative
    temporal encoding is not available. Every node keeps a share of its row, set by
    a learned gate per type, even if no edge enters the type, whose rows PyG's layer
    drops. A linear layer maps the last convolution's rows to logits.

    Args:
        in_features: Number of input features.
        num_classes: Number of outputs.
        num_relations: Number of edge types.
        num_node_types: Number of node types.
        hidden: Number of hidden features per head.
        heads: Number of attention heads.
        num_layers: Number of convolutions.
        dropout: Dropout probability of projected input rows and of convolutions'
            outputs, in [0, 1).
        inverse: Whether to add inverse edges, each type as a separate relation.
        self_loop: Whether to add a self-loop to every node, as another relation.
        norm: Normalisation between convolutions: "none", "batch" over all nodes of
            a step, or "layer" over a node's features.

    Input rows are projected by one weight for all types, with a bias per type. This is
    one weight for each node type if types have separate columns.
    """

    reads_relations = True
    reads_sparse = True
    default_lr = 0.003  # 0.01 often diverges for some epochs

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_relations: int = 1,
        num_node_types: int = 1,
        hidden: int = 8,
        heads: int = 8,
        num_layers: int = 2,
        dropout: float = 0.5,
        inverse: bool = True,
        self_loop: bool = False,
        norm: Norm = "layer",
    ) -> None:
        for name, value in (("hidden", hidden), ("heads", heads)):
            whole(f"model.{name}", value, 1, MAX_WIDTH)
        super().__init__(num_layers, dropout, norm, hidden * heads)
        self.num_relations, self.num_node_types, self.inverse = num_relations, num_node_types, inverse
        self.project = Parameter(torch.empty(in_features, hidden * heads))
        nn.init.xavier_uniform_(self.project)
        self.bias = Parameter(torch.zeros(num_node_types, hidden * heads))
        new_relations = AddedRelations.of_model(inverse, self_loop)
        self.convs = nn.ModuleList(
            HGTConv(hidden, heads, num_node_types, num_relations, new_relations, dropout) for _ in range(num_layers)
        )
        self.out = nn.Linear(hidden * heads, num_classes)

    def layer(self, index: int, x: Tensor, adjacency: Adjacency) -> Tensor:
        x = super().layer(index, x, adjacency)
        return x if index + 1 < self.num_layers else self.out(x)

    def drop(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        z = x @ self.project
        bias = adjacency.row_types(z.shape[0], self.num_node_types).spread(self.bias).to(z.dtype)
        return super().drop(F.gelu(z + bias), adjacency)

    def activate(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return x  # convolutions activate their sums
