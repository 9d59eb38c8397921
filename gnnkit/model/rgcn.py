"""Relational graph convolutional network."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import Parameter

from gnnkit.engine import AddedRelations, Adjacency, Pairs
from gnnkit.errors import UserError
from gnnkit.kernels.product_rows import ProductRows, Rows
from gnnkit.model.base import ConvModel, Norm
from gnnkit.model.relation_weights import RelationWeights, check_parts
from gnnkit.utils.ranges import MAX_WIDTH, whole


class RelationSums(nn.Module):
    """Computes W_0 x + sum over relations of W_r times the mean over in-edges + b.

    `sum_projected` starts from x after the products, which precede the means.
    """

    bias: Parameter

    def __init__(self, out_features: int, *, inverse: bool, self_loop: bool) -> None:
        super().__init__()
        self.inverse, self.self_loop, self.width = inverse, self_loop, out_features

    def sum_projected(self, x: Tensor, adjacency: Adjacency, coefficients: Tensor | None) -> Tensor:
        """Aggregates rows that are already multiplied, [num_src, f] -> [num_dst, k].

        Args:
            x: k columns per relation or basis, followed by the k columns of W_0.
            adjacency: The edges.
            coefficients: [num_relations, num_bases], or None without bases.
        """
        blocks = x[:, : x.shape[1] - self.width] if self.self_loop else x
        combine = _sum if coefficients is None else functools.partial(self._mix, coefficients)
        out = adjacency.aggregate_relations(blocks, combine, inverse=self.inverse, blocks=coefficients is None)
        return (out + x[: adjacency.num_dst, -self.width :] if self.self_loop else out) + self.bias.to(out.dtype)

    def _mix(self, coefficients: Tensor, means: Tensor, pairs: Pairs, columns: slice) -> Tensor:
        unit = torch.eye(self.width, dtype=means.dtype, device=means.device)
        return pairs.sum_products(means, (coefficients[:, :, None, None] * unit).flatten(1, 2)[:, columns])


def _sum(means: Tensor, pairs: Pairs, columns: slice) -> Tensor:
    return pairs.sum(means)


class RGCNConv(RelationSums):
    """Computes W_0 x + sum over relations of W_r times the mean over in-edges + b.

    The means follow the products if this is cheaper. Means of `fixed` rows, which every
    epoch reads unchanged, are computed once, so only sparse ones are multiplied first.
    """

    has_constant_input = False

    def __init__(
        self, in_features: int, out_features: int, weights: RelationWeights, *, inverse: bool, self_loop: bool
    ) -> None:
        super().__init__(out_features, inverse=inverse, self_loop=self_loop)
        self.relations = weights
        self.own = nn.Linear(in_features, out_features, bias=False) if self_loop else None
        self.bias = Parameter(torch.zeros(out_features))
        if self.own is not None:
            nn.init.xavier_uniform_(self.own.weight)

    def forward(self, x: Rows, adjacency: Adjacency) -> Tensor:
        projected_width = len(self.relations.weight) * self.width
        if isinstance(x, ProductRows) or (
            not self.has_constant_input and adjacency.project_first(x.shape[1], projected_width)
        ):
            w_0 = [] if self.own is None else [self.own.weight.t()]
            rows = x @ torch.cat([self.relations.side_by_side(), *w_0], 1)
            return self.sum_projected(rows, adjacency, self.relations.coefficients)
        out = adjacency.aggregate_relations(x, self.relations, inverse=self.inverse)
        out = out + self.bias.to(out.dtype)
        return out if self.own is None else out + self.own(x[: adjacency.num_dst])


class OneHotConv(RelationSums):
    """The layer over nodes without features, with one-hot input.

    A product with a one-hot row selects a row of the weight, so `x` consists of the
    weights' rows for each node: `out_features` columns per relation or basis, and for
    W_0, concatenated. These rows are learned.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_relations: int,
        bases: int | None,
        *,
        inverse: bool,
        self_loop: bool,
    ) -> None:
        """Creates the parameters. Raises `UserError` for another width of `x`.

        Args:
            in_features: Number of input features.
            out_features: Number of output features.
            num_relations: Number of relations, including inverse ones.
            bases: Number of bases, or None.
            inverse: Whether to add inverse edges.
            self_loop: Whether a node's own row is included.
        """
        super().__init__(out_features, inverse=inverse, self_loop=self_loop)
        required_width = out_features * ((bases or num_relations) + self_loop)
        if in_features != required_width:
            raise UserError(
                f"{in_features} columns of input rows, but model.one_hot=true reads {required_width}: model.hidden for each relation "
                f"or basis, and for W_0. Use inputs=learned with embedding={required_width}"
            )
        self.bias = Parameter(torch.zeros(out_features))
        self.coefficients = None if bases is None else Parameter(torch.empty(num_relations, bases))
        if self.coefficients is not None:
            nn.init.xavier_uniform_(self.coefficients)

    def forward(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        return self.sum_projected(x, adjacency, self.coefficients)


class RGCN(ConvModel):
    """The relational GCN (Schlichtkrull et al., ESWC 2018), for typed edges.

    Each relation has its own weight and averages over its in-edges. Weight decay
    applies to the first layer only, as published.

    Args:
        in_features: Number of input features.
        num_classes: Number of outputs.
        num_relations: Number of edge types.
        hidden: Number of hidden features.
        num_layers: Number of convolutions.
        dropout: Dropout probability of layer inputs, in [0, 1).
        bases: Number of basis matrices. Default: unconstrained weights.
        blocks: Number of diagonal blocks. Default: dense weights.
        inverse: Whether to add inverse edges, each type as a separate relation.
        self_loop: Whether a node's own row is included, multiplied by W_0.
        project: Whether a shared weight first projects input rows to the hidden
            width. If node types have separate columns, this is one weight per node
            type.
        one_hot: Whether input rows are learned and serve as the first layer's
            weights, as published for nodes without features.
        norm: Normalisation between convolutions: "none", "batch" over all nodes of
            a step, or "layer" over a node's features.
        skip: Whether a perceptron of the node's own input row, with one hidden layer,
            is added to the outputs.
    """

    reads_relations = True
    reads_sparse = True

    def __init__(
        self,
        in_features: int,
        num_classes: int,
        num_relations: int = 1,
        hidden: int = 16,
        num_layers: int = 2,
        dropout: float = 0.0,
        bases: int | None = None,
        blocks: int | None = None,
        inverse: bool = True,
        self_loop: bool = True,
        project: bool = False,
        one_hot: bool = False,
        norm: Norm = "none",
        skip: bool = False,
    ) -> None:
        whole("model.hidden", hidden, 1, MAX_WIDTH)
        super().__init__(num_layers, dropout, norm, hidden)
        new_relations = AddedRelations.of_model(inverse, self_loop)
        self.num_relations, self.inverse, self.decays_rows = num_relations, new_relations.inverse, one_hot
        self.project = Parameter(nn.init.xavier_uniform_(torch.empty(in_features, hidden))) if project else None
        widths = [hidden if project else in_features, *[hidden] * (num_layers - 1), num_classes]
        check_parts(bases, blocks, widths[1:] if one_hot else widths)
        if one_hot:
            _check_one_hot(blocks, project=project)
        total = num_relations * (1 + inverse)
        self.reads_sparse = not one_hot and (hidden if project else (bases or total) * widths[1]) < in_features

        def conv(a: int, b: int) -> nn.Module:
            return RGCNConv(a, b, RelationWeights(a, b, total, bases, blocks), inverse=inverse, self_loop=self_loop)

        later_convs = [conv(a, b) for a, b in pairwise(widths[1:])]
        one_hot_conv = functools.partial(
            OneHotConv, num_relations=total, bases=bases, inverse=inverse, self_loop=self_loop
        )
        self.convs = nn.ModuleList([(one_hot_conv if one_hot else conv)(*widths[:2]), *later_convs])
        self.convs[0].has_constant_input = not (project or dropout)  # type: ignore[assignment]
        self.skip_input(in_features, hidden, num_classes, skip=skip)

    def drop(self, x: Tensor, adjacency: Adjacency) -> Tensor:
        x = super().drop(x, adjacency)
        return x if self.project is None else x @ self.project

    def decayed_parameters(self) -> Iterable[Parameter]:
        return [*self.convs[0].parameters(), *self.skip.parameters()]


def _check_one_hot(blocks: int | None, *, project: bool) -> None:
    """Raises `UserError` for options that the first layer does not read."""
    if project or blocks is not None:
        option = "project=true" if project else f"blocks={blocks}"
        raise UserError(f"model.one_hot=true: the first layer multiplies nothing, so model.{option} must go")
