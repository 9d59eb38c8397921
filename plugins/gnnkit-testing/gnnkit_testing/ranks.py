"""Runs functions on ranks that are threads, and combines their results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.partition.store.parts import without_edges
from gnnkit.sampler import Sampler
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.strategy import Worker

T = TypeVar("T")
ONE = Grid(1, 1, 1)
GRIDS = (Grid(3, 1, 1), Grid(2, 2, 1), Grid(1, 3, 1), Grid(2, 1, 2))
TIMEOUT = 240.0  # deadline of a rank's waits, in seconds


def on_ranks(
    graph: Graph,
    grid: Grid,
    work: Callable[[Worker], T],
    *,
    whole: bool = False,
    edges: bool = True,
    sampler: Sampler | None = None,
    rows: TaskRows = NODES,
) -> list[T]:
    """Runs `work` on every rank of a grid. The last of several ranks owns nothing.

    Args:
        graph: The graph to partition.
        work: Runs on each rank, collective.
        whole: Whether every rank also reads the complete graph.
        edges: Whether the ranks' shards have edges.
        sampler: Every rank's sampler.
        rows: The rows to predict. Default: nodes.

    Returns:
        The results by rank.
    """
    owners = np.random.default_rng(1).integers(0, max(grid.world_size - 1, 1), graph.num_nodes)
    shard_graph = graph if edges else without_edges(graph)
    shards = list(cut_all(shard_graph, Partition(owners.astype(np.int32), None, grid)))

    def on_rank(comm: Communicator) -> T:
        reads, draws = graph if whole else None, copy.deepcopy(sampler)
        return work(Worker(comm, shards[comm.rank], torch.float64, 3, reads, draws, rows=rows))

    return Threads.run(on_rank, grid.world_size, timeout=TIMEOUT)


def by_node(rows: Sequence[tuple[Tensor, Tensor]]) -> Tensor:  # [num_nodes, ...]
    """Sorts the ranks' (nodes [k], rows [k, ...]) by node."""
    order = torch.argsort(torch.cat([nodes for nodes, _ in rows]))
    return torch.cat([rank_rows for _, rank_rows in rows])[order]


def owned(worker: Worker) -> Tensor:  # [num_owned]
    return torch.tensor(worker.shard.owned.astype(np.int64))


def assert_close(actual: Tensor, expected: Tensor, message: str) -> None:
    """Checks that two tensors are equal up to float64 rounding.

    Args:
        actual: The tensor to check.
        expected: The reference, of the same shape.
        message: Names the tensor in the error.
    """
    assert actual.shape == expected.shape, f"{message}: shape {tuple(actual.shape)}, expected {tuple(expected.shape)}"
    difference = float((actual - expected).abs().max()) if actual.numel() else 0.0
    largest = float(expected.abs().max()) if actual.numel() else 0.0
    assert difference <= 1e-10 * max(1.0, largest), f"{message}: they differ by {difference:.3g}"
