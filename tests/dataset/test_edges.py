"""A user's own folder: every form that is read, and hostile ones."""

from __future__ import annotations

import itertools
import json
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from gnnkit_formats.edges import EdgeFolder

from gnnkit.__main__ import main
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from tests.runs import within_process

NODES = "id,label,split,f0,f1\n10,0,train,1,0.5\n30,1,val,2,0\n20,-1,none,3,0\n40,,,4,0\n"
EDGES = "src,dst,weight,kind\n10,20,0.5,7\n30,10,2,8\n20,10,1,9\n"


def folder(path: Path, **files: str | bytes | np.ndarray[Any, Any] | Mapping[str, Any] | None) -> Path:
    """Writes files `name_suffix=content`. `None` leaves out one of the two defaults."""
    for name, content in ({"nodes_csv": NODES, "edges_csv": EDGES} | files).items():
        file = path / name.replace("_", ".")
        if isinstance(content, str):
            file.write_text(content)
        elif isinstance(content, bytes):
            file.write_bytes(content)
        elif isinstance(content, np.ndarray):
            np.save(file, content)
        elif content is not None:
            pa.parquet.write_table(pa.table(dict(content)), file)
    return path


def load(path: Path, **options: Any) -> Graph:
    return EdgeFolder(str(path), **options).load()


def assert_default(graph: Graph) -> None:
    """The graph of NODES and EDGES: 10, 30, 20, 40 are nodes 0, 1, 2, 3."""
    np.testing.assert_array_equal(graph.csc.indptr, [0, 2, 2, 3, 3])
    np.testing.assert_array_equal(graph.csc.indices, [1, 2, 0])
    np.testing.assert_array_equal(graph.csc.weight, [2, 1, 0.5])
    np.testing.assert_array_equal(graph.edge_features, [[8], [9], [7]])
    np.testing.assert_array_equal(graph.labels, [0, 1, -1, -1])
    np.testing.assert_array_equal(graph.split, [Split.TRAIN, Split.VAL, Split.NONE, Split.NONE])
    np.testing.assert_array_equal(graph.features, [[1, 0.5], [2, 0], [3, 0], [4, 0]])
    assert graph.features.dtype == np.float32


def test_csv_tables_are_read_and_ids_become_positions(tmp_path: Path) -> None:
    assert_default(load(folder(tmp_path)))


def test_columns_may_have_other_names(tmp_path: Path) -> None:
    nodes, edges = NODES.replace("id,label", "employee,team"), EDGES.replace("src,dst", "from,to")
    folder(tmp_path, nodes_csv=nodes, edges_csv=edges)
    assert_default(load(tmp_path, src="from", dst="to", id="employee", label="team"))
    with pytest.raises(UserError, match=r"nodes.csv has no column 'id', only 'employee', .*; use dataset.id=COLUMN"):
        load(tmp_path, src="from", dst="to")
    with pytest.raises(
        UserError, match=r"nodes.csv has no column 'class', only .*; use dataset.label=COLUMN for another name"
    ):
        load(tmp_path, src="from", dst="to", id="employee", label="class")


def test_tables_may_have_other_names(tmp_path: Path) -> None:
    folder(tmp_path, nodes_csv=None, edges_csv=None, people_csv=NODES, calls_csv=EDGES)
    assert_default(load(tmp_path, edges="calls.csv", nodes="people.csv"))
    refused = {
        None: "no folder edges; use dataset.edges=NAME and dataset.nodes=NAME to select from calls.csv, people.csv",
        "call.csv": "dataset.edges=call.csv: no such file in dataset.root, which has calls.csv, people.csv",
        "../calls.csv": "dataset.edges=../calls.csv must be the name of a file or folder in dataset.root",
        "people.txt": "dataset.edges=people.txt must end in .csv, .csv.gz, .tsv, .tsv.gz, .parquet, .npy",
    }
    (tmp_path / "people.txt").write_text(NODES)
    for edges, reference in refused.items():
        with pytest.raises(UserError, match=re.escape(reference)):
            load(tmp_path, edges=edges, nodes="people.csv")


def test_a_folder_of_relations_may_have_another_name(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    for relation in ("knows", "pays"):
        (tmp_path / "links" / f"{relation}.csv").write_text(EDGES)
    folder(tmp_path, edges_csv=None)
    graph = load(tmp_path, edges="links")
    assert graph.num_edges == 6
    assert list(graph.edge_type_names or ()) == ["knows", "pays"]


def test_text_names_the_nodes_of_edges_alone(tmp_path: Path) -> None:
    folder(tmp_path, nodes_csv=None, edges_csv="src,dst\nx7,b\na,x7\n")
    graph = load(tmp_path)
    (tmp_path / "two").mkdir()
    assert list(graph.node_ids) == ["a", "b", "x7"]
    np.testing.assert_array_equal(graph.csc.indptr, [0, 0, 1, 2])  # x7 -> b and a -> x7
    np.testing.assert_array_equal(graph.csc.indices, [2, 0])
    text = "".join(f"{i},{i + 1}\n" for i in range(5))
    folder(tmp_path / "two", nodes_csv=None, edges_csv=f"src,dst\n{text}src,dst\n{text}")
    with pytest.raises(UserError, match=r"edges.csv, column 'src', row 5: 'src' is no whole number"):
        load(tmp_path / "two")
    np.save(tmp_path / "labels.npy", np.zeros(3, np.int64))
    with pytest.raises(UserError, match=r"ids of edges are text, so labels.npy needs a node table"):
        load(tmp_path)
    (tmp_path / "labels.npy").unlink()
    with pytest.raises(UserError, match=r"ids of edges are text, so dataset.num_nodes=3 needs a node table"):
        load(tmp_path, num_nodes=3)


def test_an_array_of_edges_may_have_a_row_for_each(tmp_path: Path) -> None:
    ends = np.array([[0, 1], [1, 2], [2, 0]])
    (tmp_path / "rows").mkdir()
    (tmp_path / "columns").mkdir()
    one = load(folder(tmp_path / "rows", nodes_csv=None, edges_csv=None, edges_npy=ends))
    second = load(folder(tmp_path / "columns", nodes_csv=None, edges_csv=None, edges_npy=ends.T))
    np.testing.assert_array_equal(one.csc.indices, second.csc.indices)
    np.testing.assert_array_equal(one.csc.indptr, [0, 1, 2, 3])


def test_parquet_tables_mean_the_same(tmp_path: Path) -> None:
    nodes = {
        "id": [10, 30, 20, 40],
        "label": [0, 1, -1, None],
        "split": pa.array(["train", "val", "none", None]).dictionary_encode(),
        "f0": [1.0, 2.0, 3.0, 4.0],
        "f1": [0.5, 0.0, 0.0, 0.0],
    }
    edges = {
        "src": pa.array([10, 30, 20], pa.int32()),
        "dst": pa.array([20, 10, 10], pa.uint8()),
        "weight": [0.5, 2.0, 1.0],
        "kind": [7, 8, 9],
    }
    assert_default(load(folder(tmp_path, nodes_csv=None, edges_csv=None, nodes_parquet=nodes, edges_parquet=edges)))


def test_edges_in_an_array_with_named_fields_mean_the_same(tmp_path: Path) -> None:
    fields = [("src", "i8"), ("dst", "i4"), ("weight", "f4"), ("kind", "i2")]
    rows = np.array([(10, 20, 0.5, 7), (30, 10, 2, 8), (20, 10, 1, 9)], fields)
    assert_default(load(folder(tmp_path, edges_csv=None, edges_npy=rows)))


def test_edges_alone_make_a_graph(tmp_path: Path) -> None:
    graph = load(
        folder(tmp_path, nodes_csv=None, edges_csv=None, edges_npy=np.array([[0, 2], [1, 1]])), symmetrize=True
    )
    np.testing.assert_array_equal(graph.csc.indices, [1, 0, 2, 1])
    assert graph.features.shape == (3, 0)
    np.save(tmp_path / "features.npy", np.zeros((6, 2)))
    assert load(tmp_path).num_nodes == 6


def test_text_ids_and_text_labels(tmp_path: Path) -> None:
    nodes = "id,label,split,f\n007,cat,train,1\n7,dog,test,1\nx,,none,1\n"
    graph = load(folder(tmp_path, nodes_csv=nodes, edges_csv="src,dst\n7,007\nx,7\n"))
    np.testing.assert_array_equal(graph.csc.indices, [1, 2])
    np.testing.assert_array_equal(graph.labels, [0, 1, -1])
    assert graph.class_names == ("cat", "dog")
    assert graph.csc.weight is None
    assert graph.edge_features is None


def test_features_and_coordinates_are_arrays_beside_the_tables(tmp_path: Path) -> None:
    features, place = np.arange(12, dtype=np.float16).reshape(4, 3), np.ones((4, 2))
    graph = load(folder(tmp_path, nodes_csv="id\n10\n20\n30\n40\n", features_npy=features, coordinates_npy=place))
    np.testing.assert_array_equal(graph.features, features)
    np.testing.assert_array_equal(graph.coordinates, place)
    assert isinstance(graph.features.base.base, np.memmap)
    np.testing.assert_array_equal(graph.labels, -1)


def test_graphs_are_symmetrized_and_rows_normalized_on_demand(tmp_path: Path) -> None:
    graph = load(folder(tmp_path), symmetrize=True, row_normalize=True)
    np.testing.assert_array_equal(graph.csc.indptr, [0, 2, 3, 4, 4])
    np.testing.assert_array_equal(graph.csc.weight, [2, 1, 2, 0.5])
    np.testing.assert_allclose(graph.features.sum(axis=1), 1)


def by_id(graph: Graph) -> dict[str, Any]:
    """What a graph says about each id of the user, and about each edge."""
    ids = graph.node_ids
    ends = ids[np.repeat(np.arange(4), np.diff(graph.csc.indptr))], ids[graph.csc.indices]
    nodes = zip(graph.labels, graph.split, graph.features.tolist(), graph.coordinates.tolist(), strict=True)
    edges = zip(*ends, graph.csc.weight, graph.edge_features[:, 0], graph.edge_positions, strict=True)
    return {"nodes": dict(zip(ids.tolist(), nodes, strict=True)), "edges": sorted(edges)}


def test_ids_are_sorted_on_demand(tmp_path: Path) -> None:
    plain = load(folder(tmp_path, coordinates_npy=np.arange(8.0).reshape(4, 2)))
    graph = load(tmp_path, sort_ids=True)
    np.testing.assert_array_equal(plain.node_ids, [10, 30, 20, 40])
    np.testing.assert_array_equal(graph.node_ids, [10, 20, 30, 40])
    np.testing.assert_array_equal(graph.labels, [0, -1, 1, -1])
    np.testing.assert_array_equal(graph.csc.indices, [1, 2, 0])
    assert by_id(graph) == by_id(plain)
    text = load(folder(tmp_path, nodes_csv="id\nb\n\u00fc\na10\na2\n", edges_csv="src,dst\n\u00fc,b\n"), sort_ids=True)
    assert text.node_ids.tolist() == ["a10", "a2", "b", "\u00fc"]
    np.testing.assert_array_equal(text.csc.indptr, [0, 0, 0, 1, 1])


def test_only_ids_of_a_table_are_sorted(tmp_path: Path) -> None:
    edges = folder(tmp_path, nodes_csv=None, edges_csv="src,dst\n1,0\n")
    with pytest.raises(UserError, match=r"dataset\.sort_ids=true needs nodes\.csv or nodes\.parquet"):
        load(edges, sort_ids=True)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_sorted_ids_give_the_run_of_a_sorted_table_and_results_name_them(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    ids, label, features = np.arange(40) * 7, np.arange(40) // 20, rng.random((40, 3))
    edges = "src,dst\n" + "".join(f"{a},{b}\n{b},{a}\n" for a, b in zip(ids, np.roll(ids, 1), strict=True))

    def run(name: str, order: np.ndarray[Any, Any], *options: str) -> Path:
        rows = [f"{ids[i]},{label[i]},train,{','.join(map(str, features[i]))}\n" for i in order]
        (tmp_path / name).mkdir()
        root = folder(tmp_path / name, nodes_csv="id,label,split,x,y,z\n" + "".join(rows), edges_csv=edges)
        common = ["dataset=edges", f"dataset.root={root}", "workers=2", "comm=threads", "threads=1", *options]
        common += ["report=false", "logger=none"]
        for job in ("train", "partition"):
            out = [f"job={job}", f"output={root / job}"]
            assert main(["+strategy=vertex_centric", "trainer.max_epochs=2", *common, *out]) == 0
        return root

    with within_process():
        tidy = run("tidy", np.arange(40))
        result = run("found", rng.permutation(40), "dataset.sort_ids=true")
    for root, job in itertools.product((tidy, result), ("train", "partition")):
        np.testing.assert_array_equal(np.load(root / job / "node_ids.npy"), ids)
    for name in ("train/predictions.npy", "partition/partition/node_rank.npy"):
        np.testing.assert_array_equal(np.load(result / name), np.load(tidy / name))
    assert json.loads((result / "partition/partition/meta.json").read_text())["edge_cut"] == 4


@pytest.mark.parametrize("files", [{"edges_csv": "src,dst\n"}, {"edges_csv": None, "edges_npy": np.zeros((2, 0), int)}])
def test_a_table_of_edges_may_be_empty(tmp_path: Path, files: dict[str, Any]) -> None:
    assert load(folder(tmp_path, **files)).num_edges == 0


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"edges_csv": None}, "holds no edges.csv, edges.parquet or edges.npy"),
        ({"edges_npy": np.zeros((2, 1), int)}, "holds both edges.csv and edges.npy: remove or rename one"),
        (
            {"nodes_csv": None, "edges_csv": "src,dst\n0,1\n-1,0\n", "features_npy": np.zeros((4, 1))},
            "column 'src', row 1: -1 is out of range for 4 nodes",
        ),
        ({"nodes_csv": None, "edges_csv": "src,dst\na,1\n"}, r"edges.csv, column 'src', row 0: 'a' is no whole number"),
        ({"nodes_csv": ""}, "nodes.csv: Empty CSV file"),
        ({"nodes_csv": "id,label\n"}, "nodes.csv has no rows"),
        (
            {"nodes_csv": "id,class,split\n10,a,train\n30,b,val\n20,a,none\n40,,\n"},
            "nodes.csv: column 'label' is missing, but 2 nodes are in a split: add it, set dataset.label=COLUMN for another",
        ),
        ({"edges_csv": ""}, "edges.csv: Empty CSV file"),
        (
            {"edges_csv": "10,20\n20,10\n"},
            "edges.csv has no column 'src', only '10', '20'; use dataset.src=COLUMN for another name",
        ),
        ({"edges_csv": "src,dst,dst\n10,20,20\n"}, "edges.csv has two columns 'dst'"),
        ({"edges_csv": "src,dst\n10,20,30\n"}, "edges.csv, line 2: CSV parse error: Expected 2 columns, got 3"),
        ({"edges_csv": "src,dst\n10,20\n10,99\n"}, r"edges.csv, column 'dst', row 1: 99 is no id of a node"),
        ({"edges_csv": "src,dst\n10,20\nten,10\n"}, r"edges.csv, column 'src', row 1: 'ten' is no whole number"),
        ({"edges_csv": "src,dst\n10,20\n,10\n"}, r"edges.csv, column 'src', row 1: is empty"),
        ({"edges_csv": "src,dst\n10,20.5\n"}, r"edges.csv, column 'dst', row 0: '20.5' is no whole number"),
        ({"edges_csv": "src,dst,weight\n10,20,1\n10,20,nan\n"}, r"edges.csv, column 'weight', row 1: (nan|is empty)"),
        ({"edges_csv": "src,dst,weight\n10,20,heavy\n"}, "edges.csv, column 'weight' holds string, expected numbers"),
        ({"edges_csv": "src,dst,w,x\n10,20,1,inf\n"}, r"edges.csv, column 'x', row 0: inf is not finite"),
        (
            {"edges_csv": "src,dst,x\n10,20,1\n10,20,1e39\n"},
            r"edges.csv, column 'x', row 1: 1e\+39 is too large for float32",
        ),
        (
            {"edges_csv": "src,dst,weight\n10,20,1e39\n"},
            r"column 'weight', row 0: 1e\+39 is too large for float32: dataset.ignore=\[weight\]",
        ),
        (
            {"edges_csv": 'src,dst\n10,20\n"10\n",20,30\n'},
            "edges.csv, line 3: CSV parse error: Expected 2 columns, got 3",
        ),
        ({"edges_csv": "src,dst," + "x" * 3_000_000 + "\n1,2,3\n"}, "edges.csv: CSV parse error"),
        ({"edges_csv": "src,dst,src\n10,20,20\n"}, "edges.csv has two columns 'src'"),
        (
            {"edges_csv": ",".join(map(str, range(100_000))) + "\n"},
            "edges.csv has 100000 or more columns, but the limit is 16384; use features.npy for wide features",
        ),
        ({"nodes_csv": NODES.replace("30,1", "10,1")}, r"nodes.csv, column 'id', row 1: 10 occurs a second time"),
        ({"nodes_csv": NODES.replace("30,1", ",1")}, r"nodes.csv, column 'id', row 1: is empty"),
        ({"nodes_csv": NODES.replace("30,1", "3.5,1")}, "edges.csv, column 'src', row 1: '30' is no id of a node"),
        ({"nodes_csv": NODES.replace("val", "valid")}, r"column 'split', row 1: 'valid' is none of train, val, test"),
        (
            {"nodes_csv": NODES.replace("30,1", "30,9007199254740993")},
            r"nodes.csv, column 'label', row 1: '9007199254740993' is beyond 2\^53, where float64 is no exact number",
        ),
        ({"nodes_csv": "id,label\n10,2020-01-01\n20,2020-01-02\n30,2020-01-03\n"}, "column 'label' holds date32"),
        ({"nodes_csv": NODES.replace("-1,none", "-1,test")}, r"split\[2\] = 3 \(TEST\), but labels\[2\] = -1"),
        ({"nodes_csv": NODES.replace("2,0\n", "2,-inf\n")}, r"nodes.csv, column 'f1', row 1: -inf is not finite"),
        (
            {"nodes_csv": NODES.replace("2,0\n", "2,red\n")},
            r"nodes.csv, column 'f1' holds numbers, but 'red' is neither a number nor .*: leave a cell without a number empty, .*: dataset.ignore=\[f1\]",
        ),
        (
            {"edges_csv": EDGES.replace("2,8", "2,")},
            r"edges.csv, column 'kind', row 1: is empty or a word for a missing value.*: dataset.ignore=\[kind\] leaves the column out",
        ),
        ({"features_npy": np.zeros((4, 1))}, "features.npy and nodes.csv both hold features"),
        (
            {"nodes_csv": "id\n10\n20\n30\n", "features_npy": np.zeros((2, 1))},
            r"features has shape \[2, 1\], expected \[3, any\]",
        ),
        (
            {"nodes_csv": "id\n10\n20\n30\n", "features_npy": np.array([[0, 1], [0, np.inf], [0, 0]])},
            r"features\[1, 1\] = inf is not finite",
        ),
        ({"nodes_csv": "id\n10\n20\n30\n", "features_npy": b"\x93NUMPY"}, "features.npy is not a .npy array"),
        ({"nodes_csv": None, "nodes_parquet": b"PAR1 not really PAR1"}, r"nodes.parquet: "),
        ({"nodes_csv": b"\xff\xfe\x00id"}, r"nodes.csv"),
        (
            {"edges_csv": None, "edges_npy": np.zeros(6, int)},
            r"edges.npy has shape \[6\], expected \[2, num_edges\], \[num_edges, 2\] or",
        ),
        (
            {"edges_csv": None, "edges_npy": np.array([[10], [20.5]])},
            r"edges.npy, column 'dst', row 0: 20.5 is no whole number",
        ),
        (
            {"edges_csv": None, "edges_npy": np.array([["a"], ["b"]])},
            r"edges.npy, column 'src', row 0: 'a' is no whole number",
        ),
        ({"edges_csv": None, "edges_npy": np.zeros((2, 2), complex)}, "edges.npy: Unsupported numpy type"),
    ],
)
def test_errors_name_folder_file_column_and_row(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    folder(tmp_path, **files)
    with pytest.raises(UserError, match=message) as caught:
        load(tmp_path)
    assert str(caught.value).startswith(f"dataset.root={tmp_path}: ")
    assert len(str(caught.value).splitlines()) == 1


def test_the_row_of_a_bad_id_is_found_in_a_long_column(tmp_path: Path) -> None:
    rows = "\n".join("10,20" if row != 77_777 else "10,x20" for row in range(100_000))
    with pytest.raises(ValueError, match=r"column 'dst', row 77777: 'x20' is no whole number"):
        load(folder(tmp_path, edges_csv=f"src,dst\n{rows}\n"))


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dataset.root=.*nowhere: is not a folder"):
        load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["edges.csv", "edges.parquet", "edges.npy", "nodes.csv", "features.npy"])
def test_pipes_and_devices_are_refused_at_once(tmp_path: Path, name: str) -> None:
    folder(tmp_path, nodes_csv=None if name == "nodes.csv" else "id\n10\n20\n30\n")
    if name.startswith("edges"):
        (tmp_path / "edges.csv").unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises(UserError, match=f"{name} is no regular file"):
        load(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"{name} is no regular file"):
        load(tmp_path)


def test_the_number_of_nodes_may_be_given(tmp_path: Path) -> None:
    folder(tmp_path, nodes_csv=None, edges_csv="src,dst\n0,1000000\n")
    assert load(tmp_path, num_nodes=1_000_002).num_nodes == 1_000_002
    with pytest.raises(UserError, match="column 'dst', row 0: 1000000 is out of range for 5 nodes"):
        load(tmp_path, num_nodes=5)
    (tmp_path / "nodes.csv").write_text(NODES)
    with pytest.raises(UserError, match=r"dataset\.num_nodes=4: nodes.csv already defines the nodes"):
        load(tmp_path, num_nodes=4)
    with pytest.raises(UserError, match=r"dataset\.num_nodes=0 must be a whole number of at least 1"):
        load(tmp_path, num_nodes=0)


def test_a_path_with_a_line_break_is_shown_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="a b: is not a folder"):
        load(tmp_path / "a\nb")


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["01", "2"], ["01", "2"]),  # not the number 1
        (["2", "1"], [2, 1]),
        (["99999999999999999999", "1"], ["99999999999999999999", "1"]),
        (["2026-01-01", "2026-01-02"], ["2026-01-01", "2026-01-02"]),
        (["true", "false"], ["true", "false"]),
        (["1.50", "1.5"], ["1.50", "1.5"]),
        (["0", "1"], None),  # the number of the node itself
        (["00000000-0000-0000-0000-00000000000a", "b"], ["00000000-0000-0000-0000-00000000000a", "b"]),
    ],
)
def test_ids_are_kept_as_they_are_spelt(tmp_path: Path, ids: list[str], expected: list[Any] | None) -> None:
    graph = load(folder(tmp_path, nodes_csv="id\n" + "\n".join(ids) + "\n", edges_csv=f"src,dst\n{ids[0]},{ids[1]}\n"))
    assert (None if graph.node_ids is None else graph.node_ids.tolist()) == expected
    np.testing.assert_array_equal(graph.csc.indptr, [0, 0, 1])


def test_a_split_is_drawn_from_the_labelled_nodes(tmp_path: Path) -> None:
    rows = [f"{node},{node % 3 if node % 2 else ''}" for node in range(100)]
    folder(tmp_path, nodes_csv="id,label\n" + "\n".join(rows) + "\n", edges_csv="src,dst\n1,0\n")
    split = load(tmp_path, split=[0.6, 0.2, 0.1]).split
    assert np.bincount(split, minlength=4).tolist() == [55, 30, 10, 5]
    assert not split[::2].any()
    np.testing.assert_array_equal(load(tmp_path, split=[0.6, 0.2, 0.1]).split, split)
    assert (load(tmp_path, split=[0.6, 0.2, 0.1], seed=1).split != split).any()


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ([0.5, 0.5], r"dataset.split=\[0.5, 0.5\] must be three shares"),
        ([0, 0.5, 0.5], "must train on some nodes and add up to at most 1"),
        ([0.9, 0.2, 0.2], "must train on some nodes and add up to at most 1"),
        ([0.6, -0.1, 0.2], r"dataset.split\[1\]=-0.1 must be a number from 0 to 1"),
        ([0.6, float("nan"), 0.2], r"dataset.split\[1\]=nan must be a number"),
        ([0.6, 0.2, 0.2], r"dataset.split=\[0.6, 0.2, 0.2\]: the data already has a split"),
    ],
)
def test_shares_of_a_split_are_checked(tmp_path: Path, split: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(folder(tmp_path), split=split)


def test_a_split_without_labelled_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"dataset\.split: split=\[0.6, 0.2, 0.2\] trains on no node: 0 nodes have a label"
    ):
        load(folder(tmp_path, nodes_csv="id\n10\n20\n30\n"), split=[0.6, 0.2, 0.2])


def test_edges_that_all_run_one_way_are_told_of_unless_meant(tmp_path: Path) -> None:
    folder(tmp_path, nodes_csv=None, edges_csv="src,dst\n0,1\n1,2\n2,2\n")
    with pytest.warns(UserWarning, match="none of 3 edges has a reverse edge, .*use dataset.symmetrize=true if"):
        load(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert load(tmp_path, symmetrize=False).num_edges == 3
        assert load(tmp_path, symmetrize=True).num_edges == 5
        load(folder(tmp_path, nodes_csv=None, edges_csv="src,dst\n0,1\n1,0\n2,0\n"))


def test_a_few_edges_with_a_reverse_edge_silence_nothing(tmp_path: Path) -> None:
    """As 27 mutual pairs among 7,235 edges did."""
    text = "".join(f"{u},{u + 1}\n" for u in range(7181)) + "".join(f"{u + 1},{u}\n" for u in range(0, 7181, 266))
    folder(tmp_path, nodes_csv=None, edges_csv=f"src,dst\n{text}")
    with pytest.warns(UserWarning, match=r"^\S+ % of 7,208 edges have a reverse edge, so messages flow from src"):
        load(tmp_path)


@pytest.mark.slow
def test_the_command_tells_of_a_missing_split_and_of_one_way_in_one_line_each(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder(tmp_path, nodes_csv="id,label,f\n0,a;b,1\n1,b,2\n2,a,3\n", edges_csv="src,dst\n0,1\n1,2\n")
    command = ["strategy=vertex_centric", "dataset=edges", f"dataset.root={tmp_path}", "comm=threads", "workers=1"]
    assert main([*command, f"output={tmp_path}/a"]) == 2
    output = capfd.readouterr().err.splitlines()
    assert len(output) == 2
    assert output[0].startswith("gnnkit: warning: dataset=edges: none of 2 edges has a reverse edge")
    assert "the name 'a;b' combines several: use task=multilabel" in output[1]
    assert main([*command, "task=multilabel", f"output={tmp_path}/b"]) == 2
    assert "no node is in the training split: dataset.split=[0.6,0.2,0.2] or Graph" in capfd.readouterr().err


def relations(graph: Graph) -> list[tuple[int, int, str]]:
    """Lists (source, destination, name of the type)."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    assert graph.edge_types is not None
    assert graph.edge_type_names is not None
    names = [graph.edge_type_names[edge_type] for edge_type in graph.edge_types]
    return sorted(zip(graph.csc.indices.tolist(), dst.tolist(), names, strict=True))


TYPED = [(0, 1, "writes"), (0, 2, "cites"), (1, 2, "cites")]


def test_types_of_edges_are_a_column_of_names_or_numbers(tmp_path: Path) -> None:
    rows = "".join(f"{u},{v},{name}\n" for u, v, name in TYPED)
    graph = load(folder(tmp_path, nodes_csv=None, edges_csv=f"src,dst,type\n{rows}"), symmetrize=False)
    assert relations(graph) == sorted(TYPED)
    assert graph.edge_type_names == ("cites", "writes")
    assert graph.edge_features is None
    numbers = load(folder(tmp_path, nodes_csv=None, edges_csv="src,dst,type\n0,1,2\n1,2,0\n"), symmetrize=False)
    assert numbers.edge_type_names == ("0", "1", "2")
    assert relations(numbers) == [(0, 1, "2"), (1, 2, "0")]


def test_types_of_edges_are_files_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    (tmp_path / "edges" / "writes.csv").write_text("src,dst,weight,year\n0,1,2,1999\n")
    columns = {"year": [2001, 2002], "src": [0, 1], "dst": [2, 2], "weight": [3.0, 4.0]}
    pa.parquet.write_table(pa.table(columns), tmp_path / "edges" / "cites.parquet")
    graph = load(folder(tmp_path, nodes_csv=None, edges_csv=None), symmetrize=False)
    assert relations(graph) == sorted(TYPED)
    np.testing.assert_array_equal(graph.csc.weight, [2, 3, 4])
    np.testing.assert_array_equal(graph.edge_features, [[1999], [2001], [2002]])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "the folder edges holds no .csv, .parquet or .npy file"),
        (
            {"a.csv": "src,dst\n0,1\n", "b.csv": "src,dst,x\n0,1,2\n"},
            r"edges/b\.csv has the columns src, dst, x, but ed",
        ),
        (
            {"a.csv": "src,dst,type\n0,1,2\n"},
            r"edges/a\.csv has a column 'type', but its file name already names the relation",
        ),
        ({"a.csv": "src,dst\n0,1\n", "a.npy": ""}, r"holds both a\.csv and a\.npy"),
        ({"a.csv": "src,dst\n0,x\n"}, r"a\.csv, column 'dst', row 0: 'x' is no whole number"),
    ],
)
def test_folders_of_relations_name_the_file_at_fault(tmp_path: Path, files: dict[str, str], message: str) -> None:
    (tmp_path / "edges").mkdir()
    for name, content in files.items():
        (tmp_path / "edges" / name).write_text(content)
    with pytest.raises(UserError, match=message):
        load(folder(tmp_path, nodes_csv=None, edges_csv=None))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,1,a\n1,2,\n", r"edges\.csv, column 'type', row 1: is empty"),
        ("0,1,1\n1,2,\n", r"edges\.csv, column 'type', row 1: is empty"),
        ("0,1,0.5\n", r"edges\.csv, column 'type', row 0: 0\.5 is no whole number"),
        ("0,1,-1\n", r"edge_types\[0\] = -1 is out of range"),
    ],
)
def test_types_that_cannot_be_name_the_row(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load(folder(tmp_path, nodes_csv=None, edges_csv=f"src,dst,type\n{rows}"))


def test_a_file_and_a_folder_of_edges_are_one_too_many(tmp_path: Path) -> None:
    (tmp_path / "edges").mkdir()
    with pytest.raises(UserError, match=r"holds both edges\.csv and a folder edges: remove or rename one"):
        load(folder(tmp_path))


@pytest.mark.parametrize("empty", ["", "nan", "NA"])
def test_empty_cells_of_features_are_kept_as_such(tmp_path: Path, empty: str) -> None:
    nodes = NODES.replace("2,0\n", f"2,{empty}\n").replace("3,0\n", f"{empty},0\n")
    graph = load(folder(tmp_path, nodes_csv=nodes))
    np.testing.assert_array_equal(graph.missing, [[1, 1], [2, 0]])
    np.testing.assert_array_equal(graph.features, [[1, 0.5], [2, 0], [0, 0], [4, 0]])
    by_id = load(folder(tmp_path, nodes_csv=nodes), sort_ids=True)  # 10, 20, 30, 40
    np.testing.assert_array_equal(by_id.missing, [[2, 1], [1, 0]])
    graph.save(tmp_path / "graph")
    np.testing.assert_array_equal(Graph.load(tmp_path / "graph").missing, graph.missing)


def test_a_column_without_any_number_is_empty_throughout(tmp_path: Path) -> None:
    missing = load(folder(tmp_path, nodes_csv="id,a,b\n10,,1\n20,,2\n30,,3\n")).missing
    np.testing.assert_array_equal(missing, [[0, 0], [1, 0], [2, 0]])


@pytest.mark.parametrize(
    "files",
    [
        {"features_npy": np.array([[0, 1], [0, np.nan], [0, 0], [np.nan, 0]]), "nodes_csv": "id\n10\n20\n30\n40\n"},
        {"nodes_csv": None, "nodes_parquet": {"id": [10, 20, 30, 40], "x": [[0.0, 1.0], [0.0, None], [0.0, 0.0], [np.nan, 0]]}},
    ],
    ids=["npy", "lists"],
)  # fmt: skip
def test_empty_cells_of_every_form_are_found(tmp_path: Path, files: dict[str, Any]) -> None:
    np.testing.assert_array_equal(load(folder(tmp_path, **files)).missing, [[1, 1], [3, 0]])


def test_columns_may_be_left_out_of_either_table(tmp_path: Path) -> None:
    nodes = NODES.replace("f0", "town").replace(",1,0.5", ",York,0.5")
    graph = load(folder(tmp_path, nodes_csv=nodes), ignore=["town", "kind", "weight"])
    assert graph.feature_names == ("f1",)
    assert graph.edge_features is graph.csc.weight is None
    (tmp_path / "nodes.csv").write_text("id,town,label,x,kin\n10,York,a,1,p\n20,Bath,b,2,q\n30,Hull,a,3,r\n")
    assert load(tmp_path).category_of == ("town", "town", "town", "", "kin", "kin", "kin")
    for name in ("edges.csv", "nodes.csv"):
        (tmp_path / name).unlink(missing_ok=True)
    rows = "\n".join(f"{row},u{row},v{row},{row},2024-05-0{1 + row % 9}" for row in range(300))
    (tmp_path / "nodes.csv").write_text(f"id,town,kin,x,day\n{rows}\n")
    (tmp_path / "edges.csv").write_text("src,dst\n1,2\n")
    message = r"2 columns .*: nodes.csv, column 'town' is text with more than 256 .* \(also 'kin'\): .*=\[town,kin\] "
    with pytest.raises(UserError, match=message):
        load(tmp_path)
    assert load(tmp_path, ignore=["town", "kin"]).feature_names == ("x", "day")
    with pytest.raises(UserError, match=r"dataset.ignore=\['twon'\]: no column 'twon' in nodes.csv or edges.csv"):
        load(tmp_path, ignore=["twon"])
    with pytest.raises(UserError, match=r"dataset.ignore=3 must be a list of column names"):
        load(tmp_path, ignore=3)


@pytest.mark.parametrize("name", ["src", "dst", "id"])
def test_columns_of_ids_cannot_be_left_out(tmp_path: Path, name: str) -> None:
    table = "nodes" if name == "id" else "edges"
    with pytest.raises(UserError, match=rf"{table}.csv has no column '{name}', only .*; use dataset.{name}=COLUMN"):
        load(folder(tmp_path), ignore=[name])


def test_labels_and_splits_of_edges_may_be_left_out(tmp_path: Path) -> None:
    edges = "src,dst,lab,split\n10,20,a,train\n30,10,b,test\n"
    path = folder(tmp_path, edges_csv=edges)
    unsplit = load(path, edge_label="lab", ignore=["split"]).edge_split
    assert unsplit is None or not unsplit.any()
    with pytest.warns(UserWarning, match=r"edges.csv has no 'lab' \(dataset.edge_label\)"):
        graph = load(path, edge_label="lab", ignore=["lab", "split"])
    assert graph.edge_labels is not None
    assert (graph.edge_labels == -1).all()


def test_cells_of_a_csv_may_have_line_breaks_wherever_a_block_ends(tmp_path: Path) -> None:
    rows = 100_000  # several of pyarrow's blocks
    graph = load(folder(tmp_path, edges_csv="src,dst,kind\n" + '10,20,"a\nb"\n' * rows), symmetrize=False)
    assert (graph.num_edges, graph.edge_feature_names) == (rows, ("kind=a\nb",))
