"""An imported graph has the bytes of the graph that was read into memory."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from gnnkit.dataset.edges import EdgeFolder
from gnnkit.dataset.importing import edges as passes
from gnnkit.dataset.importing.edges import Room
from gnnkit.dataset.importing.graph import import_graph
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.errors import UserError
from gnnkit.storage import digests_of


FORMS = ["two rows", "two columns", "fortran", "fields", "parquet", "parts", "directory", "csv"]
TINY = Room(1 << 26, 1, bucket=7)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a few edges make several pieces."""
    monkeypatch.setattr(passes, "_MOST_PIECE", 16)
    monkeypatch.setattr(passes, "_LEAST_PIECE", 16)


def imported(folder: Path, work: Path, room: Room = TINY, **options: Any) -> Path:
    work.mkdir(exist_ok=True)
    with warnings.catch_warnings(record=True):
        journal = Journal(work, "asked")
        return import_graph(EdgeFolder(str(folder), **options), work, room, journal, Teller(quiet=True))


def saved(folder: Path, target: Path, **options: Any) -> Path:
    with warnings.catch_warnings(record=True):
        EdgeFolder(str(folder), **options).load().save(target)
    return target


def write_edges(folder: Path, form: str, columns: dict[str, Any]) -> None:
    table, ends = pa.table(columns), [columns["src"], columns["dst"]]
    if form in ("two rows", "two columns", "fortran"):
        ends = np.array(ends) if form == "two rows" else np.array(ends).T
        np.save(folder / "edges.npy", np.asfortranarray(ends.T) if form == "fortran" else np.ascontiguousarray(ends))
    elif form == "fields":
        rows = np.empty(len(columns["src"]), [(name, np.asarray(column).dtype) for name, column in columns.items()])
        for name, column in columns.items():
            rows[name] = column
        np.save(folder / "edges.npy", rows)
    elif form == "csv":
        pa.csv.write_csv(table, folder / "edges.csv")
    elif form == "parquet":
        pa.parquet.write_table(table, folder / "edges.parquet", row_group_size=9)
    else:
        parts = folder / ("edges" if form == "parts" else "edges.parquet")
        parts.mkdir()
        for number in range(11):
            some = table.slice(
                number * table.num_rows // 11, (number + 1) * table.num_rows // 11 - number * table.num_rows // 11
            )
            pa.parquet.write_table(some, parts / f"part.{number}.parquet")
        (parts / "_SUCCESS").touch()


def random_folder(folder: Path, seed: int) -> dict[str, Any]:
    """Writes a folder of a random form. Returns the options by which it is read."""
    rng, draw = np.random.default_rng(seed), random.Random(seed)
    folder.mkdir()
    form, n, m = FORMS[seed % len(FORMS)], int(rng.integers(1, 40)), int(rng.integers(0, 120))
    low = rng.integers(0, max(n // draw.choice([1, 2, 8]), 1), (2, m))  # doubles, loops, isolated nodes
    src, dst = low[0], rng.integers(0, n, m) if draw.random() < 0.5 else low[1]
    columns: dict[str, Any] = {"src": src, "dst": dst}
    plain = form in FORMS[:3]
    kind = draw.choice(["none", "numbers", "text", "sparse"])
    if form == "csv" and m == 0:
        kind = "none"
    options: dict[str, Any] = {"symmetrize": draw.choice([True, False, None])}
    if not plain and draw.random() < 0.6:
        columns["weight"] = (
            rng.random(m).astype(draw.choice([np.float32, np.float64]))
            if draw.random() < 0.7
            else rng.integers(1, 9, m)
        )
    if not plain and draw.random() < 0.4:
        columns |= {"age": rng.integers(0, 99, m), "far": rng.random(m)}
    if kind == "text" and (plain or form == "fields"):
        kind = "sparse"
    if kind == "none":
        options["num_nodes"] = draw.choice([n, n + 70_000])
    else:
        ids = np.arange(n) if kind == "numbers" else rng.permutation(10 * n)[:n] - 3
        ids = np.array([f"id {i}" for i in ids]) if kind == "text" else ids
        columns |= {"src": ids[src], "dst": ids[dst]}
        nodes: dict[str, Any] = {"id": ids}
        labels = draw.choice([None, "classes", "words", "numbers"])
        if labels is not None:
            known = rng.integers(-1, 3, n)
            words = [["", "cat", "dog", "eel"][label + 1] for label in known]
            nodes["label"] = {"classes": known, "words": words, "numbers": rng.random(n)}[labels]
            split = rng.integers(0, 4, n) * (known >= 0 if labels != "numbers" else 1)
            if draw.random() < 0.5:
                nodes["split"] = [["none", "train", "val", "test"][each] for each in split]
            elif (known >= 0).sum() > 3 or labels == "numbers" and n > 3:
                options |= {"split": [0.6, 0.2, 0.2], "seed": seed}
        if draw.random() < 0.6:
            nodes |= {"f0": rng.normal(size=n), "f1": rng.integers(0, 5, n)}
        elif draw.random() < 0.7:
            np.save(folder / "features.npy", rng.random((n, 3)).astype(draw.choice(["f2", "f4", "f8", "i4"])))
        options["row_normalize"] = draw.random() < 0.3
        table = pa.table(nodes)
        if draw.random() < 0.5:
            pa.csv.write_csv(table, folder / "nodes.csv")
        else:
            pa.parquet.write_table(table, folder / "nodes.parquet", row_group_size=5)
    write_edges(folder, form, columns)
    return options


def check(folder: Path, work: Path, seed: int, room: Room) -> None:
    options = random_folder(folder, seed)
    expected = digests_of(saved(folder, work / "saved", **options))
    assert digests_of(imported(folder, work / "work", room, **options)) == expected, f"seed {seed}"
    assert not (work / "work/records").exists()


@pytest.mark.parametrize("seed", range(24))
def test_an_import_writes_the_bytes_of_the_graph(seed: int, tmp_path: Path) -> None:
    check(tmp_path / "data", tmp_path, seed, Room(1 << 26, 1 + seed % 3, bucket=[1, 7, 50, 10**6][seed % 4]))


@pytest.mark.slow
def test_many_imports_write_the_bytes_of_the_graph(tmp_path: Path) -> None:
    for seed in range(100, 220):
        work = tmp_path / str(seed)
        work.mkdir()
        check(work / "data", work, seed, Room(1 << 26, [1, 2, 8][seed % 3], bucket=[1, 7, 50, None][seed % 4]))
