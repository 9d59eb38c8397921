"""Sums over input rows that stay as they are: equal, made once, never of stale rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ForwardPass, ShardAdjacency
from gnnkit.exchange.quantized import Bfloat16
from gnnkit.partition.base import Grid
from tests.sync.training import shards_on

GRIDS = [Grid(1, 1, 1), Grid(3, 1, 1), Grid(1, 2, 1), Grid(2, 2, 1), Grid(1, 1, 2), Grid(2, 1, 2)]


def sums(engine: Engine, x: Tensor, own: Tensor) -> list[Tensor]:
    """Every operation that may read kept sums."""
    (adjacency,) = ShardAdjacency.layers(engine, 1, 0)
    return [
        adjacency.aggregate(x),
        adjacency.aggregate(x, reduce="mean"),
        adjacency.aggregate_normalized(x),
        adjacency.concat_mean(x),
        adjacency.aggregate_with_own(x, own),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_kept_sums_are_the_sums_and_move_no_word_again(grid: Grid) -> None:
    shards = shards_on(grid)

    def on_rank(comm: Communicator) -> int:
        plain, engine = (Engine(shards[comm.rank], comm, torch.float64) for _ in range(2))
        x, scale = torch.tensor(shards[comm.rank].features), torch.tensor(1.5, dtype=torch.float64, requires_grad=True)
        reference = sums(plain, x, scale)
        engine.fix(x)
        first = sums(engine, x, scale)
        num_words = sum(engine.tally.words.values())
        again = sums(engine, x, scale)
        assert sum(engine.tally.words.values()) == num_words
        for found in (first, again):
            for a, b in zip(found, reference, strict=True):
                torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)
        slopes = [comm.all_reduce(torch.autograd.grad(each[-1].sin().sum(), scale)[0]) for each in (reference, again)]
        torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-12, atol=1e-12)
        return num_words

    assert all(num_words > 0 for num_words in Threads.run(on_rank, grid.world_size)) == (grid.world_size > 1)


def test_other_rows_other_passes_and_evaluation_keep_nothing() -> None:
    shards = shards_on(Grid(2, 1, 1))

    def on_rank(comm: Communicator) -> list[int]:
        engine = Engine(shards[comm.rank], comm, torch.float64)
        x, counts = torch.tensor(shards[comm.rank].features), [0]
        engine.fix(x)

        def moved(rows: Tensor, forward: ForwardPass | None = None) -> bool:
            ShardAdjacency.layers(engine, 1, 0, forward)[0].aggregate(rows)
            counts.append(sum(engine.tally.words.values()))
            return counts[-1] > counts[-2]

        with torch.no_grad():
            assert moved(x)
            assert moved(x)
        assert moved(x)  # makes the sum
        assert not moved(x)
        assert moved(x.clone())
        assert moved(x, ForwardPass(codec=Bfloat16()))
        with torch.no_grad():
            assert not moved(x)
        return counts

    Threads.run(on_rank, 2)
