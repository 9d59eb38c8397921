"""Supersteps of several local iterations, and updates by the leader, in whole runs of real gloo processes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.model.gcn import GCN
from gnnkit.partition.base import Grid
from gnnkit.strategy.base import Worker
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.training import checkpoint
from gnnkit.training.module import TrainingModule
from tests.sync.training import shards_on
from tests.training.test_run import small_graph

EPOCHS, LOCAL = 8, 3


class Breaks(L.LightningModule):
    """Fails in the training step after so many. Has a learning rate that changes."""

    num_layers, self_loops = GCN(1, 1).num_layers, True

    def __init__(self, in_features: int, num_classes: int, steps: int) -> None:
        super().__init__()
        self.gcn, self.steps = GCN(in_features, num_classes, hidden=5), steps

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        self.steps -= self.training
        if self.steps < 0:
            raise RuntimeError("broken off")
        logits: Tensor = self.gcn(x, adjacencies)
        return logits

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.7)}


def lasting(steps: int) -> Callable[[int, int], nn.Module]:
    return lambda in_features, num_classes: Breaks(in_features, num_classes, steps)


def run(
    folder: Path,
    *overrides: str,
    steps: int = 1000,
    workers: int = 3,
    partition: str = "1d",
    model: Any = None,
    **trainer: Any,
) -> tuple[dict[str, Any], Path]:
    chosen = {"max_epochs": EPOCHS, "precision": 64, "check_val_every_n_epoch": 3, **trainer}
    keys = {"workers": workers, "threads": 1, "comm": "gloo", "partition": partition, "trainer": chosen}
    overrides = (f"strategy.local_iterations={LOCAL}", *overrides)
    keys |= {"strategy": "vertex_centric", "model": model or lasting(steps)}
    result = gnnkit.train(small_graph(), overrides=overrides, folder=folder, **keys)
    return result, folder / "checkpoints/last.json"


def values(path: Path) -> Tensor:
    """The parameters in a checkpoint."""
    return torch.cat([value.flatten() for value in checkpoint.load(path)["state_dict"].values()])


def broken_off(folder: Path, *overrides: str, **keys: Any) -> str:
    """The checkpoint of a run that broke off in epoch 6, saved after epoch 4, when parameters and received rows differ."""
    with pytest.raises(RuntimeError, match="broken off"):
        run(folder, *overrides, steps=5, checkpoint_every=2, **keys)
    state = checkpoint.load(folder / "checkpoints/last.json")
    assert state["epoch"] == 4
    return str(folder / "checkpoints/last.json")


@pytest.mark.parametrize(
    ("overrides", "partition", "drifts"),
    [
        (["strategy.local_iterations=1"], "1d", False),
        ([], "1d", True),
        (["sync=leader"], "2d", True),
    ],
    ids=["one local iteration", "all_reduce", "leader"],
)
def test_a_resumed_run_ends_where_an_unbroken_one_does(
    tmp_path: Path, overrides: list[str], partition: str, drifts: bool
) -> None:
    keys = {"partition": partition, "workers": 4}
    whole, expected = run(tmp_path / "whole", *overrides, **keys)
    resume = broken_off(tmp_path / "broken", *overrides, **keys)
    resumed, actual = run(tmp_path / "resumed", *overrides, resume=resume, **keys)
    assert (whole["drift"] > 0) == drifts
    difference = float((values(actual) - values(expected)).abs().max())
    assert difference == 0
    for key in ("train_loss", "drift", "final_drift", "test_accuracy"):
        assert resumed[key] == whole[key]


def test_a_run_that_ended_goes_on_from_before_its_final_average(tmp_path: Path) -> None:
    _, expected = run(tmp_path / "whole")
    _, half = run(tmp_path / "half", max_epochs=4)
    _, actual = run(tmp_path / "rest", resume=str(half))
    assert torch.equal(values(actual), values(expected))


@pytest.mark.parametrize(
    ("overrides", "keys", "expected"),
    [
        (["strategy.local_iterations=1"], {}, "trainer.resume: its workers have parameters of their own"),
        ([], {"workers": 2}, "trainer.resume: it was saved by 3 workers, got workers=2"),
        (["partition.nodes=hash"], {}, "trainer.resume: it was saved on another graph or partition"),
    ],
)
def test_a_checkpoint_of_other_workers_is_refused(
    tmp_path: Path, overrides: list[str], keys: dict[str, Any], expected: str
) -> None:
    resume = broken_off(tmp_path / "broken")
    with pytest.raises(ValueError, match=f"^{expected}"):
        run(tmp_path / "resumed", *overrides, resume=resume, **keys)


def test_checkpoint_predictions_and_result_are_of_the_final_average(tmp_path: Path) -> None:
    """Epoch 8 of supersteps of 3 is local, so every worker ends with parameters of its own."""
    result, path = run(tmp_path / "run")
    assert result["drift"] > 0
    assert result["final_drift"] == 0
    state, graph = checkpoint.load(path), small_graph()
    own = [checkpoint.unpack(packed)["state_dict"] for packed in state["workers"]]
    nodes = np.array_split(np.arange(graph.num_nodes), 3)
    counts = [np.count_nonzero(graph.split[part] == 1) for part in nodes]
    for name, value in state["state_dict"].items():
        assert not torch.equal(own[0][name], own[1][name])
        mean = sum(count * worker[name] for count, worker in zip(counts, own, strict=True)) / sum(counts)
        torch.testing.assert_close(value, mean, rtol=0, atol=1e-12)
    logits = Threads.run(lambda comm: _logits(state["state_dict"], comm), 1)[0]
    predictions = np.load(tmp_path / "run/predictions.npy")
    assert np.array_equal(predictions, logits.argmax(1))
    tested = graph.split == 3
    assert result["test_accuracy"] == pytest.approx((predictions == graph.labels)[tested].mean(), abs=1e-12)


def _logits(parameters: dict[str, Tensor], comm: Threads) -> Tensor:
    """Of a model with those parameters, on one rank."""
    graph = small_graph()
    model, strategy = GCN(graph.features.shape[1], graph.num_classes, hidden=5).double(), VertexCentric()
    model.load_state_dict({name.removeprefix("model.gcn."): value for name, value in parameters.items()})
    worker = Worker(comm, shards_on(Grid(1, 1, 1), graph)[0], torch.float64, 0)
    strategy.setup(worker, model)
    return TrainingModule(model, strategy, worker, optimizer="sgd", lr=0.1, weight_decay=0.0).predict_logits()


def test_without_the_final_average_the_drift_stays(tmp_path: Path) -> None:
    result, _ = run(tmp_path / "run", "strategy.final_average=false")
    assert result["final_drift"] == result["drift"] > 0


def test_the_leaders_updates_equal_ddps(tmp_path: Path) -> None:
    found = []
    for sync in ("all_reduce", "leader"):
        overrides = ["strategy.local_iterations=1", f"sync={sync}"]
        result, path = run(tmp_path / sync, *overrides, model="sage", optimizer="sgd", lr=0.5)
        assert result["drift"] == result["final_drift"] == 0
        found.append(values(path))
    difference = float((found[0] - found[1]).abs().max())
    print(f"largest difference {difference:.1e}")
    assert difference <= 1e-12


def test_drift_ends_with_the_leaders_update_and_stays_under_all_reduce(tmp_path: Path) -> None:
    drifts = [run(tmp_path / s, f"sync={s}", max_epochs=LOCAL)[0]["drift"] for s in ("all_reduce", "leader")]
    assert drifts[0] > 0
    assert drifts[1] == 0


def test_only_the_leader_holds_optimiser_state(tmp_path: Path) -> None:
    _, path = run(tmp_path / "run", "sync=leader", "strategy.local_iterations=2", max_epochs=4)
    states = [checkpoint.unpack(packed)["optimizer_states"] for packed in checkpoint.load(path)["workers"]]
    assert [len(state[0]["state"]) for state in states] == [4, 0, 0]
