"""Checks the negative pairs that training and evaluation draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gnnkit_testing.ranks import on_ranks, owned
from torch import Tensor, nn

from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid
from gnnkit.sampler import Sampler
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.task.link_prediction import LinkPrediction
from tests.witness.pairs import EdgeSets, NodePair

_EPOCHS = 2


@dataclass(frozen=True, slots=True)
class NegativeCounts:
    """Numbers of negatives drawn on all ranks, and of wrong ones."""

    training: int
    evaluation: int
    held_out: int  # training negatives that are held-out edges, which training cannot know
    wrong_training: int  # loops and training edges
    wrong_evaluation: int  # loops and edges


def check_negatives(
    make: Callable[[], ExecutionStrategy],
    graph: Graph,
    grid: Grid,
    sampler: Sampler | None = None,
    first_step: int = 0,
    **keys: Any,
) -> NegativeCounts:
    """Draws the negatives of two epochs and of an evaluation, and checks each.

    A training negative must not be a training edge, and an evaluation negative must not
    be an edge. Raises `AssertionError` with the number of wrong ones.

    Args:
        make: Creates the strategy.
        graph: A small graph.
        grid: The process grid. The last of several ranks owns no node.
        sampler: Sampler with two hops, for a strategy that reads one.
        first_step: First step of each epoch, as in a resumed run. Default: 0.
        **keys: Further keys of the task.
    """
    task_graph, links = LinkPrediction(**keys).prepare(graph)
    model = GCN(graph.features.shape[1], 4, hidden=4).double()

    def work(worker: Worker) -> tuple[list[NodePair], list[NodePair]]:
        task = _RecordingTask(**keys)
        training = _training(make(), worker, model, first_step)
        task.measure(owned(worker)[:, None].double(), worker)
        return training, task.negative_pairs

    reads = make().reads
    parts = on_ranks(task_graph, grid, work, whole=reads.graph, sampler=sampler if reads.sampler else None, rows=links)
    training, evaluation = ([pair for part in parts for pair in part[index]] for index in (0, 1))
    edges = EdgeSets.of(graph, _pairs(torch.from_numpy(np.concatenate([links.val.pairs, links.test.pairs]))))
    counts = NegativeCounts(
        len(training),
        len(evaluation),
        edges.count_held_out(training),
        edges.count_wrong(training, evaluates=False),
        edges.count_wrong(evaluation, evaluates=True),
    )
    assert not counts.wrong_training, f"{counts.wrong_training} of {counts.training} training negatives are edges"
    assert not counts.wrong_evaluation, (
        f"{counts.wrong_evaluation} of {counts.evaluation} evaluation negatives are edges"
    )
    return counts


class _RecordingTask(LinkPrediction):
    """A task that records the scored negatives. Outputs must be node ids."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.negative_pairs: list[NodePair] = []

    def score(self, outputs: Tensor, events: Tensor | None = None) -> Tensor:
        self.negative_pairs += _pairs(outputs[:, 1:, :, 0].reshape(-1, 2))
        return super().score(outputs, events)


def _training(strategy: ExecutionStrategy, worker: Worker, model: nn.Module, first_step: int) -> list[NodePair]:
    """Returns the negatives of a rank's batches. Collective."""
    strategy.setup(worker, model)
    negatives: list[NodePair] = []
    for epoch in range(_EPOCHS):
        for batch in strategy.batches(epoch, first_step):
            last = batch.adjacencies[-1]
            ends = batch.outputs(last.src_nodes[: last.num_dst, None].double())[..., 0]
            negatives += _pairs(ends[batch.labels == 0])
    strategy.close()
    return negatives


def _pairs(rows: Tensor) -> list[NodePair]:
    return [(source, destination) for source, destination in rows.long().tolist()]
