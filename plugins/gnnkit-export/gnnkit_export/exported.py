"""Converts a model of (x, adjacencies) to plain torch operations, without gnnkit.

No shape depends on a value, so the model can be exported by torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from gnnkit.engine import Combine, Pairs, RankGraph, RelationAttention, RowTypes, TypedEdges
from gnnkit.engine.adjacency import EdgesByType, Message, PlainAdjacency, Weigh
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.typed_graph import TypedGraph
from gnnkit.errors import UserError
from gnnkit.graph.schema import Schema
from gnnkit.model.base import dtype_of
from gnnkit.model.exactness import TypeCounts


class Plain(nn.Module):
    """A trained module called with (x, edge_index) and raw rows.

    Rows are scaled in their own dtype and then converted to the parameters' dtype.
    """

    def __init__(
        self, model: nn.Module, scale: Callable[[Tensor], Tensor], in_unit: Callable[[Tensor], Tensor] = lambda x: x
    ) -> None:
        """Stores the model, in evaluation mode.

        Args:
            model: The module.
            scale: Converts raw rows to the rows that the model reads.
            in_unit: Converts outputs to the labels' unit. Default: no conversion.
        """
        super().__init__()
        self.model, self.scaled, self.in_unit = model.eval(), scale, in_unit
        self.dtype = dtype_of(model)

    def takes(self, name: str) -> bool:
        """Returns whether the model's `forward` has a parameter of this name."""
        parameters = inspect.signature(self.model.forward).parameters
        return name in ("x", "edge_index") or name in parameters

    def forward(  # torch.export generates wrong code for **kwargs
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
        edge_type: Tensor | None = None,
        node_type: Tensor | None = None,
    ) -> Tensor:
        """Computes logits [num_nodes, num_classes].

        Args:
            x: [num_nodes, in_features].
            edge_index: [2, num_edges] int64 source, destination.
            edge_weight: [num_edges]. Default: not passed to the model.
            edge_attr: [num_edges, edge_width]. Default: not passed to the model.
            edge_type: [num_edges] int64. Default: not passed to the model.
            node_type: [num_nodes] int64. Default: not passed to the model.
        """
        values = {
            "edge_weight": self._cast(edge_weight),
            "edge_attr": self._cast(edge_attr),
            "edge_type": edge_type,
            "node_type": node_type,
        }
        present = {name: value for name, value in values.items() if value is not None}
        return self.in_unit(self.call(self.scaled(x).to(self.dtype), edge_index, present))

    def call(self, rows: Tensor, edge_index: Tensor, values: dict[str, Tensor]) -> Tensor:
        """Computes the model's outputs.

        Args:
            rows: [num_nodes, in_features] as the model reads them.
            edge_index: [2, num_edges] int64 source, destination.
            values: Further arguments of `forward` by name.
        """
        out: Tensor = self.model(rows, edge_index, **values)
        return out

    def _cast(self, value: Tensor | None) -> Tensor | None:
        return None if value is None else value.to(self.dtype)


class PlainLayers(Plain):
    """A trained model of (x, adjacencies), as a module called with (x, edge_index).

    Computes the same as the model in evaluation mode, in plain torch.
    """

    def takes(self, name: str) -> bool:
        return True

    def call(self, rows: Tensor, edge_index: Tensor, values: dict[str, Tensor]) -> Tensor:
        loops = bool(getattr(self.model, "self_loops", False))
        weight, features, types = (values.get(name) for name in ("edge_weight", "edge_attr", "edge_type"))
        relations = None if types is None else (types, TypeCounts.of(self.model).of_edges)
        if getattr(self.model, "undirected", False):
            edge_index = torch.cat([edge_index, edge_index.flip(0)], 1)
            weight = None if weight is None else torch.cat([weight, weight])
            features, relations = None, None  # unread
        adjacency = TensorAdjacency(rows, edge_index, weight, features, relations, values.get("node_type"), loops=loops)
        num_layers: int = self.model.num_layers  # type: ignore[assignment]
        out: Tensor = self.model.forward(rows, [adjacency] * num_layers)
        return out


class TensorAdjacency(PlainAdjacency):
    """All edges of a graph, with one additional self-loop per node if required.

    The self-loop of a node that already has one gets weight 0.
    """

    key = 0  # unused in evaluation

    def __init__(
        self,
        x: Tensor,
        edge_index: Tensor,
        weight: Tensor | None,
        features: Tensor | None,
        relations: tuple[Tensor, int] | None = None,
        node_types: Tensor | None = None,
        *,
        loops: bool,
        num_dst: int | None = None,
    ) -> None:
        """Stores the edges.

        Args:
            x: [num_nodes, ...] rows, for number and dtype.
            edge_index: [2, num_edges] int64 source, destination.
            weight: [num_edges] edge weights. If None, all are 1.
            features: [num_edges, edge_width], or None.
            relations: [num_edges] int64 relations, and their number. Default: one.
            node_types: [num_nodes] int64 type of each node. Default: a single type.
            loops: Whether nodes without a self-loop get one, of weight 1.
            num_dst: Number of nodes that edges enter, which come first. Default: all.
        """
        self.num_src = x.shape[0]
        self.num_dst = self.num_src if num_dst is None else num_dst
        self._given, self._weight, self.edge_features = edge_index, weight, features
        self._src, self._dst = edge_index[0], edge_index[1]
        weights = x.new_ones(self._src.shape[0]) if weight is None else weight
        self._counts = x.new_ones(self._src.shape[0])
        self.src_nodes = torch.arange(self.num_src, device=x.device)
        if loops:
            lacks = self._lacks_loop().to(x.dtype)
            if features is not None:
                degree = self._sum_edges(self._counts[:, None]).clamp(min=1)
                self.edge_features = torch.cat([features, self._sum_edges(features) / degree])
            self._src, self._dst = (torch.cat([ends, self.src_nodes]) for ends in (self._src, self._dst))
            weights, self._counts = torch.cat([weights, lacks]), torch.cat([self._counts, lacks])
        self._weights, self._loops, self.routes = weights, loops, LayerRoutes.local(self.num_dst)
        self.by_type = TensorTypes(self, relations, node_types)
        self.num_edges, self.edge_ids = self._src.shape[0], torch.arange(self._src.shape[0], device=x.device)
        self.in_degree = self._sum_edges(weights[:, None])[:, 0]
        self.out_degree = _sum(weights, self._src, self.num_src)

    def _add_up(self, x: Tensor) -> Tensor:
        rows = x[self._src]
        return self._sum_edges(rows * self._as_rows(self._weights, rows))

    def _weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._sum_edges(x[self._src] * weight[:, :, None])

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        return self._sum_edges(message(x[self._src], slice(0, x.shape[-1])) * self._counts[:, None])

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        scores = src[self._src] + dst[self._dst]
        return scores if edge is None else scores + edge

    def softmax(self, scores: Tensor) -> Tensor:
        # An edge that does not count is the second self-loop of its row.
        return _softmax(torch.where(self._counts[:, None] > 0, scores, -torch.inf), self._dst, self.num_dst)

    def drop_weights(self, weight: Tensor, ids: Tensor, weigh: Weigh) -> Tensor:  # [num_edges, H] -> [num_edges, H]
        """Applies dropout to attention weights, of which evaluation has none.

        Args:
            weight: [num_edges, H].
            ids: [num_edges] int64 ids of the edges.
            weigh: Returns the probability of dropout, for these ids.
        """
        return weight

    @property
    def rank_graph(self) -> RankGraph:
        if self._loops:
            raise UserError(
                "layers of PyG in a model with self_loops=True cannot be exported: let the layers add loops"
            )
        return RankGraph(self._given, self._weight)

    def _lacks_loop(self) -> Tensor:  # [num_dst] bool
        is_loop = (self._src == self._dst).to(self._counts.dtype)[:, None]
        return self._sum_edges(is_loop)[:, 0] == 0

    def _sum_edges(self, rows: Tensor) -> Tensor:  # [num_edges, ...] -> [num_dst, ...]
        return _sum(rows, self._dst, self.num_dst)

    def _max(self, x: Tensor) -> Tensor:
        rows = x[self._src]
        masked_rows = torch.where(self._as_rows(self._counts, rows) > 0, rows, -torch.inf)
        least = _zeros(self.num_dst, rows) - torch.inf
        largest = least.scatter_reduce(0, self._at(rows), masked_rows, "amax")
        return torch.where(torch.isinf(largest), 0, largest)

    def _at(self, rows: Tensor) -> Tensor:
        """Returns the destination of each element of edge rows."""
        return self._as_rows(self._dst, rows).expand_as(rows)

    def _as_rows(self, values: Tensor, rows: Tensor) -> Tensor:
        return values.view(-1, *[1] * (rows.dim() - 1))


class TensorTypes(EdgesByType):
    """The edges of a `TensorAdjacency` by relation, and its nodes by type."""

    def __init__(self, graph: TensorAdjacency, relations: tuple[Tensor, int] | None, node_types: Tensor | None) -> None:
        """Stores the types. The arguments are those of `TensorAdjacency`."""
        self._graph, self._num_nodes = graph, graph.num_dst
        self._src, self._dst, self._weights = graph._src, graph._dst, graph._weights
        self._types, self._count = (torch.zeros_like(self._src), 1) if relations is None else relations
        self._node_types = node_types

    @property
    def edge_types(self) -> Tensor:
        return self._types

    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        if self._node_types is None and num_types > 1:
            raise UserError(
                f"the model has weights for num_node_types={num_types}, but the call has no node_type: call it with x, "
                "edge_index, node_type"
            )
        types = self._src.new_zeros(self._num_nodes) if self._node_types is None else self._node_types
        return cast("RowTypes", PlainRowTypes(types))

    def typed_graph(self, schema: Schema, routes: LayerRoutes) -> TypedGraph:
        raise UserError("a model of (x_dict, edge_index_dict) cannot be exported")

    def sum(self, x: Tensor, combine: Combine, routes: LayerRoutes, *, inverse: bool, blocks: bool) -> Tensor:
        src, dst, weights, types, count = self._src, self._dst, self._weights, self._types, self._count
        if inverse:
            src, dst, weights = torch.cat([src, dst]), torch.cat([dst, src]), torch.cat([weights, weights])
            types, count = torch.cat([types, types + count]), 2 * count
        pairs = RelationRows(count, self._num_nodes)
        place = types * self._num_nodes + dst
        rows = x.reshape(-1, x.shape[1] // count)[src * count + types] if blocks else x[src]
        degree = pairs.added(weights[:, None], place)
        means = pairs.added(rows * weights[:, None], place) / torch.where(degree == 0, 1, degree)
        return combine(means, cast("Pairs", pairs), slice(0, x.shape[1]))

    def attend(
        self, x: Tensor, y: Tensor | None, attention: RelationAttention, routes: LayerRoutes, weigh: Weigh
    ) -> Tensor:
        graph, added = self._graph, attention.added
        src, dst, types, ids = [self._src], [self._dst], [self._types], [graph.edge_ids]
        if added.inverse:
            src, dst, types = [*src, self._dst], [*dst, self._src], [*types, self._types + self._count]
            ids.append(graph.edge_ids + graph.num_edges + self._num_nodes)
        if added.loops:
            nodes = torch.arange(self._num_nodes, device=self._src.device)
            src, dst, types = (
                [*src, nodes],
                [*dst, nodes],
                [*types, torch.full_like(nodes, added.count(self._count) - 1)],
            )
            ids.append(graph.src_nodes + graph.num_edges)
        edges = RelationEdges(torch.cat(src), torch.cat(dst), torch.cat(types))
        scores = attention.scores(x, x if y is None else y, cast("TypedEdges", edges))
        rows, place = attention.messages(x, cast("TypedEdges", edges), slice(0, attention.width))
        weight = graph.drop_weights(_softmax(scores, edges.dst, self._num_nodes), torch.cat(ids), weigh)
        return _sum(rows[cast("Tensor", place)] * weight[:, :, None], edges.dst, self._num_nodes)


class RelationRows:
    """One row per relation and node, ordered by relation, like a graph's `Pairs`.

    Rows of nodes without in-edges of a relation are 0, so that no shape depends on a
    value.
    """

    def __init__(self, num_relations: int, num_rows: int) -> None:
        self.num_relations, self.num_rows = num_relations, num_rows

    def added(self, rows: Tensor, place: Tensor) -> Tensor:
        """Sums rows [num_edges, k] by their position."""
        return _sum(rows, place, self.num_relations * self.num_rows)

    def sums_first(self, num_bases: int, width: int) -> bool:
        return True

    def sum(self, z: Tensor) -> Tensor:
        return self._by_relation(z).sum(0)

    def weighted_sum(self, z: Tensor, weight: Tensor) -> Tensor:
        return (self._by_relation(z) * weight[:, None, None]).sum(0)

    def sum_products(self, z: Tensor, weights: Tensor) -> Tensor:
        return torch.bmm(self._by_relation(z), weights.to(z.dtype)).sum(0)

    def _by_relation(self, z: Tensor) -> Tensor:  # [num_relations, num_rows, k]
        return z.view(self.num_relations, self.num_rows, z.shape[1])


class PlainRowTypes:
    """The node type of each row, like `RowTypes`."""

    def __init__(self, types: Tensor) -> None:
        self._types = types  # [num_rows]

    def products(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:  # [num_rows, f] -> [num_rows, k]
        rows = torch.arange(x.shape[0], device=x.device)
        return _products(x, weights)[rows, self._types] + biases[self._types]

    def spread(self, values: Tensor) -> Tensor:  # [num_types, k] -> [num_rows, k]
        return values[self._types]


class RelationPlaces:
    """One end of each edge, like the pairs of `TypedEdges`, repeated for each edge."""

    def __init__(self, rows: Tensor, types: Tensor) -> None:
        self._rows, self._types = rows, types  # [num_edges] each

    def products(self, x: Tensor, weights: Tensor) -> Tensor:  # [num_rows, f] -> [num_edges, k]
        return _products(x, weights)[self._rows, self._types]

    def head_products(self, x: Tensor, weights: Tensor) -> Tensor:  # [num_rows, H, f] -> [num_edges, H, k]
        """Multiplies each head by its weight of the relation.

        Args:
            x: [num_rows, H, f].
            weights: [num_relations, H, f, k].
        """
        by_head = weights.to(x.dtype).permute(1, 2, 0, 3).flatten(2)  # [H, f, num_relations * k]
        products = torch.unflatten(torch.bmm(x.transpose(0, 1), by_head), 2, weights.shape[::3])
        return products.permute(1, 2, 0, 3)[self._rows, self._types]


class RelationEdges:
    """Typed edges, like `TypedEdges`. `from_pairs` and `rows` are each edge's row."""

    def __init__(self, src: Tensor, dst: Tensor, types: Tensor) -> None:
        self.dst, self.types, self.rows = dst, types, src
        self.from_pairs = torch.arange(src.shape[0], device=src.device)
        self.sources, self.targets = RelationPlaces(src, types), RelationPlaces(dst, types)

    def of_sources(self, z: Tensor) -> Tensor:
        return z

    def of_targets(self, z: Tensor) -> Tensor:
        return z

    def of_relations(self, z: Tensor) -> Tensor:
        return z[self.types]

    def of_rows(self, z: Tensor) -> Tensor:
        return z[self.rows]

    def of_destinations(self, z: Tensor) -> Tensor:
        return z[self.dst]

    def dot(self, z: Tensor, targets: Tensor) -> Tensor:  # [num_edges, H, d], [num_rows, H, d] -> [num_edges, H]
        return (z * targets[self.dst]).sum(-1)


def _products(x: Tensor, weights: Tensor) -> Tensor:  # [n, f], [num_weights, f, k] -> [n, num_weights, k]
    """Multiplies rows by several weights.

    This is one product of matrices, because for stacks of matrices `torch.matmul`
    depends on sizes, to which `torch.export` would restrict the number of rows.
    """
    side_by_side = weights.to(x.dtype).transpose(0, 1).flatten(1)
    return torch.unflatten(x @ side_by_side, 1, weights.shape[::2])


def _softmax(scores: Tensor, dst: Tensor, num_rows: int) -> Tensor:  # [num_edges, H] -> [num_edges, H]
    """Computes the softmax over each row's in-edges."""
    place = dst[:, None].expand_as(scores)
    largest = _zeros(num_rows, scores).scatter_reduce(0, place, scores, "amax", include_self=False)
    powers = (scores - largest[dst]).exp()
    return powers / _sum(powers, dst, num_rows)[dst]


def _sum(rows: Tensor, place: Tensor, count: int) -> Tensor:  # [n, ...] -> [count, ...]
    """Sums rows by their position [n].

    In ONNX, `index_add` would become `ScatterND`, which ONNX Runtime computes by
    several threads that overwrite each other's sums. `ScatterElements` uses one.
    """
    places = place.view(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return _zeros(count, rows).scatter_add(0, places, rows)


def _zeros(num_rows: int, like: Tensor) -> Tensor:
    return like.new_zeros(num_rows, *like.shape[1:])
