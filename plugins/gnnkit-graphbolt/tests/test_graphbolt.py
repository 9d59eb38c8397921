"""Folders of GraphBolt's OnDiskDataset, before they are preprocessed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_graphbolt import GraphBolt

from gnnkit.errors import UserError
from tests.folders import graphbolt_folder


@pytest.mark.parametrize("form", ["numpy", "csv"])
def test_edges_features_and_sets_are_read(form: str, tmp_path: Path) -> None:
    arrays = graphbolt_folder(tmp_path / "data", np.random.default_rng(0), form)
    graph = GraphBolt(str(tmp_path / "data")).load()
    dst = np.repeat(np.arange(40), np.diff(graph.csc.indptr))
    np.testing.assert_array_equal(arrays["edges"][:, graph.edge_positions], [graph.csc.indices, dst])
    np.testing.assert_array_equal(graph.features, np.column_stack([arrays["feat"], arrays["age"]]))
    np.testing.assert_array_equal(graph.edge_features, arrays["length"][graph.edge_positions])
    assert graph.feature_names == ("feat[0]", "feat[1]", "feat[2]", "age")
    assert graph.split.tolist() == [1 + v % 3 for v in range(36)] + [0] * 4
    assert graph.labels.tolist() == [*arrays["labels"][:36], -1, -1, -1, -1]
    assert GraphBolt(str(tmp_path / "data"), ignore=["feat", "age", "length"]).load().features.shape == (40, 0)


def test_numbers_of_nodes_in_a_csv_are_spelt_one_way(tmp_path: Path) -> None:
    graphbolt_folder(tmp_path / "data", np.random.default_rng(0), "csv")
    path = tmp_path / "data/edges.csv"
    path.write_text("007" + path.read_text()[path.read_text().index(",") :])
    with pytest.raises(UserError, match=r"edges\.csv, column 'src', row 0: '007' differs from the id 7 in form"):
        GraphBolt(str(tmp_path / "data")).load()


def change(facts: dict[str, Any], folder: Path, kind: str) -> None:
    """Changes a metadata.yaml into one that is refused."""
    (task,) = facts["tasks"]
    if kind == "torch":
        facts["feature_data"][0]["format"] = "torch"
    elif kind == "types":
        facts["graph"]["nodes"] = [{"type": "a", "num": 1}, {"type": "b", "num": 2}]
    elif kind == "typed":
        facts["feature_data"][0]["type"] = "author"
    elif kind == "tasks":
        facts["tasks"].append({**task, "name": "other"})
    elif kind == "twice":
        np.save(folder / "test_set.npy", np.load(folder / "train_set.npy"))
    elif kind == "unlabelled":
        task["test_set"][0]["data"].pop()
    elif kind == "rows":
        np.save(folder / "length.npy", np.zeros((3, 2)))
    elif kind == "range":
        np.save(folder / "test_set.npy", np.load(folder / "test_set.npy") + 99)
    elif kind == "ready":
        facts["graph_topology"] = {}
    else:
        facts["graph"] = 3


REFUSED = {
    "torch": r"feat.npy has format torch, expected numpy; it contains pickled objects: save it with np.save, with format numpy",
    "types": r"graph must list nodes and edges of one type: use Graph.from_dgl\(graph\).save\(DIR\)",
    "typed": "type 'author': several types are not supported",
    "tasks": "has several tasks: set dataset.task=NAME to one of node_classification, other",
    "twice": "test_set.npy: node 0 is also in another set",
    "unlabelled": "test_set has seeds, expected seeds and labels of nodes",
    "rows": r"rows|edge_features has shape \[3, 2\]",
    "range": r"test_set.npy\[0\] = 101 is out of range",
    "ready": "lists preprocessed files, which contain pickled objects: use the parent folder",
    "none": "graph must list nodes and edges",
}


@pytest.mark.parametrize(("kind", "message"), REFUSED.items())
def test_what_is_not_read_is_refused_with_the_way(kind: str, message: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    graphbolt_folder(folder, np.random.default_rng(0))
    facts = json.loads((folder / "metadata.yaml").read_text())
    change(facts, folder, kind)
    (folder / "metadata.yaml").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=message) as raised:
        GraphBolt(str(folder)).load()
    assert str(raised.value).startswith(f"dataset.root={folder}: ")
    assert "\n" not in str(raised.value)


Change = Callable[[Any, Path], object]
CHANGES: list[tuple[Change, dict[str, Any], str]] = [
    (lambda facts, _: facts["feature_data"][0].pop("path"), {}, r"metadata.yaml: \{.*'name': 'feat'.*\} has no path"),
    (lambda facts, _: facts["graph"].update(nodes=[{"num": -1}]), {}, "graph.nodes must give num, the number of nodes"),
    (lambda *_: None, {"task": "node_clasification"}, "dataset.task=node_clasification .*node_classification"),
    (
        lambda facts, _: facts["tasks"][0].update(test_set=[{}]),
        {},
        "test_set must be a list with one set of untyped nodes",
    ),
    (
        lambda _, folder: np.save(folder / "test_set_labels.npy", np.zeros(3)),
        {},
        "test_set_labels.npy has 3 labels for 12",
    ),
    (lambda _, folder: np.save(folder / "age.npy", np.zeros(3)), {}, r"node features have \[40, 3\] rows"),
]


@pytest.mark.parametrize(("change", "keys", "message"), CHANGES)
def test_what_does_not_fit_is_named(change: Change, keys: dict[str, Any], message: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    graphbolt_folder(folder, np.random.default_rng(0))
    facts = json.loads((folder / "metadata.yaml").read_text())
    change(facts, folder)
    (folder / "metadata.yaml").write_text(json.dumps(facts))
    with pytest.raises(UserError, match=message):
        GraphBolt(str(folder), **keys).load()
