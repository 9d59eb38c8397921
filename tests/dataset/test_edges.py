from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest

from gnnkit.dataset.edges import EdgeFolder

NODES = "id,label,split\nc,1,train\na,0,val\nb,,none\n"
EDGES = "src,dst,weight,kind\na,b,0.5,1\nb,c,2,0\nc,a,1,3\n"


def folder(root: Path, **files: str) -> Path:
    for name, text in files.items():
        (root / f"{name}.csv").write_text(text)
    return root


def load(root: Path) -> object:
    return EdgeFolder(str(root)).load()


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_nodes_are_numbered_as_their_table_lists_them(tmp_path: Path, form: str) -> None:
    folder(tmp_path, nodes=NODES, edges=EDGES)
    if form == "parquet":
        for path in list(tmp_path.glob("*.csv")):
            pyarrow.parquet.write_table(pyarrow.csv.read_csv(path), path.with_suffix(".parquet"))
            path.unlink()
    np.save(tmp_path / "features.npy", np.arange(6, dtype=np.float32).reshape(3, 2))
    graph = EdgeFolder(str(tmp_path)).load()
    dst = np.repeat(np.arange(3), np.diff(graph.csc.indptr))
    edges = sorted(
        zip(graph.csc.indices.tolist(), dst.tolist(), graph.csc.weight, graph.edge_features[:, 0], strict=True)
    )
    assert edges == [(0, 1, 1, 3), (1, 2, 0.5, 1), (2, 0, 2, 0)]  # c, a, b
    assert graph.labels.tolist() == [1, 0, -1]
    assert graph.split.tolist() == [1, 2, 0]
    assert graph.features.tolist() == [[0, 1], [2, 3], [4, 5]]


def test_further_columns_of_nodes_are_features(tmp_path: Path) -> None:
    folder(tmp_path, nodes="id,height,width\n7,1,2\n5,3,4\n", edges="src,dst\n5,7\n")
    graph = EdgeFolder(str(tmp_path)).load()
    assert graph.features.tolist() == [[1, 2], [3, 4]]
    assert graph.csc.indices.tolist() == [1]


def test_edges_alone_make_a_graph(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", np.array([[0, 3], [1, 1]]))
    assert EdgeFolder(str(tmp_path), symmetrize=True).load().num_edges == 4


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"nodes": NODES}, "no edges.csv"),
        ({"nodes": NODES, "edges": "src,dst\na,z\n"}, "column dst, row 0 = z is not an id"),
        ({"nodes": NODES, "edges": "src,to\na,b\n"}, "no column dst"),
        ({"nodes": "id,label\na,0\na,1\n", "edges": "src,dst\na,a\n"}, "column id, row 1 = a is there twice"),
        ({"nodes": "id,label\na,x\n", "edges": "src,dst\na,a\n"}, "expected whole numbers"),
        ({"nodes": "id,label\na,-7\n", "edges": "src,dst\na,a\n"}, "row 0 = -7"),
        ({"nodes": "id,split\na,training\n", "edges": "src,dst\na,a\n"}, "row 0 = 'training'"),
        ({"nodes": "id,f\na,nan\n", "edges": "src,dst\na,a\n"}, "column f, row 0"),
        ({"nodes": "id,f\na,1\n", "edges": "src,dst\na,\n"}, "column dst, row 0"),
        ({"nodes": "id,f\n1,1\n", "edges": "src,dst\na,a\n"}, "column src of the edges"),
        ({"edges": "src,dst,weight\n0,1,inf\n"}, "column weight, row 0"),
        ({"edges": ""}, r"edges\.csv"),
        ({"edges": "src,dst\n-1,0\n"}, "-1"),
    ],
)
def test_errors_name_file_column_and_row(tmp_path: Path, files: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        load(folder(tmp_path, **files))
    assert "dataset.root=" in str(error.value)


def test_a_missing_folder_and_a_broken_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is not a folder"):
        load(tmp_path / "nowhere")
    (tmp_path / "edges.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(ValueError, match=r"edges\.parquet"):
        load(tmp_path)
