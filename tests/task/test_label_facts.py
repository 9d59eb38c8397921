"""What a task has learned of the labels that train stays with the model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.nn import GCNConv

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from tests.graphs import random_graph
from tests.runs import BARE, within_process

KEYS: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", "model": "gcn", **BARE}
pytestmark = pytest.mark.slow


def prices(scale: float, mean: float) -> Graph:
    graph = random_graph()
    numbers = graph.features[:, 0] + 0.1 * np.random.default_rng(0).normal(size=graph.num_nodes)
    unknown = np.arange(40) % 7 == 0
    split = np.where(unknown, Split.NONE, graph.split)
    return replace(graph, labels=np.where(unknown, np.nan, mean + scale * numbers), split=split, class_names=None)


def train(folder: Path, graph: Graph, workers: int = 2, *, epochs: int, **keys: Any) -> Any:
    trainer = {"max_epochs": epochs, "lr": 0.05, **keys.pop("trainer", {})}
    with within_process():
        return gnnkit.train(graph, folder=folder, workers=workers, trainer=trainer, **{**KEYS, **keys})


@pytest.mark.exhaustive
def test_numbers_of_any_size_train_alike(tmp_path: Path) -> None:
    small = train(tmp_path / "small", prices(1, 0), task="regression", epochs=3)
    large = train(tmp_path / "large", prices(1e5, 3e6), workers=3, task="regression", epochs=3)
    assert large["train_loss"] == pytest.approx(small["train_loss"], rel=1e-3)
    assert large["test_rmse"] == pytest.approx(1e5 * small["test_rmse"], rel=1e-3)
    actual = np.load(tmp_path / "large/predictions.npy")
    reference = 3e6 + 1e5 * np.load(tmp_path / "small/predictions.npy")
    np.testing.assert_allclose(actual, reference, atol=200)


@pytest.mark.exhaustive
def test_large_numbers_train_badly_as_these_are(tmp_path: Path) -> None:
    large = train(tmp_path / "large", prices(1e5, 3e6), task="regression", epochs=3)
    plain = train(tmp_path / "plain", prices(1e5, 3e6), task={"name": "regression", "scale": "none"}, epochs=3)
    assert plain["test_rmse"] > 5 * large["test_rmse"]
    assert not (tmp_path / "plain/labels.json").exists()


def test_a_trained_model_says_numbers_in_the_unit_of_the_labels(tmp_path: Path) -> None:
    graph = prices(1e5, 3e6)
    run = train(tmp_path / "run", graph, task="regression", epochs=2)
    reference = np.load(tmp_path / "run/predictions.npy")
    trained_model = gnnkit.load(run.folder)
    np.testing.assert_allclose(trained_model(graph).detach()[:, 0], reference, rtol=1e-5)
    second = replace(graph, labels=graph.labels / 2)
    with within_process():
        tested = gnnkit.predict(run.folder, second, job="test", folder=tmp_path / "test", comm="threads")
    np.testing.assert_allclose(np.load(tmp_path / "test/predictions.npy"), reference, rtol=1e-5)
    known = (graph.split == Split.TEST) & ~np.isnan(second.labels)
    assert tested["test_mae"] == pytest.approx(np.abs(reference - second.labels)[known].mean(), rel=1e-4)
    (run.folder / "labels.json").write_text('{"mean": ["x"]}')
    with pytest.raises(UserError, match=r"labels\.json cannot be read"):
        gnnkit.load(run.folder)


@pytest.mark.exhaustive
def test_an_exported_model_says_numbers_in_the_unit_of_the_labels(tmp_path: Path) -> None:
    graph = prices(1e5, 3e6)
    run = train(tmp_path / "run", graph, task="regression", epochs=2)
    file = gnnkit.export(run.folder, tmp_path / "net.pt2")
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    edges = torch.from_numpy(np.stack([graph.csc.indices, dst]).astype(np.int64))
    rows = torch.export.load(file).module()(x=torch.from_numpy(np.float32(graph.features)), edge_index=edges)
    np.testing.assert_allclose(rows.detach()[:, 0], np.load(run.folder / "predictions.npy"), rtol=1e-4)


@pytest.mark.exhaustive
def test_a_loaded_model_trains_on_and_is_loaded_again(tmp_path: Path) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = GCNConv(graph.features.shape[1], 1)

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.conv(x, edge_index)  # type: ignore[no-any-return]

    graph = prices(1e5, 3e6)
    last = {"monitor": None}  # saves the model of the last epoch
    first = train(tmp_path / "first", graph, model=Net(), task="regression", epochs=8, trainer=last)
    second = train(tmp_path / "second", graph, model=gnnkit.load(first.folder, Net()), task="regression", epochs=1)
    assert second["train_loss"] < 1.05 * first["train_loss"]
    again = gnnkit.load(second.folder, gnnkit.load(first.folder, Net()))
    assert len(again._forward_hooks) == 1


@pytest.mark.exhaustive
def test_classes_of_new_data_weigh_as_those_that_trained(tmp_path: Path) -> None:
    graph = random_graph()
    uneven = replace(graph, labels=np.where(np.arange(40) % 5 == 0, 1, 0), class_names=None)
    run = train(tmp_path / "run", uneven, epochs=2, task={"name": "node_classification", "class_weights": "balanced"})
    even = replace(uneven, split=np.where(uneven.labels == 1, Split.TRAIN, uneven.split))
    with within_process():
        tested = gnnkit.predict(run.folder, even, job="test", folder=tmp_path / "test", comm="threads")
        same = gnnkit.predict(run.folder, uneven, job="test", folder=tmp_path / "same", comm="threads")
    assert same["test_loss"] == pytest.approx(run["test_loss"], rel=1e-5)
    rows = np.load(tmp_path / "test/predictions.npy")
    assert rows.shape == (40,)
    known = even.split == Split.TEST
    assert tested["test_loss"] == pytest.approx(weighed(run.folder, even, known), rel=1e-4)


def weighed(folder: Path, graph: Graph, known: np.ndarray) -> float:
    """Computes the loss with the factors of the run."""
    from gnnkit.jobs import weights

    factors = weights.read_facts(folder).class_weights
    assert factors is not None
    logits = gnnkit.load(folder)(graph).detach()[torch.from_numpy(known)]
    labels = torch.from_numpy(graph.labels[known])
    losses = torch.nn.functional.cross_entropy(logits, labels, weight=torch.tensor(factors), reduction="none")
    return float(losses.mean())
