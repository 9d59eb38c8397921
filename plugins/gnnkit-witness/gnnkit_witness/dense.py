"""The graph as a layer reads it, in plain torch and one process.

Sums are those of exported models (`TensorAdjacency`), over the graph's edges as listed
here. Nothing is shared with the engine's kernels, exchanges, layouts and samplers, and
dropout is computed from Python integers. Intended for small graphs, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gnnkit_export.exported import TensorAdjacency
from torch import Tensor
from torch.nn import functional as F

from gnnkit.engine.adjacency import Weigh
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


class RowPool:
    """A layer's rows, for batch statistics."""

    lasts = True

    def mean(self, x: Tensor) -> tuple[Tensor, Tensor]:  # [num_rows, f] -> [f], scalar
        count = torch.tensor(float(max(len(x), 1))).double()
        return x.sum(0) / count, count


class DenseAdjacency(TensorAdjacency):
    """All in-edges of some nodes, as one layer reads them."""

    edge_age = None  # for batches sampled by time only

    def __init__(self, edges: DenseEdges, dst: Tensor, key: int) -> None:
        """Selects the in-edges of some nodes.

        Args:
            edges: All edges.
            dst: [num_dst] nodes that the layer computes.
            key: Random key of the layer and step.
        """
        held = torch.isin(edges.dst, dst).nonzero()[:, 0]
        halo = set(edges.src[held].tolist()) - set(dst.tolist())
        nodes = torch.cat([dst, torch.tensor(sorted(halo)).long()])
        row = torch.zeros(edges.num_nodes).long()
        row[nodes] = torch.arange(len(nodes))
        super().__init__(
            torch.empty(len(nodes), 0).double(),
            torch.stack([row[edges.src[held]], row[edges.dst[held]]]),
            None if edges.weight is None else edges.weight[held],
            None if edges.features is None else edges.features[held],
            (edges.types[held], edges.num_relations),
            edges.node_types[nodes],
            loops=False,
            num_dst=len(dst),
        )
        self.key, self.src_nodes, self.edge_ids = key, nodes, edges.ids[held]
        self.out_degree = edges.degree(edges.src)[nodes]

    def _max(self, x: Tensor) -> Tensor:
        """Returns the first maximum, in the order of source ids and edge ids."""
        source, ids = self.src_nodes[self._src].tolist(), self.edge_ids.tolist()
        order = torch.tensor(sorted(range(len(ids)), key=lambda edge: (source[edge], ids[edge]))).long()
        into = self._dst[order] == torch.arange(self.num_dst)[:, None]
        into = into.view(self.num_dst, -1, *[1] * (x.dim() - 1))
        rows = torch.where(into, x[self._src[order]], -torch.inf)
        if not len(ids):
            return rows.sum(1)
        largest = into & (rows == rows.amax(1, keepdim=True))
        return torch.where(largest & (largest.cumsum(1) == 1), x[self._src[order]], 0).sum(1)

    def project_first(self, in_features: int, out_features: int) -> bool:
        return False  # the engine decides by widths, with the same result

    def dropout(self, x: Tensor, p: float, *, training: bool, draw: int = 0) -> Tensor:
        key = derived(self.key, 2, draw) if draw else self.key
        return drop(x, self.src_nodes[: len(x)], p, key) if training else x

    def relu_dropout(self, x: Tensor, p: float, *, training: bool) -> Tensor:
        return self.dropout(F.relu(x), p, training=training)

    def edge_dropout(self, values: Tensor, p: float, *, training: bool) -> Tensor:
        return drop(values, self.edge_ids, p, derived(self.key, 1)) if training else values

    def drop_weights(self, weight: Tensor, ids: Tensor, weigh: Weigh) -> Tensor:
        return drop(weight, ids, weigh(ids).p, derived(self.key, 1))

    def pool(self, num_rows: int) -> Any:
        return RowPool()

    def pool_of_nodes(self, nodes: Tensor) -> Any:
        return RowPool()


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


def drop(x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
    """Applies dropout to rows [n, ...] with ids [n]."""
    return x * factors(ids.tolist(), x[:1].numel() if len(x) else 0, p, key).view(x.shape) if p > 0 and len(x) else x


def _to_float64(values: object) -> Tensor | None:
    return None if values is None else torch.tensor(np.asarray(values), dtype=torch.float64)
