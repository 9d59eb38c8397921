"""What is counted is what moved: the formulas, to the word."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine
from gnnkit.graph import CSC, Graph
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.shard import Shard, cut_all

N, F = 48, 24


def complete_graph() -> Graph:
    """Every row is needed everywhere."""
    src, dst = (side.ravel() for side in np.meshgrid(np.arange(N), np.arange(N)))
    return Graph(CSC.from_edges(src, dst, N), np.ones((N, 1)), np.zeros(N, np.int64), np.ones(N, np.int8))


def counts(shards: list[Shard], comm: Communicator) -> tuple[list[int], dict[tuple[int, str, int], int], int]:
    """Words of one product forward, then of its backward; messages; bytes."""
    engine = Engine(shards[comm.rank], comm, torch.float64)
    traffic = engine.tally
    x = torch.ones(len(shards[comm.rank].owned), F, dtype=torch.float64, requires_grad=True)
    z = engine.sum(x, 0)
    forward = sum(traffic.words.values())
    messages, sent = dict(traffic.messages), traffic.bytes_sent
    traffic.reset()
    z.sum().backward()
    return [forward, sum(traffic.words.values())], messages, sent


@pytest.mark.parametrize(
    "grid",
    [(4, 1, 1), (8, 1, 1), (4, 2, 1), (2, 2, 1), (2, 3, 1), (2, 2, 2), (1, 1, 4), (1, 1, 8), (3, 2, 1), (2, 1, 2)],
)
def test_words_equal_the_formula_where_every_row_is_needed(grid: tuple[int, int, int]) -> None:
    rows, cols, slices = grid
    ranks = rows * cols * slices
    owner = np.repeat(np.arange(ranks), N // ranks).astype(np.int32)
    shards = list(cut_all(complete_graph(), Partition(owner, None, Grid(*grid))))
    formula = N * F * (rows + cols - 2) / ranks + 2 * (N * F / ranks) * (slices - 1) / slices
    for words, messages, sent in Threads.run(functools.partial(counts, shards), ranks):
        assert words == [formula, formula]
        assert sent == formula * 8  # as much is sent as received here
        reference = {"gather": rows - 1, "reduce": cols - 1, "slice": 2 * (slices - 1)}
        for step, number in reference.items():
            assert sum(count for (_, kind, _), count in messages.items() if kind == step) == number


def test_rows_travel_only_between_ranks_that_share_an_edge() -> None:
    ring = np.arange(N)
    graph = Graph(CSC.from_edges(ring, (ring + 1) % N, N), np.ones((N, 1)), np.zeros(N, np.int64), np.ones(N, np.int8))
    owner = np.repeat(np.arange(6), N // 6).astype(np.int32)
    shards = list(cut_all(graph, Partition(owner, None, Grid(6, 1, 1))))

    def peers(comm: Communicator) -> set[int]:
        engine = Engine(shards[comm.rank], comm, torch.float64)
        engine.sum(torch.ones(N // 6, F, dtype=torch.float64), 0)
        return {peer for _, _, peer in engine.tally.words}

    assert Threads.run(peers, 6) == [{(rank - 1) % 6} for rank in range(6)]
