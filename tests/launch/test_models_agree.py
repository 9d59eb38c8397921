"""Ranks whose models differ are refused, or start from the leader's."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.comm.agreement import difference
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.jobs.models import describe, share_state
from gnnkit.model.exactness import calls
from tests.cases import few
from tests.conftest import Install
from tests.jobs.test_train import small_graph
from tests.launch.outside import Outside, by_hand
from tests.runs import train_on_threads

MODEL = """
import os
import numpy as np
import torch
from torch import nn

class Named(nn.Module):
    num_layers = 1

    def __init__(self, in_features: int, num_classes: int, kind: str = "calls") -> None:
        super().__init__()
        rank = int(os.environ["RANK"])
        self.names = ["b", "a"] if rank and kind != "buffers" else ["a", "b"]  # as a set of strings would
        names = self.names if kind == "parameters" else sorted(self.names)
        self.inner = nn.ModuleDict({name: nn.Linear(in_features, num_classes) for name in names})
        draws = np.random.default_rng(rank if kind == "buffers" else 0).standard_normal(in_features)
        self.register_buffer("draws", torch.tensor(draws, dtype=torch.float32))
        self.more = kind == "count" and rank == 1

    def forward(self, x, adjacencies):
        x = x * self.draws.to(x.dtype)
        out = sum(k * adjacencies[0].aggregate(self.inner[name](x)) for k, name in enumerate(sorted(self.names), 1))
        if self.more:
            out = out + adjacencies[0].aggregate(out)
        for name in self.names:
            out = out + adjacencies[0].aggregate(self.inner[name](x), reduce="mean")
        return out
"""
CURE = "Make layers and calls in a fixed order, for example by sorted(names): set order differs between processes"


class Named(nn.Module):
    """Aggregates the output of each inner layer in the given order."""

    num_layers = 1

    def __init__(self, names: str, calls: str) -> None:
        super().__init__()
        self.calls = calls
        self.inner = nn.ModuleDict({name: nn.Linear(3, 2) for name in names})

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        return sum(adjacencies[0].aggregate(self.inner[name](x)) for name in self.calls)  # type: ignore[return-value]


def test_layers_in_another_order_are_another_model() -> None:
    assert difference([describe(Named("ab", "ab")), describe(Named("ba", "ab"))]) == (
        "model.inner.a.weight must be the same on all ranks: rank 0 has model.inner.a.weight=parameter 0, [2, 3] "
        "torch.float32, trained, rank 1 has model.inner.a.weight=parameter 2, [2, 3] torch.float32, trained"
    )
    frozen = Named("ab", "ab").requires_grad_(False)
    assert difference([describe(Named("ab", "ab")), describe(frozen)]) is not None


def test_calls_of_equal_width_are_told_apart_by_the_parameters_behind_them() -> None:
    model = Named("ab", "ab")
    assert calls(model, 3) == [
        f"sum of 2 columns in layer 0 of inner.{name}.bias, inner.{name}.weight" for name in "ab"
    ]
    assert calls(Named("ab", "ba"), 3) == calls(model, 3)[::-1]
    assert len(calls(Named("ab", "aba"), 3)) == 3
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_list_of_calls_leaves_the_model_and_its_buffers_alone() -> None:
    model = Named("a", "a")
    norm = model.inner["a"] = nn.BatchNorm1d(3)
    assert calls(model, 3) == ["sum of 3 columns in layer 0 of inner.a.bias, inner.a.weight"]
    assert norm.num_batches_tracked == 0


def test_ranks_start_with_all_buffers_of_the_leader() -> None:
    def work(comm: Communicator) -> list[list[float]]:
        model = nn.Linear(1, 1)
        for name, values in {"kept": [0.5], "whole": [3], "flag": [True]}.items():
            model.register_buffer(name, torch.tensor(values) * (comm.rank + 1), persistent=name == "kept")
        share_state(comm, model)
        return [buffer.tolist() for buffer in model.buffers()]

    assert Threads.run(work, 3) == [[[0.5], [3], [1]]] * 3


@pytest.mark.slow
def test_threads_whose_models_differ_are_refused(tmp_path: Path) -> None:
    orders = itertools.cycle(["ab", "ba"])

    def make(in_features: int, num_classes: int) -> nn.Module:
        made = Named("", next(orders))
        made.inner.update({name: nn.Linear(in_features, num_classes) for name in "ab"})
        return made

    with pytest.raises(UserError, match=r"model call 1 must be the same on all ranks"):
        train_on_threads(small_graph(), make, tmp_path / "run", 1, threads=1)


@pytest.fixture
def ran(outside: Outside, tmp_path: Path, install: Install) -> Callable[..., list[Any]]:
    """Runs two ranks that somebody has started, with a model of a kind."""
    site = install("named", {"gnnkit.model": {"named": "named_model:Named"}}, {"named_model.py": MODEL})
    argv = [
        "+strategy=vertex_centric",
        "dataset=synthetic",
        "dataset.num_nodes=60",
        "trainer.max_epochs=2",
        "threads=1",
        "report=false",
        "logger=none",
    ]

    def run(kind: str, *more: str) -> list[Any]:
        ranks = [[*argv, "model=named", f"model.options.kind={kind}", "output=run", *more]] * 2
        return outside.run(tmp_path, ranks, by_hand(2), sites=[site])

    return run


@pytest.mark.slow
@few(
    "kind,message",
    [
        (
            "parameters",
            "model.inner.a.weight must be the same on all ranks: rank 0 has model.inner.a.weight=parameter 0",
        ),
        ("calls", "model call 3 must be the same on all ranks: rank 0 has model call 3=mean of 10 columns in layer 0"),
        ("count", "model call 3 must be the same on all ranks"),
    ],
    default=1,
)
def test_ranks_started_from_outside_with_other_orders_are_refused(
    ran: Callable[..., list[Any]], kind: str, message: str
) -> None:
    exits = ran(kind)
    assert [process.code for process in exits] == [2, 2], exits
    assert all(message in process.output and CURE in process.output for process in exits)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_ranks_started_from_outside_train_with_the_leaders_buffers(
    ran: Callable[..., list[Any]], tmp_path: Path
) -> None:
    """DDP sends out buffers itself, other synchronisations do not."""
    results = []
    for sync in ("all_reduce", "leader"):
        exits = ran("buffers", f"sync={sync}", "trainer.precision=64", f"output={sync}")
        assert [process.code for process in exits] == [0, 0], exits
        results.append(json.loads((tmp_path / sync / "result.json").read_text()))
    assert results[0]["train_loss"] == pytest.approx(results[1]["train_loss"], rel=1e-9)
    assert [process["drift"] for process in results] == [0, 0]
