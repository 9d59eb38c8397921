"""Models that users bring from Python: modules, functions and LightningModules."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.graph import Graph
from gnnkit.nn import Dropout
from gnnkit.strategy.base import Batch
from tests.cases import exhaustive
from tests.models import PyG

WIDTH, CLASSES = 4, 3


class Plain(nn.Module):
    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return self.linear(x + adjacencies[0].aggregate(x, reduce="mean"))


class Normed(Plain):
    """A network whose training depends on the modes of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), Dropout(0.5)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return super().forward(self.drop(self.norm(x), adjacencies[0]), adjacencies)


class Own(L.LightningModule):
    """A network with a user's optimiser, schedule and loss."""

    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.plain = Plain()

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return self.plain(x, adjacencies)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1)}

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        return F.multi_margin_loss(logits, batch.labels, reduction="sum") / batch.total


class Telling(Own):
    """A network that logs in the training step."""

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        self.log("whole", loss, sync_dist=True, reduce_fx="sum", on_step=False, on_epoch=True)
        self.log_dict({"most": float(len(batch.rows)), "alike": self.current_epoch}, sync_dist=True, reduce_fx="max")
        self.log("leaders", len(batch.rows), prog_bar=True)
        return loss


class Unsaid(nn.Module):
    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return x


def make_seeded(make: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return make()


def by_layers(in_features: int, num_classes: int) -> nn.Module:
    return PyG([SAGEConv(in_features, 5), nn.ReLU(), nn.Dropout(0.3), SAGEConv(5, num_classes)])


def make_graph() -> Graph:
    rng = np.random.default_rng(0)
    return Graph.from_edges(
        rng.integers(0, 30, 90),
        rng.integers(0, 30, 90),
        30,
        features=rng.normal(size=(30, WIDTH)),
        labels=np.arange(30) % CLASSES,
        split=1 + np.arange(30) % 3,
    )


def train(model: Any, folder: Path, workers: int, **keys: Any) -> dict[str, Any]:
    trainer = {"max_epochs": 3, "precision": 64, "checkpoint": False}
    keys = {
        "strategy": "vertex_centric",
        "comm": "threads",
        "workers": workers,
        "threads": 1,
        "trainer": trainer,
        "report": False,
        "logger": "csv",
    } | keys
    return gnnkit.train(make_graph(), model=model, folder=folder, **keys)


def read_logged(folder: Path, name: str) -> list[float]:
    """Returns the values of a metric in the CSV."""
    with (folder / "csv/metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [make_seeded(Plain), exhaustive(make_seeded(Own)), exhaustive(by_layers)],
    ids=["module", "lightning", "function"],
)
def test_a_users_model_gives_the_same_loss_on_any_number_of_ranks(model: Any, tmp_path: Path) -> None:
    one, many = (train(model, tmp_path / str(workers), workers) for workers in (1, 3))
    assert many["train_loss"] == pytest.approx(one["train_loss"], abs=1e-12)
    assert many["world_size"] == 3


@pytest.mark.slow
def test_the_optimiser_schedule_and_loss_of_a_lightning_module_count(tmp_path: Path) -> None:
    graph, model = make_graph(), make_seeded(Own).double()
    dst = torch.from_numpy(np.repeat(np.arange(30), np.diff(graph.csc.indptr)))
    src = torch.from_numpy(graph.csc.indices.astype(np.int64))
    x = torch.from_numpy(graph.features)
    degree = torch.bincount(dst, minlength=30).clamp(min=1)[:, None]
    mean = torch.zeros_like(x).index_add_(0, dst, x[src]) / degree
    rows, labels = torch.from_numpy(graph.split == 1), torch.from_numpy(graph.labels)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = F.multi_margin_loss(model.plain.linear(x + mean)[rows], labels[rows])
        loss.backward()
        optimizer.step()
        schedule.step()
    result = train(make_seeded(Own), tmp_path / "run", 2)
    assert result["train_loss"] == pytest.approx(float(loss.detach()), abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "keys",
    [
        exhaustive({"comm": "gloo"}),
        exhaustive({"comm": "gloo", "sync": "leader"}),
        {"comm": "threads"},
        exhaustive({"comm": "threads", "sync": "leader"}),
        exhaustive({"workers": 1}),
    ],
    ids=str,
)
def test_what_a_lightning_module_logs_counts_all_ranks(keys: dict[str, Any], tmp_path: Path) -> None:
    keys = {"workers": 2, **keys}
    result = train(make_seeded(Telling), tmp_path / "run", keys.pop("workers"), **keys)
    losses = [0.0] * 3
    for line in (tmp_path / "run/workers.jsonl").read_text().splitlines():
        losses[json.loads(line)["epoch"]] += json.loads(line)["loss"]
    assert read_logged(tmp_path / "run", "whole") == pytest.approx(losses, rel=1e-6)
    assert losses[-1] == pytest.approx(result["train_loss"])
    assert read_logged(tmp_path / "run", "alike") == [0, 1, 2]
    num_train = int((make_graph().split == 1).sum())
    leaders, largest = read_logged(tmp_path / "run", "leaders"), read_logged(tmp_path / "run", "most")
    if result["world_size"] == 1:
        assert leaders == largest == [num_train] * 3
    else:
        assert largest == [max(leaders[0], num_train - leaders[0])] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reduce_fx", "message"),
    [
        ("x", torch.median, r"self\.log\('x', reduce_fx=.*median.* must be mean, sum, min or max"),
        (
            "train_loss",
            "sum",
            r"self\.log\('train_loss'\): every run logs .*val_accuracy, .* itself, choose another name",
        ),
    ],
)
def test_what_cannot_be_logged_is_refused(tmp_path: Path, name: str, reduce_fx: Any, message: str) -> None:
    class Odd(Own):
        def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
            self.log(name, 1.0, sync_dist=True, reduce_fx=reduce_fx)
            return super().training_step(batch, batch_idx)

    with pytest.raises(ValueError, match=message):
        train(make_seeded(Odd), tmp_path / "run", 2)


@pytest.mark.slow
def test_a_model_that_does_not_say_its_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="model=Unsaid needs an attribute num_layers"):
        train(Unsaid(), tmp_path / "run", 1)


@pytest.mark.slow
def test_a_module_in_evaluation_mode_is_trained_in_training_mode(tmp_path: Path) -> None:
    model = make_seeded(Normed)
    first = train(model, tmp_path / "first", 1)
    again = train(model.eval(), tmp_path / "again", 1)
    assert again["train_loss"] == first["train_loss"]
    assert not model.training, "the caller's module stays as it is"


@pytest.mark.slow
def test_a_frozen_part_stays_frozen_after_evaluations(tmp_path: Path) -> None:
    model = make_seeded(Normed)
    model.norm.eval()  # type: ignore[union-attr, operator]
    train(model, tmp_path / "run", 1, trainer={"max_epochs": 3, "check_val_every_n_epoch": 1})
    trained_model = gnnkit.load(tmp_path / "run", make_seeded(Normed))
    assert trained_model.norm.num_batches_tracked == 0  # type: ignore[union-attr]
    assert torch.equal(trained_model.norm.running_mean, torch.zeros(WIDTH))  # type: ignore[union-attr, arg-type]
