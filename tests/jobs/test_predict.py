"""A trained model predicts and is tested, on the graph of its run and on others."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import gnnkit
from gnnkit import config
from gnnkit.__main__ import main
from gnnkit.config.settings import settle
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from tests.cases import few
from tests.farm import EVERYTHING, PLAIN, Farm
from tests.jobs.test_train import small_graph
from tests.runs import BARE

pytestmark = pytest.mark.slow
SMALL = ["dataset=synthetic", "dataset.num_nodes=90", "dataset.num_edges=400", "comm=threads", "threads=1"]


def train(folder: Path, **keys: Any) -> Any:
    trainer = {"max_epochs": 2, "lr": 0.1, "precision": 64}
    given = {"strategy": "vertex_centric", "workers": 3, "comm": "threads", "trainer": trainer, "write": EVERYTHING}
    return gnnkit.train(keys.pop("graph", small_graph()), folder=folder, **{**BARE, **given, **keys})


def rows(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    return {name: np.load(folder / f"{name}.npy") for name in EVERYTHING}


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


@few("trained_as", ["gat", "gat sampled", "gat 2d"], default=("gat",))
def test_a_run_and_a_later_prediction_write_the_same(tmp_path: Path, trained_as: str, finished_run: Farm) -> None:
    run = finished_run(trained_as)
    trained = result_of(run)
    again = gnnkit.predict(
        run, small_graph(), folder=tmp_path / "again", job="test", workers=2, comm="threads",
        partition="1d", write=EVERYTHING, **BARE,
    )  # fmt: skip
    first, second = rows(run), rows(tmp_path / "again")
    for name in EVERYTHING:
        np.testing.assert_allclose(first[name], second[name], rtol=1e-10, atol=1e-12)
    assert {name: again[name] for name in again if name.endswith(("accuracy", "f1"))} == {
        name: trained[name] for name in again if name.endswith(("accuracy", "f1"))
    }
    assert again["test_loss"] == pytest.approx(trained["test_loss"], rel=1e-10)
    assert again.folder == tmp_path / "again"
    np.testing.assert_array_equal(first["predictions"], first["logits"].argmax(1))
    np.testing.assert_allclose(first["probabilities"], torch.tensor(first["logits"]).softmax(1), rtol=1e-12)


@pytest.mark.exhaustive
@pytest.mark.parametrize("inputs", ["learned", "degree"])
def test_a_graph_without_features_is_predicted_as_trained(tmp_path: Path, inputs: str, finished_run: Farm) -> None:
    bare, run = (
        replace(small_graph(), features=np.empty((small_graph().num_nodes, 0), np.float32)),
        finished_run(inputs),
    )
    keys: dict[str, Any] = {"comm": "threads", "write": ["logits"], **BARE}
    trained = result_of(run)
    assert trained["best_epoch"] < 6  # the best rows are kept with the best parameters
    again = gnnkit.predict(run, bare, folder=tmp_path / "again", workers=2, job="test", **keys)
    assert again["val_loss"] == pytest.approx(trained["best_value"], rel=1e-6)
    for name in ("test_loss", "val_loss"):
        assert again[name] == pytest.approx(trained[name], rel=1e-10)
    gnnkit.predict(run, bare, folder=tmp_path / "third", workers=3, **keys)
    found = [np.load(folder / "logits.npy") for folder in (run, tmp_path / "again", tmp_path / "third")]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-10, atol=1e-12)


def test_learned_rows_serve_the_nodes_that_they_were_learned_for(tmp_path: Path, finished_run: Farm) -> None:
    other = Graph.from_edges([0, 1], [1, 2], 5)
    with pytest.raises(UserError, match=r"dataset has 5 nodes, .*embedding.npy has rows of shape \[60, 64\]"):
        gnnkit.predict(finished_run("learned"), other, folder=tmp_path / "other", comm="threads", **BARE)


@pytest.mark.exhaustive
def test_embeddings_are_what_the_last_layer_reads(tmp_path: Path, finished_run: Farm) -> None:
    run = finished_run("three layers")
    found = rows(run)
    assert found["embeddings"].shape == (small_graph().num_nodes, 6)
    weights = load_file(run / "model.safetensors")
    one = gnnkit.load(run)
    one.num_layers = 1  # type: ignore[assignment]
    one.convs = one.convs[2:]  # type: ignore[index]
    assert torch.equal(one.convs[0].weight, weights["convs.2.weight"])  # type: ignore[index, union-attr]
    graph = replace(small_graph(), features=found["embeddings"])

    class Last(nn.Module):
        num_layers, self_loops = 1, True

        def __init__(self, in_features: int, num_classes: int) -> None:
            super().__init__()
            self.convs = one.convs

        def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
            # the last layer begins with the activation
            out: Tensor = self.convs[0](x.relu(), adjacencies[0])  # type: ignore[index, operator]
            return out

    gnnkit.train(graph, strategy="vertex_centric", workers=1, comm="threads", model=Last, folder=tmp_path / "last",
                 write=["logits"], trainer={"max_epochs": 1, "lr": 1e-300, "precision": 64},
                 features={"scale": "none"}, **BARE)  # fmt: skip
    np.testing.assert_allclose(np.load(tmp_path / "last/logits.npy"), found["logits"], rtol=1e-10, atol=1e-12)


def test_a_new_graph_without_labels_or_splits_is_predicted(tmp_path: Path, finished_run: Farm) -> None:
    run = finished_run("gcn")
    old = small_graph()
    rng = np.random.default_rng(1)
    edges = rng.integers(0, 31, (2, 80))
    new = Graph.from_edges(edges[0], edges[1], 31, features=rng.normal(size=(31, old.features.shape[1])))
    keys: dict[str, Any] = {"comm": "threads", **BARE}
    result = gnnkit.predict(run, new, folder=tmp_path / "new", workers=2, write=["predictions", "logits"], **keys)
    assert "test_accuracy" not in result
    assert np.load(tmp_path / "new/logits.npy").shape == (31, old.num_classes)
    assert np.load(tmp_path / "new/predictions.npy").max() < old.num_classes
    with pytest.raises(UserError, match=r"no node is in the validation or test split"):
        gnnkit.predict(run, new, job="test", folder=tmp_path / "no", **keys)
    wide = replace(new, features=np.zeros((31, old.features.shape[1] + 1), np.float32))
    with pytest.raises(UserError, match=r"dataset has \d+ columns of features, the model of .*run reads \d+"):
        gnnkit.predict(run, wide, folder=tmp_path / "wide", **keys)
    more = replace(old, labels=np.where(old.labels == 0, old.num_classes, old.labels))
    with pytest.raises(UserError, match=r"labels for \d+ outputs, the model of .*run has \d+"):
        gnnkit.predict(run, more, job="test", folder=tmp_path / "more", **keys)


def test_several_labels_of_a_node_are_tested_with_the_columns_of_training(tmp_path: Path) -> None:
    labels = np.arange(3 * small_graph().num_nodes).reshape(-1, 3) % 2
    graph = replace(small_graph(), labels=labels, class_names=("a", "b", "c"))
    run = train(tmp_path / "run", graph=graph, task="multilabel", workers=1, write=[]).folder
    fewer = replace(graph, labels=labels[:, :2], class_names=("a", "b"))
    with pytest.raises(UserError, match=r"labels for 2 outputs, the model of .*run has 3: use labels of"):
        gnnkit.predict(run, fewer, job="test", folder=tmp_path / "fewer", workers=1, comm="threads", **BARE)


def test_the_command_takes_data_model_and_task_from_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["strategy=vertex_centric", *SMALL, "model=sage", "model.hidden=5", "output=a run", "seed=3",
                 "trainer.max_epochs=1", *PLAIN]) == 0  # fmt: skip
    assert main(["job=test", "checkpoint='a run'", "comm=threads", "workers=2", "output=test", *PLAIN]) == 0
    first, second = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("a run", "test"))
    for name in ("model", "dataset", "seed", "test_accuracy", "strategy"):
        assert first[name] == second[name]
    assert second["world_size"] == 2
    other = [
        "dataset=synthetic",
        "dataset.num_nodes=50",
        "dataset.num_edges=99",
        "comm=threads",
        "output=other",
        *PLAIN,
    ]
    assert main(["job=predict", "checkpoint='a run'", *other]) == 0
    assert len(np.load(tmp_path / "other/predictions.npy")) == 50
    capsys.readouterr()
    for overrides, error in (
        (["job=predict"], "job=predict needs checkpoint=FOLDER"),
        (["job=predict", "checkpoint=none"], "checkpoint=none is not a folder"),
        (["job=predict", "checkpoint='a run'", "model.hidden=3"], "model.hidden cannot be changed"),
        (["job=predict", "checkpoint='a run'", "task=regression"], "task cannot be changed"),
        (
            ["job=train", "checkpoint='a run'"],
            "is read by job=explain|predict|test only: leave the key out, or set trainer.resume",
        ),
        (["job=predict", "checkpoint='a run'", "write=[weights]"], "write=weights is not known"),
    ):
        assert main(overrides) == 2
        assert error in capsys.readouterr().err


class Own(nn.Module):
    """A model of the user's, without `layer`."""

    num_layers, self_loops = 2, True

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.gcn = GCN(in_features, num_classes, hidden=4)

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        out: Tensor = self.gcn(x, adjacencies)
        return out


def test_a_model_of_the_users_is_loaded_into_the_users_own(tmp_path: Path) -> None:
    graph = small_graph()
    instance = Own(graph.features.shape[1], graph.num_classes)
    before = {name: value.clone() for name, value in instance.state_dict().items()}
    result = train(tmp_path / "run", model=instance, write=["logits"])
    assert all(torch.equal(value, before[name]) for name, value in instance.state_dict().items())
    loaded = gnnkit.load(result.folder, instance)
    assert loaded is instance
    assert not loaded.training
    assert not all(torch.equal(value, before[name]) for name, value in instance.state_dict().items())
    gnnkit.predict(result.folder, graph, model=Own, folder=tmp_path / "again", comm="threads", write=["logits"], **BARE)
    np.testing.assert_allclose(np.load(tmp_path / "again/logits.npy"), np.load(tmp_path / "run/logits.npy"), rtol=1e-10)
    with pytest.raises(UserError, match=r"model=Own was passed from Python: pass model=Own\(\.\.\.\), an instance"):
        gnnkit.predict(result.folder, graph)
    with pytest.raises(UserError, match=r"graph was passed from Python"):
        gnnkit.predict(result.folder, model=Own)
    with pytest.raises(UserError, match=r"model=Own is not installed: pass an instance of that class, or a function"):
        gnnkit.load(result.folder)
    made = gnnkit.load(result.folder, Own)
    assert all(torch.equal(value, made.state_dict()[name]) for name, value in loaded.state_dict().items())
    with pytest.raises(
        UserError, match=r"model: gcn.convs.0.weight has shape .* pass an instance of the trained class"
    ):
        gnnkit.load(result.folder, Own(3, 3))
    with pytest.raises(UserError, match=r"write=\[embeddings\]: model=Own has no hidden rows"):
        train(tmp_path / "rows", model=instance)


def test_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no model.safetensors"):
        gnnkit.load(tmp_path)
    for content in (b"", b"\xff" * 8, b'{"a": 1}', (8).to_bytes(8, "little") + b"{}      "):
        (tmp_path / "model.safetensors").write_bytes(content)
        with pytest.raises(UserError, match=r"model.safetensors is not the model of a run"):
            gnnkit.load(tmp_path)


def test_what_a_task_cannot_give_is_refused(tmp_path: Path, finished_run: Farm) -> None:
    numbers = replace(small_graph(), labels=np.linspace(0, 1, small_graph().num_nodes))
    with pytest.raises(UserError, match=r"write=.*: task=regression has no probabilities"):
        train(tmp_path / "run", graph=numbers, task="regression")
    links = finished_run("links")
    with pytest.raises(UserError, match=r"task=link_prediction .* predicts held-out edges"):
        gnnkit.predict(links, small_graph(), folder=tmp_path / "no")
    tested = gnnkit.predict(links, small_graph(), folder=tmp_path / "test", job="test", comm="threads", **BARE)
    assert tested["test_mrr"] == pytest.approx(result_of(links)["test_mrr"], rel=1e-10)


def test_a_configuration_of_a_run_settles_to_the_same(tmp_path: Path) -> None:
    chosen = ["strategy=individual_sample", "sampler=labor", "sampler.fanouts=[4,4]", "partition=2d", "workers=4",
              "model=gat", "dataset=synthetic", "trainer.precision=64", "partition.nodes=hash"]  # fmt: skip
    composed = settle(config.compose(chosen)).composed
    (tmp_path / "config.yaml").write_text(json.dumps(composed))
    again = config.compose(config.with_run([f"checkpoint='{tmp_path}'", "job=test"]))
    kept = ("model", "task", "dataset", "partition", "strategy", "sampler", "workers", "seed")
    assert {key: again[key] for key in kept} == {key: composed[key] for key in kept}
    assert again["trainer"]["precision"] == 64
