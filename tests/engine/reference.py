"""The one-process answer, from dense matrices, and the same computation on the ranks of a partition."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.engine import Adjacency, Engine, ShardAdjacency
from gnnkit.engine.dropout import derive
from gnnkit.graph import Graph
from gnnkit.partition.base import Partition
from gnnkit.partition.shard import Shard, cut_all

KEY = 11


@dataclass(eq=False)
class DenseAdjacency(Adjacency):
    """The whole graph as a matrix; shares no code with the engine."""

    matrix: Tensor  # [n, n] sums of weights of the edges u -> v at (v, u)
    key: int

    def __post_init__(self) -> None:
        self.num_dst = len(self.matrix)
        self.src_nodes = torch.arange(self.num_dst)
        self.in_degree, self.out_degree = self.matrix.sum(1), self.matrix.sum(0)

    @classmethod
    def layers(cls, graph: Graph, model: nn.Module) -> list[DenseAdjacency]:
        csc = graph.csc
        matrix = torch.zeros(csc.num_nodes, csc.num_nodes, dtype=torch.float64)
        weight = np.ones(csc.num_edges) if csc.weight is None else csc.weight
        loops = np.zeros(csc.num_nodes, bool)
        for v in range(csc.num_nodes):
            for e in range(csc.indptr[v], csc.indptr[v + 1]):
                matrix[v, csc.indices[e]] += float(weight[e])
                loops[v] |= csc.indices[e] == v
        if model.self_loops:
            matrix += torch.diag(torch.from_numpy(~loops).double())
        return [cls(matrix, derive(KEY, layer)) for layer in range(model.num_layers)]

    def aggregate(self, x: Tensor, *, reduce: str = "sum") -> Tensor:
        z = self.matrix @ x
        degree = self.in_degree
        return z if reduce == "sum" else z / torch.where(degree == 0, 1, degree)[:, None]


@dataclass
class Answer:
    """What must be equal on one process and on many."""

    logits: Tensor  # [n, classes]
    input_gradient: Tensor  # [n, width]
    weight_gradients: list[Tensor]

    def assert_equals(self, other: Answer) -> None:
        pairs = [(self.logits, other.logits), (self.input_gradient, other.input_gradient)]
        for a, b in [*pairs, *zip(self.weight_gradients, other.weight_gradients, strict=True)]:
            assert a.shape == b.shape
            if b.numel():
                assert float((a - b).abs().max()) <= 1e-10 * max(1.0, float(b.abs().max()))


def loss_weights(num_nodes: int, num_classes: int) -> Tensor:
    """A fixed linear loss that tells all outputs apart."""
    return torch.randn(num_nodes, num_classes, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


def one_process(graph: Graph, model: nn.Module) -> Answer:
    model.zero_grad()
    x = torch.tensor(np.asarray(graph.features), dtype=torch.float64, requires_grad=True)
    logits = model(x, DenseAdjacency.layers(graph, model))
    (logits * loss_weights(*logits.shape)).sum().backward()
    return Answer(logits.detach(), x.grad, [p.grad.clone() for p in model.parameters()])


def on_rank(shards: list[Shard], model: nn.Module, comm: Communicator) -> tuple[Tensor, ...]:
    model, shard = copy.deepcopy(model), shards[comm.rank]  # ranks may be threads
    model.zero_grad()
    engine = Engine(shard.with_self_loops() if model.self_loops else shard, comm, torch.float64)
    x = torch.tensor(np.asarray(shard.features), dtype=torch.float64, requires_grad=True)
    logits = model(x, ShardAdjacency.layers(engine, model.num_layers, KEY))
    weights = loss_weights(shard.num_nodes, logits.shape[1])[torch.tensor(shard.owned.astype(np.int64))]
    (logits * weights).sum().backward()
    return (logits.detach(), x.grad, *(comm.all_reduce(p.grad) for p in model.parameters()))


Runner = Callable[[Callable[[Communicator], tuple[Tensor, ...]], int], list[tuple[Tensor, ...]]]


def on_ranks(graph: Graph, partition: Partition, model: nn.Module, run: Runner) -> Answer:
    shards = list(cut_all(graph, partition))
    parts = run(functools.partial(on_rank, shards, model), partition.grid.world_size)
    order = torch.from_numpy(np.argsort(np.concatenate([shard.owned for shard in shards]), kind="stable"))
    logits, input_gradient = (torch.cat([part[i] for part in parts])[order] for i in range(2))
    for part in parts[1:]:
        for mine, first in zip(part[2:], parts[0][2:], strict=True):
            assert torch.equal(mine, first), "ranks differ in a synchronised gradient"
    return Answer(logits, input_gradient, list(parts[0][2:]))
