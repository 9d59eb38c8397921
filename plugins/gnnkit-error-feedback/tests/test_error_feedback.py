"""Rounding errors that come back in the next epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_error_feedback import ErrorFeedback
from gnnkit_testing import exchange
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import on_ranks
from torch import Tensor

import gnnkit
from gnnkit.engine import ForwardPass, ShardAdjacency
from gnnkit.errors import UserError
from gnnkit.exchange import ForwardPasses, RowExchange
from gnnkit.exchange.quantized import Quantized
from gnnkit.graph import Graph
from gnnkit.partition import Grid
from gnnkit.strategy import Worker
from gnnkit.testing import check_exchange
from tests.cases import few
from tests.runs import BARE, within_process

EPOCHS = 32


@pytest.mark.slow
@pytest.mark.exhaustive
@few("num_grids", [2, None], default=1)
def test_error_feedback_keeps_the_promises_of_exchanges(num_grids: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "GRIDS", exchange.GRIDS[:num_grids])
    check_exchange(lambda: ErrorFeedback(8))


def error_of_mean(rows: RowExchange) -> float:
    """The largest error of the mean over epochs of sums over in-edges."""

    def work(worker: Worker) -> float:
        engine, x = worker.engine(object()), worker.features.rows(worker.shard.owned)

        def sums(forward: ForwardPass) -> Tensor:
            (adjacency,) = ShardAdjacency.layers(engine, 1, 7, forward)
            return adjacency.aggregate(x)

        passes = ForwardPasses(rows, engine.topology, pauses=False)
        found = torch.stack([sums(passes.step(epoch, exchanges=True)) for epoch in range(EPOCHS)])
        error = (found.mean(0) - sums(ForwardPass())).abs()
        engine.close()
        return float(error.max()) if len(error) else 0.0

    return max(on_ranks(check_graph(), Grid(3, 1, 1), work))


@pytest.mark.slow
def test_the_error_of_a_mean_falls_with_the_number_of_epochs() -> None:
    assert error_of_mean(ErrorFeedback(2)) < error_of_mean(Quantized(2)) / 2


def blocks() -> Graph:
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, 90)
    src, dst = rng.integers(0, 90, (2, 900))
    stays = labels[src] == labels[dst]
    features = rng.normal(size=(90, 5)) + np.eye(3, 5)[labels]
    return Graph.from_edges(src[stays], dst[stays], 90, features=features, labels=labels, split=1 + np.arange(90) % 3)


@pytest.mark.slow
@few(
    "keys",
    [
        pytest.param({"strategy": "vertex_centric", "partition": "2d"}, id="2d"),
        pytest.param({"strategy": "vertex_centric", "overrides": ["strategy.local_iterations=2"]}, id="own steps"),
        pytest.param({"strategy": "preset_workload", "overrides": ["strategy.exchange_every=2"]}, id="preset_workload"),
    ],
    default=["2d"],
)
@pytest.mark.long("trains twice by command")
def test_runs_by_command_learn_and_send_fewer_bytes(keys: dict[str, Any], tmp_path: Path) -> None:
    sent, options = {}, {"workers": 4, "threads": 1, "comm": "threads", **BARE}
    trainer: dict[str, Any] = {"max_epochs": 20, "check_val_every_n_epoch": 20, "checkpoint": False}
    trainer["exact_shares"] = [0, 0]  # epochs of the same exchange only
    for name in ("exact", "error_feedback"):
        with within_process():
            result = gnnkit.train(blocks(), exchange=name, folder=tmp_path / name, trainer=trainer, **options, **keys)
        assert result["test_accuracy"] > 0.7
        sent[name] = result["bytes_sent"]
        assert result["exchange"] == name
    assert sent["error_feedback"] < 0.8 * sent["exact"]


def test_other_numbers_of_bits_are_refused() -> None:
    with pytest.raises(UserError, match=r"exchange\.bits=3 must be 16 or 8 or 4 or 2"):
        ErrorFeedback(3)
