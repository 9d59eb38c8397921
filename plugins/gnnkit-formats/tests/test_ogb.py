"""Folders of OGB, in both kinds, as the package `ogb` downloads them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_formats.ogb import Ogb

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from tests.folders import EDGES, FEATURES, ogb, table


def binary(folder: Path) -> Path:
    """Writes the same data set as ogbn-papers100M is kept."""
    ogb(folder, edge=None, node_feat=None, node_label=None, num_node_list=None, num_edge_list=None)
    (folder / "raw").mkdir(exist_ok=True)
    counts = {"num_nodes_list": np.array([3]), "num_edges_list": np.array([4])}
    np.savez(folder / "raw/data.npz", edge_index=EDGES, node_feat=FEATURES, **counts)
    np.savez(folder / "raw/node-label.npz", node_label=np.array([[4.0], [0.0], [1.0]]))
    return folder


def neighbours(graph: Graph) -> list[list[int]]:
    return [graph.csc.indices[a:b].tolist() for a, b in zip(graph.csc.indptr, graph.csc.indptr[1:], strict=False)]


@pytest.mark.parametrize("write", [ogb, binary])
def test_both_kinds_are_read(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    graph = Graph.from_ogb(write(tmp_path / "ogbn_arxiv"))
    assert neighbours(graph) == [[2], [0], [1, 2]]
    np.testing.assert_array_equal(graph.features, FEATURES)
    assert graph.labels.tolist() == [4, 0, 1]
    assert graph.split.tolist() == [2, 3, 1]
    assert graph.node_ids is None


def test_inverse_edges_stand_where_ogb_puts_them(tmp_path: Path) -> None:
    rows = np.arange(4.0)[:, None]
    graph = Graph.from_ogb(ogb(tmp_path / "ogbn-products", edge_feat=rows))
    listed = np.stack([np.stack([EDGES[0], EDGES[1]], 1).ravel(), np.stack([EDGES[1], EDGES[0]], 1).ravel()])
    dst = np.repeat(np.arange(3), np.diff(graph.csc.indptr))
    np.testing.assert_array_equal(listed[:, graph.edge_positions], [graph.csc.indices, dst])
    np.testing.assert_array_equal(graph.edge_features[:, 0], graph.edge_positions // 2)


def test_several_classes_and_no_features(tmp_path: Path) -> None:
    graph = Graph.from_ogb(ogb(tmp_path / "ogbn_proteins", node_feat=None, node_label=[[0, 1], [1, 1], [0, 0]]))
    assert graph.labels.tolist() == [[False, True], [True, True], [False, False]]
    assert graph.features.shape == (3, 0)


def test_nodes_without_label_and_names_of_nodes_and_classes(tmp_path: Path) -> None:
    folder = ogb(tmp_path / "ogbn_arxiv", node_label=[["2"], ["nan"], ["0"]])
    table(folder / "split/time/test.csv.gz", [])
    table(folder / "split/time/valid.csv.gz", [])
    table(folder / "mapping/nodeidx2paperid.csv.gz", [[0, 9657784], [1, 39886], [2, 116]], "node idx,paper id")
    table(folder / "mapping/labelidx2category.csv.gz", [[i, f"arxiv cs {x}"] for i, x in enumerate("abc")], "label,x")
    graph = Graph.from_ogb(folder)
    assert graph.labels.tolist() == [2, -1, 0]
    assert graph.node_ids.tolist() == [9657784, 39886, 116]
    assert graph.class_names == ("arxiv cs a", "arxiv cs b", "arxiv cs c")


def test_ids_of_a_mapping_are_kept_as_they_are_spelt(tmp_path: Path) -> None:
    folder = ogb(tmp_path / "ogbn_arxiv")
    table(folder / "mapping/nodeidx2paperid.csv.gz", [[0, "007"], [1, "7"], [2, "9007199254740993.0"]], "node idx,id")
    assert Graph.from_ogb(folder).node_ids.tolist() == ["007", "7", "9007199254740993.0"]
    table(folder / "mapping/nodeidx2paperid.csv.gz", [[0, "7"], [1, "8"], [2, "7"]], "node idx,id")
    with pytest.raises(UserError, match=r"node_ids\[2\] = 7 occurs a second time, after node_ids\[0\]"):
        Graph.from_ogb(folder)


def test_the_keys_choose_split_and_edges(tmp_path: Path) -> None:
    folder = ogb(tmp_path / "mine")
    for part in ("train", "valid", "test"):
        table(folder / f"split/random/{part}.csv.gz", [["train", "valid", "test"].index(part)])
    graph = Ogb(str(folder), split="random", add_inverse_edge=False, symmetrize=True).load()
    assert graph.split.tolist() == [1, 2, 3]
    assert graph.num_edges == 7
    with pytest.raises(UserError, match=r"choose one of the splits with split=NAME, there are: random, time"):
        Ogb(str(folder), add_inverse_edge=True).load()
    with pytest.raises(UserError, match=r"mine is none of ogbn_arxiv, .*: set add_inverse_edge=true if"):
        Ogb(str(folder), split="time").load()


def test_tables_without_a_meaning_are_named(tmp_path: Path) -> None:
    folder = ogb(tmp_path / "ogbn_arxiv")
    table(folder / "raw/node_month.csv.gz", [[2001]] * 3)
    with pytest.warns(UserWarning, match="raw: ignores unknown attributes: node_month"):
        Graph.from_ogb(folder)


def test_the_year_of_a_node_is_its_time(tmp_path: Path) -> None:
    folder = ogb(tmp_path / "ogbn_arxiv")
    table(folder / "raw/node_year.csv.gz", [[2001], [2003], [2002]])
    times = Graph.from_ogb(folder).node_time
    assert times is not None
    assert times.tolist() == [2001, 2003, 2002]


@pytest.mark.parametrize(
    ("name", "tables", "message"),
    [
        ("ogbg_molhiv", {}, "labels of graphs, which are unsupported"),
        ("ogbl_collab", {}, "pairs of edges kept with pickle, which are unsupported"),
        ("ogbn_arxiv", {"num_node_list": [[1], [2]]}, "raw holds 2 graphs: graph labels are unsupported"),
        ("ogbn_arxiv", {"triplet-type-list": [["a", "b", "c"]]}, "several types of nodes or edges"),
        ("ogbn_arxiv", {"edge": [[0, 1, 2]]}, r"edge.csv.gz has 3 columns, expected source and destination"),
        ("ogbn_arxiv", {"edge": [[0, 7]]}, r"dst\[0\] = 7 is out of range"),
        ("ogbn_arxiv", {"edge": [["a", 0]]}, "edge.csv.gz: column 0 holds string, expected numbers"),
        ("ogbn_arxiv", {"edge": [[0, 1], [0]]}, "edge.csv.gz: CSV parse error: Expected 2 columns, got 1: 0"),
        ("ogbn_arxiv", {"edge": None}, "edge.csv.gz: No such file or directory"),
        ("ogbn_arxiv", {"node_feat": [[1], [2]]}, r"features has shape \[2, 1\], expected \[3, any\]"),
        ("ogbn_arxiv", {"node_label": [[1]]}, "labels has 1 entries, expected 3"),
        ("ogbn_arxiv", {"node_label": [["nan"], [1], [0]]}, "split.*no label"),
    ],
)
def test_errors_name_the_file_in_one_line(tmp_path: Path, name: str, tables: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        Ogb(str(ogb(tmp_path / name, **tables))).load()
    assert "\n" not in str(caught.value)


def test_what_the_arrays_or_the_command_name_is_looked_for(tmp_path: Path) -> None:
    folder = ogb(tmp_path / "ogbn_arxiv")
    with pytest.raises(UserError, match=r"split=tmie is not known: did you mean split=time\?|split=tmie .*time"):
        Ogb(str(folder), split="tmie").load()
    folder = binary(tmp_path / "ogbn_papers100M")
    with np.load(folder / "raw/data.npz") as found:
        np.savez(folder / "raw/data.npz", **{**found, "edge_index": EDGES.T})
    with pytest.raises(UserError, match=r"data\.npz: edge_index has shape \[4, 2\], expected \[2, num_edges\]"):
        Graph.from_ogb(folder)


@pytest.mark.parametrize(
    ("rows", "header"),
    [
        ([[0, "a", 1], [1, "b", 2], [2, "c", 3]], "label,category,more"),
        ([[0, "a"], [1, "b"]], "label,category"),
        ([[2, "c"], [1, "b"], [0, "a"]], "label,category"),
        ([["x", "a"], ["y", "b"], ["z", "c"]], "label,category"),
        ([[0, "a"], [1, "b"], [2, "b"]], "label,category"),
    ],
    ids=["three columns", "too few", "another order", "words", "twice"],
)
def test_a_mapping_that_does_not_name_every_class_once_is_not_read(
    rows: list[list[Any]], header: str, tmp_path: Path
) -> None:
    folder = ogb(tmp_path / "ogbn_arxiv", node_label=[[2], [1], [0]])
    table(folder / "mapping/labelidx2category.csv.gz", rows, header)
    assert Graph.from_ogb(folder).class_names is None


def test_splits_are_checked_and_pipes_are_refused(tmp_path: Path) -> None:
    folder = ogb(tmp_path / "ogbn_arxiv")
    table(folder / "split/time/test.csv.gz", [[2]])
    with pytest.raises(UserError, match=r"test\.csv\.gz: node 2 is in another part"):
        Graph.from_ogb(folder)
    table(folder / "split/time/test.csv.gz", [[3]])
    with pytest.raises(UserError, match=r"contains ids outside the nodes 0\.\.2"):
        Graph.from_ogb(folder)
    (folder / "raw/edge.csv.gz").unlink()
    os.mkfifo(folder / "raw/edge.csv.gz")
    with pytest.raises(UserError, match="is no regular file"):
        Graph.from_ogb(folder)
    (folder / "raw/edge.csv.gz").unlink()
    (folder / "raw/edge.csv.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"edge\.csv\.gz: "):
        Graph.from_ogb(folder)
    with pytest.raises(UserError, match="has no folder raw"):
        Graph.from_ogb(tmp_path)
