"""The graph as seen by one layer of a model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.engine.engine import Engine, Message
from gnnkit.engine.pool import Pool
from gnnkit.engine.quarters import inverse_sqrt
from gnnkit.engine.rank_graph import RankGraph, copy_on_write
from gnnkit.engine.relations import Combine
from gnnkit.engine.row_types import RowTypes
from gnnkit.engine.typed_attention import RelationAttention
from gnnkit.engine.typed_graph import RelationGraph, RelationRows, TypedGraph
from gnnkit.errors import UserError
from gnnkit.exchange.schedule import ForwardPass, Operation
from gnnkit.graph.schema import Schema
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.attention import Weighing, attend, serves
from gnnkit.kernels.dropout import derive, dropout, relu_dropout
from gnnkit.kernels.product_rows import ProductRows, Rows

Reduce = Literal["sum", "mean", "max"]
_WITHOUT_TYPES = "support relational models such as rgcn, because its edges have no types; use strategy=vertex_centric"
ATTENTION: tuple[Operation, ...] = ("scores", "softmax", "weighted sum")


class Adjacency(ABC):
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

    num_dst: int
    src_nodes: Tensor  # [num_src] int64 global ids
    in_degree: Tensor  # [num_dst]
    out_degree: Tensor  # [num_src]
    edge_ids: Tensor  # [held edges] int64 global ids
    num_edges: int  # held edges, the leader's measure of a rank's work
    edge_features: Tensor | None  # [held edges, edge_width]
    edge_age: Tensor | None = None  # [held edges] time from each edge to the prediction, if batches are sampled by time
    key: int  # random key of this layer and step
    alone: bool = False  # whether the edges read no rows of other ranks, on any rank

    @abstractmethod
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
        return self.aggregate(x * inverse_sqrt(self.out_degree)[:, None]) * inverse_sqrt(self.in_degree)[:, None]

    def aggregate_with_own(self, x: Tensor, scale: Tensor) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """Sums over in-edges, and adds the destination's row times a scalar.

        Args:
            x: [num_src, f].
            scale: Scalar tensor, differentiable.
        """
        return scale * x[: self.num_dst] + self.aggregate(x)

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:  # [num_src, f] -> [num_dst, 2 f]
        """Concatenates the mean over in-edges and the destination's row.

        Args:
            x: [num_src, f].
            p: Probability in [0, 1) of a preceding dropout of `x`. Default: 0.
        """
        x = self.dropout(x, p, training=True)
        return torch.cat([self.aggregate(x, reduce="mean"), x[: self.num_dst]], 1)

    def project_first(self, in_features: int, out_features: int) -> bool:
        """Returns whether projecting rows is cheaper before a sum than after it.

        Ranks that share the graph must agree, because the rows they exchange have these
        columns.

        Args:
            in_features: Columns before the product.
            out_features: Columns after the product.
        """
        return out_features < in_features

    def projects(self, x: Rows, out_features: int) -> bool:
        """Like `project_first`, for rows of a layer, and true for `ProductRows`.

        `ProductRows` are input rows that are not in memory, such as rows on disk, so
        they can only be multiplied by a weight.

        Args:
            x: [num_src, f].
            out_features: Columns after the product.
        """
        return isinstance(x, ProductRows) or self.project_first(x.shape[1], out_features)

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
        raise self._unsupported(_WITHOUT_TYPES)

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
        raise self._unsupported(_WITHOUT_TYPES)

    def _unsupported(self, operation: str) -> UserError:
        return UserError(f"{type(self).__name__} does not {operation}")

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
        if (edges := self._attention_edges(h)) is not None:
            source, rows = self.beside_halo(source), self.beside_halo(h)
            return attend(edges, rows, source, destination, edge, self.weighing(slope, p, training=training))
        scores = F.leaky_relu(self.scores(source, destination, edge), slope)
        weight = self.edge_dropout(self.softmax(scores), p, training=training)
        return self.aggregate(h, weight=weight)

    def _attention_edges(self, h: Tensor) -> HeldEdges | None:
        """Returns the edges for a fused attention kernel, or None if unsupported.

        The kernel needs all in-edges on this rank, and reads rows `with_halo`.
        """
        return None

    def beside_halo(self, x: Tensor) -> Tensor:
        """Like `with_halo`, for rows that are not modified."""
        return self.with_halo(x)

    def weighing(self, slope: float, p: float, *, training: bool, ids: Tensor | None = None) -> Weighing:
        """Returns how scores become weights, with dropout in training.

        `ids` are the edges' ids, by default `edge_ids`.
        """
        if not training or p == 0:
            return Weighing(slope)
        return Weighing(slope, p, derive(self.key, 1), self.edge_ids if ids is None else ids)

    def again(self) -> Adjacency:
        """Returns the same edges for a second forward pass in the same step.

        This pass is not part of training. It receives exact rows from other ranks, and
        does not change any state.
        """
        return self

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors that layers have accessed so far, by attribute.

        Layers must not modify them, because later steps may read them. By default there
        are none.
        """
        return {}

    @property
    def edge_types(self) -> Tensor:  # [held edges] int64
        """Relation of each held edge, 0 in a graph with a single relation.

        Raises `UserError` if the held edges have no types.
        """
        raise self._unsupported("provide edge types; use strategy=vertex_centric for models that read them")

    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        """Returns the node types of the first source rows.

        Raises `UserError` if the model has weights for another number of types.

        Args:
            num_rows: Number of rows: `num_src`, or the first `num_dst`.
            num_types: Number of node types that the model has weights for.
        """
        raise self._unsupported("provide node types; use strategy=vertex_centric for models that read them")

    def typed_graph(self, schema: Schema) -> TypedGraph:
        """Returns the held edges by relation. Collective on first use.

        Raises `UserError` if the held edges have no types, or unless a rank holds all
        in-edges of its rows.

        Args:
            schema: The graph's types, with the node types of each relation.
        """
        raise self._unsupported(
            "provide edges by relation; use strategy=vertex_centric for models of (x_dict, edge_index_dict)"
        )

    def relation_rows(self, graph: RelationGraph) -> RelationRows:
        """Returns one relation's edges, and the rows that they read in this pass.

        Args:
            graph: One of the relations of `typed_graph`.
        """
        return RelationRows(graph, lambda x, _: x[:0])

    @property
    def rank_graph(self) -> RankGraph:
        """The held edges as a graph over this rank's rows and the halo.

        Raises `UserError` unless a rank holds all in-edges of its rows.
        """
        raise self._unsupported("support layers written for one process")

    def with_halo(self, x: Tensor) -> Tensor:  # [num_dst, ...] -> [num_dst + num_halo, ...]
        """Returns the rows that `rank_graph` connects: `x`, then the halo's rows.

        The halo's rows are gathered from their owners, and gradients return to them.
        Collective.

        Args:
            x: [num_dst, ...] this rank's rows.

        Returns:
            [num_dst + num_halo, ...].
        """
        raise self._unsupported("support layers written for one process")

    def degree_with_halo(self, loop: float) -> Tensor:  # [num_dst + num_halo]
        """Returns the in-degrees of the rows that `rank_graph` connects.

        Adds `loop` to rows without a self-loop.
        """
        return self.with_halo((self.in_degree + loop * self.lacks_loop)[:, None])[:, 0]

    @property
    def lacks_loop(self) -> Tensor:  # [num_dst] bool
        """Mask of destinations without a self-loop, for layers that add them.

        Raises `UserError` unless a rank holds all in-edges of its rows.
        """
        edge_index = self.rank_graph.edge_index
        lacks = torch.ones(self.num_dst, dtype=torch.bool, device=edge_index.device)
        lacks[edge_index[1, edge_index[0] == edge_index[1]]] = False
        return lacks

    def pool(self, num_rows: int) -> Pool:
        """Returns the object that computes statistics over all ranks' rows of a layer.

        Collective. By default, rows of other ranks are ignored.

        Args:
            num_rows: Number of rows on this rank: `num_src`, or the first `num_dst`.
        """
        return Pool()

    def pool_of_nodes(self, nodes: Tensor) -> Pool:
        """Like `pool`, for rows of some nodes.

        Args:
            nodes: [num_rows] distinct int64 global ids of this rank's rows.
        """
        return self.pool(len(nodes))

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

    def edge_dropout(self, values: Tensor, p: float, *, training: bool) -> Tensor:  # [held edges, H]
        """Applies dropout to per-edge values, keyed by global edge id.

        Args:
            values: [held edges, H].
            p: Probability in [0, 1) that a value is zeroed.
            training: False: returns `values`.
        """
        return dropout(values, self.edge_ids, p, derive(self.key, 1)) if training and p > 0 else values


def dropout_key(key: int, draw: int) -> int:
    """Returns the key of a layer's dropout mask. Mask 0 uses the layer's key."""
    return derive(key, 2, draw) if draw else key


class ShardAdjacency(Adjacency):
    """All in-edges of the nodes that this rank owns, in one layer of one step.

    This is what models read in full-graph training, on every layout. Rows of other
    ranks are exchanged within each operation, as the forward pass's schedule and codec
    determine.
    """

    def __init__(self, engine: Engine, layer: int, key: int, forward: ForwardPass) -> None:
        self.engine, self.layer, self.key, self.forward = engine, layer, key, forward
        topology = engine.topology
        self.num_dst, self.src_nodes, self.alone = len(topology.nodes), topology.nodes, topology.comm.world_size == 1
        self.in_degree, self.out_degree = topology.in_degree, topology.out_degree
        self.num_edges, self.edge_ids = len(topology.edge_ids), topology.edge_ids
        self.edge_features = topology.edge_features

    @classmethod
    def layers(
        cls, engine: Engine, num_layers: int, key: int, forward: ForwardPass | None = None
    ) -> tuple[Adjacency, ...]:
        """Creates one adjacency of the complete graph per model layer.

        Args:
            engine: The exchange and aggregation over this rank's shard.
            num_layers: Number of model layers.
            key: The step's key.
            forward: The pass over the graph. If None, an exact one.
        """
        forward = forward or ForwardPass()
        return tuple(cls(engine, layer, derive(key, layer), forward) for layer in range(num_layers))

    def again(self) -> Adjacency:
        return ShardAdjacency(self.engine, self.layer, self.key, self.forward.again)

    def _enter_pass(self, operation: Operation) -> Engine:
        """Makes the engine enter this pass, and returns it.

        Raises `UserError` for an operation that the pass does not support.
        """
        if self.forward.schedule is not None:
            self.forward.schedule.check(operation)
        self.engine.passes.enter(self.forward)
        return self.engine

    @property
    def edge_types(self) -> Tensor:
        return self.engine.typed.edge_types

    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        assert num_rows == self.num_dst, "a shard's source rows are its destinations"
        return self.engine.typed.row_types(num_types)

    def typed_graph(self, schema: Schema) -> TypedGraph:
        return self.engine.typed.typed_graph(schema)

    def relation_rows(self, graph: RelationGraph) -> RelationRows:
        return RelationRows(
            graph, lambda x, graph: self._enter_pass("halo").typed.halo(x, graph, self.layer), alone=self.alone
        )

    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum", weight: Tensor | None = None) -> Tensor:
        if weight is not None:
            return self._enter_pass("weighted sum").weighted_sum(x, weight, self.layer)
        if reduce == "max":
            return self._enter_pass("max").max(x, self.layer)
        return self._enter_pass(reduce).sum(x, self.layer, reduce)

    def aggregate_normalized(self, x: Tensor) -> Tensor:
        return self._enter_pass("sum").sum(x, self.layer, "normal")

    def aggregate_with_own(self, x: Tensor, scale: Tensor) -> Tensor:
        return self._enter_pass("sum").sum(x, self.layer, scale=scale)

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:
        return self._enter_pass("mean").sum(self.dropout(x, p, training=True), self.layer, "mean", beside=True)

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        return self._enter_pass("messages").message_sum(x, message, self.layer)

    def aggregate_relations(
        self, x: Tensor, combine: Combine, *, inverse: bool = False, blocks: bool = False
    ) -> Tensor:
        return self._enter_relations().typed.sum(x, combine, self.layer, inverse=inverse, blocks=blocks)

    def attend_relations(
        self, x: Tensor, attention: RelationAttention, y: Tensor | None = None, *, p: float, training: bool
    ) -> Tensor:
        typed_engine = self._enter_relations().typed
        weighing = self.weighing(1, p, training=training, ids=typed_engine.edges(attention.added).ids)
        return typed_engine.attention(x, y, attention, self.layer, weighing)

    def _enter_relations(self) -> Engine:
        if self.forward.schedule is not None:
            raise UserError("a relational model needs current rows: use exchange=exact or quantized")
        return self._enter_pass("relations")

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        return self._enter_pass("scores").scores(src, dst, edge, self.layer)

    def softmax(self, scores: Tensor) -> Tensor:
        return self._enter_pass("softmax").softmax(scores, self.layer)

    def _attention_edges(self, h: Tensor) -> HeldEdges | None:
        topology = self.engine.topology
        if not topology.holds_in_edges or not serves(topology.edges, h):
            return None
        for operation in ATTENTION:
            self._enter_pass(operation)
        return topology.edges

    def beside_halo(self, x: Tensor) -> Tensor:
        return self._enter_pass("halo").topology.with_halo(x, self.layer)

    def tensors(self) -> dict[str, Tensor]:
        return self.engine.tensors()

    @property
    def rank_graph(self) -> RankGraph:
        return self.engine.topology.rank_graph

    def with_halo(self, x: Tensor) -> Tensor:
        rows = self.beside_halo(x)
        return copy_on_write(x) if rows is x else rows  # a layer may modify the rows

    def pool(self, num_rows: int) -> Pool:
        return Pool(self.engine.topology.comm, self.engine.tally) if self.forward.exchanges else Pool(lasts=False)

    def degree_with_halo(self, loop: float) -> Tensor:
        with self.engine.passes.plain():  # degrees, which must not be quantized
            return Adjacency.degree_with_halo(self, loop)
