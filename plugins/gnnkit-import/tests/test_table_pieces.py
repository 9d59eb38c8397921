"""Arrays and ids beside tables, read in pieces and at once."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import import progress
from gnnkit_import.nodes import check_nodes
from gnnkit_import.npy_writer import BinaryFile
from gnnkit_import.tables import TablePieces

from gnnkit.errors import UserError

SMALL: Any = SimpleNamespace(memory=1000, threads=1)
EDGES = np.array([[0, 1, 2], [1, 2, 0]])


def test_a_split_beside_edges_is_read_and_only_once(tmp_path: Path) -> None:
    np.save(tmp_path / "edges.npy", EDGES)
    np.save(tmp_path / "labels.npy", np.array([0, 1, 0]))
    np.save(tmp_path / "split.npy", np.array([1, 2, 3], np.int8))
    folder = EdgeFolder(str(tmp_path), symmetrize=False)
    assert folder.load().split.tolist() == [1, 2, 3]
    pieces = TablePieces(folder)
    assert np.asarray(pieces.nodes(3, SMALL).split).tolist() == [1, 2, 3]
    assert tmp_path / "split.npy" in pieces.files
    (tmp_path / "labels.npy").unlink()
    pq.write_table(pa.table({"id": [0, 1, 2], "split": ["train", "val", "test"]}), tmp_path / "nodes.parquet")
    with pytest.raises(UserError, match=r"split\.npy and nodes\.parquet both hold a split"):
        folder.load()


@pytest.mark.parametrize("last", [69_999, 80_000])
def test_ids_in_order_take_no_memory(last: int, tmp_path: Path) -> None:
    ids = np.arange(70_000)
    ids[-1] = last
    pq.write_table(pa.table({"id": ids}), tmp_path / "nodes.parquet", row_group_size=10_000)
    np.save(tmp_path / "edges.npy", EDGES)
    pieces = TablePieces(EdgeFolder(str(tmp_path)))
    if last == 69_999:
        assert pieces.open(SMALL) == 70_000
        return
    roomy: Any = SimpleNamespace(memory=10**9, threads=1)
    assert pieces.open(roomy) == 70_000
    kept = pieces.nodes(70_000, roomy).node_ids
    assert kept.to_numpy().tolist() == ids.tolist()


def test_labels_that_memory_cannot_hold_are_told_with_what_is_needed() -> None:
    with pytest.raises(UserError, match=r"memory=1048576: labels, splits and parts of 1,000,000 nodes do not fit; use"):
        check_nodes(Room(1 << 20, 1), 10**6)
    check_nodes(Room(1 << 30, 1), 10**6)


def test_a_record_that_another_program_has_cut_is_named(tmp_path: Path) -> None:
    file = BinaryFile(tmp_path / "x.records")
    file.write(np.arange(4), 0)
    assert file.read((4,), np.int64, 0).tolist() == [0, 1, 2, 3]
    os.truncate(tmp_path / "x.records", 20)
    with pytest.raises(UserError, match=r"x\.records has no 16 bytes at 16: it was changed by another program"):
        file.read((4,), np.int64, 0)
    file.close()


def test_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.1, 100.0])
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    reporter = progress.ProgressReporter()
    reporter.begin("counting edges")
    reporter.update(5, 100, "edges")
    reporter.update(50, 100, "edges")
    first, second = capsys.readouterr().err.splitlines()
    assert (first, second.rstrip()) == ("counting edges", "counting edges: 50 of 100 edges, 100 s left")
