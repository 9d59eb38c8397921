"""Tasks over nodes: equal to one process, measured as by hand, refused in a line."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.synthetic import Synthetic
from gnnkit_testing.graphs import WIDTH, check_graph
from torch import Tensor, nn
from torchmetrics.functional.classification import (
    binary_auroc,
    binary_average_precision,
    multiclass_accuracy,
    multiclass_f1_score,
    multilabel_auroc,
    multilabel_average_precision,
    multilabel_f1_score,
)

import gnnkit
from gnnkit.comm.threads import Threads
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid
from gnnkit.sampler import NeighborSampler, Sampler
from gnnkit.strategy import Batch, ExecutionStrategy
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.task import NodeTask
from gnnkit.task.multilabel import Multilabel
from gnnkit.task.node_classification import NodeClassification
from gnnkit.task.ranking import mean_areas
from gnnkit.task.regression import Regression
from gnnkit.training.run_site import Validations
from tests.cases import few
from tests.runs import BARE, within_process
from tests.task.steps import make_workers, run_steps
from tests.turns import turns

RNG = np.random.default_rng(0)
PLAIN = dataclasses.replace(check_graph(48), split=np.where(np.arange(48) % 5 == 4, 0, 1 + np.arange(48) % 3).astype(np.int8), labels=RNG.integers(0, 3, 48))  # fmt: skip
NUMBERS = np.where(np.arange(48) % 5 == 4, np.nan, RNG.normal(size=48))
SEVERAL = RNG.normal(size=(48, 2))
SEVERAL[::3, 1] = np.nan  # one number of a node is not known
TASKS: dict[str, tuple[NodeTask, Graph]] = {
    "node_classification": (NodeClassification(), PLAIN),
    "two classes": (NodeClassification(), dataclasses.replace(PLAIN, labels=RNG.integers(0, 2, 48))),
    "multilabel": (Multilabel(), dataclasses.replace(PLAIN, labels=RNG.random((48, 4)) < 0.3)),
    "regression": (Regression(), dataclasses.replace(PLAIN, labels=NUMBERS)),
    "several numbers": (Regression("absolute"), dataclasses.replace(PLAIN, labels=SEVERAL.astype(np.float32))),
}
DRAWS = NeighborSampler([3, 3], threads=1)
STRATEGIES: dict[str, tuple[Callable[[], ExecutionStrategy], Sampler | None]] = {
    "vertex_centric": (VertexCentric, None),
    "individual_sample": (lambda: IndividualSample(batch_size=4), DRAWS),
    "features apart": (lambda: IndividualSample(batch_size=4, features="partitioned", cache="lru"), DRAWS),
    "topology apart": (lambda: IndividualSample(batch_size=4, topology="partitioned"), DRAWS),
    "cooperative": (lambda: JointSample(batch_size=4), DRAWS),
    "preset_workload": (lambda: PresetWorkload(exchange_every=1), None),
}


def make_model(graph: Graph, task: NodeTask) -> nn.Module:
    torch.manual_seed(1)
    return GCN(WIDTH, task.num_outputs(graph.num_classes), hidden=4, dropout=0.3).double()


@functools.cache
def of_one_rank(name: str, batch_size: int | None) -> Tensor:
    """Returns what one rank with the whole graph computes. None: without batches."""
    task, graph = TASKS[name]
    strategy = VertexCentric() if batch_size is None else IndividualSample(batch_size=batch_size)
    sampler = None if batch_size is None else DRAWS
    one = make_workers(graph, Grid(1, 1, 1), whole=batch_size is not None, sampler=sampler)
    return run_steps(strategy, task, make_model(graph, task), one, 1)


@pytest.mark.slow
@turns(strategy=list(STRATEGIES), name=list(TASKS))
def test_ranks_compute_together_what_one_process_computes(name: str, strategy: str) -> None:
    task, graph = TASKS[name]
    make, sampler = STRATEGIES[strategy]
    model, reads = make_model(graph, task), {"whole": make().reads.graph, "features": not make().reads.from_owners}
    forms: set[torch.dtype] = set()
    for ranks in (1, 3):
        if sampler is None:
            assert make().on_one_rank(ranks, sampler) is not None
        workers = make_workers(graph, Grid(ranks, 1, 1), sampler=sampler, **reads)
        actual = run_steps(make(), task, model, workers, ranks, lambda batch: forms.add(batch.labels.dtype))
        reference = of_one_rank(name, None if sampler is None else 4 * ranks)
        torch.testing.assert_close(actual, reference, rtol=1e-10, atol=1e-10)
        assert bool((actual[:, 0] > 0).all())
    assert forms == {torch.from_numpy(graph.labels).dtype}


@pytest.mark.slow
def test_the_loss_of_full_graph_training_is_the_mean_over_all_training_nodes() -> None:
    for name, (task, graph) in TASKS.items():
        model, outputs = make_model(graph, task), []

        def keep(batch: Batch, outputs: list[Tensor] = outputs, model: nn.Module = model) -> None:
            with torch.no_grad():
                outputs.append(batch.outputs(model(batch.x, batch.adjacencies)))

        actual = run_steps(VertexCentric(), task, model, make_workers(graph, Grid(1, 1, 1), whole=False), 1, keep)
        train = graph.split == Split.TRAIN
        reference = by_hand(name, outputs[0], torch.from_numpy(graph.labels[train]))
        assert float(actual[0, 0]) == pytest.approx(float(reference), abs=1e-12)


def by_hand(name: str, out: Tensor, labels: Tensor) -> Tensor:
    if name in ("node_classification", "two classes"):
        return nn.functional.cross_entropy(out, labels)
    if name == "multilabel":
        return nn.functional.binary_cross_entropy_with_logits(out, labels.double())
    if name == "regression":
        return nn.functional.mse_loss(out[:, 0], labels)
    rows = [(row - label).abs()[~label.isnan()].mean() for row, label in zip(out, labels.double(), strict=True)]
    return torch.stack(rows).mean()


@pytest.mark.parametrize("name", TASKS)
def test_figures_of_three_ranks_are_those_of_all_nodes_by_hand(name: str) -> None:
    task, graph = TASKS[name]
    width = task.num_outputs(graph.num_classes)
    out = torch.randn(graph.num_nodes, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    workers = make_workers(graph, Grid(3, 1, 1), whole=False)
    results = Threads.run(lambda comm: task.measure(out[workers(comm).owned], workers(comm)), 3)
    assert results[0] == results[1] == results[2]
    others = {f"{split}_{metric}" for split in task.splits for metric in task.metrics_of_some}
    assert set(results[0]) == set(task.names) - (others if task.num_outputs(graph.num_classes) != 2 else set())
    for split, value in (("train", Split.TRAIN), ("val", Split.VAL), ("test", Split.TEST)):
        rows = graph.split == value
        for metric, reference in figures_by_hand(name, out[rows], torch.from_numpy(graph.labels[rows]), width).items():
            assert results[0][f"{split}_{metric}"] == pytest.approx(reference, abs=1e-6), f"{split}_{metric}"


def figures_by_hand(name: str, out: Tensor, labels: Tensor, width: int) -> dict[str, float]:
    if name in ("node_classification", "two classes"):
        accuracy = multiclass_accuracy(out, labels, width, average="micro")
        figures = {"accuracy": float(accuracy), "macro_f1": float(multiclass_f1_score(out, labels, width))}
        if width == 2:
            scores = out.softmax(1)[:, 1]  # keeps the order of differences
            figures |= {"roc_auc": float(binary_auroc(scores, labels))}
            figures |= {"average_precision": float(binary_average_precision(scores, labels))}
        return figures
    if name == "multilabel":
        averages = {kind: multilabel_f1_score(out, labels.long(), width, average=kind) for kind in ("micro", "macro")}
        areas = {"roc_auc": multilabel_auroc, "average_precision": multilabel_average_precision}
        # Sigmoids keep the order of these scores.
        ranked = {kind: area(out.sigmoid(), labels.long(), width) for kind, area in areas.items()}
        return {f"{kind}_f1": float(value) for kind, value in averages.items()} | {
            kind: float(value) for kind, value in ranked.items()
        }
    error = (out - labels.double().view(out.shape)).flatten()
    error = error[~error.isnan()]
    return {"mae": float(error.abs().mean()), "rmse": float(error.square().mean().sqrt())}


def test_classes_that_all_nodes_or_none_have_are_left_out_of_areas() -> None:
    scores = torch.tensor([[0.1, 5.0, 900.0], [0.2, 4.0, 800.0], [0.3, 3.0, 850.0]], dtype=torch.float64)
    target = torch.tensor([[1, 0, 1], [1, 0, 0], [1, 0, 0]])
    assert mean_areas(scores, target) == {"roc_auc": 1.0, "average_precision": 1.0}
    assert mean_areas(scores[:, :2], target[:, :2]) == {}
    assert mean_areas(scores[:0], target[:0]) == {}
    worst = mean_areas(-scores, target)
    assert worst == {"roc_auc": 0.0, "average_precision": pytest.approx(1 / 3)}


@pytest.mark.parametrize("weights", ["balanced", [0.5, 3.0, 1.0]])
def test_class_weights_are_those_of_the_nodes_of_all_ranks_that_train(weights: Any) -> None:
    labels = np.where(RNG.random(48) < 0.7, 0, PLAIN.labels)
    graph, task = dataclasses.replace(PLAIN, labels=labels), NodeClassification(weights)
    trains = torch.from_numpy(labels[graph.split == Split.TRAIN])
    counts = torch.bincount(trains, minlength=3).double()
    factors = counts.sum() / (3 * counts) if weights == "balanced" else torch.tensor(weights, dtype=torch.float64)
    out = torch.randn(48, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    workers = make_workers(graph, Grid(3, 1, 1), whole=False)

    def work(comm: Threads) -> float:
        rank_task = NodeClassification(weights)
        rank_task.begin(workers(comm))
        return rank_task.measure(out[workers(comm).owned], workers(comm))["val_loss"]

    results, rows = Threads.run(work, 3), torch.from_numpy(graph.split == Split.VAL)
    each = nn.functional.cross_entropy(out[rows], torch.from_numpy(labels)[rows], weight=factors, reduction="none")
    assert results == pytest.approx([float(each.mean())] * 3)
    task.begin(
        make_workers(graph, Grid(1, 1, 1), whole=False)(Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0))
    )
    in_training = task.losses(torch.zeros(len(trains), 3, dtype=torch.float64), trains)
    if weights == "balanced":  # classes count alike, and the mean factor is 1
        sums = torch.zeros(3, dtype=torch.float64).index_add(0, trains, in_training)
        torch.testing.assert_close(sums, sums.mean().expand(3))
        assert float(in_training.mean()) == pytest.approx(np.log(3))


def test_a_class_that_does_not_train_counts_as_usual_in_other_splits() -> None:
    labels = np.where(PLAIN.split == Split.TRAIN, PLAIN.labels % 2, 2)
    graph, task = dataclasses.replace(PLAIN, labels=labels), NodeClassification("balanced")
    single = Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0)
    task.begin(make_workers(graph, Grid(1, 1, 1), whole=False)(single))
    assert task.facts().class_weights[2] == 1.0


@pytest.mark.parametrize(
    ("labels", "names", "expected"),
    [
        (PLAIN.labels, None, []),
        (np.where(PLAIN.split == Split.TRAIN, 1, PLAIN.labels), None, ["all 13 training nodes have the class '1', so"]),
        (1 + PLAIN.labels, None, [r"no training node has the class 0 \(1 of 4 classes\)"]),
        (2 * PLAIN.labels, ("a", "b", "c", "d", "e"), [r"no training node has the class b, d \(2 of 5 classes\)"]),
        (np.where(PLAIN.split == Split.TRAIN, -1, PLAIN.labels), None, []),  # new data that only predicts
    ],
)
def test_labels_that_teach_little_are_named_on_all_ranks(labels: Any, names: Any, expected: list[str]) -> None:
    split = np.where(labels >= 0, PLAIN.split, Split.NONE).astype(np.int8)
    graph = dataclasses.replace(PLAIN, labels=labels, split=split, class_names=names)
    workers = make_workers(graph, Grid(3, 1, 1), whole=False)
    results = Threads.run(lambda comm: NodeClassification().label_warnings(workers(comm), names), 3)
    assert results == [results[0]] * 3
    assert len(results[0]) == len(expected)
    assert all(re.search(text, line) for text, line in zip(expected, results[0], strict=True)), results[0]


@pytest.mark.slow
@few("strategy", ["vertex_centric", "individual_sample"], default=1)
def test_a_run_warns_of_a_class_that_no_node_trains(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph, keys = (
        dataclasses.replace(PLAIN, labels=1 + PLAIN.labels),
        {"comm": "threads", "workers": 2, "types": "ignore", **BARE},
    )
    with within_process():
        gnnkit.train(graph, strategy=strategy, model="sage", trainer={"max_epochs": 1}, folder=tmp_path / "run", **keys)
    assert capsys.readouterr().err.count("gnnkit: warning: labels: no training node has the class 0 (1 of 4") == 1


def test_new_data_may_lack_classes_and_a_list_may_not() -> None:
    task = NodeClassification("balanced")
    lacking = dataclasses.replace(PLAIN, labels=np.minimum(PLAIN.labels, 1))
    task.begin(
        make_workers(lacking, Grid(1, 1, 1), whole=False)(
            Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0)
        )
    )
    assert task.losses(torch.zeros(2, 3), torch.tensor([0, 1])).shape == (2,)
    named_graph = dataclasses.replace(PLAIN, class_names=("cat", "cow", "dog"))
    with pytest.raises(UserError, match=r"has 2 numbers, expected one for each of 3 classes \(cat, cow, dog\)"):
        NodeClassification([1, 2]).prepare(named_graph)
    task = NodeClassification([1, 2, 3, 4])
    task.begin(
        make_workers(PLAIN, Grid(1, 1, 1), whole=False)(Threads.connect(0, 1, device=torch.device("cpu"), timeout=1.0))
    )
    with pytest.raises(UserError, match=r"has 4 numbers, expected one for each of 3 classes"):
        task.losses(torch.zeros(2, 3), torch.tensor([0, 1]))


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3])
def test_the_best_roc_auc_of_two_classes_is_kept_and_of_three_refused(tmp_path: Path, classes: int) -> None:
    graph = dataclasses.replace(PLAIN, labels=PLAIN.labels % classes)
    trainer = {"max_epochs": 2, "monitor": "val_roc_auc", "check_val_every_n_epoch": 1}
    keys = {"strategy": "vertex_centric", "workers": 2, "comm": "threads", "types": "ignore", **BARE}
    with within_process():
        if classes == 3:
            with pytest.raises(
                UserError, match=r"trainer.monitor=val_roc_auc: not measured on these data, only .*val_acc"
            ):
                gnnkit.train(graph, trainer=trainer, folder=tmp_path / "run", **keys)
            return
        result = gnnkit.train(
            graph, trainer=trainer, folder=tmp_path / "run", task={"class_weights": "balanced"}, **keys
        )
    assert result["best_value"] == pytest.approx(result["val_roc_auc"])
    assert 0 <= result["test_average_precision"] <= 1


def test_accuracies_count_labelled_nodes_of_all_ranks() -> None:
    graph = check_graph(48)
    right = nn.functional.one_hot(torch.tensor(graph.labels).clamp(min=0), 3).double()
    right[5] = right[5].roll(1)
    workers = make_workers(graph, Grid(3, 1, 1), whole=False)
    results = Threads.run(lambda comm: NodeClassification().measure(right[workers(comm).owned], workers(comm)), 3)
    for index, name in enumerate(("train", "val", "test")):
        count = int(((graph.split == index + 1) & graph.labelled).sum())
        reference = (count - int(graph.split[5] == index + 1)) / count
        assert [figures[f"{name}_accuracy"] for figures in results] == [reference] * 3


CLASSES, SETS, FLOATS = np.zeros(48, np.int64), np.ones((48, 2), bool), np.ones(48, np.float32)


@pytest.mark.parametrize(
    ("task", "labels", "message"),
    [
        (NodeClassification(), SETS, "task=node_classification needs one class per node.*use task=multilabel"),
        (NodeClassification(), FLOATS / 2, "labels are floating-point numbers: use task=regression, or whole"),
        (Multilabel(), CLASSES, "task=multilabel needs 0 and 1.*labels are one class number per node: pass two"),
        (Multilabel(), FLOATS, "task=multilabel needs 0 and 1.*labels are floating-point numbers"),
        (Multilabel(), np.full((48, 2), 0.5), "task=multilabel needs 0 and 1"),
        (Regression(), SETS, "task=regression needs numbers as labels, but labels are sets of classes"),
    ],
)
def test_labels_of_another_form_are_refused_with_the_way_out(task: NodeTask, labels: Any, message: str) -> None:
    graph = dataclasses.replace(PLAIN, labels=labels)
    with pytest.raises(UserError, match=message) as caught:
        task.prepare(graph)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
def test_a_graph_without_a_training_node_is_refused(tmp_path: Path) -> None:
    graph = dataclasses.replace(PLAIN, labels=FLOATS, split=np.zeros(48, np.int8))
    with pytest.raises(UserError, match="dataset: no node is in the training split"):
        gnnkit.train(
            graph,
            strategy="vertex_centric",
            task="regression",
            comm="threads",
            types="ignore",
            folder=tmp_path / "run",
        )


NODES = "id,label,split,f\n1,a;b,train,1\n2,b,train,0\n3,,none,1\n4,c; a,val,0\n"


def test_names_joined_by_semicolons_are_several_classes_for_multilabel(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n1,2\n2,3\n")
    (tmp_path / "nodes.csv").write_text(NODES)
    graph = EdgeFolder(str(tmp_path)).load()
    assert graph.class_names == ("a;b", "b", "c; a")  # to other tasks each is one class
    read, _ = Multilabel().prepare(graph)
    assert read.class_names == ("a", "b", "c")
    reference = [[1, 1, 0], [0, 1, 0], [0, 0, 0], [1, 0, 1]]
    np.testing.assert_array_equal(read.labels, np.array(reference, bool))


def test_numbers_and_sets_are_read_from_folders(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    (tmp_path / "nodes.csv").write_text("id,label,split\n0,0.5,train\n1,,none\n2,-1.5,val\n")
    graph = EdgeFolder(str(tmp_path)).load()
    np.testing.assert_array_equal(graph.labels, [0.5, np.nan, -1.5])
    assert graph.num_classes == 1
    np.testing.assert_array_equal(graph.labelled, [True, False, True])
    np.save(tmp_path / "labels.npy", np.eye(3, dtype=np.uint8)[:, :2])
    with pytest.raises(UserError, match=r"labels\.npy and nodes\.csv both hold labels"):
        EdgeFolder(str(tmp_path)).load()
    (tmp_path / "nodes.csv").write_text("id,split\n0,train\n1,none\n2,val\n")
    graph = EdgeFolder(str(tmp_path)).load()
    assert graph.labels.dtype == np.bool_
    assert graph.num_classes == 2


@pytest.mark.parametrize("name", ["multilabel", "several numbers"])
def test_labels_of_any_form_are_saved_and_read_from_pyg(name: str, tmp_path: Path) -> None:
    graph = TASKS[name][1]
    graph.save(tmp_path / "graph")
    np.testing.assert_array_equal(Graph.load(tmp_path / "graph").labels, graph.labels)
    data = pytest.importorskip("torch_geometric.data").Data
    given = data(x=torch.ones(48, 1), edge_index=torch.zeros(2, 1, dtype=torch.int64), y=torch.from_numpy(graph.labels))
    read = Graph.from_pyg(given)
    np.testing.assert_array_equal(read.labels, graph.labels)
    assert read.labels.dtype == graph.labels.dtype


def test_multilabel_reads_floating_zeros_and_ones() -> None:
    labels = TASKS["multilabel"][1].labels
    read, _ = Multilabel().prepare(dataclasses.replace(PLAIN, labels=labels.astype(np.float32)))
    assert read.labels.dtype == np.bool_
    np.testing.assert_array_equal(read.labels, labels)


def test_generated_labels_have_the_form_that_was_asked_for() -> None:
    graphs_by_name = {
        kind: Synthetic(num_nodes=200, num_edges=800, targets=kind).load() for kind in ("classes", "number")
    }
    classes = Synthetic(num_nodes=200, num_edges=800).load().labels
    assert graphs_by_name["classes"].labels[np.arange(200), classes].all()
    assert graphs_by_name["classes"].labels.sum() > 200
    number, csc = graphs_by_name["number"].labels, graphs_by_name["number"].csc
    near = csc.indices[csc.indptr[7] : csc.indptr[8]]
    assert number[7] == pytest.approx(np.mean([classes[7], *classes[near]]) / 10)


def test_errors_reach_their_best_value_from_above() -> None:
    validations = Validations([(1.0, 3.0, 4), (2.0, 1.005, 8), (3.0, 1.0, 12)], lower_is_better=True)
    assert validations.time_to_accuracy == 2.0
    assert validations.best == {"epoch": 12, "value": 1.0}
    validations.lower_is_better = False
    assert validations.time_to_accuracy == 1.0
    assert validations.best == {"epoch": 4, "value": 3.0}
    validations.looks = []
    assert validations.time_to_accuracy is None
    assert validations.best is None


@pytest.mark.slow
@few("name", ["multilabel", "regression"], default=1)
def test_a_run_writes_figures_predictions_and_names_of_the_task(name: str, tmp_path: Path) -> None:
    _, graph = TASKS[name]
    names = ("a", "b", "c", "d") if name == "multilabel" else None
    graph = dataclasses.replace(graph, class_names=names)
    folder = tmp_path / "run"
    keys = {"workers": 2, "comm": "threads", "trainer": {"max_epochs": 2, "check_val_every_n_epoch": 1}}
    keys |= {"report": False, "logger": "csv", "types": "ignore"}
    result = gnnkit.train(graph, strategy="vertex_centric", task=name, folder=folder, **keys)
    task = TASKS[name][0]
    assert set(task.names) <= set(result)
    assert result["task"] == name
    assert result["time_to_accuracy"] is not None
    predictions = np.load(folder / "predictions.npy")
    assert predictions.shape == graph.labels.shape
    assert task.progress in (folder / "csv/metrics.csv").read_text()
    test = graph.split == Split.TEST
    if name == "multilabel":
        assert json.loads((folder / "classes.json").read_text()) == list(names or ())
        assert set(np.unique(predictions)) <= {0, 1}
    else:
        assert np.abs(predictions - graph.labels)[test].mean() == pytest.approx(result["test_mae"], rel=1e-5)


@pytest.mark.slow
def test_programs_have_no_task(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="task=regression: model=pagerank is a program, which is not trained"):
        gnnkit.train(PLAIN, strategy="vertex_centric", model="pagerank", task="regression", folder=tmp_path / "run")


@pytest.mark.slow
def test_a_default_task_asks_whether_whole_numbers_are_classes(tmp_path: Path) -> None:
    graph = dataclasses.replace(PLAIN, labels=np.arange(48.0), split=np.arange(48) % 3 + 1)
    keys = {"strategy": "vertex_centric", "workers": 1, "comm": "threads", "types": "ignore", **BARE}
    keys["trainer"] = {"max_epochs": 1}
    with within_process():
        with pytest.raises(UserError, match=r"whole numbers from 0 to 47: use task=regression .*, or task=node_class"):
            gnnkit.train(graph, folder=tmp_path / "asks", **keys)
        numbers = gnnkit.train(graph, task="regression", folder=tmp_path / "numbers", **keys)
        classes = gnnkit.train(graph, task="node_classification", folder=tmp_path / "classes", **keys)
    assert "val_rmse" in numbers
    assert "val_accuracy" in classes


@pytest.mark.slow
def test_logarithms_are_learned_and_every_door_returns_the_labels_unit(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 4)).astype(np.float32)
    graph = dataclasses.replace(
        Graph.from_edges(np.arange(199), np.arange(1, 200), 200, features=x),
        labels=np.exp(4 * x[:, 0].astype(np.float64)) - 1,
        split=np.repeat([1, 2, 3], [120, 40, 40]).astype(np.int8),
    )
    scores = {}
    for scale in ("standard", "log"):
        folder = tmp_path / scale
        task = {"name": "regression", "loss": "absolute", "scale": scale}
        keys = {"strategy": "vertex_centric", "workers": 1, "comm": "threads", "report": False}
        model = {"name": "sage", "aggregator": "none", "dropout": 0}
        result = gnnkit.train(graph, task=task, model=model, trainer={"max_epochs": 60}, folder=folder, **keys)
        scores[scale] = result["test_mae"]
        assert result["test_mae"] == pytest.approx(
            np.abs(np.load(folder / "predictions.npy") - graph.labels)[160:].mean(), rel=1e-4
        )
    assert scores["log"] < 0.5 * scores["standard"]
    reference = np.load(tmp_path / "log/predictions.npy")
    trained_model = gnnkit.load(tmp_path / "log").eval()
    with torch.no_grad():
        np.testing.assert_allclose(trained_model(graph)[:, 0].numpy(), reference, rtol=1e-4, atol=1e-4)
    gnnkit.export(tmp_path / "log", tmp_path / "model.pt2")
    ends = torch.from_numpy(np.stack([np.arange(199), np.arange(1, 200)]))
    exported = torch.export.load(tmp_path / "model.pt2").module()(x=torch.from_numpy(x), edge_index=ends)
    np.testing.assert_allclose(exported[:, 0].detach().numpy(), reference, rtol=1e-4, atol=1e-4)
