"""The pairs that training and evaluation draw as negatives, counted by the witness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid
from gnnkit.sampler import Sampler
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.testing.ranks import on_ranks, owned
from gnnkit_witness.pairs import EdgeSets, NodePair

_EPOCHS = 2


@dataclass(frozen=True, slots=True)
class NegativeCounts:
    """How many negatives were drawn on all ranks, and how many of these are wrong."""

    training: int
    evaluation: int
    held_out: int  # negatives of training that are held-out edges, as a training that knows nothing of these draws
    wrong_training: int  # loops, and edges that train
    wrong_evaluation: int  # loops, and edges


def check_negatives(
    make: Callable[[], ExecutionStrategy],
    graph: Graph,
    grid: Grid,
    sampler: Sampler | None = None,
    first_step: int = 0,
    **keys: Any,
) -> NegativeCounts:
    """Draws the negatives of two epochs and of an evaluation, and looks at each.

    A negative of training must be no edge that trains, and one of evaluation no edge.
    Raises `AssertionError` with the number of wrong ones.

    Args:
        make: Makes the strategy.
        graph: Some dozens of nodes.
        grid: The process grid. The last of several ranks owns nothing.
        sampler: Sampler of two hops, for a strategy that reads one.
        first_step: Step of each epoch to begin with, as a resumed run does.
        **keys: Further keys of the task.
    """
    prepared, links = LinkPrediction(**keys).prepare(graph)
    assert links is not None
    model = GCN(graph.features.shape[1], 4, hidden=4).double()

    def work(worker: Worker) -> tuple[list[NodePair], list[NodePair]]:
        task = _RecordingTask(**keys)
        training = _training(make(), worker, model, first_step)
        task.measure(owned(worker)[:, None].double(), worker)
        return training, task.negative_pairs

    reads = make().reads
    parts = on_ranks(prepared, grid, work, whole=reads.graph, sampler=sampler if reads.sampler else None, links=links)
    training, evaluation = ([pair for part in parts for pair in part[index]] for index in (0, 1))
    edges = EdgeSets.of(graph, _pairs(torch.from_numpy(np.concatenate([links.val, links.test]))))
    counts = NegativeCounts(
        len(training),
        len(evaluation),
        edges.count_held_out(training),
        edges.count_wrong(training, evaluates=False),
        edges.count_wrong(evaluation, evaluates=True),
    )
    assert not counts.wrong_training, f"{counts.wrong_training} of {counts.training} negatives of training are edges"
    assert not counts.wrong_evaluation, f"{counts.wrong_evaluation} of {counts.evaluation} that evaluate are edges"
    return counts


class _RecordingTask(LinkPrediction):
    """A task that records the scored negatives, from outputs that are node ids."""

    def __init__(self, **keys: Any) -> None:
        super().__init__(**keys)
        self.negative_pairs: list[NodePair] = []

    def score(self, outputs: Tensor) -> Tensor:
        self.negative_pairs += _pairs(outputs[:, 1:, :, 0].reshape(-1, 2))
        return super().score(outputs)


def _training(strategy: ExecutionStrategy, worker: Worker, model: nn.Module, first_step: int) -> list[NodePair]:
    """Returns the negatives of a rank's batches. Collective."""
    strategy.setup(worker, model)
    drawn: list[NodePair] = []
    for epoch in range(_EPOCHS):
        for batch in strategy.batches(epoch, first_step):
            last = batch.adjacencies[-1]
            ends = batch.outputs(last.src_nodes[: last.num_dst, None].double())[..., 0]
            drawn += _pairs(ends[batch.labels == 0])
    strategy.close()
    return drawn


def _pairs(rows: Tensor) -> list[NodePair]:
    return [(source, destination) for source, destination in rows.long().tolist()]
