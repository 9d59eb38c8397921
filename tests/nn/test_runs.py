"""Whole runs of models with layers of gnnkit.nn: on processes, resumed, evaluated."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.nn import BatchNorm, Dropout
from tests.graphs import random_graph
from tests.models import PyG
from tests.runs import BARE

SAMPLED = {"strategy": "individual_sample", "sampler": {"name": "neighbor", "fanouts": [3, 3]}}
FULL = {"strategy": "vertex_centric"}


def batches(size: int) -> dict[str, Any]:
    return {"name": "individual_sample", "batch_size": size}


def run(folder: Path, **keys: Any) -> Any:
    run_keys = {"workers": 2, "comm": "threads", "threads": 1, "partition": "1d", "write": ["logits"], **BARE, **keys}
    trainer = {"max_epochs": 2, "check_val_every_n_epoch": 1, "precision": 64, **run_keys.pop("trainer", {})}
    model = run_keys.pop("model", {"name": "gcn", "norm": "batch"})
    return gnnkit.train(random_graph(), folder=folder, trainer=trainer, model=model, **run_keys)


def buffers(result: Any, model: nn.Module | None = None) -> dict[str, Tensor]:
    return dict(gnnkit.load(result.folder, model).named_buffers())


def equal(one: Any, other: Any, model: nn.Module | None = None) -> None:
    """Checks the running statistics and the logits of two runs."""
    actual = buffers(other, model)
    for name, value in buffers(one, model).items():
        torch.testing.assert_close(actual[name], value, rtol=1e-9, atol=1e-9)
    logits = [np.load(Path(each.folder) / "logits.npy") for each in (one, other)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-8, atol=1e-8)


class ByNeighbourhood(nn.Module):
    """A model without `layer`, around one that has it."""

    num_layers, self_loops = 2, True

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        logits: Tensor = self.model(x, adjacencies)
        return logits


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "alone"),
    [
        (FULL, FULL),
        ({**FULL, "partition": "2d", "workers": 4, "sync": "leader"}, FULL),
        ({**SAMPLED, "strategy": batches(8)}, {**SAMPLED, "strategy": batches(16)}),
    ],
    ids=["1d", "2d", "sampled"],
)
def test_processes_train_and_evaluate_as_one_does(tmp_path: Path, keys: dict[str, Any], alone: dict[str, Any]) -> None:
    result = run(tmp_path / "many", **{**keys, "comm": "gloo"})
    equal(result, run(tmp_path / "one", **{**alone, "workers": 1}))
    is_sampled = keys["strategy"] != FULL["strategy"]  # its batches are approximate, and nothing else is
    assert (result["exact"], [one for one in result["inexact"] if "approximate" not in one]) == (not is_sampled, [])
    assert bool(result["inexact"]) == is_sampled
    assert sum(int(value) for name, value in buffers(result).items() if name.endswith("tracked")) > 0


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("keys", [FULL, SAMPLED], ids=["full", "sampled"])
def test_a_resumed_run_has_the_running_statistics_of_an_unbroken_one(tmp_path: Path, keys: dict[str, Any]) -> None:
    full_run = run(tmp_path / "whole", **keys)
    half = run(tmp_path / "half", **keys, trainer={"max_epochs": 1})
    resumed_run = run(tmp_path / "rest", **keys, trainer={"resume": str(half.folder)})
    for name, value in buffers(full_run).items():
        assert torch.equal(buffers(resumed_run)[name], value), name


@pytest.mark.exhaustive
@pytest.mark.slow
def test_evaluation_by_layers_is_that_by_neighbourhoods(tmp_path: Path) -> None:
    from gnnkit.model.gcn import GCN

    make = functools.partial(GCN, norm="batch")
    by_layer = run(tmp_path / "layers", **SAMPLED, model=make)
    full_run = run(tmp_path / "whole", **SAMPLED, model=lambda a, b: ByNeighbourhood(make(a, b)))
    logits = [np.load(Path(each.folder) / "logits.npy") for each in (by_layer, full_run)]
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_statistics_of_all_ranks_need_all_ranks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"sync.on_lost=continue: batch normalisation reads rows of all workers"):
        run(tmp_path / "run", **SAMPLED, comm="gloo", sync={"name": "leader", "on_lost": "continue"})


@pytest.mark.exhaustive
@pytest.mark.slow
def test_layers_of_gnnkit_stand_between_those_of_pyg(tmp_path: Path) -> None:
    def make(in_features: int, num_classes: int) -> nn.Module:
        torch.manual_seed(0)
        return PyG([SAGEConv(in_features, 4), BatchNorm(4), nn.ReLU(), Dropout(0.5), SAGEConv(4, num_classes)])

    result, one = run(tmp_path / "many", **FULL, model=make), run(tmp_path / "one", **FULL, model=make, workers=1)
    equal(result, one, make(random_graph().features.shape[1], random_graph().num_classes))
    assert result["exact"]
