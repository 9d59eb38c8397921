"""The steps of a strategy on ranks that are threads."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler import Sampler
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.task import Task
from gnnkit.training.step import loss_part

SEED = 3


def make_workers(
    graph: Graph,
    grid: Grid,
    *,
    whole: bool,
    sampler: Sampler | None = None,
    rows: TaskRows = NODES,
    features: bool = True,
) -> Callable[[Threads], Worker]:
    """Cuts a graph by ids, and returns the maker of each rank's worker.

    Args:
        graph: The graph.
        grid: The ranks.
        whole: Whether every rank reads the whole graph.
        sampler: The sampler of every rank.
        rows: The rows to predict.
        features: Whether the whole graph has features, which owners send otherwise.
    """
    reads = graph if features else replace(graph, features=np.empty((graph.num_nodes, 0)))
    owner = (np.arange(graph.num_nodes) % grid.world_size).astype(np.int32)
    shards = list(cut_all(graph, Partition(owner, None, grid)))

    def worker(comm: Threads) -> Worker:
        own = copy.deepcopy(sampler)
        return Worker(comm, shards[comm.rank], torch.float64, SEED, reads if whole else None, own, rows=rows)

    return worker


def run_steps(
    strategy: ExecutionStrategy,
    task: Task,
    model: nn.Module,
    workers: Callable[[Threads], Worker],
    num_ranks: int,
    look: Callable[[Batch], None] = lambda _: None,
) -> Tensor:  # [num_batches, 1 + num_parameters]
    """Sums loss and gradient of the ranks, for every batch of two epochs.

    Parameters of the task come behind those of the model.
    """
    if (head := task.head()) is not None:
        head.double()

    def work(comm: Threads) -> Sequence[Tensor]:
        rank_strategy, module = copy.deepcopy(strategy), copy.deepcopy(model)
        own_task = copy.deepcopy(task)
        module.add_module("task_head", own_task.head())
        rank_strategy.setup(workers(comm), module)
        parts = []
        for epoch in range(2):
            for batch in rank_strategy.batches(epoch):
                look(batch)
                module.zero_grad()
                loss = loss_part(own_task, module(batch.x, batch.adjacencies), batch)
                loss.backward()
                gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters()]
                parts.append(torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)]))
        rank_strategy.close()
        return parts

    return torch.stack([torch.stack(list(parts)) for parts in Threads.run(work, num_ranks)]).sum(0)
