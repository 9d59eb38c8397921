"""The graph as a layer reads it, as dense matrices in plain torch.

Implements the methods of `gnnkit.engine.Adjacency` without sharing code. Intended for
small graphs, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.graph import Graph
from gnnkit_witness.noise import derived, factors


@dataclass(frozen=True, slots=True, eq=False)
class DenseEdges:
    """A graph's edges, with the self-loops that a model adds."""

    num_nodes: int
    src: Tensor  # [num_edges] int64
    dst: Tensor  # [num_edges] int64
    ids: Tensor  # [num_edges] int64. The added loop of v has the graph's number of edges + v
    weight: Tensor | None  # [num_edges] float64. None: 1 each
    features: Tensor | None  # [num_edges, edge_width] float64
    types: Tensor  # [num_edges] int64 relation, -1 for an added loop
    num_relations: int
    node_types: Tensor  # [num_nodes] int64

    @classmethod
    def of(cls, graph: Graph, *, self_loops: bool) -> DenseEdges:
        """Lists a graph's edges. Adds a loop to each node without one.

        An added loop has weight 1, and the mean features of the node's in-edges.
        """
        csc = graph.csc
        src = torch.tensor(csc.indices.astype(np.int64))
        dst = torch.tensor([node for node in range(csc.num_nodes) for _ in range(*csc.indptr[node : node + 2])]).long()
        weight, features = (_to_float64(values) for values in (csc.weight, graph.edge_features))
        types = torch.zeros(len(src)).long() if graph.edge_types is None else torch.tensor(graph.edge_types).long()
        ids = torch.arange(len(src))
        counts = [count for _, count in graph.schema.node_types]
        node_types = torch.tensor([number for number, count in enumerate(counts) for _ in range(count)]).long()
        edges = cls(csc.num_nodes, src, dst, ids, weight, features, types, graph.num_relations, node_types)
        return edges._with_loops() if self_loops else edges

    def _with_loops(self) -> DenseEdges:
        with_loop = set(self.src[self.src == self.dst].tolist())
        nodes = torch.tensor([node for node in range(self.num_nodes) if node not in with_loop]).long()
        return DenseEdges(
            self.num_nodes,
            torch.cat([self.src, nodes]),
            torch.cat([self.dst, nodes]),
            torch.cat([self.ids, len(self.src) + nodes]),
            None if self.weight is None else torch.cat([self.weight, torch.ones(len(nodes)).double()]),
            None if self.features is None else torch.cat([self.features, self._means(self.features)[nodes]]),
            torch.cat([self.types, torch.full((len(nodes),), -1)]),
            self.num_relations,
            self.node_types,
        )

    def _means(self, values: Tensor) -> Tensor:  # [num_edges, k] -> [num_nodes, k]
        at = self.dst == torch.arange(self.num_nodes)[:, None]
        return at.double() @ values / at.sum(1, keepdim=True).clamp(min=1)

    @property
    def weights(self) -> Tensor:  # [num_edges]
        return torch.ones(len(self.src)).double() if self.weight is None else self.weight

    def degree(self, ends: Tensor) -> Tensor:  # [num_edges] -> [num_nodes]
        """Returns the sum of edge weights at each node."""
        return (ends == torch.arange(self.num_nodes)[:, None]).double() @ self.weights


class HeldGraph(NamedTuple):
    """The edges between rows, for layers written for a single process."""

    edge_index: Tensor  # [2, held edges] source row, destination row
    weight: Tensor | None  # [held edges]


class DensePairs:
    """The (node, relation) pairs with in-edges, ordered by relation."""

    def __init__(self, rows: list[Tensor], num_rows: int) -> None:
        self.rows, self.num_rows = rows, num_rows  # nodes of each relation
        self.sizes = [len(of_relation) for of_relation in rows]

    def __len__(self) -> int:
        return sum(self.sizes)

    def sums_first(self, num_bases: int, width: int) -> bool:
        return num_bases < len(self.sizes)

    def sum(self, z: Tensor) -> Tensor:  # [num_pairs, k] -> [num_rows, k]
        return (torch.cat(self.rows) == torch.arange(self.num_rows)[:, None]).double() @ z

    def weighted_sum(self, z: Tensor, weight: Tensor) -> Tensor:  # [num_pairs, k] -> [num_rows, k]
        parts = zip(torch.split(z, self.sizes), weight, strict=True)
        return self.sum(torch.cat([part * factor for part, factor in parts]))

    def sum_products(self, z: Tensor, weights: Tensor) -> Tensor:  # [num_pairs, f] -> [num_rows, k]
        parts = zip(torch.split(z, self.sizes), weights, strict=True)
        return self.sum(torch.cat([part @ matrix for part, matrix in parts]))


class DensePlaces:
    """One row per edge, which belongs to one of the edge's ends."""

    def __init__(self, rows: Tensor, types: Tensor) -> None:
        self._rows, self._types = rows, types  # [num_edges] each

    def products(self, x: Tensor, weights: Tensor) -> Tensor:  # [num_rows, f] -> [num_edges, k]
        return torch.einsum("ef,efk->ek", x[self._rows], weights[self._types])

    def head_products(self, x: Tensor, weights: Tensor) -> Tensor:  # [num_rows, H, f] -> [num_edges, H, k]
        return torch.einsum("ehf,ehfk->ehk", x[self._rows], weights[self._types])


class DenseRowTypes:
    """The node type of each row."""

    def __init__(self, types: Tensor) -> None:
        self._types = types  # [num_rows]

    def products(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        return torch.einsum("nf,nfk->nk", x, weights[self._types]) + biases[self._types]

    def spread(self, values: Tensor) -> Tensor:
        return values[self._types]


class DenseTypedEdges:
    """Typed edges, with every (row, relation) pair repeated for each of its edges."""

    def __init__(self, src: Tensor, dst: Tensor, types: Tensor) -> None:
        self.src, self.dst, self.types = src, dst, types
        self.sources, self.targets = DensePlaces(src, types), DensePlaces(dst, types)
        self.from_pairs, self.rows = torch.arange(len(src)), src  # the message of each edge

    def dot(self, z: Tensor, targets: Tensor) -> Tensor:
        return (z * targets[self.dst]).sum(-1)

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


class RowPool:
    """A layer's rows, for batch statistics."""

    lasts = True

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:  # [num_rows, f] -> [f], scalar
        count = torch.tensor(float(max(len(x), 1))).double()
        return x.sum(0) / count, count


class DenseAdjacency:
    """All in-edges of some nodes, as one layer reads them."""

    alone = True
    edge_age = None  # for batches sampled by time only

    def __init__(self, edges: DenseEdges, dst: Tensor, key: int) -> None:
        """Selects the in-edges of some nodes.

        Args:
            edges: All edges.
            dst: [num_dst] nodes that the layer computes.
            key: Random key of the layer and step.
        """
        positions = torch.isin(edges.dst, dst).nonzero()[:, 0]
        halo = set(edges.src[positions].tolist()) - set(dst.tolist())
        self.src_nodes = torch.cat([dst, torch.tensor(sorted(halo)).long()])
        row = torch.zeros(edges.num_nodes).long()
        row[self.src_nodes] = torch.arange(len(self.src_nodes))
        self.num_dst, self.key, self._edges, self._held = len(dst), key, edges, positions
        self._src, self._dst = row[edges.src[positions]], row[edges.dst[positions]]
        self._into = self._dst == torch.arange(self.num_dst)[:, None]  # [num_dst, held edges]
        self._from = self._src == torch.arange(len(self.src_nodes))[:, None]  # [num_src, held edges]

    @property
    def in_degree(self) -> Tensor:  # [num_dst]
        return self._edges.degree(self._edges.dst)[self.src_nodes[: self.num_dst]]

    @property
    def out_degree(self) -> Tensor:  # [num_src]
        return self._edges.degree(self._edges.src)[self.src_nodes]

    @property
    def edge_ids(self) -> Tensor:  # [held edges]
        return self._edges.ids[self._held]

    @property
    def num_edges(self) -> int:
        return len(self._held)

    @property
    def edge_features(self) -> Tensor | None:  # [held edges, edge_width]
        return None if self._edges.features is None else self._edges.features[self._held]

    @property
    def edge_types(self) -> Tensor:  # [held edges]
        return self._edges.types[self._held]

    def _matrix(self, weight: Tensor) -> Tensor:  # [held edges] -> [num_dst, num_src]
        return (self._into * weight) @ self._from.double().T

    def aggregate(self, x: Tensor, *, reduce: str = "sum", weight: Tensor | None = None) -> Tensor:
        if weight is not None:
            heads = [self._matrix(weight[:, head]) @ x[:, head] for head in range(x.shape[1])]
            return torch.stack(heads, 1)
        if reduce == "max":
            return self._max(x)
        z: Tensor = torch.tensordot(self._matrix(self._edges.weights[self._held]), x, 1)
        degree = self.in_degree.view(-1, *[1] * (x.dim() - 1))
        return z if reduce == "sum" else z / torch.where(degree == 0, 1, degree)

    def _max(self, x: Tensor) -> Tensor:
        """Returns the first maximum, in the order of source ids and edge ids."""
        source, ids = self.src_nodes[self._src].tolist(), self.edge_ids.tolist()
        order = torch.tensor(sorted(range(len(ids)), key=lambda edge: (source[edge], ids[edge]))).long()
        into = self._into[:, order].view(self.num_dst, -1, *[1] * (x.dim() - 1))
        rows = torch.where(into, x[self._src[order]], -torch.inf)
        if not len(ids):
            return rows.sum(1)
        largest = into & (rows == rows.amax(1, keepdim=True))
        return torch.where(largest & (largest.cumsum(1) == 1), x[self._src[order]], 0).sum(1)

    def aggregate_normalized(self, x: Tensor) -> Tensor:
        into, out = (torch.where(d > 0, d, torch.inf) ** -0.5 for d in (self.in_degree, self.out_degree))
        return into[:, None] * self._matrix(self._edges.weights[self._held]) * out @ x

    def aggregate_with_own(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.aggregate(x) + scale * x[: self.num_dst]

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:
        x = self.dropout(x, p, training=True)
        return torch.cat([self.aggregate(x, reduce="mean"), x[: self.num_dst]], 1)

    def aggregate_messages(self, x: Tensor, message: Callable[[Tensor, slice], Tensor]) -> Tensor:
        return self._into.double() @ message(x[self._src], slice(0, x.shape[1]))

    def aggregate_relations(
        self, x: Tensor, combine: Callable[..., Tensor], *, inverse: bool = False, blocks: bool = False
    ) -> Tensor:
        num, count = self._edges.num_relations, self._edges.num_relations * (1 + inverse)
        assert self.num_dst == self._edges.num_nodes, "relations require the full graph"
        rows, means = [], []
        for back, (src, dst) in enumerate(((self._src, self._dst), (self._dst, self._src))[: 1 + inverse]):
            for relation in range(num):
                relation_rows = x.chunk(count, 1)[relation + back * num] if blocks else x
                of = self._edges.types[self._held] == relation
                into = (dst == torch.arange(self.num_dst)[:, None]) & of
                matrix = (into * self._edges.weights[self._held]) @ (src[:, None] == torch.arange(len(x))).double()
                degree, has_edges = matrix.sum(1, keepdim=True), into.any(1)
                rows.append(has_edges.nonzero()[:, 0])
                means.append((matrix @ relation_rows / torch.where(degree == 0, 1, degree))[has_edges])
        return combine(torch.cat(means), DensePairs(rows, self.num_dst), slice(0, x.shape[1]))

    def attend_relations(
        self, x: Tensor, attention: Any, y: Tensor | None = None, *, p: float, training: bool
    ) -> Tensor:
        extra, edges, num = attention.added, self._edges, self._edges.num_relations
        assert self.num_dst == edges.num_nodes, "relations require the full graph"
        src, dst, types, ids = [self._src], [self._dst], [edges.types[self._held]], [self.edge_ids]
        if extra.inverse:
            src, dst, types = [self._src, self._dst], [self._dst, self._src], [types[0], types[0] + num]
            ids = [self.edge_ids, self.edge_ids + self.num_edges + self.num_dst]
        if extra.loops:
            nodes, last = torch.arange(self.num_dst), num * (1 + extra.inverse)
            src, dst, types = [*src, nodes], [*dst, nodes], [*types, torch.full_like(nodes, last)]
            ids = [*ids, self.src_nodes + self.num_edges]
        by_type = DenseTypedEdges(torch.cat(src), torch.cat(dst), torch.cat(types))
        scores = attention.scores(x, x if y is None else y, by_type)
        messages, place = attention.messages(x, by_type, slice(0, attention.width))
        weight = torch.zeros_like(scores)
        for row in range(self.num_dst):
            weight = weight.index_put((by_type.dst == row,), scores[by_type.dst == row].softmax(0))
        weight = _drop(weight, torch.cat(ids), p, derived(self.key, 1)) if training else weight
        into = (by_type.dst == torch.arange(self.num_dst)[:, None]).double()
        return torch.einsum("ve,ehd->vhd", into, messages[place] * weight[:, :, None])

    def row_types(self, num_rows: int, num_types: int) -> DenseRowTypes:
        return DenseRowTypes(self._edges.node_types[self.src_nodes[:num_rows]])

    def project_first(self, in_features: int, out_features: int) -> bool:
        return False  # the engine decides by widths, with the same result

    def projects(self, x: Tensor, out_features: int) -> bool:
        return self.project_first(x.shape[1], out_features)

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        return src[self._src] + dst[self._dst] + (0 if edge is None else edge)

    def softmax(self, scores: Tensor) -> Tensor:  # [held edges, H] -> [held edges, H]
        result = torch.zeros_like(scores)
        for row in range(self.num_dst):
            result = result.index_put((self._into[row],), scores[self._into[row]].softmax(0))
        return result

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
    ) -> Tensor:
        scores = self.scores(source, destination, edge)
        weight = self.softmax(torch.where(scores > 0, scores, slope * scores))
        return self.aggregate(h, weight=self.edge_dropout(weight, p, training=training))

    def dropout(self, x: Tensor, p: float, *, training: bool, draw: int = 0) -> Tensor:
        key = derived(self.key, 2, draw) if draw else self.key
        return _drop(x, self.src_nodes[: len(x)], p, key) if training else x

    def relu_dropout(self, x: Tensor, p: float, *, training: bool) -> Tensor:
        return self.dropout(F.relu(x), p, training=training)

    def edge_dropout(self, values: Tensor, p: float, *, training: bool) -> Tensor:
        return _drop(values, self.edge_ids, p, derived(self.key, 1)) if training else values

    def pool(self, num_rows: int) -> RowPool:
        return RowPool()

    def pool_of_nodes(self, nodes: Tensor) -> RowPool:
        return RowPool()

    def again(self) -> DenseAdjacency:
        return self

    @property
    def rank_graph(self) -> HeldGraph:
        weight = self._edges.weight
        return HeldGraph(torch.stack([self._src, self._dst]), None if weight is None else weight[self._held])

    def with_halo(self, x: Tensor) -> Tensor:
        return x

    def beside_halo(self, x: Tensor) -> Tensor:
        return x

    def degree_with_halo(self, loop: float) -> Tensor:  # [num_src]
        edges = self._edges
        has_loop = torch.isin(self.src_nodes, edges.src[edges.src == edges.dst])
        return edges.degree(edges.dst)[self.src_nodes] + torch.where(has_loop, 0, loop)

    @property
    def lacks_loop(self) -> Tensor:  # [num_dst]
        loops = self._dst[self._src == self._dst]
        return ~torch.isin(torch.arange(self.num_dst), loops)


def layers_of(edges: DenseEdges, num_layers: int, key: int, seeds: Tensor | None = None) -> list[DenseAdjacency]:
    """Returns each layer's adjacency.

    Args:
        edges: All edges.
        num_layers: Number of layers.
        key: Random key of the step.
        seeds: [k] nodes that the last layer computes. Earlier layers compute the nodes
            that the next layer reads. If None, every layer computes all nodes.
    """
    layers: list[DenseAdjacency] = []
    for layer in reversed(range(num_layers)):
        dst = torch.arange(edges.num_nodes) if seeds is None else layers[0].src_nodes if layers else seeds
        layers.insert(0, DenseAdjacency(edges, dst, derived(key, layer)))
    return layers


def _drop(x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
    return x * factors(ids.tolist(), x[:1].numel() if len(x) else 0, p, key).view(x.shape) if p > 0 and len(x) else x


def _to_float64(values: object) -> Tensor | None:
    return None if values is None else torch.tensor(np.asarray(values), dtype=torch.float64)
