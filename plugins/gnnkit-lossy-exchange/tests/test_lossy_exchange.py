"""Exchanges that send fewer rows than the model reads."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from gnnkit_lossy_exchange import Adaptive
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.engine import Adjacency, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.gin import GIN
from gnnkit.strategy.base import Worker
from tests.cases import few
from tests.strategy.test_exchange import (
    MODELS,
    RANKS,
    ROWS,
    WIDTHS,
    Replay,
    boundary,
    model_of,
    replayed,
    row_bytes,
    run,
)
from tests.sync.training import CLASSES, WIDTH, make_graph, shards_on, vertex_centric


@pytest.mark.slow
def test_without_kept_rows_the_cut_edges_are_missing_and_degrees_stay_global() -> None:
    model = model_of("gcn")
    expected = replayed(model, 4, lambda own, cut: Replay(own, 0 * cut, 0))
    for rank in run(model, exchange="sampled", keep=0.0):
        torch.testing.assert_close(rank.parameters, expected, rtol=0, atol=1e-10)
        assert rank.bytes_sent == rank.words == 0


@pytest.mark.slow
@few("name", ["gcn", "sage", "gin"], ["gcn"])
def test_sampled_sums_and_their_gradients_are_unbiased(name: str) -> None:
    """One layer, whose result is linear in the rows: its mean over epochs is exact."""
    torch.manual_seed(1)
    model = MODELS[name](WIDTH, CLASSES, num_layers=1, dropout=0.0).double()
    linear = model.convs[0] if name != "gin" else _Sum()
    shards, epochs = shards_on(ROWS), 80

    def on_rank(comm: Communicator) -> Tensor:  # [epochs + 1, numbers], the exact ones first
        own, outcomes = copy.deepcopy(linear), []
        strategies = [vertex_centric(), vertex_centric("sampled", keep=0.4)]
        for strategy, count in zip(strategies, (1, epochs), strict=True):
            strategy.setup(Worker(comm, shards[comm.rank], torch.float64, 7), model)
            x = strategy.x.clone().requires_grad_()
            for epoch in range(count):
                (batch,) = strategy.batches(epoch)
                z = own(x, batch.adjacencies[0])
                (gradient,) = torch.autograd.grad((z * z.detach().new_ones(1).cumsum(0)).sum(), x)
                outcomes.append(torch.cat([z.detach().flatten(), gradient.flatten()]))
        return torch.stack(outcomes)

    for outcomes in Threads.run(on_rank, RANKS):
        exact, drawn = outcomes[0], outcomes[1:]
        error = drawn.std(0) / epochs**0.5
        assert float(error.max()) > 0
        assert bool(((drawn.mean(0) - exact).abs() <= 5 * error + 1e-12).all())


class _Sum(nn.Module):
    def forward(self, x: Tensor, adjacency: ShardAdjacency) -> Tensor:
        return adjacency.aggregate(x)


@pytest.mark.slow
@few("exchange,bits", [("adaptive", 64), ("quantized+adaptive", 8)], default=1)
def test_blocks_that_hardly_change_travel_when_they_are_old(exchange: str, bits: int) -> None:
    """With a bound that no change exceeds: in epochs 0, 3 and 6 of 8."""
    epochs, rows, size = 8, boundary(), sum(row_bytes(bits, w) for w in WIDTHS)
    found = run(model_of("gcn"), epochs=epochs, exchange=exchange, variation=1e9, max_age=3)
    for rank, ended in enumerate(found):
        both = int(rows[:, rank].sum() + rows[rank].sum())
        flags = int((rows[:, rank] > 0).sum() + (rows[rank] > 0).sum()) * len(WIDTHS)
        assert ended.bytes_sent == 3 * both * size + epochs * flags


def test_a_block_travels_after_a_large_change_and_not_after_a_small_one() -> None:
    """Rows are constant, then grow by 20 %, then by 1 %."""
    shards = shards_on(ROWS)

    def sent(comm: Communicator) -> list[bool]:
        strategy = vertex_centric("adaptive", variation=0.05, max_age=100)
        strategy.setup(Worker(comm, shards[comm.rank], torch.float64, 7), GIN(WIDTH, CLASSES))
        moved = []
        for epoch, factor in enumerate((1.0, 1.0, 1.2, 1.21)):
            before = sum(strategy.tally.words.values())
            (batch,) = strategy.batches(epoch)
            z = batch.adjacencies[0].aggregate(factor * strategy.x)
            moved.append(sum(strategy.tally.words.values()) > before)
            assert bool(z.isfinite().all())
        return moved

    assert Threads.run(sent, RANKS) == [[True, False, True, False]] * RANKS


@pytest.mark.parametrize(("name", "reason"), [("gat", "attention"), ("sage-max", "a maximum"), ("gine", "messages")])
def test_sampling_refuses_what_a_sample_does_not_estimate(name: str, reason: str) -> None:
    graph = make_graph()
    graph = Graph(graph.csc, graph.features, graph.labels, graph.split, np.ones((graph.num_edges, 1)))
    with pytest.raises(UserError, match=f"^exchange=sampled estimates .*{reason}"):
        run(model_of(name), graph=graph, exchange="sampled")


class ForOneProcess(nn.Module):
    """Reads the rank's own graph, as layers of PyG do."""

    num_layers, self_loops = 1, False

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        logits: Tensor = self.linear(adjacencies[0].with_halo(x))[: len(x)]
        return logits


def test_sampling_refuses_layers_written_for_one_process() -> None:
    with pytest.raises(UserError, match=r"^exchange=sampled .*a layer written for a single process"):
        run(ForOneProcess().double(), exchange="sampled")


def test_the_age_of_blocks_is_an_option() -> None:
    chosen = ["strategy=vertex_centric", "exchange=quantized+adaptive", "exchange.variation=0.1"]
    with pytest.raises(UserError, match=r"^exchange\.max_age was removed: use exchange\.options\.max_age=N"):
        compose([*chosen, "exchange.max_age=4"])
    choice = settle(compose([*chosen, "exchange.options.max_age=4"])).exchange
    assert choice is not None
    assert choice.arguments == {"bits": 8, "variation": 0.1, "max_age": 4}
    with pytest.raises(UserError, match=r"^exchange\.options\.max_age=0 must be a whole number from 1"):
        Adaptive(max_age=0)
