"""An imported graph has the bytes of the graph that was read into memory."""

from __future__ import annotations

import contextlib
import datetime
import errno
import gzip
import os
import random
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from gnnkit_formats import pieces
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import WHOLE, Room, TableShare
from gnnkit_import import csv_source, sources
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.passes import ALONE, WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter
from gnnkit_import.run import ForkedGroup

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.cells import IdTable
from gnnkit.launch.watchdog import Patience
from tests.cases import exhaustive, few
from tests.folders import digests_of
from tests.forked import forked

FORMS = ["two rows", "two columns", "fortran", "fields", "parquet", "parts", "directory", "csv", "relations"]
TINY = Room(1 << 26, 1, bucket=7)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a few edges make several pieces, and skips `fsync`."""
    monkeypatch.setattr(pieces, "_MOST_PIECE", 16)
    monkeypatch.setattr(pieces, "_LEAST_PIECE", 16)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # no test turns the machine off


def imported(folder: Path, work: Path, room: Room = TINY, group: WorkGroup = ALONE, **options: Any) -> Path:
    work.mkdir(exist_ok=True)
    with warnings.catch_warnings(record=True):
        journal = Journal(work, "asked")
        gaps, pieces = options.pop("gaps", True), in_pieces(EdgeFolder(str(folder), **options))
        return import_graph(pieces, work, room, journal, ProgressReporter(quiet=True), gaps=gaps, group=group)


def saved(folder: Path, target: Path, **options: Any) -> Path:
    with warnings.catch_warnings(record=True):
        EdgeFolder(str(folder), **options).load().save(target)
    return target


def write_edges(folder: Path, form: str, columns: dict[str, Any]) -> None:
    table = pa.table(columns)
    if form in ("two rows", "two columns", "fortran"):
        both = np.array([columns["src"], columns["dst"]])
        ends = both if form == "two rows" else both.T
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
    elif form == "relations":
        (folder / "edges").mkdir()
        for number, name in enumerate(("likes", "knows", "owns", "is")):
            some = table.take(np.arange(number**2 % 3, table.num_rows, 4))
            if number % 2:
                pa.csv.write_csv(some, folder / f"edges/{name}.csv")
            else:
                pa.parquet.write_table(some, folder / f"edges/{name}.parquet", row_group_size=9)
    else:
        parts = folder / ("edges" if form == "parts" else "edges.parquet")
        parts.mkdir()
        for number in range(11):
            some = table.slice(
                number * table.num_rows // 11, (number + 1) * table.num_rows // 11 - number * table.num_rows // 11
            )
            pa.parquet.write_table(some, parts / f"part.{number}.parquet")
        (parts / "_SUCCESS").touch()


def random_values(rng: np.random.Generator, draw: random.Random, count: int, *, gaps: bool) -> dict[str, Any]:
    """Returns columns whose cells are read as numbers or categories, some at random."""
    numbers = rng.integers(0, 60, count)
    days = [datetime.date(1970, 1, 1) + datetime.timedelta(days=int(number)) for number in numbers]
    columns: dict[str, Any] = {
        "seconds": 1_700_000_000 + numbers,
        "far": 1e7 + rng.random(count),
        "cost": [f"${number}.5" for number in numbers],
        "comma": [f"{number},5" for number in numbers],
        "share": [f" {number} %" for number in numbers],
        "day": days,
        "moment": [f"{day}T00:00:{number:02}Z" for day, number in zip(days, numbers, strict=True)],
        "kind": [["red", "blue ", " blue", "dark, red"][number % 4] for number in numbers],
        "half": [bool(number % 2) for number in numbers],
    }
    chosen = {name: list(column) for name, column in columns.items() if draw.random() < 0.3}
    for name, column in chosen.items() if gaps and count > 5 else ():
        for row in range(2, count, 5):
            column[row] = draw.choice(["unknown", "NA", "", None]) if isinstance(column[0], str) else None
        chosen[name] = column
    return chosen


def random_times(rng: np.random.Generator, draw: random.Random, count: int, *, plain: bool) -> Any:
    """Returns integers or dates, some of which are missing."""
    numbers = 2**53 + rng.integers(0, 60, count)
    kind = "integers" if plain else draw.choice(["dates", "dates", "texts"])
    if kind == "integers":
        return numbers
    base = datetime.datetime(2020, 1, 1)
    dates = [base + datetime.timedelta(seconds=int(number), microseconds=7) for number in numbers - 2**53]
    if kind == "dates":
        return [None if row % 7 == 3 else date for row, date in enumerate(dates)]
    return [f"{date.isoformat()}" for date in dates]


def random_nodes(folder: Path, ids: Any, seed: int, draw: random.Random) -> dict[str, Any]:
    """Writes a table of nodes, and features. Returns the options."""
    options: dict[str, Any] = {}
    rng, n = np.random.default_rng(seed + 1000), len(ids)
    nodes: dict[str, Any] = {"id": ids}
    labels = draw.choice([None, "classes", "words", "numbers"])
    if labels is not None:
        known = rng.integers(-1, 3, n)
        known[known == 1] = 1 if (known == 0).any() else 0  # classes -1 and 1 alone are refused
        words = [["", "cat", "dog", "eel"][label + 1] for label in known]
        nodes["label"] = {"classes": known, "words": words, "numbers": rng.random(n)}[labels]
        split = rng.integers(0, 4, n) * (known >= 0 if labels != "numbers" else 1)
        if draw.random() < 0.5:
            nodes["split"] = [["none", "train", "val", "test"][each] for each in split]
        elif (known >= 0).sum() > 3 or (labels == "numbers" and n > 3):
            options |= {"split": [0.6, 0.2, 0.2], "seed": seed}
    if draw.random() < 0.6:
        nodes |= {"f0": rng.normal(size=n), "f1": rng.integers(0, 5, n)}
        if draw.random() < 0.5:
            nodes["f0"] = [None if v % 5 == 1 and n > 5 else float(number) for v, number in enumerate(nodes["f0"])]
        if draw.random() < 0.5:
            words = ["red", "blue", "dark red", "" if n > 5 else "red"]
            nodes["hue"] = [words[v % 3 if v < 9 else 3] for v in range(n)]
        nodes |= random_values(rng, draw, n, gaps=True)
    elif draw.random() < 0.7:
        rows = rng.random((n, 3)).astype(draw.choice(["f2", "f4", "f8", "i4"]))
        if draw.random() < 0.5 and rows.dtype.kind == "f":
            rows[rng.random((n, 3)) < 0.1] = np.nan
        np.save(folder / "features.npy", rows)
    options["row_normalize"] = draw.random() < 0.3
    more = random.Random(seed + 10**7)
    if more.random() < 0.4 and FORMS[seed % len(FORMS)] != "fields":  # whose times are integers
        nodes["time"] = random_times(rng, more, n, plain=seed % 3 == 0)
    table = pa.table(nodes)
    if draw.random() < 0.5:
        pa.csv.write_csv(table, folder / "nodes.csv")
    else:
        pa.parquet.write_table(table, folder / "nodes.parquet", row_group_size=5)
    return options


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
    if not plain and form != "fields" and draw.random() < 0.4:
        columns |= random_values(rng, draw, m, gaps=False)
    if not plain and form != "relations" and draw.random() < 0.5:
        types = rng.integers(0, 4, m)
        columns["type"] = types if form == "fields" or draw.random() < 0.5 else np.array([*"bca", "a b"])[types]
    if kind == "text" and (plain or form == "fields"):
        kind = "sparse"
    if kind == "none":
        far = draw.choice([1, 5000])  # ids beyond the bins of the first pieces
        columns |= {"src": far * src, "dst": far * dst}
        options["num_nodes"] = draw.choice([None, far * n, far * n + 70_000])
    else:
        ids = np.arange(n) if kind == "numbers" else rng.permutation(10 * n)[:n] - 3
        ids = np.array([f"id {i}" for i in ids]) if kind == "text" else ids
        columns |= {"src": ids[src], "dst": ids[dst]}
        options |= random_nodes(folder, ids, seed, draw)
    more = random.Random(seed + 10**6)
    options["duplicates"] = more.choice(["keep", "keep", "first", "sum", "mean"])
    if not plain and more.random() < 0.4:
        columns[more.choice(["Unnamed: 0", "__index_level_0__", "index"])] = np.arange(m)
    if not plain and more.random() < 0.5:
        columns["timestamp"] = random_times(rng, more, m, plain=seed % 3 == 0 or form == "fields")
    write_edges(folder, form, columns)
    if form == "csv" and more.random() < 0.5:
        path = folder / "edges.csv"
        (folder / "edges.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return options


def check(folder: Path, work: Path, seed: int, room: Room, group: WorkGroup = ALONE) -> None:
    options = random_folder(folder, seed)
    expected = digests_of(saved(folder, work / "saved", **options))
    assert digests_of(imported(folder, work / "work", room, group, **options)) == expected, f"seed {seed}"
    assert not (work / "work/records").exists()


@pytest.mark.slow
@few("seed", range(24), default={*range(24)} - {4, 8, 10, 13, 14, 15, 16, 21, 23})
def test_an_import_writes_the_bytes_of_the_graph(seed: int, tmp_path: Path) -> None:
    check(tmp_path / "data", tmp_path, seed, Room(1 << 26, 1 + seed % 3, bucket=[1, 7, 50, 10**6][seed % 4]))


@pytest.mark.slow
@few("seed", range(18), default=[0, 1, 2, 3, 6, 7])
def test_any_number_of_processes_writes_the_bytes_of_the_graph(seed: int, tmp_path: Path) -> None:
    room = Room(1 << 26, 1 + seed % 3, bucket=[1, 7, 50, None][seed % 4])
    check(tmp_path / "data", tmp_path, seed, room, WorkGroup([2, 3, 8][seed % 3]))
    still_open = [os.path.realpath(f"/dev/fd/{file}") for file in os.listdir("/dev/fd")]
    assert not [path for path in still_open if path.startswith(str(tmp_path))]


@pytest.mark.slow
@pytest.mark.parametrize(
    "form", ["two rows", "two columns", "fields", "parquet", "parts", "csv", "csv with line breaks"]
)
def test_shares_of_a_table_are_all_rows_in_order_with_their_numbers(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    columns: dict[str, Any] = {"src": rng.integers(0, 10**6, 97) ** 2, "dst": rng.integers(0, 9, 97)}
    if form == "csv with line breaks":
        columns["text"] = rng.choice(['a\n1,2,"b"\n', 'c "\n" d', "e"], 97)
    write_edges(tmp_path, form.split(maxsplit=1)[0] if "breaks" in form else form, columns)
    (source,) = in_pieces(EdgeFolder(str(tmp_path)))._edges.sources.values()  # type: ignore[union-attr]

    def rows(share: TableShare) -> list[tuple[Any, ...]]:
        return [
            (table.name, table._first + number, *row.values())
            for table in source.pieces(10, None, {"src": pa.int64(), "dst": pa.int64()}, share)
            for number, row in enumerate(table._table.to_pylist())
        ]

    whole = rows(WHOLE)
    assert len(whole) == 97
    for of in (1, 2, 3, 10, 200, 3000):
        assert [row for number in range(of) for row in rows(TableShare(number, of))] == whole


@pytest.mark.slow
@pytest.mark.parametrize("form", ["parquet", "csv"])
@pytest.mark.parametrize(
    "column", [{"src": [*range(70), -1, *range(29)]}, {"weight": [*[1.0] * 71, -np.inf, *[1.0] * 28]}]
)
def test_several_processes_tell_of_the_row_that_one_process_tells_of(
    form: str, column: dict[str, Any], tmp_path: Path
) -> None:
    columns = {"src": np.arange(100), "dst": np.arange(100), "weight": np.ones(100), **column}
    write_edges(tmp_path, form, columns)
    told = []
    for group in (ALONE, WorkGroup(3), WorkGroup(7)):
        with pytest.raises(UserError, match=r"row 7[01]") as raised:
            imported(tmp_path, tmp_path / f"work {group.size}", TINY, group, num_nodes=100)
        told.append(str(raised.value))
    assert told == told[:1] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [("f4", "f4"), ("f4", "f8")], ids=["alike", "wider later"])
def test_edges_are_read_once_whatever_the_types_of_their_parts(
    kinds: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, ids = np.random.default_rng(0), np.array([f"id {number}" for number in range(30)])
    (tmp_path / "data/edges.parquet").mkdir(parents=True)
    pa.parquet.write_table(pa.table({"id": ids}), tmp_path / "data/nodes.parquet")
    for number, kind in enumerate(kinds):
        ends = ids[rng.integers(0, 30, (2, 80))]
        part = pa.table({"src": ends[0], "dst": ends[1], "weight": rng.random(80).astype(kind)})
        pa.parquet.write_table(part, tmp_path / f"data/edges.parquet/part-{number}.parquet")
    found, find = [], IdTable.find

    def counted(table: IdTable, column: pa.Array) -> Any:
        found.append(len(column))
        return find(table, column)

    with monkeypatch.context() as patch:
        patch.setattr(IdTable, "find", counted)
        work = imported(tmp_path / "data", tmp_path / "work")
    assert sum(found) == 2 * 160
    assert digests_of(work) == digests_of(saved(tmp_path / "data", tmp_path / "saved"))
    assert not list((tmp_path / "work").rglob("*.read"))


def test_a_table_of_ids_finds_what_a_dictionary_finds() -> None:
    draw = random.Random(0)
    for _ in range(50):
        words = ["".join(draw.choices("abcé", k=draw.randrange(1, 7))) for _ in range(draw.randrange(1, 200))]
        ids = sorted({*words[: len(words) // 2 + 1]}, key=lambda word: draw.random())
        place, table = {word: number for number, word in enumerate(ids)}, IdTable(pa.array(ids, pa.large_string()), 2)
        asked = pa.array(["behind", *words], pa.large_string())[1:]
        assert table.find(asked).tolist() == [place.get(word, -1) for word in words]


@pytest.mark.slow
def test_ids_may_grow_from_piece_to_piece(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_edges(tmp_path / "data", "two rows", {"src": np.arange(200) ** 2, "dst": np.arange(200) * 4000})
    found = imported(tmp_path / "data", tmp_path / "work")
    assert digests_of(found) == digests_of(saved(tmp_path / "data", tmp_path / "saved"))


@pytest.mark.slow
def test_parts_of_a_table_are_one_table_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    columns = {"src": rng.integers(0, 5, 200), "dst": rng.integers(0, 5, 200), "weight": rng.random(200)}
    found = []
    for form in ("parquet", "parts", "directory"):
        (tmp_path / form).mkdir()
        write_edges(tmp_path / form, form, columns)
        found.append(digests_of(saved(tmp_path / form, tmp_path / f"{form} saved")))
        found.append(digests_of(imported(tmp_path / form, tmp_path / f"{form} imported")))
    assert found == found[:1] * 6
    (tmp_path / "parts/edges/_SUCCESS").unlink()
    (tmp_path / "parts/edges/part.0.parquet").rename(tmp_path / "parts/edges/knows.parquet")
    with pytest.raises(UserError, match=r"edges mixes parts, such as part\.1\.parquet, with other tables"):
        imported(tmp_path / "parts", tmp_path / "refused")
    with pytest.raises(UserError, match="if all are parts of one table"):
        EdgeFolder(str(tmp_path / "parts")).load()


@pytest.mark.exhaustive
def test_many_imports_write_the_bytes_of_the_graph(tmp_path: Path) -> None:
    for seed in range(100, 130):
        work = tmp_path / str(seed)
        work.mkdir()
        check(
            work / "data",
            work,
            seed,
            Room(1 << 26, [1, 2, 8][seed % 3], bucket=[1, 7, 50, None][seed % 4]),
            WorkGroup([1, 2, 5][seed % 3]),
        )


class Full:
    """A disk that takes no more after some writes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.left, write = most, os.pwrite

        def refuse(descriptor: int, data: bytes, place: int) -> int:
            self.left -= 1
            if self.left < 0:
                write(descriptor, data[: len(data) // 2], place)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(descriptor, data, place)

        monkeypatch.setattr(os, "pwrite", refuse)


def writes_of(folder: Path, work: Path, room: Room, **options: Any) -> int:
    with pytest.MonkeyPatch.context() as patch:
        disk = Full(patch, 10**9)
        imported(folder, work, room, **options)
    return 10**9 - disk.left


@pytest.mark.slow
@pytest.mark.parametrize("group", [ALONE, exhaustive(WorkGroup(3))], ids=["alone", "three processes"])
@few("seed", [4, 13], default=[4])
def test_an_import_goes_on_from_any_place_where_the_disk_was_full(seed: int, group: WorkGroup, tmp_path: Path) -> None:
    folder, room = tmp_path / "data", Room(1 << 26, 1, bucket=20)
    options = {**random_folder(folder, seed), "group": group}
    total = writes_of(folder, tmp_path / "whole", room, **options)
    expected = digests_of(tmp_path / "whole/graph")
    for turn, most in enumerate(range(1 + seed % 3, total, max(total // 5, 1))):
        work = tmp_path / str(turn)
        with pytest.MonkeyPatch.context() as patch:
            Full(patch, most)
            with pytest.raises(
                UserError, match=r"\w: No space left on device: .* run the same command again to resume"
            ):
                imported(folder, work, room, **options)
        assert not (work / "graph/meta.json").exists()
        imported(folder, work, room, **options)
        assert digests_of(work / "graph") == expected, f"after {most} writes"


def journals_of(work: Path) -> dict[str, bytes]:
    """Reads all journals, while an import creates and deletes their folders."""
    journals = {}
    for folder, _, files in os.walk(work):  # skips a folder that is deleted meanwhile, unlike Path.rglob
        if "progress.json" in files:
            with contextlib.suppress(FileNotFoundError):
                journals[folder] = Path(folder, "progress.json").read_bytes()
    return journals


@pytest.mark.exhaustive
@pytest.mark.slow
@few("size, symmetrize", [(1, True), (3, False)], default=[(3, False)])
def test_an_import_goes_on_wherever_it_was_killed(size: int, symmetrize: bool, tmp_path: Path) -> None:
    group = ALONE if size == 1 else ForkedGroup(size, Patience(), tmp_path)
    rng, folder = np.random.default_rng(0), tmp_path / "data"
    folder.mkdir()
    write_edges(folder, "parquet", {"src": rng.integers(0, 99, 3000), "dst": rng.integers(0, 99, 3000)})
    room, options = Room(1 << 26, 1, bucket=200), {"num_nodes": 99, "symmetrize": symmetrize}
    expected = digests_of(saved(folder, tmp_path / "saved", **options))
    kills, work = 0, tmp_path / "work"
    while not (work / "graph/meta.json").exists():
        with forked(lambda: imported(folder, work, room, group, **options), tmp_path) as child:
            known = journals_of(work)
            while child.process.is_alive() and journals_of(work) == known:
                time.sleep(0.001)
            child.process.join(float(rng.uniform(0, 0.01)) + 0.004 * kills)
            kills += child.process.is_alive()
            child.process.kill()
    imported(folder, work, room, group, **options)
    assert kills > 2
    assert digests_of(work / "graph") == expected


def test_a_changed_journal_is_not_gone_on_from(tmp_path: Path) -> None:
    Journal(tmp_path, "one").write(counted=3)
    assert (Journal(tmp_path, "one")["counted"], Journal(tmp_path, "one").changed) == (3, False)
    assert (Journal(tmp_path, "other")["counted"], Journal(tmp_path, "other").changed) == (None, True)
    (tmp_path / "progress.json").write_text("{")
    assert (Journal(tmp_path, "one")["counted"], Journal(tmp_path, "one").changed) == (None, False)


def bad(folder: Path, **tables: Any) -> Path:
    folder.mkdir()
    for name, columns in tables.items():
        table = columns if isinstance(columns, pa.Table) else pa.table(columns)
        (folder / name).parent.mkdir(exist_ok=True)
        pa.parquet.write_table(table, folder / f"{name}.parquet", row_group_size=max(20, table.num_rows // 20))
    return folder


ENDS = {"src": np.arange(50) % 7, "dst": np.arange(50) % 5}
AT_40 = np.where(np.arange(50) == 40, 99, 0)


@pytest.mark.parametrize(
    ("tables", "options", "message"),
    [
        (
            {"edges": {**ENDS, "dst": AT_40}},
            {"num_nodes": 9},
            "edges.parquet, column 'dst', row 40: 99 is out of range for 9",
        ),
        (
            {"edges": {"userId": AT_40 + 1, "movieId": np.arange(50)}},
            {"src": "userId", "dst": "movieId"},
            "edges.parquet: 1 of 2 distinct ids in 'userId' also occur among the 50 in 'movieId'; use dataset.bipartite=true",
        ),
        ({"edges": ENDS, "nodes": {"id": [3, 4, 5]}}, {}, "edges.parquet, column 'src', row 0: 0 is no id of a node"),
        (
            {"edges": {**ENDS, "weight": np.where(AT_40, np.nan, 1)}},
            {},
            "edges.parquet, column 'weight', row 40: is empty",
        ),
        (
            {"edges": {**ENDS, "weight": AT_40 * 1e300}},
            {},
            "column 'weight', row 40: 9.9.*e.301 is too large for float32",
        ),
        ({"edges": {"src": ["a"], "dst": ["b"]}}, {}, "edges.parquet, column 'src' holds text, for which job=import"),
        ({"edges": {"user": [0], "item": [1]}}, {}, "the columns user and item are two node types, which job=import"),
        ({"edges": {**ENDS, "type": AT_40 * 1000}}, {}, r"edge_types\[40\] = 99000 is out of range 0..32767"),
        (
            {"edges": {**ENDS, "type": np.where(AT_40, "", "is")}},
            {},
            "edges.parquet, column 'type', row 40: is empty",
        ),
        (
            {
                "edges": {
                    "src": np.zeros(32_769, int),
                    "dst": np.zeros(32_769, int),
                    "type": np.arange(32_769).astype(str),
                }
            },
            {},
            "edge_type_names has 32769 names, at most 32768 relations are read",
        ),
        ({"edges": ENDS}, {"sort_ids": True}, "dataset.sort_ids=true: job=import numbers nodes in table order"),
        (
            {"edges": ENDS},
            {"src": "from"},
            "edges.parquet has no column 'from', only 'src', 'dst'; use dataset.src=COLUMN",
        ),
        ({"edges": ENDS, "nodes": {"id": [1, 1]}}, {}, "nodes.parquet, column 'id', row 1: 1 occurs a second time"),
        (
            {"edges": ENDS, "nodes": {"id": range(7), "f": [1.0] * 6 + [np.nan]}},
            {},
            "features have an empty cell in column 'f', row 6: choose features.fill=mean",
        ),
        (
            {"edges": ENDS, "nodes": {"id": range(7), "f": range(7), "hue": ["red"] * 6 + [None]}},
            {},
            "features have an empty cell in column 'hue', row 6: choose features.fill=mean",
        ),
        (
            {"edges": ENDS, "nodes": {"id": range(7), "f": [1.0] * 6 + [np.inf]}},
            {},
            "nodes.parquet, column 'f', row 6: inf",
        ),
        (
            {"edges": {"src": [0], "dst": [1]}, "nodes": {"id": range(300), "f": [f"name {v}" for v in range(300)]}},
            {},
            r"nodes.parquet, column 'f' is text with more than 256 different values, .*dataset.ignore=\[f\] leaves",
        ),
        (
            {"edges": ENDS, "nodes": {"id": range(7)}},
            {"num_nodes": 7},
            "dataset.num_nodes=7: nodes.parquet already defines the nodes",
        ),
        (
            {"edges": ENDS, "nodes": {"id": range(7), "split": ["train"] * 7}},
            {},
            "nodes.parquet: column 'label' is missing, but 7 nodes are in a split: add it, set dataset.label=COLUMN",
        ),
        (
            {"edges/knows": ENDS, "edges/likes": {**ENDS, "age": AT_40}},
            {},
            "edges/likes.parquet has the columns src, dst, age, but edges/knows.parquet has src, dst; all relations need",
        ),
        (
            {"edges/knows": {**ENDS, "type": AT_40}},
            {},
            "edges/knows.parquet has a column 'type', but its file name already names the relation",
        ),
        (
            {"edges/knows": ENDS, "edges/likes": {"src": [0], "to": [0]}},
            {},
            "likes.parquet has no column 'dst', only 'src', 'to'; use dataset.dst=COLUMN",
        ),
        (
            {"edges/part-0": ENDS, "edges/part-1": {"src": ["a"], "dst": ["b"]}},
            {},
            "edges/part-1.parquet, column 'src' holds string, but edges/part-0.parquet has int64; all parts need the same",
        ),
        (
            {"edges/part-0": ENDS, "edges/part-1": {**ENDS, "weight": AT_40}},
            {},
            "edges/part-1.parquet has the columns src, dst, weight, but edges/part-0.parquet has src, dst; all parts",
        ),
        ({}, {}, "holds no edges.csv, edges.parquet or edges.npy, and no folder edges; use dataset.edges=NAME"),
        ({"edges": ENDS, "people/all": {"id": range(7)}}, {"nodes": "people"}, "people is a folder without parts such"),
        (
            {"edges": ENDS, "nodes": {"id": range(7)}},
            {"label": "kind"},
            "nodes.parquet has no column 'kind', only 'id'",
        ),
        (
            {"edges": ENDS, "nodes": {"id": range(40), "x": [[1.0, 2.0]] * 20 + [[1.0]] * 20}},
            {},
            r"nodes.parquet, column 'x' holds lists of 1 numbers, 2 elsewhere: dataset.ignore=\[x\]",
        ),
    ],
)
def test_bad_tables_are_named_by_file_and_row(
    tables: dict[str, Any], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = bad(tmp_path / "data", **tables)
    with pytest.raises(UserError, match=message) as raised:
        imported(folder, tmp_path / "work", gaps=False, **options)
    assert str(raised.value).startswith(f"dataset.root={folder}: ")
    assert not (tmp_path / "work/graph/meta.json").exists()


def test_features_beside_features_are_refused_and_a_missing_folder_is_named(tmp_path: Path) -> None:
    folder = bad(tmp_path / "data", edges=ENDS, nodes={"id": range(7), "x": range(7)})
    np.save(folder / "features.npy", np.zeros((7, 1)))
    with pytest.raises(UserError, match=r"features\.npy and nodes\.parquet both hold features"):
        imported(folder, tmp_path / "work")
    with pytest.raises(UserError, match=r"dataset\.root=.*nowhere: is not a folder"):
        imported(tmp_path / "nowhere", tmp_path / "work")


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    path = tmp_path / "data/edges.npy"
    np.save(path, np.array([ENDS["src"], ENDS["dst"]]))
    source = sources.ArraySource(path, path.parent)
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(UserError, match=r"edges\.npy was truncated while it was read"):
        list(source.pieces(100))


@pytest.mark.parametrize(
    "column",
    [
        ["1", "2", "3", "4"],
        ["", "", "3", "4"],
        ["1", "2", "", ""],
        ["1", "2", "3.5", "4"],
        ["1.5", "2", "3", "4"],
        ["1", "2", "three", "4"],
        ["", "", "", ""],
        [],
    ],
    ids=" ".join,
)
def test_a_column_has_the_type_that_the_whole_csv_has(
    column: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_source, "_READ_AHEAD", 16)  # bytes of a block: about two rows
    monkeypatch.setattr(csv_source, "_LEAST_BLOCK", 16)
    path = tmp_path / "nodes.csv"
    path.write_text("id,x\n" + "".join(f"n{row},{cell}\n" for row, cell in enumerate(column)))
    whole = dict(zip(*(pa.csv.read_csv(path).schema.names, pa.csv.read_csv(path).schema.types), strict=True))
    assert csv_source.CsvSource([path], tmp_path, {}).types() == whole


@pytest.mark.parametrize("group", [ALONE, WorkGroup(3)])
def test_the_last_name_of_a_header_stands_for_all_further_cells(group: WorkGroup, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    rows = "".join(f"{row % 7},{row % 5},{row},{row % 2},{row / 8},-1\n" for row in range(60))
    header = "user_id,item_id,timestamp,state_label,comma_separated_list_of_features\n"
    (tmp_path / "data/edges.csv").write_text(header + rows)
    options: dict[str, Any] = {"time": "timestamp", "ignore": ["state_label"], "bipartite": False}
    work = imported(tmp_path / "data", tmp_path / "work", TINY, group, **options)
    assert Graph.load(work).edge_feature_names == ("feature_0", "feature_1")
    assert digests_of(work) == digests_of(saved(tmp_path / "data", tmp_path / "saved", **options))


def test_text_of_a_csv_needs_a_table_of_nodes_and_tables_may_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/calls.csv").write_text("src,dst\na7,b\n")
    with pytest.raises(UserError, match=r"calls.csv, column 'src' holds text, for which job=import needs a node table"):
        imported(tmp_path / "data", tmp_path / "work", edges="calls.csv")
    (tmp_path / "data/people.csv").write_text("id\nb\na7\n")
    folder = imported(tmp_path / "data", tmp_path / "work", edges="calls.csv", nodes="people.csv")
    graph = Graph.load(folder)
    assert (graph.num_nodes, graph.num_edges, list(graph.node_ids)) == (2, 1, ["b", "a7"])


def test_a_damaged_row_group_is_named(tmp_path: Path) -> None:
    path = bad(tmp_path / "data", edges=ENDS) / "edges.parquet"
    found = pa.parquet.read_metadata(path).row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[found.dictionary_page_offset : found.dictionary_page_offset + 12] = b"\xff" * 12
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"edges\.parquet, row group 1: "):
        imported(tmp_path / "data", tmp_path / "work", Room(1 << 26, 1))


@pytest.mark.slow
def test_too_little_memory_is_told_with_what_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_MOST_PIECE", 1024)
    monkeypatch.setattr(pieces, "_LEAST_PIECE", 1024)
    room = Room(1 << 21, 1)
    folder = bad(tmp_path / "data", edges={"src": np.arange(20_000) % 9, "dst": np.zeros(20_000, int)})
    with pytest.raises(
        UserError, match="nodes 0 to 0 have 20,000 in-edges, which are sorted together; use memory=2533334"
    ):
        imported(folder, tmp_path / "work", room, num_nodes=9)
    with pytest.raises(UserError, match="parts of 40,000 nodes do not fit; use memory=4947627 or more"):
        imported(folder, tmp_path / "other", room, num_nodes=40_000)
    bad(tmp_path / "text", edges={"src": ["a"], "dst": ["b"]}, nodes={"id": [f"node {i}" for i in range(20_000)]})
    with pytest.raises(
        UserError, match=r"memory=2097152: the ids of nodes\.parquet do not fit, [0-9,]+ of them so far; use"
    ):
        imported(tmp_path / "text", tmp_path / "work", room)


MEASURE = """
import resource, sys, threading
from pathlib import Path

import numpy as np
import pyarrow as pa
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.passes import ALONE
from gnnkit_import.progress import Journal, ProgressReporter

def own(field):
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024

def watch():
    global peak
    while not ended.wait(0.01):
        peak = max(peak, own("RssAnon"))

def imported(edges, work, room):
    work.mkdir()
    graph = in_pieces(EdgeFolder(str(edges), symmetrize=True))
    import_graph(graph, work, room, Journal(work, "asked"), ProgressReporter(quiet=True), gaps=True, group=ALONE)

folder, given, heap = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
pa.array(np.arange(1 << 17)).cast(pa.float32())  # Arrow reserves addresses at first use
imported(folder / "small", folder / "small work", Room(given - heap, 2))  # what is used is in memory from now on
ended, peak, before = threading.Event(), 0, own("RssAnon")
watcher = threading.Thread(target=watch)
watcher.start()
resource.setrlimit(resource.RLIMIT_DATA, (own("VmData") + given, resource.RLIM_INFINITY))
imported(folder / "data", folder / "work", Room(given - heap, 2))
ended.set()
watcher.join()
print(peak - before)
"""


@pytest.mark.exhaustive
def test_memory_stays_within_its_bound_for_millions_of_edges(tmp_path: Path) -> None:
    m, n, given = 5_000_000, 125_000, 40 << 20
    heap = 16 << 20  # what reading the distinct ids leaves in the heap
    for name, edges in ("small", 8), ("data", m):
        (tmp_path / name).mkdir()
        ends = np.lib.format.open_memmap(tmp_path / name / "edges.npy", "w+", np.int64, (2, edges))
        ends[:] = np.random.default_rng(0).integers(0, n, (2, edges))
        ends.flush()
    arguments = [sys.executable, "-c", MEASURE, str(tmp_path), str(given), str(heap)]  # no heap of earlier tests
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) < given + (4 << 20)
    indptr = np.load(tmp_path / "work/graph/indptr.npy", mmap_mode="r")
    assert len(np.load(tmp_path / "work/graph/indices.npy", mmap_mode="r")) == indptr[-1] > 1.99 * m


@pytest.mark.slow
def test_ignored_columns_are_read_by_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    edges = {"src": [0, 1, 2], "dst": [1, 2, 0], "weight": [1.0, 2.0, 3.0], "kind": ["a", "b", "c"]}
    pa.parquet.write_table(pa.table(edges), folder / "edges.parquet")
    nodes = {"id": [0, 1, 2], "label": [0, 1, 0], "town": ["x", "y", None], "age": [1.0, 2.0, 3.0]}
    pa.csv.write_csv(pa.table(nodes), folder / "nodes.csv")
    options: dict[str, Any] = {"ignore": ["town", "kind", "weight"]}
    graph = digests_of(imported(folder, tmp_path / "work", **options))
    assert graph == digests_of(saved(folder, tmp_path / "saved", **options))
    graph = digests_of(imported(folder, tmp_path / "other", ignore=["kind"]))
    assert graph == digests_of(saved(folder, tmp_path / "other saved", ignore=["kind"]))
    with pytest.raises(UserError, match=r"dataset.ignore=\['age', 'x'\]: no column 'x' in nodes.csv or edges.parquet"):
        imported(folder, tmp_path / "third", ignore=["age", "x"])
