"""Files of a run, read with the names of the user's own tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph

import gnnkit
from tests.cases import few

RNG = np.random.default_rng(1)
NAMES = [f"node {number}" for number in RNG.permutation(48)]  # in no order
GRAPH = check_graph(48).symmetrize()
SPLITS = ["train", "val", "test"]
LABELS = {
    "node_classification": [("red", "blue", "green")[label] for label in RNG.integers(0, 3, 48)],
    "multilabel": [";".join(sorted(set(RNG.choice(["z", "y", "x"], 2)))) for _ in range(48)],
    "regression": [f"{number:.3f}" for number in RNG.normal(size=48)],
    "link_prediction": ["a"] * 48,
}


def write(folder: Path, labels: list[str]) -> None:
    csc = GRAPH.csc
    destinations = np.repeat(np.arange(48), np.diff(csc.indptr))
    edges = [f"{NAMES[u]},{NAMES[v]}" for u, v in zip(csc.indices, destinations, strict=True) if u != v]
    (folder / "edges.csv").write_text("\n".join(["src,dst", *edges]) + "\n")
    nodes = [
        f"{name},{label},{SPLITS[at % 3]},{at % 7}" for at, (name, label) in enumerate(zip(NAMES, labels, strict=True))
    ]
    (folder / "nodes.csv").write_text("\n".join(["id,label,split,feature", *nodes]) + "\n")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def mean_over_test(nodes: list[dict[str, str]], values: list[float]) -> float:
    return float(np.mean([value for node, value in zip(nodes, values, strict=True) if node["split"] == "test"]))


@pytest.mark.slow
@few("name", LABELS, ["multilabel"])
def test_predictions_are_in_the_order_of_the_nodes_and_classes_have_their_names(name: str, tmp_path: Path) -> None:
    write(tmp_path, LABELS[name])
    keys: dict[str, Any] = {"workers": 3, "comm": "threads", "partition": {"name": "1d", "nodes": "hash"}}
    keys |= {"report": False, "logger": "none"}
    dataset = {"name": "edges", "root": str(tmp_path)}
    run = tmp_path / "run"
    result = gnnkit.train(
        dataset=dataset, strategy="vertex_centric", task=name, trainer={"max_epochs": 1}, folder=run, **keys
    )
    nodes, predictions = rows(tmp_path / "nodes.csv"), np.load(run / "predictions.npy")
    if name == "link_prediction":
        edges = {(edge["src"], edge["dst"]) for edge in rows(tmp_path / "edges.csv")}
        assert {(nodes[int(u)]["id"], nodes[int(v)]["id"]) for u, v, _ in predictions} <= edges
        return
    if name == "regression":
        errors = [abs(float(node["label"]) - results) for node, results in zip(nodes, predictions, strict=True)]
        assert mean_over_test(nodes, errors) == pytest.approx(result["test_mae"], rel=1e-4)
        return
    classes = json.loads((run / "classes.json").read_text())
    if name == "node_classification":
        right = [float(node["label"] == classes[results]) for node, results in zip(nodes, predictions, strict=True)]
        assert mean_over_test(nodes, right) == pytest.approx(result["test_accuracy"])
        return
    target = [{*node["label"].split(";")} for node in nodes]
    results = [{classes[at] for at in np.flatnonzero(row)} for row in predictions]
    both = mean_over_test(nodes, [float(len(a & b)) for a, b in zip(target, results, strict=True)])
    each = mean_over_test(nodes, [float(len(a) + len(b)) for a, b in zip(target, results, strict=True)])
    assert 2 * both / each == pytest.approx(result["test_micro_f1"])
