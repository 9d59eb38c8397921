"""Every reader reads the labels of edges, which are no features."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import networkx
import numpy as np
import pandas as pd
import pytest
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.npz import Npz
from torch_geometric.data import Data, HeteroData

from gnnkit import config
from gnnkit.config.settings import settle
from gnnkit.dataset.saved import Saved
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Split
from gnnkit.prepare.inputs import load

SRC, DST, AMOUNT = [0, 2, 1, 3], [1, 0, 2, 0], [5.0, 6.0, 7.0, 8.0]
FRAUD, SPLIT = [1, 0, 1, -1], ["train", "val", "test", ""]
TRUTH = dict(zip(zip(SRC, DST, strict=True), zip(FRAUD, [1, 2, 3, 0], strict=True), strict=True))


def table(fraud: Any = ("yes", "no", "yes", None)) -> pd.DataFrame:
    return pd.DataFrame({"src": SRC, "dst": DST, "amount": AMOUNT, "fraud": fraud, "split": SPLIT})


def folder(path: Path, **keys: Any) -> Graph:
    table().to_csv(path / "edges.csv", index=False)
    return EdgeFolder(str(path), symmetrize=False, edge_label="fraud", **keys).load()


def by_relation(path: Path) -> Graph:
    (path / "edges").mkdir()
    for name, rows in (("a", table()[:2]), ("b", table()[2:])):
        rows.to_parquet(path / "edges" / f"{name}.parquet")
    return EdgeFolder(str(path), symmetrize=False, edge_label="fraud").load()


def npz(path: Path) -> Graph:
    csc, order = CSC.from_edges(SRC, DST, 4), np.lexsort((SRC, DST))
    arrays = {"fraud": np.array(FRAUD)[order], "edge_split": np.array(SPLIT)[order]}
    np.savez(path / "graph.npz", indptr=csc.indptr, indices=csc.indices, x=np.ones((4, 1)), **arrays)
    return Npz(str(path / "graph.npz"), edge_label="fraud").load()


def saved(path: Path) -> Graph:
    Graph.from_edges(SRC, DST, 4, edge_labels=FRAUD, edge_split=SPLIT).save(path / "graph")
    return Saved(str(path / "graph")).load()


def masks() -> dict[str, Any]:
    return {f"{name}_mask": torch.tensor([text == name for text in SPLIT]) for name in ("train", "val", "test")}


def pyg(path: Path) -> Graph:
    return Graph.from_pyg(Data(torch.ones(4, 1), torch.tensor([SRC, DST]), edge_label=torch.tensor(FRAUD), **masks()))


def hetero(path: Path) -> Graph:
    data = HeteroData()
    data["user"].x, data["item"].x = torch.ones(4, 1), torch.ones(2, 2)
    data["item", "of", "user"].edge_index = torch.tensor([[0], [3]])
    store = data["user", "pays", "user"]
    store.edge_index, store.edge_label = torch.tensor([SRC, DST]), torch.tensor(FRAUD)
    for name, mask in masks().items():
        store[name] = mask
    return Graph.from_pyg(data)


def nx(path: Path) -> Graph:
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(4))
    for source, destination, fraud in zip(SRC, DST, FRAUD, strict=True):
        graph.add_edge(source, destination, fraud=None if fraud < 0 else fraud)
    return Graph.from_networkx(graph, edge_label="fraud")


READERS: dict[str, Callable[[Path], Graph]] = {
    "frames": lambda path: Graph.from_tables(table(), edge_label="fraud"),
    "folder": folder,
    "relations": by_relation,
    "npz": npz,
    "saved": saved,
    "pyg": pyg,
    "hetero": hetero,
    "networkx": nx,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.filterwarnings("ignore")
def test_labels_and_splits_belong_to_the_edges_of_the_data(reader: str, tmp_path: Path) -> None:
    graph = READERS[reader](tmp_path)
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    assert graph.edge_labels is not None
    assert graph.edge_split is not None
    edges = zip(
        graph.csc.indices.tolist(), ends.tolist(), graph.edge_labels.tolist(), graph.edge_split.tolist(), strict=True
    )
    read = {(src, dst): (label, split) for src, dst, label, split in edges}
    for pair, (label, split) in TRUTH.items():
        assert read.pop(pair) == (label, 0 if reader == "networkx" else split)
    assert all(label == -1 for label, _ in read.values()), "edges of other relations are unlabelled"
    if reader in ("frames", "folder", "relations"):
        assert graph.edge_class_names == ("no", "yes")
        assert graph.edge_feature_names == ("amount",), "labels and splits are no features"


@pytest.mark.parametrize("read", ["frames", "folder"])
@pytest.mark.filterwarnings("ignore")
def test_users_rate_items(read: str, tmp_path: Path) -> None:
    ratings = pd.DataFrame({"user": [7, 8, 7], "item": [7, 7, 9], "rating": [4.5, None, 2.0]})
    ratings.to_csv(tmp_path / "edges.csv", index=False)
    graph = (
        Graph.from_tables(ratings, src="user", dst="item", bipartite=True, edge_label="rating")
        if read == "frames"
        else EdgeFolder(str(tmp_path), edge_label="rating").load()
    )
    assert graph.edge_labels is not None
    np.testing.assert_array_equal(graph.edge_labels, [4.5, np.nan, 2.0])
    assert graph.edge_features is None or graph.edge_features.shape[1] == 0


def test_undirected_networkx_edges_are_one_row_each() -> None:
    graph = Graph.from_networkx(networkx.Graph([(0, 1, {"y": 1}), (1, 2, {"y": 0})]), edge_label="y")
    assert graph.num_edges == 4
    assert sorted(graph.edge_labels.tolist()) == [-1, -1, 0, 1]  # type: ignore[union-attr]
    assert sorted(graph.edge_split.tolist()) == [-1, -1, 0, 0]  # type: ignore[union-attr]


def test_masks_divide_nodes_if_these_have_labels_too() -> None:
    data = Data(
        torch.ones(4, 1), torch.tensor([SRC, DST]), y=torch.tensor([0, 1, 0, 1]), edge_label=torch.tensor(FRAUD)
    )
    data.train_mask = torch.tensor([True, False, False, False])
    graph = Graph.from_pyg(data)
    assert graph.split.tolist() == [Split.TRAIN, 0, 0, 0]
    assert graph.edge_split is not None
    assert not graph.edge_split.any()


def test_names_keep_leading_zeros(tmp_path: Path) -> None:
    table(["01", "1", "01", ""]).to_csv(tmp_path / "edges.csv", index=False)
    assert EdgeFolder(str(tmp_path), symmetrize=False, edge_label="fraud").load().edge_class_names == ("01", "1")


@pytest.mark.filterwarnings("ignore")
def test_a_folder_draws_the_split_of_its_edges(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the data already has a split"):
        folder(tmp_path, split=[0.5, 0.25, 0.25])
    table().drop(columns="split").to_csv(tmp_path / "edges.csv", index=False)
    graph = EdgeFolder(str(tmp_path), symmetrize=True, edge_label="fraud", split=[0.4, 0.3, 0.3]).load()
    assert graph.edge_split is not None
    assert sorted(graph.edge_split[graph.edge_split > 0].tolist()) == [1, 2, 3]


def test_data_without_the_column_have_no_labels_and_say_so(tmp_path: Path) -> None:
    table().drop(columns=["fraud", "split"]).to_csv(tmp_path / "edges.csv", index=False)
    with pytest.warns(UserWarning, match=r"edges.csv has no 'fraud' \(dataset.edge_label\), only src, dst, amount"):
        graph = EdgeFolder(str(tmp_path), symmetrize=True, edge_label="fraud").load()
    assert graph.edge_split is not None
    assert np.count_nonzero(graph.edge_split == 0) == 4, "reverse edges are known as such without labels, too"
    with pytest.raises(UserError, match="edges has no column 'frad'"):
        Graph.from_tables(table(), edge_label="frad")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"edge_split": SPLIT}, "edge_split needs edge_labels"),
        ({"edge_labels": FRAUD, "edge_split": ["train"] * 4}, "edges: split.* 1 such edges"),
        ({"edge_labels": [0, 1, 2, 0], "edge_class_names": ["a", "b"]}, "edge_labels"),
    ],
)
def test_wrong_fields_are_errors(fields: Any, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Graph.from_edges(SRC, DST, 4, **fields)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("split", [[0.4, 0.3, 0.3], {"by": "time", "shares": [0.4, 0.3, 0.3]}], ids=["random", "time"])
def test_a_split_of_nodes_is_no_split_of_edges(tmp_path: Path, split: Any) -> None:
    table().drop(columns="split").assign(time=[1, 2, 3, 4]).to_csv(tmp_path / "edges.csv", index=False)
    (tmp_path / "nodes.csv").write_text("id,label,split\n0,a,train\n1,b,val\n2,a,test\n3,b,\n")
    graph = EdgeFolder(str(tmp_path), symmetrize=True, edge_label="fraud", split=split).load()
    assert graph.edge_split is not None
    assert sorted(graph.edge_split[graph.edge_split > 0].tolist()) == [1, 2, 3]
    assert (graph.split.tolist(), graph.class_names) == ([1, 2, 3, 0], ("a", "b"))


@pytest.mark.parametrize("task", ["edge_classification", "node_classification"])
def test_a_task_on_edges_refuses_a_misspelt_column(
    tmp_path: Path, task: str, capfd: pytest.CaptureFixture[str]
) -> None:
    table(["yes", "no", "yes", "no"]).drop(columns="split").to_csv(tmp_path / "edges.csv", index=False)
    keys = ["dataset=edges", f"dataset.root={tmp_path}", "dataset.edge_label=frad", "strategy=vertex_centric"]
    settings = settle(config.compose([*keys, f"task={task}"]))
    message = r"edges.csv has no 'frad' \(dataset.edge_label\), only src, dst, amount, fraud"
    if task == "edge_classification":
        with pytest.raises(UserError, match=message):
            load(settings)
        return
    load(settings)
    assert re.search(f"warning: .*{message}", capfd.readouterr().err)
