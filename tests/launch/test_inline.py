"""launcher=inline does all the work of a job in the calling process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.errors import UserError
from gnnkit.launch import processes
from gnnkit.launch.environment import LOOPBACK, StartedRank
from tests.cases import exhaustive
from tests.graphs import pyg_data
from tests.runs import BARE

FAULT = "the model cannot compute"


class Linear(nn.Module):
    def __init__(self, fault: type[Exception] | None = None) -> None:
        super().__init__()
        self.linear, self.fault = nn.Linear(4, 3), fault

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if self.fault is not None:
            raise self.fault(FAULT)
        return self.linear(x)


def train(folder: Path, model: nn.Module, **keys: Any) -> gnnkit.Result:
    usual = {"strategy": "vertex_centric", "workers": 2, "trainer": {"max_epochs": 2}, **BARE}
    return gnnkit.train(pyg_data(4, 3), model=model, folder=folder, **(usual | keys))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_no_process_is_started_and_the_caller_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes.Group, "run", lambda _: pytest.fail("a process is started"))
    variables, threads = {*StartedRank(0, 1, 0, 1, LOOPBACK, 0).variables()} - {*os.environ}, torch.get_num_threads()
    model = Linear()
    random = torch.random.get_rng_state()
    inline = train(tmp_path / "inline", model, launcher="inline", threads=1)
    assert torch.equal(torch.random.get_rng_state(), random)
    assert variables
    assert not variables & {*os.environ}
    assert torch.get_num_threads() == threads
    monkeypatch.undo()
    started = train(tmp_path / "threads", model, launcher="threads", threads=1)
    assert inline["train_loss"] == started["train_loss"]


@pytest.mark.slow
@pytest.mark.parametrize("fault", [exhaustive(ArithmeticError), UserError])
def test_an_error_of_a_rank_comes_as_it_is(fault: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(fault, match=FAULT) as caught:
        train(tmp_path / "run", Linear(fault), launcher="inline")
    assert any(entry.name == "forward" for entry in caught.traceback)
