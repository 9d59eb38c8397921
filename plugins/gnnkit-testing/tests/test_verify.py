"""job=verify tells results equal to one process from others."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.engine import Adjacency
from gnnkit.graph import Graph
from gnnkit.leader.meter import SyncMeter
from gnnkit.model.gcn import GCN
from gnnkit.sync.all_reduce import AllReduce
from tests.cases import exhaustive, few
from tests.graphs import featured_graph
from tests.runs import BARE

SAMPLED = {"name": "individual_sample", "batch_size": 10}
DECAY: dict[str, Any] = {"weight_decay": 0.1}
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1}


def verify(folder: Path, *overrides: str, **keys: Any) -> dict[str, Any]:
    chosen = {"workers": 4, "comm": "threads", "partition": "2d", "types": "ignore", **BARE, **keys}
    return gnnkit.train(
        featured_graph(),
        strategy="vertex_centric",
        overrides=["job=verify", *overrides],
        folder=folder / "run",
        **chosen,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comm", "overrides", "reference"),
    [
        ("threads", [], "one rank with the whole graph"),
        exhaustive(("gloo", [], "one rank with the whole graph")),
        exhaustive(("threads", ["strategy.local_iterations=2"], "4 ranks as threads of one process")),
        exhaustive(("gloo", ["strategy.local_iterations=2"], "4 ranks as threads of one process")),
        exhaustive(("threads", ["sync=leader", "sync.average=mean"], "4 ranks as threads of one process")),
    ],
)
def test_runs_equal_one_process(tmp_path: Path, comm: str, overrides: list[str], reference: str) -> None:
    result = verify(tmp_path, *overrides, model="gat", comm=comm)
    assert result["verified"], result
    assert result["reference"] == reference
    assert set(result["largest_difference"]) == {"logits", "loss", "gradients", "parameters"}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_an_error_in_ddps_all_reduce_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer of `job=train` is verified."""

    original = SyncMeter.hook

    @functools.wraps(original)  # DDP reads the annotations
    def hook(meter: SyncMeter, group: Any, bucket: Any) -> Any:
        bucket.buffer().mul_(1 + 1e-6)
        return original(meter, group, bucket)

    monkeypatch.setattr(SyncMeter, "hook", hook)
    result = verify(tmp_path, comm="gloo")
    assert not result["verified"]
    assert 0 < result["largest_difference"]["gradients"] < 1e-5


class TorchDropout(nn.Module):
    """A model whose noise depends on the rows that a rank has."""

    num_layers = 1

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear, self.noise = nn.Linear(in_features, num_classes), nn.Dropout(0.5)

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        return adjacencies[0].aggregate(self.linear(self.noise(x)))


@pytest.mark.slow
def test_noise_that_is_not_keyed_is_found_and_explained(tmp_path: Path) -> None:
    result = verify(tmp_path, model=TorchDropout)
    assert not result["verified"]
    assert "torch's own Dropout" in result["note"]


@pytest.mark.slow
def test_asynchronous_modes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AllReduce, "lockstep", False)
    with pytest.raises(ValueError, match="job=verify needs ranks that step together, but results of sync=all_reduce"):
        verify(tmp_path)


def make_hub(num_nodes: int = 40, *, numbers: bool = False) -> Graph:
    """Makes a star, whose hub joins all nodes, with classes or numbers to predict."""
    rng, leaves = np.random.default_rng(0), np.arange(1, num_nodes)
    return Graph.from_edges(
        leaves,
        np.zeros(num_nodes - 1, np.int64),
        num_nodes,
        features=30 * rng.normal(size=(num_nodes, 4)),
        labels=1e4 * rng.normal(size=num_nodes) if numbers else rng.integers(0, 3, num_nodes),
        split=1 + np.arange(num_nodes) % 3,
    ).symmetrize()


def verify_hub(folder: Path, **keys: Any) -> Any:
    task = keys.pop("task", "node_classification")
    chosen = {"workers": 2, "comm": "threads", "strategy": "vertex_centric", "job": "verify", **BARE, **keys}
    return gnnkit.train(make_hub(numbers=task == "regression"), task=task, folder=folder / "run", **chosen)


@pytest.mark.slow
@few(
    ("trainer", "model", "task"),
    itertools.product([DECAY, SGD], ["gcn", "sage", "gat", "gin"], ["node_classification", "regression"]),
    default=[(SGD, "gcn", "regression")],
)
def test_hubs_and_numbers_are_verified_or_diverge_with_every_model(
    trainer: dict[str, Any], model: str, task: str, tmp_path: Path
) -> None:
    result = verify_hub(tmp_path, task=task, model=model, trainer=trainer)
    if result["diverges"]:
        assert result["verified"] is None
        assert result.exit_code == 2
        assert "trainer.optimizer=sgd, trainer.lr=0.1: training diverges" in result["note"]
    else:
        assert result["verified"], dict(result)
        assert result.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sync", "strategy"),
    [
        ("all_reduce", SAMPLED),
        exhaustive(("leader", SAMPLED)),
        exhaustive(("parameter_server", SAMPLED)),
        exhaustive(("all_reduce", "vertex_centric")),
        ("leader", "vertex_centric"),
        ("parameter_server", "vertex_centric"),
    ],
)
def test_steps_are_those_of_the_run(sync: str, strategy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[torch.optim.Optimizer] = []
    make = torch.optim.AdamW.__init__

    def remember(optimizer: torch.optim.AdamW, *arguments: Any, **keys: Any) -> None:
        make(optimizer, *arguments, **keys)
        made.append(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "__init__", remember)
    trainer = {"optimizer": "adamw", "lr": 0.03, "weight_decay": 0.2, "schedule": "linear", "warmup_epochs": 1}
    result = verify_hub(tmp_path, strategy=strategy, sync=sync, trainer=trainer)
    assert result["verified"], dict(result)
    assert {group["weight_decay"] for optimizer in made for group in optimizer.param_groups} == {0.2, 0.0}
    assert {group["initial_lr"] for group in made[0].param_groups} == {0.03}


class OwnRate(L.LightningModule):
    """A model with an optimiser of its own, whose rate is far too large."""

    num_layers = 2

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.body = GCN(in_features, num_classes, hidden=4)

    def forward(self, x: Tensor, adjacencies: list[Adjacency]) -> Tensor:
        out: Tensor = self.body(x, adjacencies)
        return out

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1e60)


@pytest.mark.slow
@pytest.mark.parametrize("comm", ["threads", exhaustive("gloo")])
def test_training_that_diverges_is_no_difference(comm: str, tmp_path: Path) -> None:
    result = verify_hub(tmp_path, comm=comm, task="regression", model="gin", trainer={"optimizer": "sgd", "lr": 1e6})
    assert result["diverges"]
    assert result["verified"] is None
    assert result.exit_code == 2
    assert "smaller trainer.lr, or set trainer.clip_norm" in result["note"]
    own = verify_hub(tmp_path / "own", comm=comm, task="regression", model=OwnRate)
    assert own["note"].endswith("use a smaller rate in configure_optimizers")


@pytest.mark.slow
def test_an_error_of_the_ranks_is_found_whatever_the_optimiser_amplifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adam divides by the gradients of a bias before a norm, which are rounding."""
    model, trainer = {"name": "gcn", "norm": "batch"}, {"optimizer": "adam", "weight_decay": 0.1}
    result = verify_hub(tmp_path, model=model, trainer=trainer)
    assert result["verified"], dict(result)
    step = AllReduce.step

    def wrong(sync: AllReduce, module: nn.Module, optimizer: Any, share: float) -> None:
        if sync.comm.world_size > 1:
            for parameter in module.parameters():
                parameter.grad = None if parameter.grad is None else parameter.grad * (1 + 1e-7)
        step(sync, module, optimizer, share)

    monkeypatch.setattr(AllReduce, "step", wrong)
    result = verify_hub(tmp_path / "wrong", model=model, trainer=trainer)
    assert result["verified"] is False
    assert result.exit_code == 1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_batches_that_accumulate_are_verified(tmp_path: Path) -> None:
    strategy = {"name": "individual_sample", "batch_size": 1}
    sampler = {"name": "neighbor", "fanouts": [3, 3]}
    result = verify_hub(tmp_path, strategy=strategy, sampler=sampler, trainer={"accumulate": 6})
    assert result["verified"], dict(result)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "num_approximate"),
    [
        (["sync=leader", "sync.mode=ssp"], 3),
        (["exchange=pipelined", "partition=1d"], 3),
        (["exchange=pipelined", "partition=1d", "trainer.exact_shares=[0.1,0.2]"], 0),
        ([], 0),
    ],
    ids=str,
)
def test_the_steps_of_an_approximate_scheme_are_approximate_and_counted(
    tmp_path: Path, overrides: list[str], num_approximate: int, capsys: pytest.CaptureFixture[str]
) -> None:
    result = verify(tmp_path, *overrides, trainer={"max_epochs": 100})
    assert result["verified"], result
    assert result["steps"] == {"approximate": num_approximate, "all": 3}
    assert capsys.readouterr().out.count("schedule of 100 epochs") == bool(overrides)
