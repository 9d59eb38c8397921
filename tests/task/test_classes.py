"""Figures of each class and the matrix of confusion, exact over ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import ONE, on_ranks
from torchmetrics.functional.classification import (
    multiclass_confusion_matrix,
    multiclass_f1_score,
    multiclass_precision,
    multiclass_recall,
    multilabel_f1_score,
)

import gnnkit
from gnnkit.graph import Graph
from gnnkit.task.classes import MAX_CLASSES
from gnnkit.task.node_classification import NodeClassification
from tests.jobs.test_train import small_graph
from tests.runs import BARE

SPLITS = {"train": 1, "val": 2, "test": 3}


def run(folder: Path, graph: Graph, **keys: Any) -> dict[str, Any]:
    keys = {"workers": 3, "threads": 1, "comm": "threads", "trainer": {"max_epochs": 2}} | BARE | keys
    gnnkit.train(graph, strategy="vertex_centric", folder=folder, **keys)
    return json.loads((folder / "result.json").read_text())  # type: ignore[no-any-return]


@pytest.mark.slow
def test_figures_of_classes_are_those_of_torchmetrics(tmp_path: Path) -> None:
    graph = small_graph()
    graph = Graph(graph.csc, graph.features, graph.labels, graph.split, class_names=("red", "green", "blue"))
    result = run(tmp_path / "run", graph)
    predictions, labels = torch.from_numpy(np.load(tmp_path / "run/predictions.npy")), torch.from_numpy(graph.labels)
    assert result["confusion"]["classes"] == ["red", "green", "blue"]
    for split, code in SPLITS.items():
        rows = torch.from_numpy(graph.split == code)
        found, actual = predictions[rows], labels[rows]
        matrix = multiclass_confusion_matrix(found, actual, num_classes=3)
        assert result["confusion"][split] == matrix.tolist()
        measures = {"precision": multiclass_precision, "recall": multiclass_recall, "f1": multiclass_f1_score}
        for name, measure in measures.items():
            reference = measure(found, actual, num_classes=3, average="none").tolist()
            got = [result["per_class"][split][each][name] for each in result["confusion"]["classes"]]
            assert got == pytest.approx(reference, abs=1e-6), (split, name)
        assert [each["support"] for each in result["per_class"][split].values()] == matrix.sum(1).tolist()
    again = gnnkit.predict(tmp_path / "run", graph, job="test", workers=2, comm="threads", folder=tmp_path / "test")
    assert (again["per_class"], again["confusion"]) == (result["per_class"], result["confusion"])


@pytest.mark.slow
def test_sets_of_classes_have_figures_and_no_confusion(tmp_path: Path) -> None:
    graph = small_graph()
    labels = np.stack([graph.labels == 0, graph.labels != 1, np.arange(graph.num_nodes) % 2 == 0], 1)
    sets = Graph(graph.csc, graph.features, labels, graph.split)
    result = run(tmp_path / "run", sets, task="multilabel")
    rows = torch.from_numpy(graph.split == 3)
    predictions = torch.from_numpy(np.load(tmp_path / "run/predictions.npy"))[rows]
    reference = multilabel_f1_score(predictions, torch.from_numpy(labels)[rows].int(), num_labels=3, average="none")
    actual = result["per_class"]["test"]
    assert [actual[name]["f1"] for name in ("0", "1", "2")] == pytest.approx(reference.tolist(), abs=1e-6)
    assert [actual[name]["support"] for name in actual] == labels[graph.split == 3].sum(0).tolist()
    assert result["confusion"] is None


def test_many_classes_have_no_figures_of_each() -> None:
    graph = check_graph()
    for width, bounded in ((MAX_CLASSES, False), (MAX_CLASSES + 1, True)):
        outputs = torch.zeros(graph.num_nodes, width, dtype=torch.float64)
        (results,) = on_ranks(graph, ONE, lambda worker, outputs=outputs: NodeClassification().details(outputs, worker))
        assert (results["per_class"] is None) == (results["confusion"] is None) == bounded
