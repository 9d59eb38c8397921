"""Parameters that a loss reads at times, or on some ranks, train as on one rank."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.nn import Parameter
from torch.nn import functional as F

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.strategy import Batch
from gnnkit.training.step import reaching
from tests.cases import exhaustive
from tests.graphs import random_graph
from tests.runs import BARE


class Partly(L.LightningModule):
    """A network whose parts take turns, and lie in memory in any order."""

    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.always, self.never, self.at_times, self.by_rank, self.frozen, self.late = (
            nn.Linear(8, 3) for _ in range(6)
        )
        self.turned = Parameter(torch.randn(3, 8).t())
        self.late.requires_grad_(False)
        self.steps = 0

    def on_train_epoch_start(self) -> None:
        self.frozen.requires_grad_(self.current_epoch < 2)
        self.late.requires_grad_(self.current_epoch > 0)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        h = adjacencies[0].aggregate(x, reduce="mean")
        h += 1  # of a sum that is kept
        out = self.always(h) + self.frozen(x) + self.late(h) + x @ self.turned
        if self.steps % 2:
            out = out + self.at_times(x)
        first = adjacencies[0].src_nodes == 0
        return torch.where(first[:, None], self.by_rank(x), out) if first.any() else out

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        self.steps += 1
        self.log("steps", float(self.steps))
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        return F.cross_entropy(logits * (1 + 0.1 * self.steps), batch.labels, reduction="sum") / batch.total


class Growing(nn.Module):
    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        if not hasattr(self, "scale"):
            self.scale = Parameter(torch.randn(3))
        return self.linear(adjacencies[0].aggregate(x)) * self.scale


def train(folder: Path, model: type[nn.Module], **keys: Any) -> Any:
    torch.manual_seed(0)
    trainer = {"max_epochs": 4, "precision": 64, "optimizer": "adamw", "lr": 0.05, "weight_decay": 0.1}
    run_keys = {"strategy": "vertex_centric", "workers": 3, "threads": 1, "comm": "threads", **BARE, **keys}
    return gnnkit.train(random_graph(), model=model(), folder=folder, trainer=trainer, **run_keys)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The result of one rank."""
    return train(tmp_path_factory.mktemp("alone") / "run", Partly, workers=1)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [exhaustive({"comm": "gloo"}), {}, exhaustive({"sync": "leader"})], ids=str)
def test_any_number_of_ranks_trains_them_as_one_rank_does(tmp_path: Path, alone: Any, keys: dict[str, Any]) -> None:
    """With Lightning's DDP too. The check of the loss leaves no trace in the model."""
    actual = train(tmp_path / "run", Partly, **keys)
    assert actual["drift"] == 0
    assert actual["train_loss"] == pytest.approx(alone["train_loss"], rel=1e-10)
    models = [gnnkit.load(result.folder, model=Partly()).state_dict() for result in (actual, alone)]
    for name, value in models[1].items():
        torch.testing.assert_close(models[0][name], value, rtol=1e-9, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_parameter_that_no_optimiser_has_is_refused(tmp_path: Path, workers: int) -> None:
    with pytest.raises(UserError, match=r"^model=Growing: the parameter scale was made after training began"):
        train(tmp_path / "run", Growing, workers=workers)


@pytest.mark.slow
def test_servers_refuse_other_parameters_than_at_first(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"(?m)^sync: parameters were frozen .* use sync=all_reduce$"):
        train(tmp_path / "run", Partly, workers=2, sync="parameter_server")


def test_a_backward_pass_arrives_at_parameters_that_the_loss_does_not_read() -> None:
    read, unread, watched = (Parameter(torch.ones(2)) for _ in range(3))
    values: list[list[float]] = []
    watched.register_hook(lambda gradient: values.append(gradient.tolist()))
    reaching((3 * read).sum(), [read, unread, watched]).backward()  # type: ignore[no-untyped-call]
    assert read.grad is not None
    assert read.grad.tolist() == [3, 3]
    assert unread.grad is None
    assert values == [[0, 0]]
    reaching(torch.zeros(()), [read]).backward()  # type: ignore[no-untyped-call]
