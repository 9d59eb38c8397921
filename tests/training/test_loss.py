"""A user's loss must be a sum over the rows divided by the total of all ranks."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.model.gcn import GCN
from gnnkit.strategy import Batch
from tests.cases import exhaustive
from tests.graphs import random_graph
from tests.runs import BARE


class Own(L.LightningModule):
    """A network with a user's loss, right or wrong."""

    num_layers, self_loops = 2, True

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.gcn, self.norm, self.kind, self.calls = GCN(8, 3, hidden=4), nn.BatchNorm1d(3), kind, 0

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        logits: Tensor = self.norm(self.gcn(x, adjacencies))
        return logits

    def training_step(self, batch: Batch, index: int) -> Tensor:
        self.calls += 1
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        self.log("calls", float(self.calls))
        total = F.cross_entropy(logits, batch.labels, reduction="sum") / batch.total
        if self.kind == "mean":
            return F.cross_entropy(logits, batch.labels)
        if self.kind == "penalty":
            return total + 0.1 * self.gcn.convs[0].weight.square().sum()
        if self.kind == "share":
            return total + 0.1 * self.gcn.convs[0].weight.square().sum() * len(batch.rows) / batch.total
        if self.kind == "random":
            return total * (1 + torch.rand(()))
        return total


def run(folder: Path, kind: str, **keys: Any) -> Any:
    run_keys = {
        "strategy": "vertex_centric",
        "workers": 2,
        "comm": "threads",
        "threads": 1,
        "partition": "1d",
        "inexact": "allow",  # for its BatchNorm1d
        **BARE,
        **keys,
    }
    return gnnkit.train(random_graph(), folder=folder, model=Own(kind), trainer={"max_epochs": 2}, **run_keys)


SAMPLED = {
    "strategy": {"name": "individual_sample", "batch_size": 40},
    "sampler": {"name": "neighbor", "fanouts": [3, 3]},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mean", "penalty"])
@pytest.mark.parametrize(
    "keys", [{}, exhaustive({"comm": "gloo"}), exhaustive({"sync": "leader", "workers": 3}), SAMPLED], ids=str
)
def test_a_loss_that_does_not_divide_by_the_total_is_refused(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    with pytest.raises(
        UserError, match=r'(?m)^model=Own: training_step .* use reduction="sum" and divide by batch.total$'
    ):
        run(tmp_path / "run", kind, **keys)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sum", "share", "random"])
@pytest.mark.parametrize("keys", [{}, exhaustive(SAMPLED)], ids=str)
def test_a_loss_that_is_right_or_random_trains(tmp_path: Path, kind: str, keys: dict[str, Any]) -> None:
    assert run(tmp_path / "run", kind, **keys)["epochs"] == 2


@pytest.mark.slow
def test_one_worker_may_take_the_mean(tmp_path: Path) -> None:
    assert run(tmp_path / "run", "mean", workers=1)["epochs"] == 2


@pytest.mark.slow
def test_a_model_that_cannot_be_copied_trains_with_a_word(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Own, "on_train_start", lambda self: setattr(self, "lock", threading.Lock()))
    assert run(tmp_path / "run", "sum")["epochs"] == 2
    assert "model=Own: cannot be copied, so training_step was not checked" in capfd.readouterr().err


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_check_leaves_no_trace(tmp_path: Path) -> None:
    """Not in what was logged, nor in the words that were counted."""
    own = run(tmp_path / "own", "sum", logger="csv")
    built_in = gnnkit.train(
        random_graph(), strategy="vertex_centric", workers=2, comm="threads", threads=1, partition="1d",
        model=lambda a, b: GCN(a, b, hidden=4), trainer={"max_epochs": 2}, folder=tmp_path / "gcn", **BARE,
    )  # fmt: skip
    assert own["words_gathered"] == built_in["words_gathered"] > 0
    metrics = (tmp_path / "own/csv/metrics.csv").read_text().splitlines()
    column = metrics[0].split(",").index("calls")
    assert [float(line.split(",")[column]) for line in metrics[1:] if line.split(",")[column]] == [1.0, 2.0]
