"""A column means the same in every reader: numbers, dates, text and missing cells."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.passes import WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.cells import MISSING

Columns = dict[str, list[Any]]
Reader = Callable[[Path, Columns, Columns, dict[str, Any]], Graph]


def frames(frame: Callable[[Columns], Any]) -> Reader:
    return lambda _, nodes, edges, options: Graph.from_tables(frame(edges), frame(nodes), **options)


def networkx(_: Path, nodes: Columns, edges: Columns, options: dict[str, Any]) -> Graph:
    graph = nx.MultiDiGraph()
    for row in zip(*nodes.values(), strict=True):
        graph.add_node(row[0], **dict(zip(list(nodes)[1:], row[1:], strict=True)))
    for u, v, *row in zip(*edges.values(), strict=True):
        graph.add_edge(u, v, **dict(zip(list(edges)[2:], row, strict=True)))
    names = {name: name for name in ("label", "split") if name in nodes}
    names |= {"weight": "weight"} if "weight" in edges else {}
    features = [name for name in nodes if name not in ("id", "label", "split")]
    further = [name for name in edges if name not in ("src", "dst", "weight")]
    return Graph.from_networkx(graph, features=features, edge_features=further, **names, **options)


def write(folder: Path, form: str, nodes: Columns, edges: Columns) -> EdgeFolder:
    writer = pa.csv.write_csv if form == "csv" else pa.parquet.write_table
    for name, columns in (("nodes", nodes), ("edges", edges)):
        writer(pa.table(columns), folder / f"{name}.{form}")
    return folder


def loader(form: str) -> Reader:
    def read(folder: Path, nodes: Columns, edges: Columns, options: dict[str, Any]) -> Graph:
        return EdgeFolder(str(write(folder, form, nodes, edges)), symmetrize=False, **options).load()

    return read


def importer(form: str) -> Reader:
    def read(folder: Path, nodes: Columns, edges: Columns, options: dict[str, Any]) -> Graph:
        pieces = in_pieces(EdgeFolder(str(write(folder, form, nodes, edges)), symmetrize=False, **options))
        room, journal = Room(1 << 26, 1, bucket=7), Journal(folder, "asked")
        return Graph.load(import_graph(pieces, folder, room, journal, ProgressReporter(quiet=True), group=WorkGroup(2)))

    return read


READERS = {
    "pandas": frames(pd.DataFrame),
    "polars": frames(lambda columns: pl.DataFrame(columns, strict=False)),
    "arrow": frames(pa.table),
    "networkx": networkx,
    "csv": loader("csv"),
    "parquet": loader("parquet"),
    "import of csv": importer("csv"),
    "import of parquet": importer("parquet"),
}
every_reader = pytest.mark.parametrize("reader", READERS)


def read(reader: str, folder: Path, nodes: Columns, edges: Columns | None = None, **options: Any) -> Graph:
    """Reads four nodes with ids 0 to 3, and an edge from each to the next one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        columns = {"src": [0, 1, 2, 3], "dst": [1, 2, 3, 0], **(edges or {})}
        return READERS[reader](folder, {"id": [0, 1, 2, 3], **nodes}, columns, options)


def in_order(graph: Graph, rows: np.ndarray[Any, Any] | None) -> list[Any]:
    """Returns the first number of each edge, in the order of the user's list."""
    assert graph.edge_positions is not None
    assert rows is not None
    return rows.reshape(len(rows), -1)[np.argsort(graph.edge_positions), 0].tolist()


NUMBERS: Columns = {
    "seconds": [1_700_000_000, 1_700_000_001, 1_700_000_031, 1_700_000_059],
    "large": [2**53, 2**53 - 1, 2**53 - 2, 2**53 - 3],
    "far": [1e9 + 0.25, 1e9 + 0.5, 1e9 + 0.75, 1e9],
    "odd": [16_777_217, 0, 1, 2],
    "lists": [[1_700_000_000, 5], [1_700_000_001, 6], [1_700_000_002, 7], [1_700_000_003, 8]],
}


@every_reader
def test_numbers_are_exact_until_they_are_scaled(reader: str, tmp_path: Path) -> None:
    numbers = {name: column for name, column in NUMBERS.items() if name != "lists" or "csv" not in reader}
    reference = np.column_stack(list(numbers.values()))
    graph = read(reader, tmp_path, numbers, numbers)
    assert graph.features.tolist() == reference.tolist()
    assert graph.edge_features is not None
    assert graph.edge_positions is not None
    assert graph.edge_features[np.argsort(graph.edge_positions)].tolist() == reference.tolist()


@every_reader
def test_numbers_that_float32_holds_take_four_bytes(reader: str, tmp_path: Path) -> None:
    graph = read(reader, tmp_path, {"a": [0.1, 0.2, 0.3, 7.9], "b": [1, 2, 3, 2**24]})
    assert graph.features.dtype == np.float32


@every_reader
def test_a_word_for_missing_is_no_category_no_class_and_no_number(reader: str, tmp_path: Path) -> None:
    words = [None, *(word for word in MISSING if word), "None", "NULL", " NaN "]
    n = len(words) + 3
    nodes = {"id": [*range(n)], "town": ["Rome ", "Oslo", "Rome", *words], "age": ["30", "40", "50", *words]}
    nodes |= {"label": ["cat", "dog", " cat", *words], "split": ["train", "val", "test ", *words]}
    graph = read(reader, tmp_path, nodes)
    assert graph.feature_names == ("town=Oslo", "town=Rome", "age")
    assert graph.missing is not None
    assert graph.missing.tolist() == [[row, column] for row in range(3, n) for column in range(3)]
    np.testing.assert_array_equal(graph.features[:3], [[0, 1, 30], [1, 0, 40], [0, 1, 50]])
    assert graph.class_names == ("cat", "dog")
    assert graph.labels.tolist() == [0, 1, 0, *[-1] * len(words)]
    assert graph.split.tolist() == [1, 2, 3, *[0] * len(words)]


@every_reader
def test_the_words_for_missing_may_be_others(reader: str, tmp_path: Path) -> None:
    nodes = {"town": ["none", "Absent", "Oslo", "none"], "label": ["unknown", "cat", "absent", "cat"]}
    graph = read(reader, tmp_path, nodes, missing=["absent"])
    assert graph.feature_names == ("town=Oslo", "town=none")
    assert graph.class_names == ("cat", "unknown")
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"missing=none must be a list of words and numbers, such as \[none,-999\]"):
        read(reader, tmp_path / "other", nodes, missing="none")


SPELT: dict[str, tuple[list[str], list[float]]] = {
    "plain": (["1", " 2 ", "-3.5", "4e2"], [1, 2, -3.5, 400]),
    "comma": (["1,5", "2", "0,123", "1.234,5"], [1.5, 2, 0.123, 1234.5]),
    "dollars": (["$1", "$2,000.50", "-$3", "$1,000,000"], [1, 2000.5, -3, 1e6]),
    "euros": (["1 000 €", "2 €", "3€", "4,5 €"], [1000, 2, 3, 4.5]),
    "percent": (["10%", "50 %", "0%", "12.5%"], [0.1, 0.5, 0, 0.125]),
    "groups": (["1'000", "2", "3", "4"], [1000, 2, 3, 4]),
    "days": (["2026-01-01", "1970-01-02", "2026-01-01", "1970-01-01"], [1767225600, 86400, 1767225600, 0]),
    "moments": (
        ["2026-01-01T00:00:01Z", "2026-01-01 02:00+02:00", "1970-01-01T00:01Z", "1970-01-01T00:00:00.5Z"],
        [1767225601, 1767225600, 60, 0.5],
    ),
}


@every_reader
def test_text_that_spells_numbers_or_dates_is_read_as_these(reader: str, tmp_path: Path) -> None:
    columns = {name: cells for name, (cells, _) in SPELT.items()}
    graph = read(reader, tmp_path, columns, columns)
    assert graph.feature_names == graph.edge_feature_names == tuple(SPELT)
    reference = np.column_stack([numbers for _, numbers in SPELT.values()])
    np.testing.assert_allclose(graph.features, reference, rtol=1e-15)
    assert graph.edge_features is not None
    assert graph.edge_positions is not None
    np.testing.assert_allclose(graph.edge_features[np.argsort(graph.edge_positions)], reference, rtol=1e-15)
    assert graph.category_of is graph.edge_category_of is None


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        (["1,234", "5", "6", "7"], r"column 'a' holds '1,234', which may be 1234 or 1\.234: write the numbers with"),
        (["1,5", "2.5", "3", "4"], "column 'a' spells numbers with a decimal point in some cells, and with a decimal"),
        (["$1", "2", "3", "4"], r"column 'a' mixes units, such as '\$1' and '2': use one unit"),
        (["1.5", "2", "3", "soon"], "column 'a' holds numbers, but 'soon' is neither a number nor"),
        (
            ["2026-01-01", "2026-01-02", "2026-01-03", "soon"],
            "column 'a' holds dates, but 'soon' is neither a date nor",
        ),
        (
            ["2026-01-01", "2026-01-02", "2026-02-30", "2026-03-01"],
            "column 'a' holds dates, but '2026-02-30' is neither a date nor",
        ),
    ],
)
@pytest.mark.parametrize("reader", ["arrow", "import of csv"])
def test_text_of_two_meanings_is_refused(reader: str, cells: list[str], message: str, tmp_path: Path) -> None:
    for number, (nodes, edges) in enumerate((({"a": cells}, {}), ({}, {"a": cells}))):
        (tmp_path / str(number)).mkdir()
        with pytest.raises(UserError, match=message) as caught:
            read(reader, tmp_path / str(number), nodes, edges)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("reader", ["pandas", "networkx", "csv", "import of csv"])
@pytest.mark.parametrize(
    ("labels", "numbers", "names"),
    [
        (["1", "0", "2", "1"], [1, 0, 2, 1], None),
        (["1", "0", "unknown", "1"], [1, 0, -1, 1], None),
        (["0.5", "1.5", "?", "2"], [0.5, 1.5, np.nan, 2], None),
        (["1", "0", "x", "1"], [1, 0, 2, 1], ("0", "1", "x")),
        (["u ", "u", "v", " v"], [0, 0, 1, 1], ("u", "v")),
        ([None, None, None, None], [-1, -1, -1, -1], None),
    ],
)
def test_labels_are_classes_names_or_numbers(
    reader: str, labels: list[Any], numbers: list[float], names: tuple[str, ...] | None, tmp_path: Path
) -> None:
    graph = read(reader, tmp_path, {"label": labels})
    np.testing.assert_array_equal(graph.labels, numbers)
    assert graph.class_names == names


@pytest.mark.parametrize("reader", ["csv", "import of csv"])
@pytest.mark.parametrize("names", [("False", "True"), ("FALSE", "TRUE"), ("false", "true")])
def test_boolean_labels_of_text_files_are_those_of_booleans(
    reader: str, names: tuple[str, str], tmp_path: Path
) -> None:
    graph = read(reader, tmp_path, {"label": [names[1], names[0], "", names[1]]})
    assert graph.labels.tolist() == [1, 0, -1, 1]
    assert graph.class_names == ("false", "true")


@pytest.mark.parametrize("reader", ["pandas", "parquet", "import of parquet"])
def test_booleans_become_classes_in_lower_case(reader: str, tmp_path: Path) -> None:
    graph = read(reader, tmp_path, {"label": [True, False, True, True]})
    assert graph.labels.tolist() == [1, 0, 1, 1]
    assert graph.class_names == ("false", "true")


@pytest.mark.parametrize("reader", ["csv", "import of csv"])
def test_messages_print_cells_as_in_the_file(reader: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"column 'a', row 1: '\\N' is empty or a word for a missing value"):
        read(reader, tmp_path, {}, {"a": ["1", r"\N", "3", "4"]})
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"but '\\X' is neither a number .*missing=\[WORD, ...\] \(dataset.missing\)"):
        read(reader, tmp_path / "other", {"a": ["1", r"\X", "3", "4"]})


@every_reader
@pytest.mark.parametrize("labels", [[-1, 1, 1, -1]])
def test_the_classes_minus_one_and_one_are_refused(reader: str, labels: list[Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="labels are only -1 and 1, and -1 means unlabelled"):
        read(reader, tmp_path, {"label": labels})


@every_reader
@pytest.mark.parametrize("empty", [None, "unknown"])
def test_one_class_beside_empty_labels_is_read(reader: str, empty: str | None, tmp_path: Path) -> None:
    column: Any = [empty, 1, 1, empty] if empty is None else [empty, "1", "1", empty]
    if reader == "pandas" and empty is None:  # whose own type for these is a float
        column = pd.array(column, dtype="Int64")
    assert read(reader, tmp_path, {"label": column}).labels.tolist() == [-1, 1, 1, -1]


@pytest.mark.parametrize("reader", ["arrow", "csv", "import of parquet"])
def test_whole_numbers_that_float64_merges_are_refused(reader: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"column 'a' holds whole numbers from 1152921504606846976 to .*: subtract 115"):
        read(reader, tmp_path, {"a": [2**60, 2**60 + 1, 2**60 + 2, 2**60 + 59]})
    (tmp_path / "other").mkdir()
    far = read(reader, tmp_path / "other", {"a": [2**60, 2**61, 2**62, 0]})
    assert far.features.ravel().tolist() == [2**60, 2**61, 2**62, 0]


def test_arrays_of_minus_one_and_one_are_refused_and_other_classes_are_not(tmp_path: Path) -> None:
    from gnnkit_formats.npz import Npz

    signs = np.array([-1, 1, 1])
    with pytest.raises(UserError, match="labels are only -1 and 1"):
        Graph.from_edges([0, 1], [1, 2], labels=signs)
    np.savez(tmp_path / "a.npz", indptr=[0, 0, 1, 2], indices=[0, 1], x=np.eye(3), y=signs)
    with pytest.raises(UserError, match="labels are only -1 and 1"):
        Npz(str(tmp_path / "a.npz")).load()
    for labels in ([-1, 0, 1], [-1, 0, 0], [1, 1, 1], [-1, -1, -1], [-1.0, 1.0, 1.0]):
        assert Graph.from_edges([0, 1], [1, 2], labels=labels).labels.tolist() == labels
    assert Graph.from_edges([0, 1], [1, 2], labels=signs, class_names=["no", "yes"]).num_classes == 2
    assert Graph.from_edges([0, 1], [1, 2], labels=signs, one_class=True).labels.tolist() == [-1, 1, 1]
    np.save(tmp_path / "edges.npy", [[0, 1], [1, 2]])
    np.save(tmp_path / "labels.npy", signs)
    folder = EdgeFolder(str(tmp_path), symmetrize=False)
    with pytest.raises(UserError, match="labels are only -1 and 1"):
        folder.load()
    with pytest.raises(UserError, match="labels are only -1 and 1"):
        in_pieces(folder).nodes(3, Room(1 << 26, 1))


@every_reader
def test_edges_have_categories_as_nodes_have(reader: str, tmp_path: Path) -> None:
    graph = read(reader, tmp_path, {"f": [1, 2, 3, 4]}, {"kind": ["red", "blue ", "blue", "red"], "size": [1, 2, 3, 4]})
    assert graph.edge_feature_names == ("kind=blue", "kind=red", "size")
    assert graph.edge_category_of == ("kind", "kind", "")
    assert in_order(graph, graph.edge_features) == [0, 1, 1, 0]


@every_reader
@pytest.mark.parametrize("cells", [["red", "unknown", "blue", "red"]])
def test_an_edge_without_a_feature_is_named(reader: str, cells: list[str], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="column 'kind', row 1: 'unknown' is empty or a word for a missing value"):
        read(reader, tmp_path, {}, {"kind": cells})


@every_reader
def test_weights_may_be_text_that_spells_numbers(reader: str, tmp_path: Path) -> None:
    graph = read(reader, tmp_path, {}, {"weight": ["$1", "$2.5", "$3", "$4"]})
    assert in_order(graph, graph.csc.weight) == [1, 2.5, 3, 4]
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="column 'weight', row 1: 'unknown' is empty or a word for a missing value"):
        read(reader, tmp_path / "other", {}, {"weight": ["$1", "unknown", "$3", "$4"]})


DAYS = [datetime.date(2026, 1, 1), None, datetime.date(1970, 1, 2), datetime.date(1970, 1, 1)]
ROME = datetime.timezone(datetime.timedelta(hours=1))
TIMES = [datetime.datetime(1970, 1, 1, 1, 0, 5, tzinfo=ROME), None, datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)]
SPANS = [datetime.timedelta(days=1), None, datetime.timedelta(seconds=1.5), datetime.timedelta(0)]


@pytest.mark.parametrize("reader", ["pandas", "polars", "arrow", "networkx", "parquet", "import of parquet"])
@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (DAYS, [1767225600, 0, 86400, 0]),
        ([*TIMES, None], [5, 0, 86400, 0]),
        (SPANS, [86400, 0, 1.5, 0]),
        ([datetime.time(1, 2, 3), None, datetime.time(0), datetime.time(0)], [3723, 0, 0, 0]),
        ([Decimal("1.50"), None, Decimal("2.25"), Decimal("3.00")], [1.5, 0, 2.25, 3]),
    ],
)
def test_dates_times_durations_and_decimals_are_numbers(
    reader: str, cells: list[Any], expected: list[float], tmp_path: Path
) -> None:
    graph = read(reader, tmp_path, {"when": cells})
    assert graph.features.ravel().tolist() == expected
    assert graph.missing is not None
    assert [0, 0] not in graph.missing.tolist()
    assert [1, 0] in graph.missing.tolist()


@pytest.mark.parametrize(
    ("column", "names", "rows"),
    [
        (pd.cut(pd.Series([1, 2, 3, None]), [0, 2, 4]), ("a=(0, 2]", "a=(2, 4]"), [[1, 0], [1, 0], [0, 1], [0, 0]]),
        (pd.Series(["x", "y", None, "x"], dtype="category"), ("a=x", "a=y"), [[1, 0], [0, 1], [0, 0], [1, 0]]),
        (pd.Series(pd.arrays.SparseArray([0, 0, 2.0, 0])), ("a",), [[0], [0], [2], [0]]),
        (pd.Series([True, False, None, True], dtype="boolean"), ("a",), [[1], [0], [0], [1]]),
        (pd.Series(["true", "False", None, "unknown"], dtype=object), ("a",), [[1], [0], [0], [0]]),
        (pd.Series([1, 2, None, 2**53 - 1], dtype="Int64"), ("a",), [[1], [2], [0], [2**53 - 1]]),
        (pd.Series([1.5, "unknown", None, 2], dtype=object), ("a",), [[1.5], [0], [0], [2]]),
        (pa.array([[1, 2], [3, 4], None, [5, 6]], pa.large_list(pa.int64())), ("a[0]", "a[1]"), [[1, 2], [3, 4], [0, 0], [5, 6]]),
        (pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.float16(), 2)), ("a[0]", "a[1]"), [[1, 2], [3, 4], [0, 0], [5, 6]]),
        (pa.array([1, 2, None, 3]).dictionary_encode(), ("a",), [[1], [2], [0], [3]]),
    ],
)  # fmt: skip
def test_columns_of_the_libraries_own_types_are_read(column: Any, names: tuple[str, ...], rows: Any) -> None:
    nodes = (
        pa.table({"id": range(4), "a": column})
        if isinstance(column, pa.Array)
        else pd.DataFrame({"id": range(4), "a": column})
    )
    graph = Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes)
    assert graph.feature_names == names
    assert graph.features.tolist() == rows


@pytest.mark.parametrize(
    "column",
    [pa.array([b"x", b"y"]), pa.array([{"a": 1}, {"a": 2}]), pa.array([[[1]], [[2]]]), pa.array([["x"], ["y"]])],
    ids=["binary", "struct", "lists of lists", "lists of text"],
)
def test_other_types_are_refused_with_the_cure(column: pa.Array) -> None:
    nodes = pa.table({"id": [0, 1], "a": column})
    with pytest.raises(
        UserError, match=r"column 'a' holds .*, expected numbers, text or dates: features=\[NAME, ...\]"
    ):
        Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes)


@pytest.mark.parametrize("reader", ["arrow", "csv", "import of csv"])
def test_blanks_around_the_name_of_a_relation_do_not_count(reader: str, tmp_path: Path) -> None:
    graph = read(reader, tmp_path, {}, {"type": ["likes", "likes ", " owns", "owns"]})
    assert graph.edge_type_names == ("likes", "owns")


def test_a_warning_names_what_is_read_as_something_else() -> None:
    nodes = pd.DataFrame({"id": [0, 1], "cost": ["$1", "$2"], "joined": ["2026-01-01", "2026-01-02"], "age": [1, 2]})
    with pytest.warns(
        UserWarning, match=r"^nodes: reads 'cost' \(\$1\) as numbers, 'joined' \(2026-01-01\) as seconds"
    ) as caught:
        Graph.from_tables(pd.DataFrame({"src": [0], "dst": [1]}), nodes)
    assert len(caught) == 1


@pytest.mark.parametrize("reader", ["pandas", "csv", "import of csv"])
def test_a_column_of_dates_with_and_without_a_time_zone_is_named(reader: str, tmp_path: Path) -> None:
    cells = ["2026-01-01T00:00", "2026-01-01T00:00+01:00", "2026-01-01"]
    nodes, edges = {"id": [0, 1, 2], "joined": cells}, {"src": [0], "dst": [1]}
    match = r"'joined' \(2026-01-01, some with a time zone and the others read in UTC\) as seconds"
    with pytest.warns(UserWarning, match=match):
        graph = READERS[reader](tmp_path, nodes, edges, {})
    assert (graph.features[:, 0] - graph.features[0, 0]).tolist() == [0, -3600, 0]


def test_a_sparse_matrix_of_features_is_read() -> None:
    from scipy.sparse import coo_array

    matrix = coo_array(([1.0, 2.0, 3.0], ([0, 1, 1], [1, 0, 0])), (3, 2))
    graph = Graph.from_edges([0], [1], 3, features=matrix)
    np.testing.assert_array_equal(np.asarray(graph.features), [[0, 1], [5, 0], [0, 0]])
    assert Graph.from_edges([0], [1], features=torch.eye(2).bfloat16()).features.dtype == np.float32


@pytest.mark.parametrize("reader", ["pandas", "networkx", "csv", "import of csv"])
def test_labels_that_are_words_for_missing_are_counted_in_a_warning(reader: str, tmp_path: Path) -> None:
    nodes = {"id": [0, 1, 2, 3], "label": ["buys", "unknown", "sells", "unknown"]}
    with pytest.warns(
        UserWarning, match=r"'label': 2 rows have no label, because 'unknown' .* missing=\[WORD, \.\.\.\]"
    ):
        graph = READERS[reader](tmp_path, nodes, {"src": [0], "dst": [1]}, {})
    assert graph.labels.tolist() == [0, -1, 1, -1]


@pytest.mark.parametrize("reader", ["pandas", "csv", "import of csv"])
def test_a_word_for_missing_on_an_edge_is_named_with_the_key_that_reads_it(reader: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"'kind', row 1: 'none' is empty or a word for a missing value, which missing=\[WORD, "
    ):
        read(reader, tmp_path, {}, {"kind": ["a", "none", "b", "a"]})
