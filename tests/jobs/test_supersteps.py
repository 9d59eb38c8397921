"""Whole runs with supersteps of several local iterations, and updates by the leader."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency
from gnnkit.graph import CSC, Graph
from gnnkit.model.gcn import GCN
from gnnkit.partition.base import Grid
from gnnkit.strategy import vertex_centric
from gnnkit.strategy.base import Worker
from gnnkit.task.evaluation import Evaluation
from gnnkit.training import checkpoint
from tests.cases import exhaustive, few
from tests.jobs.test_train import small_graph
from tests.runs import BARE
from tests.sync.training import shards_on

EPOCHS, LOCAL = 7, 3
Runs = Callable[..., tuple[dict[str, Any], Path]]


@pytest.fixture(scope="module", autouse=True)
def any_cut_has_supersteps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vertex_centric, "MAX_REMOTE", 1.0)
        yield


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
    comm: str = "threads",
    partition: str = "1d",
    model: Any = None,
    **trainer: Any,
) -> tuple[dict[str, Any], Path]:
    chosen = {
        "max_epochs": EPOCHS,
        "precision": 64,
        "check_val_every_n_epoch": 3,
        "monitor": None,
        "exact_shares": [0, 0],
        **trainer,
    }
    keys = {"workers": workers, "threads": 1, "comm": comm, "partition": partition, "trainer": chosen, **BARE}
    overrides = (f"strategy.local_iterations={LOCAL}", *overrides)
    keys |= {"strategy": "vertex_centric", "model": model or lasting(steps)}
    result = gnnkit.train(small_graph(), overrides=overrides, folder=folder, **keys)
    return result, folder / "checkpoints/last.json"


def values(path: Path) -> Tensor:
    """The parameters in a checkpoint."""
    return torch.cat([value.flatten() for value in checkpoint.load(path)["state_dict"].values()])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """The result and the checkpoint of an unbroken run, made once for all tests."""
    return functools.cache(lambda *overrides, **keys: run(tmp_path_factory.mktemp("whole") / "run", *overrides, **keys))


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The checkpoint of a run that broke off in epoch 6, saved after epoch 4.

    Then parameters and received rows differ between ranks.
    """

    @functools.cache
    def broken(*overrides: str, **keys: Any) -> str:
        folder = tmp_path_factory.mktemp("broken") / "run"
        with pytest.raises(RuntimeError, match="broken off"):
            run(folder, *overrides, steps=5, checkpoint_every=2, **keys)
        assert checkpoint.load(folder / "checkpoints/last.json")["epoch"] == 4
        return str(folder / "checkpoints/last.json")

    return broken


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "keys", "drifts"),
    [
        exhaustive((["strategy.local_iterations=1"], {"workers": 4}, False)),
        ([], {}, True),
        exhaustive((["sync=leader"], {"workers": 4, "partition": "2d"}, True)),
        pytest.param([], {"comm": "gloo", "workers": 2}, True, marks=pytest.mark.exhaustive),
    ],
    ids=["one local iteration", "all_reduce", "leader", "processes"],
)
def test_a_resumed_run_ends_where_an_unbroken_one_does(
    tmp_path: Path,
    whole: Runs,
    broken: Callable[..., str],
    overrides: list[str],
    keys: dict[str, Any],
    drifts: bool,
) -> None:
    result, expected = whole(*overrides, **keys)
    resumed, actual = run(tmp_path / "resumed", *overrides, resume=broken(*overrides, **keys), **keys)
    assert (result["drift"] > 0) == drifts
    assert torch.equal(values(actual), values(expected))
    for key in ("train_loss", "drift", "final_drift", "test_accuracy"):
        assert resumed[key] == result[key]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_run_that_ended_goes_on_from_before_its_final_average(tmp_path: Path, whole: Runs) -> None:
    _, half = run(tmp_path / "half", max_epochs=4)
    _, actual = run(tmp_path / "rest", resume=str(half))
    assert torch.equal(values(actual), values(whole()[1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "keys", "expected"),
    [
        (["strategy.local_iterations=1"], {}, "strategy.local_iterations=1 differs from 3 in the checkpoint"),
        ([], {"workers": 2}, "workers=2 differs from 3 in the checkpoint"),
        (["partition.nodes=hash"], {}, "partition.nodes=hash differs from contiguous in the checkpoint"),
    ],
)
def test_a_checkpoint_of_other_workers_is_refused(
    tmp_path: Path, broken: Callable[..., str], overrides: list[str], keys: dict[str, Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=f"^{expected}"):
        run(tmp_path / "resumed", *overrides, resume=broken(), comm="threads", **keys)


@pytest.mark.slow
def test_model_predictions_and_result_are_of_the_final_average(whole: Runs) -> None:
    """Epoch 7 of supersteps of 3 is local, so workers end with different parameters."""
    result, path = whole()
    assert result["drift"] > 0
    assert result["final_drift"] == 0
    state, graph = checkpoint.load(path), small_graph()
    own = [state["state_dict"], *(checkpoint.unpack(packed)["state_dict"] for packed in state["workers"][1:])]
    nodes = np.array_split(np.arange(graph.num_nodes), 3)
    counts = [np.count_nonzero(graph.split[part] == 1) for part in nodes]
    average = load_file(path.parents[1] / "model.safetensors")
    for name, value in average.items():
        assert not torch.equal(own[0][f"model.{name}"], own[1][f"model.{name}"])
        mean = sum(count * worker[f"model.{name}"] for count, worker in zip(counts, own, strict=True)) / sum(counts)
        torch.testing.assert_close(value, mean, rtol=0, atol=1e-12)
    logits = Threads.run(lambda comm: _logits(average, comm), 1)[0]
    predictions = np.load(path.parents[1] / "predictions.npy")
    assert np.array_equal(predictions, logits.argmax(1))
    tested = graph.split == 3
    assert result["test_accuracy"] == pytest.approx((predictions == graph.labels)[tested].mean(), abs=1e-12)


def _logits(parameters: dict[str, Tensor], comm: Threads) -> Tensor:
    """Returns the logits of a model with these parameters, on one rank."""
    graph = small_graph()
    model = GCN(graph.features.shape[1], graph.num_classes, hidden=5).double()
    model.load_state_dict({name.removeprefix("gcn."): value for name, value in parameters.items()})
    worker = Worker(comm, shards_on(Grid(1, 1, 1), graph)[0], torch.float64, 0)
    return Evaluation.of(worker, model, 1.0).logits(model)


@pytest.mark.slow
@pytest.mark.exhaustive
def test_the_leaders_updates_equal_ddps(tmp_path: Path) -> None:
    found = []
    for sync in ("all_reduce", "leader"):
        overrides = ["strategy.local_iterations=1", f"sync={sync}"]
        result, path = run(
            tmp_path / sync, *overrides, model="sage", comm="gloo", workers=2, max_epochs=3, optimizer="sgd", lr=0.5
        )
        assert result["drift"] == result["final_drift"] == 0
        found.append(values(path))
    difference = float((found[0] - found[1]).abs().max())
    print(f"largest difference {difference:.1e}")
    assert difference <= 1e-12


@pytest.mark.slow
@few("sync", ["all_reduce", "leader", "parameter_server"], default=("all_reduce", "leader"))
def test_a_superstep_ends_with_one_model(whole: Runs, sync: str) -> None:
    assert whole(f"sync={sync}", max_epochs=LOCAL)[0]["drift"] == 0


@pytest.mark.slow
@few("sync", ["leader", "parameter_server"], default=("leader",))
def test_supersteps_do_not_depend_on_who_sums_the_gradients(whole: Runs, sync: str) -> None:
    """Local steps continue from the optimiser state of the step of all workers."""
    expected, actual = whole()[1], whole(f"sync={sync}")[1]
    assert float((values(actual) - values(expected)).abs().max()) <= 1e-10


@pytest.mark.slow
def test_local_steps_follow_the_gradient_of_all_workers(tmp_path: Path) -> None:
    """Without edges between workers, drift shrinks with the square of the rate."""
    graph, drifts = small_graph(), []
    nodes = np.arange(graph.num_nodes)
    loops = Graph(CSC.from_edges(nodes, nodes, len(nodes)), graph.features, graph.labels, graph.split)
    for lr in (1e-2, 1e-3):
        trainer = {"max_epochs": EPOCHS, "precision": 64, "monitor": None, "optimizer": "sgd", "lr": lr}
        keys: dict[str, Any] = {"workers": 3, "threads": 1, "comm": "threads", "partition": "1d", **BARE}
        keys |= {"strategy": {"name": "vertex_centric", "local_iterations": LOCAL}}
        keys |= {"model": {"name": "gcn", "hidden": 5, "dropout": 0.0}, "folder": tmp_path / str(lr)}
        result = gnnkit.train(loops, trainer=trainer | {"weight_decay": 0.0, "exact_shares": [0, 0]}, **keys)
        drifts.append(result["drift"])
    assert drifts[0] > 50 * drifts[1] > 0
