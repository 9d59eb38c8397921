"""Files as other programs write them are read, or refused with what to do."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.errors import UserError
from gnnkit.graph import Graph

N = 6
ENDS = {"src": np.arange(N), "dst": (np.arange(N) + 1) % N}


def load(folder: Path) -> Graph:
    return EdgeFolder(str(folder), symmetrize=False).load()


def load_imported(folder: Path) -> Graph:
    work = folder.parent / f"{folder.name}-work"
    work.mkdir()
    pieces, journal = in_pieces(EdgeFolder(str(folder), symmetrize=False)), Journal(work, "asked")
    assert pieces is not None
    return Graph.load(import_graph(pieces, work, Room(1 << 26, 1, bucket=7), journal, ProgressReporter(quiet=True)))


DOORS = {"dataset=edges": load, "job=import": load_imported}
every_door = pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
Door = Callable[[Path], Graph]


def read(door: Door, folder: Path) -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return door(folder)


@every_door
@pytest.mark.parametrize("mark", ["\t", ";", ","], ids=["tabs", "semicolons", "commas"])
@pytest.mark.parametrize("name", ["edges.csv", "edges.csv.gz", "edges.tsv", "edges.tsv.gz"])
def test_cells_are_divided_as_the_header_is(door: Door, mark: str, name: str, tmp_path: Path) -> None:
    lines = [("src", "dst", "note", "length"), *((v, (v + 1) % N, f'"a{mark}\n{v % 2}"', v / 2) for v in range(N))]
    text = "".join(mark.join(map(str, line)) + "\n" for line in lines)
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    graph = read(door, tmp_path)
    assert graph.edge_feature_names == (f"note=a{mark}\n0", f"note=a{mark}\n1", "length")
    assert graph.edge_features is not None
    assert sorted(graph.edge_features[:, 2].tolist()) == [v / 2 for v in range(N)]


@every_door
def test_marks_in_quoted_names_divide_nothing(door: Door, tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text('src;dst;"price, EUR"\n0;1;0,5\n1;2;1,25\n2;0;0,75\n')
    graph = read(door, tmp_path)
    assert graph.edge_feature_names == ("price, EUR",)
    assert sorted(graph.edge_features.ravel().tolist()) == [0.5, 0.75, 1.25]  # type: ignore[union-attr]


@every_door
def test_decimal_commas_between_semicolons_are_numbers(door: Door, tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text("src;dst;weight\n0;1;0,5\n1;2;1,25\n2;0;0,75\n")
    weight = read(door, tmp_path).csc.weight
    assert weight is not None
    assert sorted(weight.tolist()) == [0.5, 0.75, 1.25]


@every_door
def test_two_columns_of_one_name_are_refused(door: Door, tmp_path: Path) -> None:
    """Numbers with decimals, which may have thousands, are looked at before."""
    (tmp_path / "edges.csv").write_text("src,dst,a,a\n0,1,0.5,1.5\n1,2,1.5,0.5\n")
    with pytest.raises(UserError, match=r"edges\.csv has two columns 'a'"):
        read(door, tmp_path)


@every_door
@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "edges.csv",
            "0\t1\t5\t881250949\n1\t0\t3\t891717742\n",
            "add a first line with names of columns, such as src",
        ),
        ("edges.csv", "0,1,0\n1,2,1\n", "add a first line with names of columns, such as src,dst"),
        ("edges.tsv", "0 1\n1 2\n", "edges.tsv has no column 'src', only '0 1'; .*; add a first line with names"),
        ("edges.csv", "# Nodes: 3\n# From\tTo\n0\t1\n", "'# Nodes: 3'; .*; add a first line with names of columns"),
        ("edges.csv", "n54,n32\nn1,n2\n", "dataset.src=COLUMN .*; if this line is data, add a first line with names"),
        ("edges.parquet", "text\n", "edges.parquet: .*: the file is damaged or no Parquet file$"),
        (
            "edges.csv",
            "from,to\n0,1\n",
            "has no column 'src', only 'from', 'to'; use dataset.src=COLUMN for another name$",
        ),
        (
            "u.data",
            "0\t1\n",
            "no table; rename u.data to edges.csv or edges.tsv, with names of columns in its first line",
        ),
        ("edges.txt", "0 1\n", "holds edges.txt, whose format is unsupported; use edges.csv, .*edges.tsv"),
    ],
)
def test_a_file_without_names_of_columns_is_refused_with_the_line_to_add(
    door: Door, name: str, text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        read(door, tmp_path)


def write_parts(folder: Path, *columns: pa.Array) -> None:
    """Writes nodes in parts, whose column x has other types."""
    folder.mkdir(parents=True)
    for number, column in enumerate(columns):
        ids = np.arange(len(column)) + number * len(column)
        pa.parquet.write_table(pa.table({"id": ids, "x": column}), folder / f"part-{number}.parquet")


@every_door
@pytest.mark.parametrize(
    ("columns", "features", "num_missing"),
    [
        ([pa.array([1.5, 2.0, 3.0]), pa.nulls(3)], [1.5, 2, 3, 0, 0, 0], 3),
        ([pa.nulls(3), pa.array(["a", "b", "a"])], [0, 0, 0, 1, 0, 1], 6),
        ([pa.array([1, 2, 3]), pa.array([0.5, 1, 2])], [1, 2, 3, 0.5, 1, 2], 0),
        ([pa.array([1, 2, 3], pa.int8()), pa.array([10**6, 1, 2])], [1, 2, 3, 10**6, 1, 2], 0),
        ([pa.array(["a", "b", "a"]), pa.array(["b"] * 3, pa.large_string())], [1, 0, 1, 0, 0, 0], 0),
    ],
    ids=["nulls", "nulls first", "decimals", "large numbers", "large text"],
)
def test_parts_may_hold_other_types_of_one_kind(
    door: Door, columns: list[pa.Array], features: list[float], num_missing: int, tmp_path: Path
) -> None:
    pd.DataFrame(ENDS).to_csv(tmp_path / "edges.csv", index=False)
    write_parts(tmp_path / "nodes.parquet", *columns)
    graph = read(door, tmp_path)
    assert np.asarray(graph.features)[:, 0].tolist() == features
    assert (0 if graph.missing is None else len(graph.missing)) == num_missing


@every_door
def test_parts_of_numbers_and_text_are_refused(door: Door, tmp_path: Path) -> None:
    pd.DataFrame(ENDS).to_csv(tmp_path / "edges.csv", index=False)
    write_parts(tmp_path / "nodes.parquet", pa.array([1, 2, 3]), pa.array(["a", "b", "c"]))
    with pytest.raises(UserError, match=r"nodes.parquet.*(x|'x').*(int64.*string|string.*int64)"):
        read(door, tmp_path)


@every_door
@pytest.mark.parametrize("name", ["edges.parquet", "edges", "nodes.parquet"])
def test_a_table_that_is_divided_by_a_column_is_refused(door: Door, name: str, tmp_path: Path) -> None:
    if name == "nodes.parquet":
        pd.DataFrame(ENDS).to_csv(tmp_path / "edges.csv", index=False)
    for year in (2020, 2021):
        (tmp_path / name / f"year={year}").mkdir(parents=True)
        pa.parquet.write_table(pa.table({**ENDS, "id": ENDS["src"]}), tmp_path / name / f"year={year}/part-0.parquet")
    with pytest.raises(
        UserError, match=rf"{name} is divided into folders such as year=2020, .*read_parquet\('.*{name}"
    ):
        read(door, tmp_path)


@every_door
def test_a_folder_whose_name_is_like_a_column_adds_none(door: Door, tmp_path: Path) -> None:
    folder = tmp_path / "x=1"
    folder.mkdir()
    pa.parquet.write_table(pa.table(ENDS), folder / "edges.parquet")
    assert read(door, folder).edge_features is None


@every_door
def test_ids_that_repeat_with_another_column_are_no_mistake_of_one_row(door: Door, tmp_path: Path) -> None:
    pd.DataFrame(ENDS).to_csv(tmp_path / "edges.csv", index=False)
    nodes = pd.DataFrame({"id": np.arange(12) // 2, "year": 2000 + np.arange(12) % 2, "x": 1.5})
    nodes.to_csv(tmp_path / "nodes.csv", index=False)
    with pytest.raises(UserError, match=r"row 1: 0 occurs a second time, after row 0.*join"):
        read(door, tmp_path)
    with pytest.raises(UserError, match="columns together identify rows, join them into one column of ids"):
        Graph.from_tables(pd.DataFrame(ENDS), nodes)
    once = nodes.assign(id=[0, 0, *range(2, 12)])
    with pytest.raises(UserError, match=r"a second time, after row 0: duplicates=first keeps the first row$"):
        Graph.from_tables(pd.DataFrame(ENDS), once)


def test_compressed_numbers_with_a_word_are_refused_as_plain_ones(tmp_path: Path) -> None:
    messages = []
    for name in ("edges.csv", "edges.csv.gz"):
        folder = tmp_path / name.replace(".", "-")
        folder.mkdir()
        pd.DataFrame({"src": ["0", "1", "two"], "dst": [1, 2, 0]}).to_csv(folder / name, index=False)
        with pytest.raises(UserError) as caught:
            load(folder)
        messages.append(str(caught.value).replace(str(folder), "").replace(name, ""))
    assert messages[0] == messages[1]
