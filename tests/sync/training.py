"""Training on the ranks of a partition as the trainer does it, without Lightning."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer

from gnnkit.comm import Communicator, Mailbox
from gnnkit.config.settings import Choice
from gnnkit.graph import CSC, Graph, Split
from gnnkit.model.gcn import GCN
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.order import NodeOrder
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.strategy.base import Worker
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.base import GradientSync
from gnnkit.task.evaluation import Evaluation
from gnnkit.training.module import TrainingModule
from gnnkit.training.step import Updates

WIDTH, CLASSES = 5, 3
sgd = functools.partial(torch.optim.SGD, lr=0.5, momentum=0.9)


def make_graph(num_nodes: int = 40) -> Graph:
    """A random graph, whose training nodes mostly lie with the first ranks."""
    rng = np.random.default_rng(3)
    src, dst = rng.integers(0, num_nodes, (2, 6 * num_nodes))
    split = np.where(np.arange(num_nodes) < 0.6 * num_nodes, Split.TRAIN, Split.TEST).astype(np.int8)
    features = rng.standard_normal((num_nodes, WIDTH))
    return Graph(CSC.from_edges(src, dst, num_nodes), features, rng.integers(0, CLASSES, num_nodes), split)


def shards_on(grid: Grid, graph: Graph | None = None) -> list[Shard]:
    graph = graph or make_graph()
    owner = (np.arange(graph.num_nodes) * grid.world_size // graph.num_nodes).astype(np.int32)
    return list(cut_all(graph, Partition(owner, None, grid)))


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return GCN(WIDTH, CLASSES, hidden=4, dropout=0.4).double()


def vertex_centric(exchange: str = "exact", local_iterations: Any = 1, **options: Any) -> VertexCentric:
    """The strategy with an exchange by name."""
    rows = Choice("exchange", exchange, options).create()
    return VertexCentric(local_iterations=local_iterations, exchange=rows)


def train(
    shards: list[Shard],
    sync: Callable[[], GradientSync],
    model: nn.Module,
    comm: Communicator,
    *,
    epochs: int = 5,
    local_iterations: int = 1,
    make_optimizer: Callable[[list[nn.Parameter]], Optimizer] = sgd,
    mailbox: Mailbox | None = None,
    order: NodeOrder | None = None,
    **options: Any,
) -> tuple[nn.Module, VertexCentric, Optimizer]:
    """The module, the strategy and the optimiser of this rank after some epochs.

    `options` are those of the strategy.
    """
    strategy = vertex_centric(local_iterations=local_iterations, **options)
    worker = Worker(comm, shards[comm.rank], torch.float64, 7, order=order)
    strategy.setup(worker, model)
    module = TrainingModule(
        model, strategy, worker, Evaluation.of(worker, model, 1.0), optimizer="sgd", lr=0.1, weight_decay=0.0
    )
    optimizer, new_sync, updates = make_optimizer(list(model.parameters())), sync(), Updates()
    new_sync.setup(module, comm, mailbox)
    for epoch in range(epochs):
        for batch in strategy.batches(epoch):
            optimizer.zero_grad()
            module.training_step(batch, 0).backward()
            if batch.update == "conclude":
                with updates.concluding(optimizer):
                    new_sync.step(module, optimizer, batch.share)
            elif batch.synchronise:
                new_sync.step(module, optimizer, batch.share)
            else:
                optimizer.step()
            if batch.update == "average":
                new_sync.average_models(module, batch.weight)
    new_sync.settle(module, optimizer)
    new_sync.close()
    return module, strategy, optimizer


def parameters(module: nn.Module) -> Tensor:
    return parameters_to_vector(module.parameters()).detach()
