"""The npz data set: real files, and hostile ones."""

from __future__ import annotations

import io
import os
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gnnkit_formats import npz
from gnnkit_formats.npz import Arrays, Npz

from gnnkit.errors import UserError
from gnnkit.graph import Split
from tests.cases import few

FIELDS: dict[str, Any] = {
    "indptr": np.array([0, 1, 2, 2]),
    "indices": np.array([1, 0], np.int32),
    "x_indptr": np.array([0, 2, 2, 3]),
    "x_indices": np.array([0, 3, 1]),
    "x_shape": np.array([3, 4]),
    "y": np.array([0, 1, -1]),
    "train_mask": np.array([True, False, False]),
    "val_mask": np.array([False, True, False]),
    "test_mask": np.array([False, False, False]),
}
MASKS = {f"{name}_masks": np.tile(FIELDS[f"{name}_mask"], (2, 1)) for name in ("train", "val", "test")}


def write(folder: Path, **changes: Any) -> Path:
    path = folder / "graph.npz"
    np.savez(path, **{name: value for name, value in (FIELDS | changes).items() if value is not None})
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "nodes", "edges", "width", "classes"),
    [("cora", 2708, 10556, 1433, 7), ("citeseer", 3327, 9104, 3703, 6), ("pubmed", 19717, 88648, 500, 3)],
)
def test_planetoid_graphs_have_their_published_sizes(
    data_folder: Path, name: str, nodes: int, edges: int, width: int, classes: int
) -> None:
    graph = Npz(str(data_folder / f"{name}.npz"), row_normalize=True).load()
    assert (graph.num_nodes, graph.num_edges, graph.features.shape[1]) == (nodes, edges, width)
    assert graph.num_classes == classes
    assert [(graph.split == split).sum() for split in (Split.TRAIN, Split.VAL, Split.TEST)] == [20 * classes, 500, 1000]
    sums = np.asarray(graph.features).sum(axis=1)
    np.testing.assert_allclose(sums[sums > 0], 1, rtol=1e-5)
    assert graph.symmetrize().num_edges == edges


@pytest.mark.exhaustive
def test_seeded_splits_are_chosen_by_number(data_folder: Path) -> None:
    path = str(data_folder / "amazon_photo.npz")
    first, default, last = Npz(path, split=0).load(), Npz(path).load(), Npz(path, split=9).load()
    np.testing.assert_array_equal(first.split, default.split)
    assert (first.split != last.split).any()
    with pytest.raises(ValueError, match=r"dataset.split=10 is out of range for 10 splits"):
        Npz(path, split=10).load()


def test_features_without_data_are_ones(tmp_path: Path) -> None:
    graph = Npz(str(write(tmp_path))).load()
    np.testing.assert_array_equal(graph.features, [[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 0, 0]])
    np.testing.assert_array_equal(graph.split, [Split.TRAIN, Split.VAL, Split.NONE])


def test_weights_and_dense_features_are_read_and_directed_graphs_symmetrized(tmp_path: Path) -> None:
    path = write(tmp_path, indptr=np.array([0, 2, 2, 2]), indices=np.array([1, 2]), weight=[0.5, 2.0], x=np.eye(3))
    graph = Npz(str(path), symmetrize=True).load()
    np.testing.assert_array_equal(graph.csc.indptr, [0, 2, 3, 4])
    np.testing.assert_array_equal(graph.csc.weight, [0.5, 2, 0.5, 2])
    np.testing.assert_array_equal(graph.features, np.eye(3))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y": None}, "labels: no node has a label, but 2 are in a split"),
        ({"indices": np.array([1, 3], np.int32)}, r"indices\[1\] = 3 is out of range for 3 nodes"),
        ({"indptr": np.array([0, 2, 1, 2])}, r"indptr\[2\] = 1 is below"),
        ({"x_indices": np.array([0, 4, 1])}, r"x_indptr, x_indices, x_data: indices\[1\] = 4 is out of range"),
        ({"x_data": np.array([1, np.nan, 1])}, r"x_data: weight\[1\] = nan is not finite"),
        ({"x_indices": np.array([3, 3, 1])}, r"x_data: features: row 0 has column 3 twice"),
        ({"x_shape": np.array([4, 4])}, r"x_shape = \[4, 4\], expected \(3, width\)"),
        ({"x_shape": np.array([3, 2**62])}, r"\(3, 4611686018427387904\) have more than 2147483647 columns"),
        ({"y": np.array([0, 1, -(2**53)])}, "labels hold -9007199254740992 and 1, and float64"),
        ({"y": np.array([0, 1])}, "labels has 2 entries, expected 3"),
        ({"train_mask": np.array([1, 0, 0])}, "train mask has dtype int64"),
        ({"train_mask": np.array([True, True, False])}, "node 1 is in more than one of"),
        ({"train_mask": np.array([False, False, True])}, r"split\[2\] = 1 \(TRAIN\), but labels\[2\] = -1"),
        ({"y": np.array([print] * 3)}, "y holds Python objects"),
        ({"x_data": np.array([1, 1e39, 1])}, r"x_data: values\[1\] = 1e\+39 is too large for float32"),
        ({"x": np.full((3, 1), 1e39)}, r"features\[0, 0\] = 1e\+39 is too large for float32"),
        ({"train_mask": np.array(True)}, r"train mask has dtype bool, shape \[\]"),
        ({"indptr": np.array(3)}, r"indptr has shape \[\], expected one dimension"),
    ],
)
def test_errors_name_file_and_field(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = write(tmp_path, **changes)
    with pytest.raises(ValueError, match=message) as caught:
        Npz(str(path)).load()
    assert f"dataset.root={path}: " in str(caught.value)


def test_split_without_split_arrays_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no array 'train_masks'"):
        Npz(str(write(tmp_path)), split=0).load()
    assert Npz(str(write(tmp_path, **MASKS)), split=1).load().num_nodes == 3


def test_split_arrays_of_other_shapes_are_refused(tmp_path: Path) -> None:
    for masks in (np.array(True), np.array([True, False, False])):
        with pytest.raises(UserError, match=r"val_masks has shape \[.*\], expected \[splits, num_nodes\]"):
            Npz(str(write(tmp_path, **MASKS | {"val_masks": masks})), split=0).load()


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "graph.npz")
    with pytest.raises(UserError, match=r"graph\.npz is no regular file"):
        Npz(str(tmp_path / "graph.npz")).load()


def npy_header(shape: tuple[int, ...]) -> bytes:
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<i8", "fortran_order": False, "shape": shape})
    return file.getvalue()


def test_a_header_larger_than_the_file_is_refused_before_allocation(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("indptr.npy", npy_header((2**60,)))
    with pytest.raises(ValueError, match=r"indptr promises shape \(1152921504606846976,\)"):
        Npz(str(path)).load()


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + bytes(18)])
def test_files_of_another_kind_are_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "graph.npz"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"dataset.root={path}: (not an .npz file|no array 'indptr')"):
        Npz(str(path)).load()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"dataset.root=.*nowhere.npz: No such file"):
        Npz(str(tmp_path / "nowhere.npz")).load()


@pytest.mark.exhaustive
@few("step", [29, 5], default=[29])
def test_flipped_bytes_give_an_error_or_a_valid_graph(tmp_path: Path, step: int) -> None:
    content = write(tmp_path).read_bytes()
    path = tmp_path / "flipped.npz"
    for position in range(0, len(content), step):
        path.write_bytes(content[:position] + bytes([content[position] ^ 0x41]) + content[position + 1 :])
        with suppress(ValueError):
            Npz(str(path)).load()


def benchmark(folder: Path, **changes: Any) -> Path:
    """Writes a file of gnn-benchmark: edges 0 -> 1, 1 -> 2, 2 -> 1 of 4 nodes."""
    fields: dict[str, Any] = {
        "adj_indptr": np.array([0, 1, 2, 3, 3], np.int32),
        "adj_indices": np.array([1, 2, 1], np.int32),
        "adj_data": np.ones(3, np.float32),
        "adj_shape": np.array([4, 4]),
        "attr_indptr": np.array([0, 1, 1, 2, 2], np.int32),
        "attr_indices": np.array([2, 0], np.int32),
        "attr_data": np.array([1, 0.5], np.float32),
        "attr_shape": np.array([4, 3]),
        "labels": np.array([0, 1, 1, 0]),
    }
    np.savez(folder / "benchmark.npz", **fields | changes)
    return folder / "benchmark.npz"


def test_gnn_benchmark_files_are_read_and_get_a_split(tmp_path: Path) -> None:
    graph = Npz(str(benchmark(tmp_path)), split=[0.5, 0.25, 0.25]).load()
    np.testing.assert_array_equal(graph.csc.indptr, [0, 0, 2, 3, 3])
    np.testing.assert_array_equal(graph.csc.indices, [0, 2, 1])
    assert graph.csc.weight is None
    np.testing.assert_array_equal(graph.features, [[0, 0, 1], [0, 0, 0], [0.5, 0, 0], [0, 0, 0]])
    assert graph.labels.tolist() == [0, 1, 1, 0]
    assert np.bincount(graph.split).tolist() == [0, 2, 1, 1]
    dense = benchmark(tmp_path, attr=np.eye(4), adj_data=np.array([2.0, 3, 4]))
    again = Npz(str(dense), symmetrize=True).load()
    np.testing.assert_array_equal(again.features, np.eye(4))
    np.testing.assert_array_equal(again.csc.weight, [2, 2, 4, 3])
    assert not again.split.any()


@pytest.mark.parametrize(
    ("changes", "options", "message"),
    [
        ({}, {"split": 0}, "dataset.split=0 selects a mask, but the file has no masks"),
        ({"adj_shape": np.array([4, 5])}, {}, r"adj_data: the matrix has shape \[4, 5\]"),
        ({"attr_shape": np.array([3, 3])}, {}, r"attr_shape = \[3, 3\], expected \(4, width\)"),
        ({"labels": np.array(["a"] * 4, object)}, {}, "labels holds Python objects, which only pickle could read"),
    ],
)
def test_gnn_benchmark_files_name_what_is_wrong(
    tmp_path: Path, changes: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        Npz(str(benchmark(tmp_path, **changes)), **options).load()


def test_a_file_without_labels_and_masks_is_read(tmp_path: Path) -> None:
    bare = Npz(str(write(tmp_path, y=None, train_mask=None, val_mask=None, test_mask=None))).load()
    assert not bare.labelled.any()
    assert not bare.split.any()
    none = {"train_mask": None, "val_mask": None, "test_mask": None}
    with pytest.warns(UserWarning, match="the file has several splits; use dataset.split=0 for the first one"):
        assert not Npz(str(write(tmp_path, **none, **MASKS))).load().split.any()


def test_a_file_with_masks_draws_no_split(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"dataset\.split=.*: the data already has a split"):
        Npz(str(write(tmp_path)), split=[0.6, 0.2, 0.2]).load()
    bare = write(tmp_path, train_mask=None, val_mask=None, test_mask=None)
    assert Npz(str(bare), split=[0.5, 0.5, 0]).load().split.tolist() in ([1, 2, 0], [2, 1, 0])


@pytest.mark.slow
def test_an_array_that_unpacks_to_more_than_the_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 1 << 23
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros(size))
    assert (tmp_path / "x.npz").stat().st_size < 8 * size / 500
    monkeypatch.setattr(npz, "available_memory", lambda: 8 * size - 1)
    with (
        Arrays(tmp_path / "x.npz") as arrays,
        pytest.raises(UserError, match=r"^x unpacks from .* to 67,108,864 bytes"),
    ):
        _ = arrays["x"]
    monkeypatch.setattr(npz, "available_memory", lambda: 8 * size)
    with Arrays(tmp_path / "x.npz") as arrays:
        assert arrays["x"].shape == (size,)
