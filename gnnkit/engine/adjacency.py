"""The graph as one layer of a model reads it: rows, edges, edges by relation, sums."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, Self

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.pool import Pool, pool_of
from gnnkit.engine.rank_graph import RankGraph, copy_on_write
from gnnkit.engine.relations import Combine
from gnnkit.engine.topology import Kind, inverse_sqrt
from gnnkit.engine.typed_attention import RelationAttention, edge_softmax
from gnnkit.engine.typed_edges import RowTypes
from gnnkit.engine.typed_graph import RelationGraph, RelationRows, TypedGraph
from gnnkit.exchange.base import Operation
from gnnkit.graph.schema import Schema
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.attention import Weighing, attend, serves
from gnnkit.kernels.dropout import derive, dropout, relu_dropout
from gnnkit.kernels.product_rows import ProductRows, Rows

# Maps the ids of edges [num_edges], which key dropout, to how scores become weights.
Weigh = Callable[[Tensor], Weighing]
# Maps (rows [held edges, f], their columns) to messages [held edges, f].
Message = Callable[[Tensor, slice], Tensor]
Reduce = Literal["sum", "mean", "max"]
ATTENTION: tuple[Operation, ...] = ("scores", "softmax", "weighted sum")
# Time per edge and column of a sum, relative to a multiplication in a matrix product.
# Sums are limited by memory bandwidth.
EDGE_COST = 8
_TENSORS = ("src_nodes", "edge_ids", "in_degree", "out_degree", "edge_features", "edge_age")


class EdgesByType(ABC):
    """A rank's edges by relation, and its rows by node type.

    Methods raise `UserError` for edges without types. With `routes`, they are
    collective.
    """

    @property
    @abstractmethod
    def edge_types(self) -> Tensor:  # [held edges] int64
        """Relation of each held edge, 0 in a graph with a single relation."""

    @abstractmethod
    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        """Returns the node types of the first source rows."""

    @abstractmethod
    def typed_graph(self, schema: Schema, routes: LayerRoutes) -> TypedGraph:
        """Returns the held edges by relation, between rows numbered by type."""

    @abstractmethod
    def sum(self, x: Tensor, combine: Combine, routes: LayerRoutes, *, inverse: bool, blocks: bool) -> Tensor:
        """Computes `Adjacency.aggregate_relations`."""

    @abstractmethod
    def attend(
        self, x: Tensor, y: Tensor | None, attention: RelationAttention, routes: LayerRoutes, weigh: Weigh
    ) -> Tensor:  # [num_dst, H, d]
        """Computes `Adjacency.attend_relations`. `weigh` makes weights of scores."""


class LayerRows(ABC):
    """The rows that one layer reads and computes, on one rank.

    The first `num_dst` of the `num_src` source rows are the destinations. Other ranks'
    rows follow as the halo, when an operation reads them.
    """

    num_dst: int
    src_nodes: Tensor  # [num_src] int64 global ids
    row_ids: Tensor  # [num_src] int64 ids that only copies of a row share, on all ranks
    in_degree: Tensor  # [num_dst]
    out_degree: Tensor  # [num_src]
    key: int  # random key of this layer and step
    routes: LayerRoutes  # the exchange of rows with other ranks

    @property
    def alone(self) -> bool:
        """Whether the edges read no rows of other ranks, on any rank."""
        return self.routes.alone

    def with_halo(self, x: Tensor) -> Tensor:  # [num_dst, ...] -> [num_dst + num_halo, ...]
        """Returns the rows that `rank_graph` connects: `x`, then the halo's rows.

        The halo's rows are gathered from their owners, and gradients return to them.
        Collective.

        Args:
            x: [num_dst, ...] this rank's rows.

        Returns:
            [num_dst + num_halo, ...].
        """
        rows = self.beside_halo(x)
        return copy_on_write(x) if rows is x and self.routes.sources is not None else rows

    def beside_halo(self, x: Tensor) -> Tensor:
        """Like `with_halo`, for rows that are not modified."""
        return self.routes.enter("halo").with_halo(x)

    def pool(self, num_rows: int) -> Pool:
        """Returns the object that computes statistics over all ranks' rows of a layer.

        Collective.

        Args:
            num_rows: Number of rows on this rank: `num_src`, or the first `num_dst`.
        """
        return self.pool_of_nodes(self.row_ids[:num_rows]) if self.routes.pool.has_copies else self.routes.pool

    def pool_of_nodes(self, nodes: Tensor) -> Pool:
        """Like `pool`, for rows of some nodes.

        Args:
            nodes: [num_rows] distinct int64 global ids of this rank's rows.
        """
        return pool_of(self.routes.pool, nodes)

    def dropout(self, x: Tensor, p: float, *, training: bool, draw: int = 0) -> Tensor:  # [num_src, f]
        """Applies dropout to the layer's input.

        The mask is keyed by global node id, so the result is the same on any number of
        ranks.

        Args:
            x: [num_src, f].
            p: Probability in [0, 1) that a number is zeroed.
            training: False: returns `x`.
            draw: Distinguishes several masks of one layer. Equal numbers give equal
                masks.

        Unlike `nn.Dropout`, a node's mask is the same on the rank that owns it and
        on ranks that read it, so that no mask has to be sent.
        """
        return dropout(x, self.src_nodes[: len(x)], p, dropout_key(self.key, draw)) if training and p > 0 else x

    def relu_dropout(self, x: Tensor, p: float, *, training: bool) -> Tensor:  # [num_src, f]
        """Applies ReLU and `dropout` in one pass.

        Args:
            x: [num_src, f].
            p: Probability in [0, 1) that a number is zeroed.
            training: False: ReLU only.
        """
        return relu_dropout(x, self.src_nodes[: len(x)], p, self.key) if training and p > 0 else x.relu()


class LayerEdges(LayerRows):
    """The edges between the rows of one layer that this rank holds."""

    edge_ids: Tensor  # [held edges] int64 global ids
    num_edges: int  # held edges, the leader's measure of a rank's work
    edge_features: Tensor | None  # [held edges, edge_width]
    edge_age: Tensor | None = None  # [held edges] time from each edge to the prediction, if batches are sampled by time
    edges: HeldEdges | None = None  # kernels over the held edges. None: plain torch
    local_edges: HeldEdges | None = (
        None  # `edges`, if they read no halo. None: ranks must agree on orders of operations
    )
    by_type: EdgesByType  # the held edges by relation

    @property
    @abstractmethod
    def rank_graph(self) -> RankGraph:
        """The held edges as a graph over this rank's rows and the halo.

        Raises `UserError` unless a rank holds all in-edges of its rows.
        """

    @property
    def edge_types(self) -> Tensor:  # [held edges] int64
        """Relation of each held edge, 0 in a graph with a single relation.

        Raises `UserError` if the held edges have no types.
        """
        return self.by_type.edge_types

    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        """Returns the node types of the first source rows.

        Raises `UserError` if the model has weights for another number of types.

        Args:
            num_rows: Number of rows: `num_src`, or the first `num_dst`.
            num_types: Number of node types that the model has weights for.
        """
        return self.by_type.row_types(num_rows, num_types)

    def typed_graph(self, schema: Schema) -> TypedGraph:
        """Returns the held edges by relation. Collective on first use.

        Raises `UserError` if the held edges have no types, or unless a rank holds all
        in-edges of its rows.

        Args:
            schema: The graph's types, with the node types of each relation.
        """
        return self.by_type.typed_graph(schema, self.routes)

    def relation_rows(self, graph: RelationGraph) -> RelationRows:
        """Returns one relation's edges, and the rows that they read in this pass.

        Args:
            graph: One of the relations of `typed_graph`.
        """
        return RelationRows(graph, self.routes)

    def project_first(self, in_features: int, out_features: int) -> bool:
        """Returns whether projecting rows is cheaper before a sum than after it.

        Ranks that share the graph must agree, because the rows they exchange have these
        columns.

        Args:
            in_features: Columns before the product.
            out_features: Columns after the product.
        """
        if self.local_edges is None:
            return out_features < in_features
        products = in_features * out_features * (self.local_edges.num_src - self.num_dst)
        return products < EDGE_COST * self.num_edges * (in_features - out_features)

    def projects(self, x: Rows, out_features: int) -> bool:
        """Like `project_first`, for rows of a layer, and true for `ProductRows`.

        `ProductRows` are input rows that are not in memory, such as rows on disk, so
        they can only be multiplied by a weight.

        Args:
            x: [num_src, f].
            out_features: Columns after the product.
        """
        return isinstance(x, ProductRows) or self.project_first(x.shape[1], out_features)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that layers have accessed so far, by attribute.

        Layers must not modify them, because later steps may read them.
        """
        values = vars(self) | {"edge_types": vars(self.by_type).get("edge_types")}
        tensors = {name: values[name] for name in (*_TENSORS, "edge_types") if values.get(name) is not None}
        graph: RankGraph | None = values.get("rank_graph")
        return tensors if graph is None else tensors | graph.tensors()

    def edge_dropout(self, values: Tensor, p: float, *, training: bool) -> Tensor:  # [held edges, H]
        """Applies dropout to per-edge values, keyed by global edge id.

        Args:
            values: [held edges, H].
            p: Probability in [0, 1) that a value is zeroed.
            training: False: returns `values`.
        """
        return dropout(values, self.edge_ids, p, derive(self.key, 1)) if training and p > 0 else values

    def weighing(self, slope: float, p: float, *, training: bool, ids: Tensor | None = None) -> Weighing:
        """Returns how scores become weights, with dropout in training.

        `ids` are the edges' ids, by default `edge_ids`.
        """
        if not training or p == 0:
            return Weighing(slope)
        return Weighing(slope, p, derive(self.key, 1), self.edge_ids if ids is None else ids)


class Adjacency(LayerEdges):
    """The in-edges of `num_dst` rows, possibly distributed, as one layer reads them.

    A layer reads rows `x` [num_src, ...] through the adjacency. The first `num_dst`
    source rows are the destinations. Degrees refer to the complete graph, and are sums
    of weights if edges have weights. Per-edge values have one row per edge that this
    rank holds. Static edges have the age NaN, and added self-loops the age 0. If
    several ranks share the graph, every method except `dropout` and `edge_dropout` is
    collective, in forward and backward. A layer may modify the result of `aggregate`,
    but not the adjacency's tensors, which are reused by later steps.

    A layer written for one process, such as PyG's, reads this rank's edges as a graph:

        edge_index = adjacency.rank_graph.edge_index
        conv((adjacency.with_halo(x), x[: adjacency.num_dst]), edge_index)

    Choose the operation by what a message is. `aggregate` sums source rows, with
    weights per edge and head if you have them. `attend` fuses scores, softmax and sum.
    `aggregate_messages` computes a message per edge, for which it needs memory. Results
    are the same on every layout, up to rounding.

    Examples:
        >>> from torch import nn
        >>> class MeanLayer(nn.Module):
        ...     def __init__(self, in_features, out_features):
        ...         super().__init__()
        ...         self.linear = nn.Linear(2 * in_features, out_features)
        ...     def forward(self, x, adjacency):
        ...         return self.linear(adjacency.concat_mean(x))
    """

    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum", weight: Tensor | None = None) -> Tensor:
        """Computes the sum, mean or maximum of source rows over in-edges.

        Rows without in-edges are 0. Sum and mean multiply by the graph's edge weights,
        and the mean divides by their sum. Among equal maxima, the gradient goes to the
        in-edge with the lowest global source id, then to the lowest edge id.

        Args:
            x: [num_src, f], or [num_src, H, d] for rows with heads.
            reduce: "sum", "mean" or "max".
            weight: [held edges, H] weights of a sum, replacing the graph's. `x` then
                has heads.

        Returns:
            [num_dst, f], or [num_dst, H, d].
        """
        if weight is not None:
            return self._weighted_sum(x, weight)
        return self._max(x) if reduce == "max" else self._sum(x, reduce)

    def aggregate_normalized(self, x: Tensor) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """Computes D_in^-1/2 A D_out^-1/2 x, the propagation of GCN.

        Degrees are those of the complete graph. The factor for degree 0 is 0.
        Self-loops are included only if the edges have them, as with a model's
        `self_loops`.

        Args:
            x: [num_src, f].

        Returns:
            [num_dst, f].
        """
        return self._sum(x, "normal")

    def aggregate_with_own(self, x: Tensor, scale: Tensor) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """Sums over in-edges, and adds the destination's row times a scalar.

        Args:
            x: [num_src, f].
            scale: Scalar tensor, differentiable.
        """
        return self._sum(x, "sum", scale)

    @abstractmethod
    def _sum(self, x: Tensor, kind: Kind, scale: Tensor | None = None) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Sums over in-edges, with the factors of a kind of sum.

        Args:
            x: [num_src, ...].
            kind: "sum", "mean" (divided by the in-degree), or "normal": D_in^-1/2 A
                D_out^-1/2 x.
            scale: Scalar tensor. `scale * x` of the destinations is added to the sum.
        """

    @abstractmethod
    def _max(self, x: Tensor) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Computes the maximum over in-edges, as `aggregate` describes it."""

    @abstractmethod
    def _weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:  # [num_src, H, d] -> [num_dst, H, d]
        """Sums over in-edges, times weights [held edges, H]."""

    @abstractmethod
    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:  # [num_src, f] -> [num_dst, 2 f]
        """Concatenates the mean over in-edges and the destination's row.

        Args:
            x: [num_src, f].
            p: Probability in [0, 1) of a preceding dropout of `x`. Default: 0.
        """

    @abstractmethod
    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """Sums `message(rows, columns)` over in-edges.

        `rows` [held edges, k] are the sources' rows, and `columns` are their columns of
        `x`, because a layout may assign some of the columns to a rank. A message must
        process each column independently. Gradients flow into `rows` and into this
        rank's parameters only.
        """

    def aggregate_relations(
        self, x: Tensor, combine: Combine, *, inverse: bool = False, blocks: bool = False
    ) -> Tensor:  # [num_src, f] -> [num_dst, k]
        """Computes the mean over each relation's in-edges, and combines the means.

        `combine(means, pairs, columns)` gets one row per pair of a destination and a
        relation with edges, [num_pairs, columns of x], and returns one sum per
        destination. For example, `pairs.sum_products(means, weights[:, columns])`
        multiplies by the relations' weights. It must be linear in the means, because
        several ranks may hold edges of a pair. Means divide by the complete graph's
        degrees, and are weighted if edges have weights.

        Args:
            x: [num_src, f].
            combine: From means and `Pairs` to [pairs.num_rows, k].
            inverse: Whether each edge u -> v also runs from v to u, with the edge's
                relation plus the number of relations. Default: no.
            blocks: Whether `x` has a block of columns per relation, inverse ones last,
                which are the relation's columns in the means. Default: no.
        """
        return self.by_type.sum(x, combine, self.routes.enter("relations"), inverse=inverse, blocks=blocks)

    def attend_relations(
        self, x: Tensor, attention: RelationAttention, y: Tensor | None = None, *, p: float, training: bool
    ) -> Tensor:  # [num_dst, H, d]
        """Sums messages over in-edges with attention, for each head.

        Messages and scores may depend on the edge's relation. The weights are the
        softmax of the scores over all in-edges of a destination, of all relations,
        after dropout. Edge weights are ignored.

        Args:
            x: [num_src, f] rows that edges leave.
            attention: The scores and messages.
            y: [num_dst, k] rows that edges enter. If None, rows of `x`.
            p: Probability in [0, 1) that a weight is zeroed.
            training: Whether dropout is active.
        """
        routes = self.routes.enter("relations")
        return self.by_type.attend(x, y, attention, routes, lambda ids: self.weighing(1, p, training=training, ids=ids))

    @abstractmethod
    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:  # [held edges, H]
        """Computes src[u] + dst[v] (+ edge[e]) for each held edge e = u -> v.

        Args:
            src: [num_src, H].
            dst: [num_dst, H].
            edge: [held edges, H], or None.
        """

    @abstractmethod
    def softmax(self, scores: Tensor) -> Tensor:  # [held edges, H] -> [held edges, H]
        """Computes the softmax over all in-edges of each destination.

        The in-edges may be on several ranks. Each column (head) is normalised
        separately.

        Args:
            scores: [held edges, H], for example from `scores`.

        Returns:
            [held edges, H] weights, which sum to 1 per destination and head.
        """

    def attend(
        self,
        h: Tensor,
        source: Tensor,
        destination: Tensor,
        edge: Tensor | None = None,
        *,
        slope: float,
        p: float,
        training: bool,
    ) -> Tensor:  # [num_dst, H, d]
        """Sums rows over in-edges with attention, for each head.

        The weights are softmax(leaky_relu(source[u] + destination[v] (+ edge[e]))) over
        the in-edges of v, after `edge_dropout`.

        Args:
            h: [num_src, H, d] rows.
            source: [num_src, H].
            destination: [num_dst, H].
            edge: [held edges, H], or None.
            slope: Negative slope of the leaky ReLU.
            p: Probability in [0, 1) that a weight is zeroed.
            training: Whether dropout is active.
        """
        edges, routes = self.edges, self.routes
        if edges is not None and routes.holds_in_edges and serves(edges, h):
            for operation in ATTENTION:
                routes.enter(operation)
            source, rows = self.beside_halo(source), self.beside_halo(h)
            return attend(edges, rows, source, destination, edge, self.weighing(slope, p, training=training))
        scores = F.leaky_relu(self.scores(source, destination, edge), slope)
        weight = self.edge_dropout(self.softmax(scores), p, training=training)
        return self.aggregate(h, weight=weight)

    def again(self) -> Self:
        """Returns the same edges for a second forward pass in the same step.

        This pass is not part of training. It receives exact rows from other ranks, and
        does not change any state.
        """
        adjacency = copy.copy(self)
        adjacency.routes = self.routes.again()
        return adjacency


class HeldAdjacency(Adjacency):
    """Edges that kernels sum over, from the rows that `routes` bring.

    A shard and a block differ in their edges and routes, and in the sums that each has
    its own kernels for.
    """

    edges: HeldEdges
    edge_counts: Tensor | None = None  # [held edges, 1] how often each message counts. None: once

    def _weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        routes = self.routes.enter("weighted sum")
        z = self.edges.weighted_sum(routes.read(x), routes.slicing.share(weight, routes.layer))
        return routes.collect(z, x.shape[-1])

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        routes = self.routes.enter("messages")
        z = message(self.edges.of_sources.sum(routes.read(x)), routes.slicing.columns(x.shape[-1]))
        z = z if self.edge_counts is None else z * self.edge_counts
        return routes.collect(self.edges.by_destination.sum(z), x.shape[-1])

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        routes = self.routes.enter("scores")
        slicing, layer = routes.slicing, routes.layer
        src, dst = slicing.replicate(src, layer), slicing.replicate(dst, layer)
        at_sources = self.edges.of_sources.sum(routes.with_halo(src))
        scores = at_sources + self.edges.by_destination.spread(routes.with_partial(dst))
        return scores if edge is None else scores + slicing.once(edge)

    def softmax(self, scores: Tensor) -> Tensor:
        routes = self.routes.enter("softmax")
        return edge_softmax(scores, self.edges, routes.largest, routes.total, routes.passes.keep)


class PlainAdjacency(Adjacency):
    """All edges of a graph on one rank, without kernels.

    Sums that kernels fuse are composed of `_add_up`. Subclasses set `routes` to
    `LayerRoutes.local`.
    """

    @abstractmethod
    def _add_up(self, x: Tensor) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Sums over in-edges, times the graph's weights."""

    def _sum(self, x: Tensor, kind: Kind, scale: Tensor | None = None) -> Tensor:
        if kind == "normal":
            return self._add_up(x * inverse_sqrt(self.out_degree)[:, None]) * inverse_sqrt(self.in_degree)[:, None]
        z = self._add_up(x)
        if kind == "mean":
            return z / torch.where(self.in_degree == 0, 1, self.in_degree).view(-1, *[1] * (z.dim() - 1))
        return z if scale is None else scale * x[: self.num_dst] + z

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:
        x = self.dropout(x, p, training=True)
        return torch.cat([self._sum(x, "mean"), x[: self.num_dst]], 1)


def dropout_key(key: int, draw: int) -> int:
    """Returns the key of a layer's dropout mask. Mask 0 uses the layer's key."""
    return derive(key, 2, draw) if draw else key
