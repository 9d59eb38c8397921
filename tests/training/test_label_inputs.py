"""Training labels are inputs, and no output depends on its own label."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_serve.extensible import check_inputs
from gnnkit_serve.served import read_settings

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.prepare.trained import Inputs
from gnnkit.strategy import Batch, Worker
from gnnkit.training.embedding import LabelInputs
from tests.graphs import random_graph
from tests.runs import BARE, train_on_threads

CLASSES = 3


def labelled_graph() -> Graph:
    """A graph of one node type whose edges are unweighted."""
    graph = random_graph(60)
    split = np.array([Split.TRAIN, Split.TRAIN, Split.VAL, Split.TEST] * 15, np.int8)
    plain = Graph(graph.csc.weighted(None), graph.features, np.arange(60) % CLASSES, split)
    return plain.symmetrize()


def make_batch(labels: np.ndarray[Any, Any]) -> Batch:
    """All nodes, of which each is a training node."""
    encoded = torch.from_numpy(np.eye(CLASSES)[labels])
    x, rows = torch.cat([torch.ones(len(labels), 2), encoded], 1), torch.arange(len(labels))
    return Batch(x, (), rows, torch.from_numpy(labels), len(labels), nodes=np.arange(len(labels)))


@pytest.mark.slow
def test_a_training_node_is_an_input_or_predicted_in_an_epoch_never_both() -> None:
    labels = np.random.default_rng(0).integers(0, CLASSES, 2000)
    comm = Threads.connect(0, 1, device=torch.device("cpu"), timeout=1)
    shard = next(iter(cut_all(random_graph(), Partition(np.zeros(40, np.int32), None, Grid(1, 1, 1)))))
    batch, worker = make_batch(labels), Worker(comm, shard, torch.float64, 0)
    inputs = LabelInputs(0.3, CLASSES)
    values = []
    for epoch in range(3):
        filled = inputs.fill(batch, worker, epoch)
        assert isinstance(filled.x, torch.Tensor)
        visible = filled.x[:, 2:].any(1)
        assert set(filled.rows.tolist()) == set(torch.nonzero(~visible)[:, 0].tolist())
        assert (filled.x[:, :2] == 1).all()
        torch.testing.assert_close(filled.labels, batch.labels[filled.rows])
        assert filled.total == len(filled.rows)
        assert visible.float().mean() == pytest.approx(0.3, abs=0.05)
        values.append(visible)
        torch.testing.assert_close(filled.x, inputs.fill(batch, worker, epoch).x)
    assert not torch.equal(values[0], values[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "partition", "workers"),
    [("vertex_centric", "2d", 4), ("vertex_centric", "1d", 3), ("individual_sample", "1d", 2)],
)
def test_workers_equal_one_process(strategy: str, partition: str, workers: int, tmp_path: Path) -> None:
    keys = {"batch_size": 12} if strategy == "individual_sample" else {}
    result = train_on_threads(
        labelled_graph(),
        "sage",
        tmp_path / "run",
        2,
        strategy={"name": strategy, **keys},
        partition=partition,
        workers=workers,
        label_inputs=0.5,
        job="verify",
    )
    assert result["verified"], result
    assert max(result["largest_difference"].values()) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["vertex_centric", "individual_sample", "joint_sample"])
def test_rows_of_the_loss_are_rows_of_their_nodes(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, called = LabelInputs.fill, []

    def checked(self: LabelInputs, batch: Batch, worker: Worker, epoch: int) -> Batch:
        assert isinstance(batch.x, torch.Tensor)
        torch.testing.assert_close(batch.x[batch.rows][:, -CLASSES:].argmax(1), batch.labels)
        filled = fill(self, batch, worker, epoch)
        assert isinstance(filled.x, torch.Tensor)
        assert not filled.x[filled.rows][:, -CLASSES:].any()
        called.append(epoch)
        return filled

    monkeypatch.setattr(LabelInputs, "fill", checked)
    keys = {"batch_size": 12} if strategy != "vertex_centric" else {}
    run_keys = {"strategy": {"name": strategy, **keys}, "workers": 2, "label_inputs": 0.5}
    train_on_threads(labelled_graph(), "sage", tmp_path / "run", 2, **run_keys)
    assert set(called) == {0, 1}


@pytest.mark.slow
def test_trained_models_read_labels_wherever_they_predict(tmp_path: Path) -> None:
    graph = labelled_graph()
    run = train_on_threads(graph, "sage", tmp_path / "run", 3, label_inputs=0.5, write=["logits"]).folder
    logits = np.load(run / "logits.npy")
    keys: dict[str, Any] = {"workers": 2, "comm": "threads", **BARE}
    again = gnnkit.predict(run, graph, write=["logits"], folder=tmp_path / "again", **keys)
    np.testing.assert_allclose(np.load(again.folder / "logits.npy"), logits, atol=1e-5)
    with torch.no_grad():
        np.testing.assert_allclose(gnnkit.load(run)(graph).numpy(), logits, atol=1e-5)
    # Labels of validation and test nodes are not read.
    held_out = np.where(graph.split == Split.TRAIN, graph.labels, (graph.labels + 1) % CLASSES)
    with torch.no_grad():
        np.testing.assert_allclose(gnnkit.load(run)(replace(graph, labels=held_out)).numpy(), logits, atol=1e-5)
    bare = replace(graph, split=np.zeros(60, np.int8))
    with pytest.raises(UserError, match=r"label_inputs: the model reads the labels of training nodes.* has 0 of these"):
        gnnkit.load(run)(bare)
    with pytest.raises(UserError, match=r"in the classes 0, 1, 2, and .* in the classes a, b, c"):
        gnnkit.predict(run, replace(graph, class_names=("a", "b", "c")), folder=tmp_path / "names", **keys)
    with pytest.raises(UserError, match="export: the model reads labels"):
        gnnkit.export(run, tmp_path / "net.pt2")
    with pytest.raises(UserError, match="label_inputs: a request has no labels"):
        check_inputs(read_settings(run, ["dataset"]))


def test_columns_are_those_of_training_labels() -> None:
    graph = labelled_graph()
    facts = replace(Inputs.of(graph, "features"), label_classes=["0", "1", "2"])
    rows = np.asarray(facts.read(graph, Path("run")).features)
    width = graph.features.shape[1]
    np.testing.assert_array_equal(rows[:, :width], graph.features)
    encoded = np.eye(CLASSES)[graph.labels] * (graph.split == Split.TRAIN)[:, None]
    np.testing.assert_array_equal(rows[:, width:], encoded)


@pytest.mark.slow
def test_stores_and_other_inputs_have_no_labels(tmp_path: Path) -> None:
    graph = labelled_graph()
    with pytest.raises(UserError, match=r"label_inputs=0\.5 is read by inputs=features only"):
        train_on_threads(graph, "sage", tmp_path / "degree", 1, label_inputs=0.5, inputs="degree")
    train_on_threads(graph, None, tmp_path / "store", 1, job="partition")
    store = {"name": "store", "root": str(tmp_path / "store")}
    with pytest.raises(UserError, match=r"label_inputs: the store .* has no columns of labels"):
        gnnkit.train(dataset=store, strategy="vertex_centric", label_inputs=0.5, folder=tmp_path / "run", **BARE)
