"""Parameters and buffers that share memory, or lie in it in any order, are kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.jobs import weights
from gnnkit.jobs.models import Widths
from gnnkit.training import checkpoint
from tests.graphs import random_graph
from tests.runs import BARE


class Shared(nn.Module):
    """A network with one layer under two names, and views of one storage."""

    num_layers = 1

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 3)
        self.again, self.turned = self.first, nn.Parameter(torch.randn(3, 8).t())
        held = torch.arange(6.0)
        for name, buffer in {"held": held, "same": held, "part": held[1:4], "turned_part": held.view(2, 3).t()}.items():
            self.register_buffer(name, buffer)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        h = self.again(self.first(adjacencies[0].aggregate(x, reduce="mean")).relu())
        return self.last(h) + x @ self.turned + self.part  # type: ignore[no-any-return]


@pytest.mark.parametrize("travel", ["file", "packed"])
def test_tensors_that_share_memory_come_back_to_the_bit(tmp_path: Path, travel: str) -> None:
    state = dict(Shared().state_dict())
    if travel == "file":
        checkpoint.save(state, tmp_path / "last.json")
        actual = checkpoint.load(tmp_path / "last.json")
    else:
        actual = checkpoint.unpack(checkpoint.pack(state))
    assert list(actual) == list(state)
    assert all(torch.equal(actual[name], value) for name, value in state.items())


def test_a_model_file_holds_every_name(tmp_path: Path) -> None:
    model = Shared()
    weights.save(model, Widths(8, 3, 0), tmp_path)
    second = weights.load(tmp_path, Shared())
    assert all(torch.equal(second.state_dict()[name], value) for name, value in model.state_dict().items())
    assert second.again is second.first


def train(folder: Path, epochs: int, **trainer: Any) -> Any:
    torch.manual_seed(0)
    return gnnkit.train(
        random_graph(), model=Shared(), strategy="vertex_centric", workers=2, comm="threads", threads=1, folder=folder,
        trainer={"max_epochs": epochs, "monitor": "train_loss", **trainer}, **BARE,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_resumed_run_with_shared_parameters_is_the_unbroken_one(tmp_path: Path) -> None:
    full_run = train(tmp_path / "whole", 4)
    train(tmp_path / "half", 2)
    assert train(tmp_path / "rest", 4, resume=str(tmp_path / "half"))["train_loss"] == full_run["train_loss"]
    parts = [gnnkit.load(tmp_path / name, model=Shared()).state_dict() for name in ("whole", "rest")]
    assert all(torch.equal(parts[0][name], value) for name, value in parts[1].items())
