"""Runs of tasks on labelled edges: trained, stored, tested, predicted and refused."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from gnnkit_plan.init import choose
from torch import Tensor, nn
from torch_geometric.nn import SAGEConv

import gnnkit
from gnnkit import config
from gnnkit.config.settings import settle
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.jobs import weights
from gnnkit.sampler.links import pairs_of
from gnnkit.sampler.targets import Targets
from gnnkit.task.labelled_edges import inputs_of_head
from gnnkit.task.node_classification import EdgeClassification
from tests.cases import exhaustive, few, in_turn
from tests.runs import BARE

pytestmark = pytest.mark.slow
ALL = ["predictions", "logits", "embeddings"]
KEYS: dict[str, Any] = {"comm": "threads", **BARE}
TASKS = {"edge_classification": "probabilities", "edge_regression": "logits"}


def labelled_graph(kind: str = "edge_classification", num_nodes: int = 40, num_edges: int = 300) -> Graph:
    """Edges whose label follows from their features and the nodes' features."""
    rng = np.random.default_rng(num_edges)
    src, dst = rng.integers(0, num_nodes, (2, num_edges))
    x, amount = rng.normal(size=(num_nodes, 3)), rng.normal(10, 3, (num_edges, 1))
    score = x[src, 0] * x[dst, 1] + (amount[:, 0] - 10) / 3
    labels: Any = np.where(np.arange(num_edges) % 9 == 0, np.nan, score)
    if kind == "edge_classification":
        labels = np.where(np.isnan(labels), -1, labels > 0.2).astype(np.int64)
    names = ("fine", "fraud") if kind == "edge_classification" else None
    graph = Graph.from_edges(
        src,
        dst,
        num_nodes,
        features=x,
        edge_features=amount,
        edge_labels=labels,
        edge_class_names=names,
        one_class=True,
    )
    return graph.draw_edge_split([0.6, 0.2, 0.2])


def train(graph: Graph | None, folder: Path, task: str, *overrides: str, **keys: Any) -> Any:
    trainer = {"max_epochs": 3, "lr": 0.05, "precision": 64}
    given = {"strategy": "vertex_centric", "workers": 3, "model": "gat", "trainer": trainer, "task": task, **KEYS}
    return gnnkit.train(graph, folder=folder, overrides=overrides, **{**given, **keys})


@pytest.mark.parametrize("task", TASKS)
def test_a_later_test_and_prediction_write_what_the_run_wrote(tmp_path: Path, task: str) -> None:
    graph, names = labelled_graph(task), [*ALL, TASKS[task]]
    run = train(graph, tmp_path / "run", task, write=names)
    main = "accuracy" if task == "edge_classification" else "rmse"
    again = gnnkit.predict(run.folder, graph, folder=tmp_path / "again", job="test", workers=1, write=names, **KEYS)
    for split in ("train", "val", "test"):
        assert again[f"{split}_{main}"] == pytest.approx(run[f"{split}_{main}"], rel=1e-10)
    unlabelled = replace(graph, edge_labels=None, edge_split=None)
    gnnkit.predict(
        run.folder, unlabelled, folder=tmp_path / "third", workers=2, write=names, write_by="columns", **KEYS
    )
    for name in names:
        rows = [np.load(tmp_path / folder / f"{name}.npy") for folder in ("run", "again", "third")]
        assert len(rows[0]) == (graph.num_nodes if name == "embeddings" else graph.num_edges)
        np.testing.assert_allclose(rows[0], rows[1], rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(rows[0], rows[2], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("task", TASKS)
def test_a_loaded_model_and_its_head_compute_the_predictions(tmp_path: Path, task: str) -> None:
    graph = labelled_graph(task)
    run = train(graph, tmp_path / "run", task, write=["predictions"])
    model = gnnkit.load(run.folder)
    with torch.no_grad():
        embeddings = model(graph)
        pairs = torch.from_numpy(pairs_of(graph.csc))
        outputs = model.task_head(embeddings[pairs], torch.from_numpy(inputs_of_head(graph)[graph.edge_positions]))
    predictions = np.load(run.folder / "predictions.npy")[graph.edge_positions]
    if task == "edge_regression":
        np.testing.assert_allclose(outputs[:, 0].numpy(), predictions, rtol=1e-9)
        assert abs(float(embeddings.mean())) < 20, "embeddings are in no unit of labels"
    else:
        np.testing.assert_array_equal(outputs.argmax(1).numpy(), predictions)
        assert run["train_roc_auc"] > 0.7


@pytest.mark.parametrize("task", TASKS)
def test_predictions_read_earlier_labels_that_the_data_has(tmp_path: Path, task: str) -> None:
    graph, key = labelled_graph(task), "task.label_delay=0"
    graph = graph.evolve(edge_time=np.arange(graph.num_edges) % 50, edge_split=None).split_by_time([0.6, 0.2, 0.2])
    keys = [key, "model.aggregator=none"]  # a run's edges pass messages up to the split, a prediction's all
    run = train(graph, tmp_path / "run", task, *keys, model="sage", write=["logits"])
    gnnkit.predict(run.folder, graph, folder=tmp_path / "again", workers=1, write=["logits"], **KEYS)
    rows = [np.load(tmp_path / folder / "logits.npy") for folder in ("run", "again")]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-9, atol=1e-11)
    if task == "edge_classification":  # labels of the same classes in another order, and of another class
        assert graph.edge_labels is not None
        codes = np.where(graph.edge_labels < 0, -1, 2 - graph.edge_labels)
        other = graph.evolve(edge_labels=codes, edge_class_names=["odd", "fraud", "fine"])
        gnnkit.predict(run.folder, other, folder=tmp_path / "other", workers=1, write=["logits"], **KEYS)
        np.testing.assert_allclose(rows[0], np.load(tmp_path / "other" / "logits.npy"), rtol=1e-9, atol=1e-11)
        with pytest.raises(UserError, match="an edge has the class odd, and the model knows fine, fraud"):
            gnnkit.predict(run.folder, graph.evolve(edge_class_names=["fine", "odd"]), folder=tmp_path / "odd", **KEYS)
    unlabelled = graph.evolve(edge_labels=None, edge_split=None)
    with pytest.warns(UserWarning, match="task.label_delay=0: no label is known at the time of any edge"):
        gnnkit.predict(run.folder, unlabelled, folder=tmp_path / "third", workers=1, write=["logits"], **KEYS)
    assert not np.array_equal(rows[0], np.load(tmp_path / "third" / "logits.npy"))


def test_whole_ratings_are_numbers_in_data_with_other_ones(tmp_path: Path) -> None:
    graph = labelled_graph("edge_regression")
    assert graph.edge_labels is not None
    ratings = np.where(np.isnan(graph.edge_labels), -1, np.clip(np.round(graph.edge_labels + 2), 0, 4)).astype(np.int64)
    graph = graph.evolve(edge_labels=ratings, edge_time=np.arange(graph.num_edges) % 50, edge_split=None)
    graph, keys = graph.split_by_time([0.6, 0.2, 0.2]), ["task.label_delay=0", "model.aggregator=none"]
    run = train(graph, tmp_path / "run", "edge_regression", *keys, model="sage", write=["predictions"])
    for name, known in (("same", ratings), ("fewer", np.where(ratings == 4, -1, ratings)), ("none", None)):
        data = graph.evolve(edge_labels=known, edge_split=None)
        gnnkit.predict(run.folder, data, folder=tmp_path / name, workers=1, write=["predictions"], **KEYS)
    rows = {name: np.load(tmp_path / name / "predictions.npy") for name in ("run", "same", "fewer", "none")}
    np.testing.assert_allclose(rows["run"], rows["same"], rtol=1e-9, atol=1e-11)
    assert not np.array_equal(rows["run"], rows["fewer"])
    assert np.isfinite(rows["none"]).all()


class Net(nn.Module):
    """PyG's call, without edge features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = SAGEConv(3, 16)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        rows: Tensor = self.conv(x, edge_index)
        return rows


def test_a_users_module_is_loaded_with_the_head_of_its_task(tmp_path: Path) -> None:
    graph = labelled_graph("edge_regression")
    run = train(graph, tmp_path / "run", "edge_regression", "task.width=16", model=Net(), write=["predictions"])
    model = gnnkit.load(run.folder, Net())
    pairs = torch.from_numpy(pairs_of(graph.csc))
    with torch.no_grad():
        rows = model(torch.from_numpy(np.array(graph.features)), pairs.T)[pairs]
        outputs = model.task_head(rows, torch.from_numpy(inputs_of_head(graph)[graph.edge_positions]))
    np.testing.assert_allclose(outputs[:, 0], np.load(run.folder / "predictions.npy")[graph.edge_positions], rtol=1e-9)


def table(path: Path, num_edges: int, *, labelled: bool = True) -> None:
    path.mkdir()
    graph = labelled_graph(num_edges=num_edges)
    order = np.argsort(graph.edge_positions)  # type: ignore[arg-type]
    src, dst = pairs_of(graph.csc)[order].T
    frame = pd.DataFrame({"src": [f"u{i}" for i in src], "dst": [f"u{i}" for i in dst]})
    frame["amount"] = graph.edge_features[order, 0]  # type: ignore[index]
    if labelled:
        frame["fraud"] = np.array(["no", "yes", ""])[graph.edge_labels[order]]  # type: ignore[index]
    frame.to_csv(path / "edges.csv", index=False)
    ids = [f"u{i}" for i in range(graph.num_nodes)]
    pd.DataFrame({"id": ids, "age": graph.features[:, 0], "size": graph.features[:, 1]}).to_csv(
        path / "nodes.csv", index=False
    )  # type: ignore[index]


def test_new_edges_of_a_folder_are_predicted_by_their_ids(tmp_path: Path) -> None:
    table(tmp_path / "old", 300)
    table(tmp_path / "new", 70, labelled=False)
    keys = [
        "dataset.split=[0.6,0.2,0.2]",
        "dataset.edge_label=fraud",
        "dataset.symmetrize=true",
        f"dataset.root={tmp_path}/old",
    ]
    run = train(None, tmp_path / "run", "edge_classification", "dataset=edges", *keys)
    gnnkit.predict(
        run.folder, overrides=[f"dataset.root={tmp_path}/new"], folder=tmp_path / "out", workers=2,
        write=["predictions", "probabilities"], write_format="csv", **KEYS,
    )  # fmt: skip
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    with (tmp_path / "new" / "edges.csv").open() as file:
        edges = list(csv.DictReader(file))
    assert [(row["id"], row["src"], row["dst"]) for row in rows] == [
        (str(number), edge["src"], edge["dst"]) for number, edge in enumerate(edges)
    ]
    assert {row["class"] for row in rows} <= {"no", "yes"}
    header = (tmp_path / "out" / "probabilities.csv").read_text().split("\n")[0]
    assert header.replace('"', "") == "id,src,dst,probability_no,probability_yes"


def test_a_store_trains_as_its_data_set(tmp_path: Path) -> None:
    graph = labelled_graph()
    train(graph, tmp_path / "store", "edge_classification", "job=partition")
    run = train(graph, tmp_path / "run", "edge_classification")
    stored = train(None, tmp_path / "stored", "edge_classification", "dataset=store", f"dataset.root={tmp_path}/store")
    assert stored["train_loss"] == pytest.approx(run["train_loss"], rel=1e-10)
    assert stored["test_accuracy"] == run["test_accuracy"]


@few(
    "strategy,model",
    in_turn(("vertex_centric", "individual_sample", "joint_sample", "preset_workload"), ("gat", "rgcn")),
    default=[("joint_sample", "gat")],
)
def test_runs_equal_one_process(tmp_path: Path, strategy: str, model: str) -> None:
    rng, graph = np.random.default_rng(0), labelled_graph("edge_regression")
    if model == "rgcn":
        graph = replace(graph, edge_types=rng.integers(0, 2, graph.num_edges), edge_type_names=("a", "b"))
    relation = ["task.relation=b"] if model == "rgcn" else []
    result = train(graph, tmp_path / "run", "edge_regression", "job=verify", *relation, strategy=strategy, model=model)
    assert result["verified"], result


def test_a_resumed_run_ends_as_one_that_was_not_interrupted(tmp_path: Path) -> None:
    graph = labelled_graph()
    keys: dict[str, Any] = {"strategy": {"name": "individual_sample", "batch_size": 20}}
    whole = train(graph, tmp_path / "whole", "edge_classification", **keys)
    train(graph, tmp_path / "parts", "edge_classification", "trainer.max_epochs=1", **keys)
    resumed = train(graph, tmp_path / "parts", "edge_classification", "on_exists=resume", **keys)
    assert resumed["val_loss"] == pytest.approx(whole["val_loss"], rel=1e-12)


def test_a_checkpoint_belongs_to_the_labels_that_it_was_trained_on(tmp_path: Path) -> None:
    graph = labelled_graph()
    train(graph, tmp_path / "run", "edge_classification")
    assert graph.edge_labels is not None
    other = replace(graph, edge_labels=np.where(graph.edge_labels < 0, -1, 1 - graph.edge_labels))
    with pytest.raises(UserError, match="dataset"):
        train(other, tmp_path / "other", "edge_classification", f"trainer.resume={tmp_path}/run")


def test_the_summary_says_what_is_labelled_and_that_edges_pass_messages(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(labelled_graph(), tmp_path / "run", "edge_classification")
    printed = capfd.readouterr()
    assert "edges: 266 of 300 have a label (160 train, 53 val, 53 test)" in (printed.out + printed.err)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert set(result["per_class"]["test"]) == {"fine", "fraud"}
    assert result["test_roc_auc"] is not None


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["sync=leader", "sync.on_lost=continue"], "choose a task about nodes"),
        (["label_inputs=0.5"], "label_inputs=0.5: task=edge_classification has no classes to encode"),
        (["write=[vectors]"], "vectors need task=link_prediction"),
        (["task.relation=a"], "task.relation=a: the graph's edges have no types"),
        (["task.class_weights=[1,2,3]"], "has 3 numbers, expected one for each of 2 classes"),
    ],
)
def test_unsupported_keys_are_refused(tmp_path: Path, overrides: list[str], told: str) -> None:
    graph = labelled_graph()
    with pytest.raises(UserError, match=told.replace("[", r"\[")):
        train(graph, tmp_path / "run", "edge_classification", *overrides, strategy="individual_sample")


def test_what_computes_rows_of_nodes_refuses_a_task_of_edges(tmp_path: Path) -> None:
    graph = labelled_graph()
    run = train(graph, tmp_path / "run", "edge_classification")
    with pytest.raises(UserError, match=r"export: the task predicts edges, .* only rows of nodes are exported"):
        gnnkit.export(run.folder, tmp_path / "model.pt2")
    with pytest.raises(UserError, match="job=explain: task=edge_classification predicts pairs of nodes"):
        gnnkit.predict(run.folder, graph, overrides=["nodes=[1]"], job="explain", folder=tmp_path / "explain", **KEYS)


def test_data_without_a_split_are_refused(tmp_path: Path) -> None:
    graph = replace(labelled_graph(), edge_split=None)
    with pytest.raises(UserError, match=r"no edge is in the training split: dataset.split=\[0.6,0.2,0.2\]"):
        train(graph, tmp_path / "run", "edge_classification")


@pytest.mark.parametrize("task", TASKS)
def test_a_first_configuration_predicts_the_labels_of_edges(task: str, tmp_path: Path) -> None:
    graph = labelled_graph(task)
    users = replace(graph, node_types=(("user", 25), ("item", 15)), edge_split=None)
    for data, is_divided in ((graph, True), (users, False)):
        settings = settle(config.compose(["dataset=edges", f"dataset.root={tmp_path}", "job=init"]))
        keys = {choice.key: choice.value for choice in choose(settings, data, ())}
        assert keys["task"] == task
        assert ("dataset.split" in keys) is not is_divided


def test_labels_of_edges_alone_are_named_where_nodes_are_predicted(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="only edges have labels, which task=edge_classification or edge_regression predicts"
    ):
        train(labelled_graph(), tmp_path / "run", "node_classification")


def test_other_classes_are_refused_in_a_test(tmp_path: Path) -> None:
    graph = labelled_graph()
    run = train(graph, tmp_path / "run", "edge_classification")
    assert weights.class_names(run.folder) == ["fine", "fraud"]
    swapped = replace(graph, edge_class_names=("fraud", "fine"))
    with pytest.raises(UserError, match="class 0 is fraud"):
        gnnkit.predict(run.folder, swapped, folder=tmp_path / "test", job="test", **KEYS)


@pytest.mark.parametrize("strategy", ["vertex_centric", "individual_sample", exhaustive("joint_sample")])
def test_pairs_that_no_edge_joins_are_rows_of_a_task(
    strategy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = np.random.default_rng(1).integers(0, 40, (60, 2))
    split = (1 + np.arange(60) % 3).astype(np.int8)

    def prepare(task: EdgeClassification, graph: Graph) -> tuple[Graph, Targets]:
        graph = graph.evolve(edge_labels=None, edge_split=None, edge_class_names=None)
        return graph, Targets(2, np.arange(60), pairs, (pairs[:, 0] % 2).astype(np.int64), split)

    monkeypatch.setattr(EdgeClassification, "prepare", prepare)
    task: Any = {"name": "edge_classification", "edge_features": False}
    tables = []
    for workers in (1, 2):
        chosen = {"name": strategy} | ({} if strategy == "vertex_centric" else {"batch_size": 20 // workers})
        keys: dict[str, Any] = {"strategy": chosen, "workers": workers, "write": ["logits"], "write_format": "csv"}
        run = train(labelled_graph(), tmp_path / str(workers), task, model="sage", **keys)
        tables.append(pd.read_csv(run.folder / "logits.csv"))
    np.testing.assert_array_equal(tables[0][["id", "src", "dst"]], np.column_stack([np.arange(60), pairs]))
    if strategy == "vertex_centric":  # sampled steps depend on the number of workers
        np.testing.assert_allclose(tables[0], tables[1], rtol=1e-8)
