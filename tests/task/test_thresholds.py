"""Thresholds and temperatures follow from validation, and stay with the model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gnnkit_testing.ranks import ONE, on_ranks
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F
from torchmetrics.functional.classification import binary_precision, binary_recall, multiclass_calibration_error

import gnnkit
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.partition import Grid
from gnnkit.task import LabelFacts
from gnnkit.task.classes import BINS, PRIOR, ClassTask, best_threshold
from gnnkit.task.multilabel import Multilabel
from gnnkit.task.node_classification import NodeClassification
from tests.runs import BARE, within_process

N = 600
KEYS: dict[str, Any] = {"strategy": "vertex_centric", "comm": "threads", "model": "sage", **BARE}


def customers(rare: int = 1, share: float = 0.05, num_nodes: int = N) -> Graph:
    """Draws a graph with a rare class, which edges and two columns show."""
    rng = np.random.default_rng(0)
    is_rare = rng.random(num_nodes) < share
    src, dst = rng.integers(0, num_nodes, (2, 3 * num_nodes))
    near = rng.choice(np.flatnonzero(is_rare), (2, int(4 * is_rare.sum())))
    features = rng.normal(size=(num_nodes, 4)) + 1.0 * is_rare[:, None] * [1, 1, 0, 0]
    labels = np.where(is_rare, rare, 1 - rare)
    src, dst = np.concatenate([src, near[0]]), np.concatenate([dst, near[1]])
    graph = Graph.from_edges(src, dst, num_nodes, features=features.astype(np.float32), labels=labels)
    return replace(graph.symmetrize().draw_split([0.5, 0.25, 0.25]), class_names=("calm", "fraud")[:: 2 * rare - 1])


def drawn_outputs(graph: Graph, width: int = 2) -> Tensor:
    """Draws overconfident outputs that are related to the labels."""
    noise = torch.randn(graph.num_nodes, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    labels = torch.from_numpy(graph.labels)
    return 3 * (noise + 0.7 * (F.one_hot(labels, width) if labels.ndim == 1 else labels.double()))


def calibrate_ranks(
    task: ClassTask, graph: Graph, outputs: Tensor, grid: Grid = ONE
) -> list[tuple[LabelFacts, Any, Any]]:
    """Returns what each rank has chosen, its lines, and its details."""

    def work(worker: Any) -> tuple[LabelFacts, Any, Any]:
        rank_task = type(task)(**keys_of(task))
        rank_task.begin(worker)
        rows = outputs[torch.from_numpy(worker.owned.astype(np.int64))]
        lines = rank_task.calibrate(rows, worker)
        return rank_task.facts(), lines, rank_task.details(rows, worker)

    return on_ranks(task.prepare(graph)[0], grid, work)


def keys_of(task: ClassTask) -> dict[str, Any]:
    weights = {"class_weights": task.class_weights} if isinstance(task, NodeClassification) else {}
    return {"threshold": task.threshold, "calibration": task.calibration, **weights}


@pytest.mark.parametrize("seed", range(5))
def test_the_threshold_has_the_best_f1(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = (torch.rand(60, generator=draw, dtype=torch.float64) * 20).round() / 20  # with ties
    is_target = (torch.rand(60, generator=draw) < 0.3 * scores).long()

    def f1(threshold: float) -> float:
        is_predicted = scores >= threshold
        return float(2 * is_target[is_predicted].sum() / (is_predicted.sum() + is_target.sum()))

    assert f1(best_threshold(scores, is_target)) == max(f1(float(score)) for score in scores)
    assert best_threshold(scores, torch.zeros_like(is_target)) == 0.5
    assert best_threshold(torch.full_like(scores, 0.1), is_target) == 0.5


@pytest.mark.slow
@pytest.mark.parametrize("weights", [None, "balanced"])
def test_probabilities_fit_the_validation_nodes(weights: Any) -> None:
    graph = customers()
    ((facts, lines, details),) = calibrate_ranks(NodeClassification(weights), graph, outputs := drawn_outputs(graph))
    factors = torch.tensor(facts.class_weights or (1.0, 1.0), dtype=torch.float64)
    val = torch.from_numpy(graph.split == Split.VAL)
    logits, labels = (outputs - factors.log())[val], torch.from_numpy(graph.labels)[val]

    def nll(log_inverse: float) -> float:
        prior = PRIOR * (np.exp(log_inverse) - log_inverse)
        return float(F.cross_entropy(logits * np.exp(log_inverse), labels, reduction="sum")) + prior

    reference = np.exp(-minimize_scalar(nll, bounds=(-3, 3), method="bounded", options={"xatol": 1e-10}).x)
    assert lines == []
    assert details["calibration"]["temperature"] == pytest.approx(reference, rel=1e-5)
    assert details["calibration"]["test_error"] < details["calibration"]["test_error_uncalibrated"]
    choice, raw = facts.in_unit(outputs)[val].softmax(1), outputs[val].softmax(1)
    for name, rows in (("val_error", choice), ("val_error_uncalibrated", raw)):
        error = multiclass_calibration_error(rows.float(), labels, num_classes=2, n_bins=BINS)
        assert details["calibration"][name] == pytest.approx(float(error), abs=1e-5)


@pytest.mark.parametrize(("share", "factors"), [(0.05, True), (0.4, False)])
def test_a_rare_class_is_weighted_by_the_root_of_its_share(share: float, factors: bool) -> None:
    graph = customers(share=share)
    counts = np.bincount(graph.labels[graph.split == Split.TRAIN])
    for grid in (ONE, Grid(3, 1, 1)):
        for facts, _, _ in calibrate_ranks(NodeClassification(), graph, drawn_outputs(graph), grid):
            reference = np.sqrt(counts.sum() / 2 / counts) if factors else None
            assert facts.class_weights == (None if reference is None else pytest.approx(reference, rel=1e-12))
    new_task = NodeClassification()
    new_task.recall(LabelFacts())
    on_ranks(graph, ONE, new_task.begin)
    assert new_task.facts().class_weights is None  # of new data that have a rare class


@pytest.mark.parametrize("rare", [0, 1])
def test_the_table_is_that_of_the_rare_class(rare: int) -> None:
    graph = customers(rare)
    ((facts, _, details),) = calibrate_ranks(NodeClassification(), graph, outputs := drawn_outputs(graph))
    assert facts.thresholds is not None
    assert details["threshold"] == {rare: facts.thresholds[rare]}
    assert sum(facts.thresholds) == pytest.approx(1)
    assert details["thresholds"]["class"] == rare
    for split, code in (("val", Split.VAL), ("test", Split.TEST)):
        rows = torch.from_numpy(graph.split == code)
        scores, is_target = (
            facts.in_unit(outputs)[rows].softmax(1)[:, rare],
            torch.from_numpy(graph.labels == rare)[rows],
        )
        for row in details["thresholds"][split]:
            is_predicted = scores >= row["threshold"]
            assert row["precision"] == pytest.approx(float(binary_precision(is_predicted.long(), is_target.long())))
            assert row["recall"] == pytest.approx(float(binary_recall(is_predicted.long(), is_target.long())))
            if row["threshold"] == facts.thresholds[rare]:
                assert row["f1"] == pytest.approx(details["per_class"][split][rare]["f1"])
    best = max(row["f1"] for row in details["thresholds"]["val"])
    assert details["per_class"]["val"][rare]["f1"] == best


@pytest.mark.parametrize("task", [NodeClassification("balanced"), Multilabel(calibration="temperature")])
def test_ranks_choose_what_one_process_chooses(task: ClassTask) -> None:
    graph = customers()
    if isinstance(task, Multilabel):
        odd = np.random.default_rng(1).random(N) < 0.4
        graph = replace(graph, labels=np.stack([odd, graph.labels == 1], 1), class_names=None)
    outputs = drawn_outputs(graph)
    ((facts, _, details),) = calibrate_ranks(task, graph, outputs)
    for grid in (Grid(2, 1, 1), Grid(3, 1, 1)):
        for other, _, others in calibrate_ranks(task, graph, outputs, grid):
            for name in ("mean", "deviation", "thresholds", "shares"):
                assert getattr(other, name) == pytest.approx(getattr(facts, name), rel=1e-10), name
            assert others["calibration"] == pytest.approx(details["calibration"], rel=1e-10)
            assert list(others["threshold"]) == list(details["threshold"]) == [1]


def test_thresholds_follow_the_keys() -> None:
    graph, even = customers(), customers(share=0.4)
    for task, data, threshold, scale in (
        (NodeClassification(), even, None, False),
        (NodeClassification(calibration="temperature"), even, None, True),
        (NodeClassification(threshold=None), graph, None, True),
        (NodeClassification(threshold=0.3, calibration=None), graph, True, False),
        (NodeClassification(calibration=None), graph, True, False),
        (Multilabel(), replace(even, labels=np.eye(2, dtype=bool)[even.labels], class_names=None), None, False),
    ):
        ((facts, lines, _),) = calibrate_ranks(task, data, drawn_outputs(data))
        assert ((facts.thresholds is not None), (facts.deviation is not None)) == (bool(threshold), scale), keys_of(
            task
        )
        assert lines == []
    outputs = torch.tensor([[0.7, 0.3], [0.71, 0.29]]).log()
    assert NodeClassification(threshold=0.3).predict(outputs).tolist() == [1, 0]
    assert Multilabel(threshold=0.5).predict(torch.tensor([[0.1, -0.1]])).tolist() == [[1, 0]]


def test_a_number_is_the_threshold_of_the_smaller_class() -> None:
    graph = customers()
    names = replace(graph, labels=np.where(graph.labels < 0, -1, 1 - graph.labels), class_names=None)
    for data, number in ((graph, 1), (names, 0)):  # the rare class is the second one, or the first
        ((facts, _, details),) = calibrate_ranks(NodeClassification(threshold=0.2), data, drawn_outputs(data))
        assert facts.thresholds is not None
        assert facts.thresholds[number] == details["threshold"][number] == 0.2
        assert details["thresholds"]["class"] == number
    sets = replace(graph, labels=np.eye(2, dtype=bool)[graph.labels.clip(0)], class_names=None)
    ((_, _, details),) = calibrate_ranks(Multilabel(threshold=0.2), sets, drawn_outputs(sets))
    assert details["threshold"] == {0: 0.2, 1: 0.2}


def test_nothing_is_chosen_without_validation_nodes() -> None:
    graph = customers()
    graph = replace(graph, split=np.where(graph.split == Split.VAL, Split.TRAIN, graph.split))
    for task, lines in ((NodeClassification(), 1), (NodeClassification(threshold=None, calibration=None), 0)):
        ((facts, actual, _),) = calibrate_ranks(task, graph, drawn_outputs(graph))
        assert facts.thresholds is facts.mean is None
        assert len(actual) == lines
        assert all("the validation split is empty" in line for line in actual)


def test_a_number_decides_between_two_classes_only() -> None:
    graph = replace(customers(), labels=np.arange(N) % 3, class_names=None)
    with pytest.raises(UserError, match=r"task\.threshold=0\.3 decides between two classes, and there are 3"):
        NodeClassification(threshold=0.3).prepare(graph)


@pytest.mark.exhaustive
def test_a_saved_model_decides_as_its_run(tmp_path: Path) -> None:
    graph = customers()
    with within_process():
        run = gnnkit.train(
            graph,
            folder=tmp_path / "run",
            workers=2,
            trainer={"max_epochs": 40},
            write=["predictions", "probabilities"],
            **KEYS | {"report": True},
        )
        predictions = gnnkit.predict(
            run.folder, graph, folder=tmp_path / "new", comm="threads", write=["predictions", "probabilities"]
        )
    threshold, rows = run["threshold"]["fraud"], np.load(run.folder / "probabilities.npy")
    labels = np.load(run.folder / "predictions.npy")
    assert threshold != 0.5
    assert 0 < labels.sum() < N / 2
    assert np.array_equal(labels, rows[:, 1] >= threshold)
    for name in ("predictions", "probabilities"):
        np.testing.assert_allclose(
            np.load(predictions.folder / f"{name}.npy"), np.load(run.folder / f"{name}.npy"), atol=1e-5
        )
    np.testing.assert_allclose(gnnkit.load(run.folder)(graph).detach().softmax(1), rows, atol=1e-5)
    with within_process():
        stricter = gnnkit.predict(
            run.folder, graph, folder=tmp_path / "strict", comm="threads", overrides=["task.threshold=0.9"]
        )
    assert np.array_equal(np.load(stricter.folder / "predictions.npy"), rows[:, 1] >= 0.9)
    page = (run.folder / "report.html").read_text()
    assert "Test rows by threshold" in page
    assert "Chosen thresholds" in page
    extra = {"classes": "", "thresholds": ""}
    program = torch.export.load(gnnkit.export(run.folder, tmp_path / "net.pt2"), extra_files=extra)
    assert json.loads(extra["thresholds"])[1] == threshold
    assert json.loads(extra["classes"]) == ["calm", "fraud"]
    dst = np.repeat(np.arange(N), np.diff(graph.csc.indptr))
    edges = torch.from_numpy(np.stack([graph.csc.indices, dst]).astype(np.int64))
    exported = program.module()(x=torch.from_numpy(np.float32(graph.features)), edge_index=edges)
    np.testing.assert_allclose(exported.detach().softmax(1), rows, atol=1e-5)


@pytest.mark.exhaustive
def test_an_onnx_file_holds_the_thresholds(tmp_path: Path) -> None:
    with within_process():
        run = gnnkit.train(customers(), folder=tmp_path / "run", trainer={"max_epochs": 5}, **KEYS)
    session = onnxruntime.InferenceSession(gnnkit.export(run.folder, tmp_path / "net.onnx"))
    metadata = session.get_modelmeta().custom_metadata_map
    assert json.loads(metadata["thresholds"])[1] == run["threshold"]["fraud"]
