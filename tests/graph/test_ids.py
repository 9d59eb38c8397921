"""Ids of nodes and ends of edges are read exactly, and alike by every reader."""

from __future__ import annotations

import gzip
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.cells import MISSING, narrow_text, whole_numbers
from gnnkit.graph.labels import MAX_EXACT
from tests.cases import few

Columns = dict[str, list[Any]]
Reader = Callable[[Columns, Columns | None, Path], Graph]
ODD = ["7", "007", "7 ", " 7", "+7", "0x7", "70", "a", "a\0", "a ", "\ta", "A", "ä", "9007199254740993"]
ODD += ["9007199254740992", "18446744073709551616", "", " ", "NA", "none", "Unknown", "1.5", "true", "-3", "2026-01-01"]


def frames(frame: Callable[[Columns], Any]) -> Reader:
    return lambda edges, nodes, _: Graph.from_tables(frame(edges), None if nodes is None else frame(nodes))


def write(folder: Path, edges: Columns, nodes: Columns | None, form: str) -> EdgeFolder:
    """Writes the tables of a data set."""
    for name, columns in {"edges": edges, "nodes": nodes}.items():
        if columns is not None and form == "parquet":
            pa.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
        elif columns is not None:
            pa.csv.write_csv(pa.table(columns), folder / f"{name}.csv")
            if form == "csv.gz":
                (folder / f"{name}.csv.gz").write_bytes(gzip.compress((folder / f"{name}.csv").read_bytes()))
                (folder / f"{name}.csv").unlink()
    return EdgeFolder(str(folder), symmetrize=False)


def loaded(form: str) -> Reader:
    return lambda edges, nodes, folder: write(folder, edges, nodes, form).load()


def imported(form: str) -> Reader:
    def read(edges: Columns, nodes: Columns | None, folder: Path) -> Graph:
        pieces, work = in_pieces(write(folder, edges, nodes, form)), folder / "work"
        work.mkdir()
        room = Room(1 << 26, 1)
        return Graph.load(import_graph(pieces, work, room, Journal(work, "asked"), ProgressReporter(quiet=True)))

    return read


FRAMES = {"pandas": frames(pd.DataFrame), "polars": frames(pl.DataFrame), "pyarrow": frames(pa.table)}
FILES = {form: loaded(form) for form in ("csv", "csv.gz", "parquet")}
IMPORTS = {f"import {form}": imported(form) for form in ("csv", "csv.gz", "parquet")}
READERS = FRAMES | FILES | IMPORTS


def edges_of(graph: Graph) -> list[tuple[str, str]]:
    """The edges by the ids of their ends, in the order of the table."""
    ids = np.arange(graph.num_nodes) if graph.node_ids is None else graph.node_ids
    ends = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    order = np.argsort(graph.edge_positions)
    return [(str(ids[u]), str(ids[v])) for u, v in zip(graph.csc.indices[order], ends[order], strict=True)]


def outcome(reader: Reader, edges: Columns, nodes: Columns | None, folder: Path) -> Any:
    """The edges, or the row that is refused."""
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return edges_of(reader(edges, nodes, folder))
        except UserError as error:
            return "refused" if "\n" not in str(error) else error


def read_plainly(edges: Columns, nodes: Columns | None) -> Any:
    """What text means: blanks around it do not count, and nothing else is alike."""

    def clean(word: str) -> str:
        if "\0" in word or word.strip().lower() in MISSING:
            raise UserError(word)
        return word.strip()

    try:
        pairs = [(clean(u), clean(v)) for u, v in zip(edges["src"], edges["dst"], strict=True)]
        words = {*edges["src"], *edges["dst"]} if nodes is None else nodes["id"]
        ids = [clean(word) for word in words]
    except UserError:
        return "refused"
    is_valid = len({*ids}) == len(ids) and all({*pair} <= {*ids} for pair in pairs)
    return pairs if is_valid else "refused"


@pytest.mark.slow
@few("seed", range(4), default=2)
@pytest.mark.parametrize("reader", READERS)
def test_text_ids_mean_the_same_to_every_reader(reader: str, seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    for number in range(8):
        pool = random.sample(ODD, random.choice([3, 4, 6]))
        if random.random() < 0.5:
            pool = [word for word in pool if read_plainly({"src": [word], "dst": [word]}, None) != "refused"] + ["b"]
        count = random.randrange(1, 5)
        edges = {name: random.choices(pool, k=count) for name in ("src", "dst")}
        nodes = {"id": pool, "x": [1.0] * len(pool)}
        right = read_plainly(edges, nodes)
        assert outcome(READERS[reader], edges, nodes, tmp_path / str(number)) == right, (edges, nodes)


@few("seed", range(6), default=3)
@pytest.mark.parametrize("reader", FRAMES | FILES)
def test_text_ends_name_the_nodes_or_are_refused(reader: str, seed: int, tmp_path: Path) -> None:
    random = Random(seed + 100)
    for number in range(8):
        pool = [word for word in random.sample(ODD, random.choice([2, 3, 5])) if word != "-3"]
        edges = {name: random.choices(pool, k=3) for name in ("src", "dst")}
        right, actual = (
            read_plainly(edges, None),
            outcome((FRAMES | FILES)[reader], edges, None, tmp_path / str(number)),
        )
        of_numbers = reader in ("csv", "csv.gz") and any(
            word.strip().isdigit() for word in (*edges["src"], *edges["dst"])
        )
        assert actual == right or (of_numbers and actual == "refused"), (edges, actual, right)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("ids", "src", "message"),
    [
        ([7, 8], ["007", "8"], "'007' differs from the id 7 in form"),
        ([7, 8], ["8", "seven"], "row 1: 'seven' is no whole number"),
        (["007", "8"], [7, 8], "row 0: '7' is no id of a node"),
        (["a", "b"], ["a", ""], "row 1: is empty"),
        (["a", "b"], ["a", "NA"], "row 1: 'NA' is empty: the word stands for a missing value"),
        (["a", "unknown"], ["a", "a"], "column 'id', row 1: 'unknown' is empty"),
        (["a", "b"], ["a", "a\0"], "NUL character"),
        (["u", "u "], ["u", "u"], "row 1: 'u ' occurs a second time, after row 0, written as 'u'"),
        ([2**53 - 1, 3], [float(2**53), 3.0], "is no id of a node|is beyond 2^53|differs from"),
        ([1, 2], [1.5, 2.0], "row 0: '?1.5'? is no whole number"),
        ([1, 2], [float("nan"), 2.0], "row 0: ('nan' )?is empty"),
    ],
)
def test_ids_that_would_merge_are_refused_by_row(
    reader: str, ids: list[Any], src: list[Any], message: str, tmp_path: Path
) -> None:
    nodes, edges = {"id": ids, "x": [0.5, 2.5]}, {"src": src, "dst": src[::-1]}
    with pytest.raises(UserError, match=message.replace("^5", r"\^5")):
        READERS[reader](edges, nodes, tmp_path)


@pytest.mark.parametrize("reader", READERS)
def test_unsigned_numbers_of_64_bits_are_text_or_refused(reader: str, tmp_path: Path) -> None:
    large = {"id": np.array([2**63, 2], np.uint64), "x": [0.5, 2.5]}
    actual = outcome(READERS[reader], {"src": ["2"], "dst": ["2"]}, large, tmp_path / "data")  # type: ignore[arg-type]
    assert actual == ([("2", "2")] if "csv" in reader else "refused")


@pytest.mark.parametrize("reader", READERS)
def test_floating_point_ids_are_read_exactly_or_refused(reader: str, tmp_path: Path) -> None:
    ids = [MAX_EXACT - 1, MAX_EXACT]
    ends = [float(each) for each in ids]
    actual = outcome(READERS[reader], {"src": ends, "dst": ends[::-1]}, {"id": ids, "x": [0.5, 2.5]}, tmp_path / "data")
    assert actual in ("refused", [(str(ids[0]), str(ids[1])), (str(ids[1]), str(ids[0]))])
    assert actual != "refused" or "csv" in reader  # whose writer spells 9.007e+15


@pytest.mark.slow
@pytest.mark.parametrize("reader", ["csv", "csv.gz", "import csv", "import csv.gz"])
def test_whole_numbers_with_a_fraction_of_zeros_are_no_floats_in_a_csv(reader: str, tmp_path: Path) -> None:
    nodes = {"id": [str(2**53), str(2**53 + 1)], "x": [0.5, 2.5]}
    for number, src in enumerate((2**53, 2**53 + 1)):
        edges = {"src": [f"{src}.0"], "dst": [str(2**53)]}
        assert outcome(READERS[reader], edges, nodes, tmp_path / str(number)) == [(str(src), str(2**53))]
    mixed = {"src": [f"{2**53}.0", str(2**53)], "dst": [str(2**53)] * 2}
    assert outcome(READERS[reader], mixed, nodes, tmp_path / "mixed") == "refused"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([True, False], "holds bool, expected whole numbers, text or UUIDs"),
        (pd.to_datetime(["2026-01-01", "2026-01-02"]), "holds timestamp.*, expected whole numbers, text or UUIDs"),
        ([Decimal("1.5"), Decimal(1)], "row 0: '1.5' is no whole number of 64 bits"),
        ([2**64 + 1, 1], "holds whole numbers beyond 64 bits: give ids as text"),
        ([1j, 2j], "cannot be read"),
    ],
)
def test_columns_that_are_no_ids_are_refused(column: Any, message: str) -> None:
    with pytest.raises(UserError, match=f"edges, column 'src'.*{message}"):
        Graph.from_tables(pd.DataFrame({"src": column, "dst": [0, 1]}))


@pytest.mark.parametrize(
    "column",
    [
        [Decimal(1), Decimal(0)],
        pd.arrays.SparseArray([1, 0]),
        pd.Categorical(["1", "0"]),
        pd.array([1, 0], dtype="Int64"),
        pd.array(["1", "0"], dtype="string"),
        np.array([1, 0], np.uint64),
        np.array([1, 0], np.float16),
    ],
)
def test_whole_numbers_of_any_type_are_ids(column: Any) -> None:
    graph = Graph.from_tables(pd.DataFrame({"src": column, "dst": [1, 1]}), pd.DataFrame({"id": [0, 1]}))
    assert edges_of(graph) == [("1", "1"), ("0", "1")]


INTEGERS, TEXTS = pa.array(range(8)), pa.array(list("abcdefgh"))
ARROW_TYPES = {
    "half": INTEGERS.cast(pa.float32()).cast(pa.float16()),
    "decimal": INTEGERS.cast(pa.decimal128(30, 0)),
    "text view": TEXTS.cast(pa.string_view()),
    "large text": TEXTS.cast(pa.large_string()),
    "encoded text": TEXTS.dictionary_encode(),
    "bytes": TEXTS.cast(pa.binary()),
    "switch": pa.array([True, False] * 4),
    "date": INTEGERS.cast(pa.int32()).cast(pa.date32()),
    "time": INTEGERS.cast(pa.timestamp("s")),
    "list": pa.array([[number] for number in range(8)]),
    "struct": pa.array([{"a": number} for number in range(8)]),
    "map": pa.array([[("a", number)] for number in range(8)], pa.map_(pa.string(), pa.int64())),
    "nothing": pa.nulls(8),
}


@pytest.mark.parametrize("column", ["src", "dst", "both", "id", "label", "weight", "time", "x"])
@pytest.mark.parametrize("kind", ARROW_TYPES)
def test_a_column_of_any_type_is_read_or_refused_by_its_name(kind: str, column: str, tmp_path: Path) -> None:
    values = ARROW_TYPES[kind]
    edges = {"src": INTEGERS, "dst": INTEGERS[::-1]}
    nodes = {"id": INTEGERS, "label": pa.array([0, 1] * 4)}
    if column == "both":
        edges = dict.fromkeys(edges, values)
    else:
        (nodes if column in ("id", "label", "x") else edges)[column] = values
    of_nodes = pa.table(nodes) if column in ("id", "label", "x") else None
    pyarrow.parquet.write_table(pa.table(edges), tmp_path / "edges.parquet")
    if of_nodes is not None:
        pyarrow.parquet.write_table(of_nodes, tmp_path / "nodes.parquet")
    for read in (EdgeFolder(str(tmp_path)).load, lambda: Graph.from_tables(pa.table(edges), of_nodes)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                text = f"src and {read().num_nodes} nodes"
            except UserError as error:
                text = str(error)
        assert any(name in text for name in ("src", "dst", column))


def test_intervals_are_text() -> None:
    bins = pd.cut(pd.Series([1.0, 9.0]), 2)
    graph = Graph.from_tables(pd.DataFrame({"src": bins, "dst": bins[::-1].values}))
    assert graph.node_ids.tolist() == ["(0.992, 5.0]", "(5.0, 9.0]"]


def test_ids_that_numpy_makes_equal_are_refused() -> None:
    with pytest.raises(UserError, match=r"node_ids\[1\] = 'a' occurs a second time, after node_ids\[0\]"):
        Graph.from_edges([0], [1], node_ids=["a", "a\0"])


@pytest.mark.slow
def test_whole_numbers_are_those_that_python_spells_so() -> None:
    random = Random(0)
    for _ in range(3000):
        text = "".join(random.choices("0012-+ .x", k=random.randrange(1, 5)))
        actual = whole_numbers(pa.array([text]))
        try:
            is_whole = str(int(text)) == text.strip()
        except ValueError:
            is_whole = False
        assert (actual is not None) == is_whole, text
    assert narrow_text(pa.chunked_array([["-9223372036854775808", "9223372036854775807"]])).type == pa.int64()
    assert narrow_text(pa.chunked_array([["9223372036854775808"]])).type == pa.string()
    assert narrow_text(pa.chunked_array([["1.0", "20.00"]])).to_pylist() == [1, 20]
    assert narrow_text(pa.chunked_array([["1.0", "20"]])).to_pylist() == ["1.0", "20"]


@pytest.mark.parametrize("reader", READERS)
def test_words_for_missing_values_are_ids_where_the_user_lists_others(reader: str, tmp_path: Path) -> None:
    edges, nodes = pa.table({"src": ["NA", "-"], "dst": ["-", "NA"]}), pa.table({"id": ["NA", "-"], "x": [0.5, 2.5]})
    if reader in FRAMES:
        graph = Graph.from_tables(edges, nodes, missing=["absent"])
    else:
        write(tmp_path, edges.to_pydict(), nodes.to_pydict(), reader.removeprefix("import "))
        data = EdgeFolder(str(tmp_path), symmetrize=False, missing=["absent"])
        graph = data.load()
        if reader in IMPORTS:
            (tmp_path / "work").mkdir()
            journal = Journal(tmp_path / "work", "asked")
            work = import_graph(
                in_pieces(data), tmp_path / "work", Room(1 << 26, 1), journal, ProgressReporter(quiet=True)
            )
            graph = Graph.load(work)
    assert edges_of(graph) == [("NA", "-"), ("-", "NA")]


@pytest.mark.parametrize("seed", range(6))
def test_nodes_of_networkx_that_are_text_mean_the_same(seed: int) -> None:
    random = Random(seed + 200)
    for _ in range(30):
        pool = random.sample(ODD, random.choice([2, 4, 6]))
        pairs = [tuple(random.choices(pool, k=2)) for _ in range(3)]
        source_graph = nx.MultiDiGraph()
        source_graph.add_nodes_from(pool)
        source_graph.add_edges_from(pairs)
        try:
            actual: Any = sorted(edges_of(Graph.from_networkx(source_graph)))
        except UserError:
            actual = "refused"
        right = read_plainly({"src": [u for u, _ in pairs], "dst": [v for _, v in pairs]}, {"id": pool})
        assert actual == (right if right == "refused" else sorted(right)), pool
