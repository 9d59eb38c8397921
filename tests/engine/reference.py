"""The answer of one process, from loops over edges, and of the ranks of a partition."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, Combine, Engine, RankGraph, RelationAttention, ShardAdjacency
from gnnkit.engine.adjacency import EdgesByType, Message, PlainAdjacency, Weigh
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.graph import Graph
from gnnkit.graph.schema import Schema
from gnnkit.kernels.dropout import derive, dropout
from gnnkit.partition.base import Partition
from gnnkit.partition.shard import Shard, cut_all

KEY = 11

Parts = tuple[Tensor, ...]  # logits, gradient of the input, gradients of the weights


class OneProcess(PlainAdjacency):
    """The whole graph as a list of edges. Shares no code with the engine."""

    types: np.ndarray | None = None  # [num_edges]
    num_relations = 1
    node_types: list[int]  # [num_nodes]

    def __init__(
        self, edges: list[tuple[int, int, int]], weight: Tensor, features: Tensor | None, num_nodes: int, key: int
    ) -> None:
        """`edges` are (id, source, destination), in the order of ids."""
        self.ids, self.src, self.dst = (list(column) for column in zip(*edges, strict=True)) if edges else ([], [], [])
        self.weight, self.edge_features, self.key, self.num_dst = weight, features, key, num_nodes
        self.edge_ids, self.src_nodes = torch.tensor(self.ids, dtype=torch.int64), torch.arange(num_nodes)
        self.routes, self.by_type = LayerRoutes.local(num_nodes), OneProcessTypes(self)
        self.into = [[e for e, d in enumerate(self.dst) if d == v] for v in range(num_nodes)]
        self.in_degree = self._sum_edges(weight[:, None])[:, 0]
        self.out_degree = torch.stack(
            [weight[[e for e, u in enumerate(self.src) if u == v]].sum() for v in range(num_nodes)]
        )

    def _sum_edges(self, rows: Tensor) -> Tensor:
        return torch.stack([rows[edges].sum(0) for edges in self.into])

    def _add_up(self, x: Tensor) -> Tensor:
        return self._sum_edges(self.weight[:, None] * x[self.src])

    def _weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:
        return self._sum_edges(weight[:, :, None] * x[self.src])

    def _max(self, x: Tensor) -> Tensor:
        rows = []
        for edges in self.into:
            if not edges:
                rows.append(x.new_zeros(x.shape[1]))
                continue
            # Of equal values the lowest source, then the lowest edge.
            order = sorted(edges, key=lambda e: (self.src[e], self.ids[e]))
            overrides = [
                max(order, key=lambda e, f=f: (float(x[self.src[e], f].detach()), -order.index(e)))
                for f in range(x.shape[1])
            ]
            rows.append(torch.stack([x[self.src[e], f] for f, e in enumerate(overrides)]))
        return torch.stack(rows)

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        return self._sum_edges(message(x[self.src], slice(0, x.shape[1])))

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        return src[self.src] + dst[self.dst] + (0 if edge is None else edge)

    def softmax(self, scores: Tensor) -> Tensor:
        result = torch.zeros_like(scores)
        for edges in self.into:
            if edges:
                result = result.index_put((torch.tensor(edges),), scores[edges].softmax(0))
        return result

    @property
    def rank_graph(self) -> RankGraph:
        raise NotImplementedError


class OneProcessTypes(EdgesByType):
    """The relations of a graph on one process."""

    def __init__(self, graph: OneProcess) -> None:
        self.graph = graph

    @property
    def edge_types(self) -> Tensor:
        raise NotImplementedError

    def typed_graph(self, schema: Schema, routes: LayerRoutes) -> Any:
        raise NotImplementedError

    def row_types(self, num_rows: int, num_types: int) -> Any:
        return RowByRow(self.graph.node_types[:num_rows])

    def sum(self, x: Tensor, combine: Combine, routes: LayerRoutes, *, inverse: bool, blocks: bool) -> Tensor:
        graph = self.graph
        means: dict[tuple[int, int], Tensor] = {}  # by relation and node
        for back, (src, dst) in enumerate(((graph.src, graph.dst), (graph.dst, graph.src))[: 1 + inverse]):
            of_pair: dict[tuple[int, int], list[int]] = {}
            for e, node in enumerate(dst):
                relation = 0 if graph.types is None else int(graph.types[e])
                of_pair.setdefault((relation + back * graph.num_relations, node), []).append(e)
            for pair, edges in of_pair.items():
                total = graph.weight[edges].sum()
                means[pair] = sum((graph.weight[e] * x[src[e]] for e in edges), x.new_zeros(x.shape[1])) / total
        names, width = sorted(means), x.shape[1]
        if blocks:
            width //= graph.num_relations * (1 + inverse)
            means = {name: row[name[0] * width :][:width] for name, row in means.items()}
        rows = torch.stack([means[name] for name in names]) if names else x[:0, :width]
        pairs: Any = PlainPairs(names, graph.num_dst, graph.num_relations * (1 + inverse))
        return combine(rows, pairs, slice(0, x.shape[1]))

    def attend(
        self, x: Tensor, y: Tensor | None, attention: RelationAttention, routes: LayerRoutes, weigh: Weigh
    ) -> Tensor:
        graph, added = self.graph, attention.added
        types = [0] * len(graph.src) if graph.types is None else [int(relation) for relation in graph.types]
        edges = list(zip(graph.src, graph.dst, types, graph.ids, strict=True))
        count, num_edges = graph.num_relations, len(edges)
        if added.inverse:
            edges += [(v, u, relation + count, e + num_edges + graph.num_dst) for u, v, relation, e in edges]
        if added.loops:
            edges += [(v, v, added.count(count) - 1, num_edges + v) for v in range(graph.num_dst)]
        held: Any = EdgeByEdge(edges)
        weighing = weigh(held.ids)
        scores = attention.scores(x, x if y is None else y, held)
        messages, place = attention.messages(x, held, slice(0, attention.width))
        weight, rows = torch.zeros_like(scores), []
        into = [(held.entered == v).nonzero()[:, 0] for v in range(graph.num_dst)]
        for of_row in into:
            weight = weight.index_put((of_row,), scores[of_row].softmax(0))
        if weighing.ids is not None:
            weight = dropout(weight, held.ids, weighing.p, weighing.key)
        for of_row in into:
            rows.append((weight[of_row, :, None] * messages[place][of_row]).sum(0))  # type: ignore[index]
        return torch.stack(rows)


class RowByRow:
    """The types of rows."""

    def __init__(self, types: list[int]) -> None:
        self.types = types

    def products(self, x: Tensor, weights: Tensor, biases: Tensor) -> Tensor:
        rows = zip(x, self.types, strict=True)
        return torch.stack([row @ weights[node_type] + biases[node_type] for row, node_type in rows])

    def spread(self, values: Tensor) -> Tensor:
        return values[self.types]


class EdgeByEdge:
    """Typed edges as a list, each with pairs of its own."""

    def __init__(self, edges: list[tuple[int, int, int, int]]) -> None:
        columns = [[edge[i] for edge in edges] for i in range(4)]
        self.rows, self.entered, self.types, self.ids = (torch.tensor(column, dtype=torch.int64) for column in columns)
        self.from_pairs = torch.arange(len(edges))
        self.sources, self.targets = EdgeEnds(self.rows, self.types), EdgeEnds(self.entered, self.types)

    def dot(self, z: Tensor, targets: Tensor) -> Tensor:
        return (z * targets[self.entered]).sum(-1)

    def of_sources(self, z: Tensor) -> Tensor:
        return z

    def of_targets(self, z: Tensor) -> Tensor:
        return z

    def of_relations(self, z: Tensor) -> Tensor:
        return z[self.types]

    def of_rows(self, z: Tensor) -> Tensor:
        return z[self.rows]

    def of_destinations(self, z: Tensor) -> Tensor:
        return z[self.entered]


class EdgeEnds:
    """One end of each edge."""

    def __init__(self, rows: Tensor, types: Tensor) -> None:
        self.rows, self.types = rows, types

    def products(self, x: Tensor, weights: Tensor) -> Tensor:
        return (x[self.rows][:, None] @ weights[self.types])[:, 0]

    def head_products(self, x: Tensor, weights: Tensor) -> Tensor:
        return (x[self.rows][:, :, None] @ weights[self.types])[:, :, 0]


class PlainPairs:
    """The pairs (relation, node), in order, as a list."""

    def __init__(self, names: list[tuple[int, int]], num_rows: int, num_relations: int) -> None:
        self.names, self.num_rows = names, num_rows
        self.sizes = [sum(name[0] == relation for name in names) for relation in range(num_relations)]

    def __len__(self) -> int:
        return len(self.names)

    def sums_first(self, num_bases: int, width: int) -> bool:
        return False

    def sum(self, z: Tensor) -> Tensor:
        own = [[i for i, (_, node) in enumerate(self.names) if node == v] for v in range(self.num_rows)]
        return torch.stack([z[places].sum(0) for places in own])

    def weighted_sum(self, z: Tensor, weight: Tensor) -> Tensor:
        return self.sum(z * torch.stack([weight[relation] for relation, _ in self.names])[:, None] if self.names else z)

    def sum_products(self, z: Tensor, weights: Tensor) -> Tensor:
        if not self.names:
            return self.sum(z @ weights.sum(0) * 0)
        return self.sum(
            torch.stack([row @ weights[relation] for row, (relation, _) in zip(z, self.names, strict=True)])
        )


def whole_graph(graph: Graph, model: nn.Module) -> list[Adjacency]:
    """Each layer's graph on one process, with missing self-loops where wanted."""
    csc = graph.csc
    destinations = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    edges = [(e, int(u), int(v)) for e, (u, v) in enumerate(zip(csc.indices, destinations, strict=True))]
    weight = (
        torch.ones(len(edges), dtype=torch.float64)
        if csc.weight is None
        else torch.tensor(csc.weight, dtype=torch.float64)
    )
    features = None if graph.edge_features is None else torch.tensor(graph.edge_features, dtype=torch.float64)
    if model.self_loops:
        looped = {u for _, u, v in edges if u == v}
        missing = [v for v in range(csc.num_nodes) if v not in looped]
        if features is not None:
            means = [features[destinations == v].mean(0).nan_to_num() for v in missing]
            features = torch.cat([features, torch.stack(means)]) if means else features
        edges += [(csc.num_edges + v, v, v) for v in missing]
        weight = torch.cat([weight, torch.ones(len(missing), dtype=torch.float64)])
    layers = [
        OneProcess(edges, weight, features, csc.num_nodes, derive(KEY, layer)) for layer in range(model.num_layers)
    ]
    for layer in layers:
        layer.types, layer.num_relations = graph.edge_types, graph.num_relations
        layer.node_types = [number for number, (_, count) in enumerate(graph.schema.node_types) for _ in range(count)]
    return layers


@dataclass
class Answer:
    """What must be equal on one process and on many."""

    logits: Tensor  # [n, classes]
    input_gradient: Tensor  # [n, width]
    weight_gradients: list[Tensor]

    def assert_equals(self, other: Answer, where: str) -> None:
        pairs = [(self.logits, other.logits), (self.input_gradient, other.input_gradient)]
        for a, b in [*pairs, *zip(self.weight_gradients, other.weight_gradients, strict=True)]:
            assert a.shape == b.shape, where
            if b.numel():
                assert float((a - b).abs().max()) <= 1e-10 * max(1.0, float(b.abs().max())), where


def loss_weights(num_nodes: int, num_classes: int) -> Tensor:
    """A fixed linear loss that tells all outputs apart."""
    return torch.randn(num_nodes, num_classes, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def gradient(parameter: nn.Parameter) -> Tensor:
    return torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()


def one_process(graph: Graph, model: nn.Module) -> Answer:
    model.zero_grad()
    x = torch.tensor(np.asarray(graph.features), dtype=torch.float64, requires_grad=True)
    logits = model(x, whole_graph(graph, model))
    (logits * loss_weights(*logits.shape)).sum().backward()
    return Answer(logits.detach(), x.grad, [gradient(p) for p in model.parameters()])


def on_rank(shards: list[Shard], models: list[nn.Module], comm: Communicator) -> list[Parts]:
    """Returns what each model computes on a rank."""
    shard = shards[comm.rank]

    @functools.cache
    def engine_of(self_loops: bool) -> Engine:
        return Engine(shard.with_self_loops() if self_loops else shard, comm, torch.float64)

    def parts_of(model: nn.Module) -> Parts:
        model.zero_grad()
        x = torch.tensor(np.asarray(shard.features), dtype=torch.float64, requires_grad=True)
        logits = model(x, ShardAdjacency.layers(engine_of(model.self_loops), model.num_layers, KEY))
        weights = loss_weights(shard.num_nodes, logits.shape[1])[torch.tensor(shard.owned.astype(np.int64))]
        (logits * weights).sum().backward()
        return (logits.detach(), x.grad, *(comm.all_reduce(gradient(p)) for p in model.parameters()))

    return [parts_of(copy.deepcopy(model)) for model in models]  # ranks may be threads


Runner = Callable[[Callable[[Communicator], list[Parts]], int], list[list[Parts]]]


def on_ranks(graph: Graph, partition: Partition, models: list[nn.Module], run: Runner) -> list[Answer]:
    """Returns each model's answer. The ranks start once for all models."""
    shards = list(cut_all(graph, partition))
    result = run(functools.partial(on_rank, shards, models), partition.grid.world_size)
    order = torch.from_numpy(np.argsort(np.concatenate([shard.owned for shard in shards]), kind="stable"))
    return [joined(parts, order) for parts in zip(*result, strict=True)]


def joined(parts: Sequence[Parts], order: Tensor) -> Answer:
    """Joins what the ranks have computed with one model."""
    logits, input_gradient = (torch.cat([part[i] for part in parts])[order] for i in range(2))
    for part in parts[1:]:
        for mine, first in zip(part[2:], parts[0][2:], strict=True):
            assert torch.equal(mine, first), "ranks differ in a synchronised gradient"
    return Answer(logits, input_gradient, list(parts[0][2:]))
