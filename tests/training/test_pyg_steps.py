"""LightningModules of (x, edge_index) as users of PyG write them."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torchmetrics.classification import MulticlassAccuracy

import gnnkit
from gnnkit.errors import UserError
from gnnkit.model.pyg_steps import Values, _Unread
from gnnkit.training.module import Evaluated
from tests.cases import exhaustive
from tests.graphs import pyg_data
from tests.runs import train_on_threads

WIDTH, CLASSES = 6, 3
EPOCHS, RATE = 4, 0.02


class Lit(L.LightningModule):
    """The module of PyG's example, on full graphs."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.conv1, self.conv2 = pyg.SAGEConv(WIDTH, hidden), pyg.GCNConv(hidden, CLASSES)
        self.accuracy = MulticlassAccuracy(CLASSES, average="micro")

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out

    def training_step(self, batch: Any, index: int) -> Tensor:
        loss = F.cross_entropy(self(batch.x, batch.edge_index)[batch.train_mask], batch.y[batch.train_mask])
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", F.cross_entropy(self(batch.x, batch.edge_index)[batch.val_mask], batch.y[batch.val_mask]))

    def test_step(self, batch: Any, index: int) -> None:
        self.accuracy(self(batch.x, batch.edge_index)[batch.test_mask], batch.y[batch.test_mask])
        self.log("own_accuracy", self.accuracy)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=RATE)


class Sampled(Lit):
    def training_step(self, batch: Any, index: int) -> Tensor:
        out = self(batch.x, batch.edge_index)[: batch.batch_size]
        return {"loss": F.cross_entropy(out, batch.y[: batch.batch_size])}  # type: ignore[return-value]


def make_data() -> Data:
    return pyg_data(WIDTH, CLASSES)


def train(tmp_path: Path, model: Any, **keys: Any) -> gnnkit.Result:
    return train_on_threads(make_data(), model, tmp_path / "run", EPOCHS, **keys)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, exhaustive(3)])
def test_steps_and_optimisers_of_the_user_train_what_a_plain_loop_trains(
    tmp_path: Path, workers: int, capfd: pytest.CaptureFixture[str]
) -> None:
    data, model = make_data(), Lit()
    alone = copy.deepcopy(model)
    optimizer = alone.configure_optimizers()
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        loss = F.cross_entropy(alone(data.x, data.edge_index)[data.train_mask], data.y[data.train_mask])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    result = train(tmp_path, model, workers=workers, trainer={"max_epochs": EPOCHS, "monitor": None})
    assert result["train_loss"] == pytest.approx(float(loss), rel=1e-5)
    assert capfd.readouterr().err.count("self.log('val_loss') is left out: the run logs it") == 1
    assert result["exact"]
    assert result["test_step"]["own_accuracy"] == pytest.approx(result["test_accuracy"])
    trained_model = gnnkit.load(result.folder, Lit())
    for mine, theirs in zip(trained_model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_steps_of_sampled_batches_read_the_seeds_first(tmp_path: Path) -> None:
    strategy = {"name": "individual_sample", "batch_size": 4}
    result = train(
        tmp_path, Sampled(), strategy=strategy, sampler={"name": "neighbor", "fanouts": [3, 3]}, job="verify"
    )
    assert result["verified"], result["largest_difference"]


class Penalised(Lit):
    def training_step(self, batch: Any, index: int) -> Tensor:
        return super().training_step(batch, index) + sum(p.square().sum() for p in self.parameters())


class AllRows(Lit):
    def training_step(self, batch: Any, index: int) -> Tensor:
        return F.cross_entropy(self(batch.x, batch.edge_index), batch.y)


class Weighing(Lit):
    def training_step(self, batch: Any, index: int) -> Tensor:
        out = self(batch.x, batch.edge_index)[batch.train_mask]
        return F.cross_entropy(out, batch.y[batch.train_mask], weight=torch.ones(CLASSES))


class Inside(Lit):
    def validation_step(self, batch: Any, index: int) -> None:
        self.conv1(batch.x, batch.edge_index)


class NoLoss(Lit):
    def training_step(self, batch: Any, index: int) -> Any:
        self(batch.x, batch.edge_index)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Penalised, "model=Penalised: training_step adds to the mean over the batch's rows.*trainer.weight_decay"),
        (AllRows, "cross_entropy in training_step reads 20 rows, and the batch of this worker has .*batch.train_mask"),
        (Weighing, "divides by the weights of one worker's rows: use task.class_weights"),
        (Inside, r"model=Inside: validation_step must call self\(batch.x, batch.edge_index\)"),
        (Sampled, "reads data.batch_size, and there are .*take the rows of data.train_mask"),
        (NoLoss, "training_step must return the loss, found NoneType"),
    ],
)
def test_steps_that_several_workers_cannot_take_are_refused_with_the_cure(
    tmp_path: Path, model: Any, expected: str
) -> None:
    with pytest.raises(UserError, match=expected):
        train(tmp_path, model())


def test_stand_ins_of_a_batch_are_copied_and_asked_as_objects() -> None:
    values = Values(torch.nn.Identity(), {"x": 3})
    assert (values.x, hasattr(values, "__len__"), hasattr(_Unread("step"), "__len__")) == (3, False, False)
    with pytest.raises(UserError, match=r"model=Identity: a step or forward reads data.y, and there are x here"):
        values.y  # noqa: B018
    evaluated = Evaluated(torch.zeros(1), torch.zeros(1), 1)
    assert not hasattr(evaluated, "__len__")
    with pytest.raises(UserError, match=r"batch\.x: validation_step and test_step get batch\.logits"):
        evaluated.x  # noqa: B018
