"""Data sets of other forms give the same graph in pieces as when read as a whole."""

from __future__ import annotations

import errno
import io
import os
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from gnnkit_formats import pieces
from gnnkit_formats.graphsaint import GraphSaint
from gnnkit_formats.npz import Npz
from gnnkit_formats.ogb import Ogb
from gnnkit_formats.pieces import EdgePiece, GraphPieces, NodeFields, Room
from gnnkit_graphbolt import GraphBolt
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.dataset.base import Dataset
from gnnkit.dataset.saved import Saved
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph
from tests.folders import digests_of, graphbolt_folder, ogb, table

N, M = 50, 300
Rng = np.random.Generator


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a few edges and rows make several pieces, and skips `fsync`."""
    monkeypatch.setattr(pieces, "_MOST_PIECE", 16)
    monkeypatch.setattr(pieces, "_LEAST_PIECE", 16)
    monkeypatch.setattr(pieces, "_MOST_ROWS", 9)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no test turns the machine off


def imported(dataset: Dataset, work: Path) -> dict[str, str]:
    work.mkdir()
    graph = in_pieces(dataset)
    assert graph is not None
    assert graph.files
    with warnings.catch_warnings(record=True):
        found = import_graph(
            graph, work, Room(1 << 26, 1, bucket=60), Journal(work, "asked"), ProgressReporter(quiet=True)
        )
    return digests_of(found)


def whole(dataset: Dataset, folder: Path) -> dict[str, str]:
    with warnings.catch_warnings(record=True):
        dataset.load().save(folder)
    return digests_of(folder)


def planetoid(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    folder.mkdir()
    counts = rng.multinomial(M, np.ones(N) / N)
    masks = dict(zip(("train_mask", "val_mask", "test_mask"), np.arange(N) % 4 == np.arange(3)[:, None], strict=True))
    fields = {"indptr": np.concatenate([[0], np.cumsum(counts)]), "indices": rng.integers(0, N, M)}
    fields |= {"weight": rng.random(M), "x": rng.normal(size=(N, 4)).astype(np.float32), "y": rng.integers(0, 3, N)}
    np.savez_compressed(folder / "graph.npz", **fields, **({} if "split" in keys else masks))
    return Npz(str(folder / "graph.npz"), **keys)


def saved(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    features, missing = rng.normal(size=(N, 3)), np.array(keys.pop("missing", np.empty((0, 2))), np.int64)
    features[*missing.T] = 0
    graph = Graph.from_edges(
        *rng.integers(0, N, (2, M)),
        N,
        features=features,
        labels=rng.integers(0, 3, N),
        weight=rng.random(M),
        edge_features=rng.normal(size=(M, 2)),
        coordinates=rng.normal(size=(N, 2)),
        class_names=["a", "b", "c"],
        node_ids=[f"node {v}" for v in range(N)],
        feature_names=["x", "y", "z"],
        category_of=["", "colour", "colour"],
        missing=missing if len(missing) else None,
        edge_feature_names=["length", "age"],
        edge_types=None if (names := keys.pop("relations", None)) is None else rng.integers(0, 3, M),
        edge_type_names=names or None,
        node_types=[("person", 20), ("town", N - 20)],
    )
    graph.save(folder)
    return Saved(str(folder), **keys)


def unsorted(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    """A graph whose edges of a destination are in no order, and whose ids are int64."""
    csc = CSC(np.arange(0, M + 1, M // N), rng.integers(0, N, M))
    Graph(csc, np.empty((N, 0)), np.full(N, -1), np.zeros(N, np.int8)).save(folder)
    return Saved(str(folder), **keys)


def ogb_tables(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    n, floats = 3, keys.pop("floats", True)
    edges = rng.integers(0, n, (40, 2))
    rows = rng.normal(size=(40, 2)).round(3) if floats else rng.integers(0, 9, (40, 2))
    features = rng.normal(size=(n, 3)).round(4) if floats else rng.integers(0, 2, (n, 3))
    tables = {"edge": edges, "edge_feat": rows, "node_feat": features, "num_edge_list": [[40]]}
    ogb(folder, **tables | keys.pop("tables", {}))
    table(folder / "mapping/labelidx2category.csv.gz", [[i, f"kind {i}"] for i in range(5)], "label,kind")
    table(folder / "mapping/nodeidx2paperid.csv.gz", [[0, 96], [1, 39], [2, 11]], "node idx,paper id")
    return Ogb(str(folder), **keys)


def ogb_arrays(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    ogb(folder, edge=None, node_feat=None, node_label=None, num_node_list=None, num_edge_list=None)
    (folder / "raw").mkdir()
    ends = rng.integers(0, 3, (2, 40))
    fields = {"edge_index": np.asfortranarray(ends) if keys.pop("fortran", False) else ends}
    if keys.pop("features", True):
        fields |= {"node_feat": rng.random((3, 2)), "edge_feat": rng.random((40, 1))}
    np.savez_compressed(folder / "raw/data.npz", **fields, num_nodes_list=np.array([3]), num_edges_list=np.array([40]))
    np.savez(folder / "raw/node-label.npz", node_label=np.array([[1.0], [0.0], [1.0]]))
    return Ogb(str(folder), **keys)


def graphbolt(folder: Path, rng: Rng, **keys: Any) -> GraphBolt:
    graphbolt_folder(folder, rng, keys.pop("form", "numpy"))
    return GraphBolt(str(folder), **keys)


def saved_without_edges(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    none = np.empty(0, np.int64)
    rows = {"edge_features": np.empty((0, 2)), "edge_feature_names": ["length", "age"]}
    Graph.from_edges(none, none, N, features=rng.normal(size=(N, 3)), weight=np.empty(0), **rows).save(folder)  # type: ignore[arg-type]
    return Saved(str(folder), **keys)


def npz_without_edges(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    folder.mkdir()
    fields = {"indptr": np.zeros(N + 1, np.int64), "indices": np.empty(0, np.int32), "weight": np.empty(0)}
    np.savez(folder / "graph.npz", x=np.empty((N, 0)), y=rng.integers(0, 3, N), **fields)
    return Npz(str(folder / "graph.npz"), **keys)


def ogb_without_edges(folder: Path, rng: Rng, **keys: Any) -> Dataset:
    ogb_arrays(folder, rng, add_inverse_edge=False)
    fields = {"edge_index": np.empty((2, 0), np.int64), "edge_feat": np.empty((0, 1)), "node_feat": rng.random((3, 2))}
    np.savez(folder / "raw/data.npz", num_nodes_list=[3], num_edges_list=[0], **fields)
    return Ogb(str(folder), **keys)


FORMS: list[tuple[Callable[..., Dataset], dict[str, Any]]] = [
    (planetoid, {}),
    (planetoid, {"symmetrize": True, "split": [0.5, 0.2, 0.2], "seed": 4}),
    (saved, {"split": [0.5, 0.25, 0.25]}),
    (saved, {"symmetrize": True}),
    (saved, {"relations": ["likes", "knows", "is"]}),
    (saved, {"relations": [], "symmetrize": True}),
    (saved, {"missing": [[0, 1], [0, 2], [17, 0], [49, 2]]}),
    (unsorted, {}),
    (unsorted, {"symmetrize": True}),
    (graphbolt, {}),
    (graphbolt, {"form": "csv", "symmetrize": True, "ignore": ["age", "length"]}),
    (ogb_tables, {"add_inverse_edge": True}),
    (ogb_tables, {"add_inverse_edge": False, "symmetrize": True, "floats": False}),
    (ogb_arrays, {"add_inverse_edge": False, "row_normalize": True}),
    (ogb_arrays, {"add_inverse_edge": True, "fortran": True, "symmetrize": True}),
    (ogb_tables, {"add_inverse_edge": True, "tables": {"edge_feat": None, "node_feat": None}}),
    (ogb_arrays, {"add_inverse_edge": True, "features": False}),
    (saved_without_edges, {}),
    (saved_without_edges, {"symmetrize": True}),
    (npz_without_edges, {}),
    (ogb_without_edges, {"add_inverse_edge": False}),
]


@pytest.mark.slow
@pytest.mark.parametrize(("write", "keys"), FORMS, ids=[f"{write.__name__}-{len(keys)}" for write, keys in FORMS])
def test_the_pieces_are_those_of_the_whole_graph(
    write: Callable[..., Dataset], keys: dict[str, Any], tmp_path: Path
) -> None:
    dataset = write(tmp_path / "data", np.random.default_rng(len(keys)), **keys)
    assert imported(dataset, tmp_path / "work") == whole(dataset, tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "keys"), [(saved, {}), (planetoid, {"symmetrize": True})], ids=["in order", "sorted"]
)
def test_an_import_goes_on_after_the_disk_was_full(
    write: Callable[..., Dataset], keys: dict[str, Any], tmp_path: Path
) -> None:
    dataset = write(tmp_path / "data", np.random.default_rng(0), **keys)
    graph, room, work = in_pieces(dataset), Room(1 << 26, 1, bucket=60), tmp_path / "work"
    assert graph is not None
    work.mkdir()
    for most in (3, 30, 10**6):
        with pytest.MonkeyPatch.context() as patch:
            left, pwrite = [most], os.pwrite

            def full(file: int, data: Any, place: int, left: list[int] = left, pwrite: Any = pwrite) -> int:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                return int(pwrite(file, data, place))

            patch.setattr(os, "pwrite", full)
            told = pytest.raises(UserError, match="No space left on device") if most < 10**6 else nullcontext()
            with told:
                found = import_graph(graph, work, room, Journal(work, "asked"), ProgressReporter(quiet=True))
    assert digests_of(found) == whole(dataset, tmp_path / "whole")


class Backwards(GraphPieces):
    """Edges that are said to be in order, and are not."""

    in_order = True
    files = ()  # type: ignore[assignment]

    def open(self, room: Room) -> int:
        return 9

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        for first in (0, 4):
            yield EdgePiece("list", np.arange(4), np.array([8, 8, 8, 8 - first]))

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        return NodeFields()


class Beyond(Backwards):
    def edges(self, rows: int) -> Iterator[EdgePiece]:
        yield EdgePiece("list", np.arange(5), np.arange(5))
        yield EdgePiece("list", np.arange(5) + 6, np.arange(5))


class Infinite(Backwards):
    def edges(self, rows: int) -> Iterator[EdgePiece]:
        yield EdgePiece("list", np.arange(2), np.arange(2), np.array([1.0, np.inf]))


class Wider(Backwards):
    def edges(self, rows: int) -> Iterator[EdgePiece]:
        for width in (2, 3):
            yield EdgePiece("list", np.arange(2), np.full(2, width), features=np.zeros((2, width)))


class Short(Backwards):
    def edges(self, rows: int) -> Iterator[EdgePiece]:
        yield EdgePiece("list", np.arange(2), np.arange(2))

    def features(self, room: Room) -> Iterator[Any]:
        yield np.zeros((8, 2))


class Flat(Short):
    def features(self, room: Room) -> Iterator[Any]:
        yield np.zeros(9)


class Nothing(Short):
    def features(self, room: Room) -> Iterator[Any]:
        return iter(())


class FarOut(Short):
    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        return NodeFields(coordinates=np.zeros((9, 4)))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (Backwards, "list: edge 7 is not sorted by destination"),
        (Beyond, r"list: src\[8\] = 9 is out of range for 9 nodes"),
        (Infinite, r"weight\[1\] = inf is not finite"),
        (Wider, "list: edge features have width 3 in some rows, 2 in others"),
        (Short, r"features has shape \[8, 2\], expected \[9, any\]"),
        (Flat, r"features has shape \[9\], expected \[9, any\]"),
        (Nothing, "features has no rows"),
        (FarOut, "coordinates have 4 dimensions, expected 2 or 3"),
    ],
)
def test_pieces_that_do_not_fit_are_named(kind: type[GraphPieces], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"dataset.root=here: {message}"):
        import_graph(
            kind(Path("here")), tmp_path, Room(1 << 26, 1), Journal(tmp_path, ""), ProgressReporter(quiet=True)
        )


class Changing(Backwards):
    """Edges that are others when they are read a second time."""

    files = (Path("list"),)  # type: ignore[assignment]

    def __init__(self, in_order: bool, *readings: list[int]) -> None:
        super().__init__(Path("here"))
        self.in_order, self._readings = in_order, iter(readings)

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        dst = np.array(next(self._readings))
        yield EdgePiece("list", np.zeros_like(dst), dst)


@pytest.mark.parametrize(
    ("in_order", "second"), [(True, [1, 2, 3]), (True, [1]), (False, [1, 2, 3]), (False, [1]), (False, [1, 1])]
)
def test_edges_that_change_while_they_are_read_end_the_import(
    in_order: bool, second: list[int], tmp_path: Path
) -> None:
    graph = Changing(in_order, [1, 2], second)
    with pytest.raises(UserError, match="list changed during the import"):
        import_graph(graph, tmp_path, Room(1 << 26, 1, bucket=1), Journal(tmp_path, ""), ProgressReporter(quiet=True))
    assert not (tmp_path / "graph/meta.json").exists()


@pytest.mark.parametrize(
    ("name", "what"),
    [("val_edges", "edges to predict"), ("feature_width", "sparse features")],
)
def test_what_a_saved_graph_holds_and_no_import_reads_is_refused(name: str, what: str, tmp_path: Path) -> None:
    dataset = saved(tmp_path / "data", np.random.default_rng(0))
    np.save(tmp_path / f"data/{name}.npy", np.zeros(3))
    with pytest.raises(
        UserError, match=f"holds {what}, which job=import does not support; use job=partition dataset=saved"
    ):
        imported(dataset, tmp_path / "work")


def test_a_damaged_archive_and_sparse_rows_are_named(tmp_path: Path) -> None:
    planetoid(tmp_path / "data", np.random.default_rng(0))
    path = tmp_path / "data/graph.npz"
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as file:
        begin = file.getinfo("indices.npy").header_offset
    data[begin + 90 : begin + 130] = b"\xff" * 40
    path.write_bytes(data)
    with pytest.raises(UserError, match="indices"):
        imported(Npz(str(path)), tmp_path / "work")
    csr = sp.csr_matrix(np.eye(3, dtype=np.float32))
    rows = {f"x_{part}": getattr(csr, part) for part in ("indptr", "indices", "shape")}
    np.savez(tmp_path / "sparse.npz", indptr=csr.indptr, indices=csr.indices, **rows)
    with pytest.raises(UserError, match="x_indptr: job=import does not support sparse features; use job=partition"):
        imported(Npz(str(tmp_path / "sparse.npz")), tmp_path / "other")


def test_an_archive_that_promises_more_than_it_has_is_named(tmp_path: Path) -> None:
    planetoid(tmp_path / "data", np.random.default_rng(0))
    path = tmp_path / "data/graph.npz"
    with np.load(path) as found:
        short = found["x"].tobytes()[:-8]
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(found["x"]))
    damage(path, x=None)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("x.npy", header.getvalue() + short)
    data = bytearray(path.read_bytes())
    size = data.rindex(b"PK\x01\x02") + 24  # of the array, in the last entry of the table of contents
    data[size : size + 4] = (int.from_bytes(data[size : size + 4], "little") + 8).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(UserError, match="x is truncated"):
        imported(Npz(str(path)), tmp_path / "work")


def damage(arrays: Path, **changes: Any) -> None:
    """Replaces arrays of a folder of .npy files or of an .npz. None removes one."""
    if arrays.is_dir():
        for name, value in changes.items():
            (arrays / f"{name}.npy").unlink(missing_ok=True)
            if value is not None:
                np.save(arrays / f"{name}.npy", value)
        return
    with np.load(arrays) as found:
        fields = {**found, **changes}
    np.savez(arrays, **{name: value for name, value in fields.items() if value is not None})


DAMAGED: list[tuple[Callable[..., Dataset], str, dict[str, Any], str]] = [
    (saved, "", {"indptr": None}, "holds no indptr"),
    (saved, "", {"indptr": np.arange(N + 1)}, "indices: indptr must ascend from 0 to the number of indices"),
    (saved, "", {"indptr": np.r_[0, M, np.zeros(N - 2, int), M]}, "indices: indptr must ascend from 0"),
    (saved, "", {"weight": np.ones(3)}, rf"indices: weight has shape \[3\], expected {M} rows"),
    (
        planetoid,
        "graph.npz",
        {"val_edges": np.zeros((2, 1))},
        "val_edges: job=import does not support edges to predict; use job=par",
    ),
    (planetoid, "graph.npz", {"indices": None}, "no array 'indices', only "),
    (planetoid, "graph.npz", {"indptr": None}, "no array 'indptr', only "),
    (planetoid, "graph.npz", {"x": np.ones((4, N)).T}, "x is stored by column, and cannot be read by"),
    (planetoid, "graph.npz", {"adj_indptr": np.zeros(2)}, "adj_indptr: job=import does not support edges by source"),
]


@pytest.mark.parametrize(("write", "name", "changes", "message"), DAMAGED)
def test_arrays_that_do_not_fit_are_named(
    write: Callable[..., Dataset], name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    dataset = write(tmp_path / "data", np.random.default_rng(0))
    damage(tmp_path / "data" / name, **changes)
    with pytest.raises(UserError, match=message):
        imported(dataset, tmp_path / "work")
    assert not (tmp_path / "work/graph/meta.json").exists()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"edge_feat": np.zeros((39, 2))}, "raw: the number of edges differs"),
        ({"edge_feat": np.zeros((60, 2))}, "raw: the number of edges differs"),
        ({"edge": np.zeros((40, 3), int)}, r"edge\.csv\.gz has 3 columns, expected source and destination"),
    ],
)
def test_tables_of_ogb_that_do_not_fit_are_named(tables: dict[str, Any], message: str, tmp_path: Path) -> None:
    dataset = ogb_tables(tmp_path / "data", np.random.default_rng(0), add_inverse_edge=False, tables=tables)
    with pytest.raises(UserError, match=message):
        imported(dataset, tmp_path / "work")


def test_edges_that_no_ogb_graph_has_are_named(tmp_path: Path) -> None:
    dataset = ogb_arrays(tmp_path / "data", np.random.default_rng(0), add_inverse_edge=False)
    damage(tmp_path / "data/raw/data.npz", edge_index=np.zeros((40, 2), int))
    with pytest.raises(UserError, match=r"data\.npz: edge_index has shape \[40, 2\], expected \[2, num_edges\]"):
        imported(dataset, tmp_path / "work")


def test_a_data_set_without_pieces_has_none(tmp_path: Path) -> None:
    assert in_pieces(GraphSaint(str(tmp_path))) is None
