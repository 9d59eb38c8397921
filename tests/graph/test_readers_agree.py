"""One table, drawn at random, is the same graph or the same refusal in every reader."""

from __future__ import annotations

import csv
import datetime
import os
import re
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.passes import WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from gnnkit.errors import UserError
from gnnkit.graph import Graph

# More examples than a run of the suite has: GNNKIT_FUZZ_EXAMPLES=5000 pytest THIS_FILE
NUM_EXAMPLES = int(os.environ.get("GNNKIT_FUZZ_EXAMPLES", "30"))
Columns = dict[str, pa.Array]


@dataclass(frozen=True)
class Tables:
    """A table of edges, perhaps with one of nodes. Missing cells are null."""

    edges: Columns  # src, dst, and perhaps weight, type and features
    nodes: Columns = field(default_factory=dict)  # id, and perhaps label, split and features. Empty: no table

    @property
    def num_nodes(self) -> int:
        return len(self.nodes["id"])

    @property
    def optional(self) -> list[str]:
        """Columns that may be left out, such as `nodes.label`."""
        return [
            f"{table}.{name}"
            for table, columns in (("edges", self.edges), ("nodes", self.nodes))
            for name in columns
            if name not in ("src", "dst", "id")
        ]

    def without(self, column: str) -> Tables:
        """Returns the tables without an optional column."""
        table, _, name = column.partition(".")
        remainder = {key: cells for key, cells in getattr(self, table).items() if key != name}
        return replace(self, **{table: remainder})


# Kinds of columns: what the cells are drawn from, and the type in Arrow. A kind that is
# taken out of its mapping is not drawn.
def _texts(*words: str) -> st.SearchStrategy[Any]:
    return st.sampled_from(words)


_DAYS = st.integers(0, 20_000).map(lambda day: datetime.date(1970, 1, 1) + datetime.timedelta(day))
_FEATURES: dict[str, tuple[st.SearchStrategy[Any], pa.DataType]] = {
    "whole": (st.integers(-5, 300), pa.int64()),
    "byte": (st.integers(0, 255), pa.uint8()),
    "large": (st.integers(-(2**53), 2**53), pa.int64()),
    "seconds": (st.integers(1_700_000_000, 1_700_000_060), pa.int64()),
    "double": (st.floats(-1e30, 1e30), pa.float64()),
    "tiny": (st.floats(-1e-300, 1e-300), pa.float64()),
    "single": (st.floats(-(2.0**99), 2.0**99, width=32), pa.float32()),
    "huge": (st.sampled_from([1.0, 1e39, -1e300]), pa.float64()),
    "not finite": (st.sampled_from([1.0, float("inf"), float("nan")]), pa.float64()),
    "numbers as text": (_texts("1", "2.5", "-3", "1e3", " 4", "007"), pa.string()),
    "units": (_texts("$1", "$2.50"), pa.string()),
    "percent": (_texts("10%", "2.5 %"), pa.string()),
    "comma": (_texts("1,5", "2,25"), pa.string()),
    "number or word": (_texts("1", "2", "many"), pa.string()),
    "number or none": (_texts("1", "2", "?", "unknown", "NA", "None", "null", "nan"), pa.string()),
    "words": (_texts("red", "blue", "green"), pa.string()),
    "words with blanks": (_texts("red", "red ", " blue", "Red"), pa.string()),
    "words or none": (_texts("red", "blue", "NA", "None", "unknown", "?", "nan", ""), pa.string()),
    "quoted words": (_texts('a "b"', "c,d", "e\nf", "g'h", "ü", "a;b"), pa.string()),
    "switch": (st.booleans(), pa.bool_()),
    "switch as text": (_texts("true", "false", "True"), pa.string()),
    "day": (_DAYS, pa.date32()),
    "day as text": (_DAYS.map(str), pa.string()),
    "day of Americans": (_DAYS.map(lambda day: f"{day:%m/%d/%Y}"), pa.string()),
    "day with a name": (_DAYS.map(lambda day: f"{day:%d-%b-%Y}"), pa.string()),
    "clock": (_texts("7:05", "17:35", "23:59:01"), pa.string()),
    "lap": (_texts("1:27.452", "0:59.9"), pa.string()),
    "clock or word": (_texts("7:05", "17:35", "soon"), pa.string()),
    "moment": (_DAYS.map(lambda day: datetime.datetime(day.year, day.month, day.day, 12)), pa.timestamp("us")),
    "nothing": (st.none(), pa.string()),
    "no number": (st.none(), pa.float64()),
}
_LABELS = {
    "classes": (st.integers(0, 3), pa.int64()),
    "classes from 1": (st.integers(1, 3), pa.int64()),
    "signs": (st.sampled_from([-1, 1]), pa.int64()),
    "classes or none": (st.sampled_from([-1, 0, 1]), pa.int64()),
    "names": (_texts("cat", "dog"), pa.string()),
    "names or none": (_texts("cat", "dog", "NA", "unknown", "?", "None", "dog "), pa.string()),
    "numbers as names": (_texts("0", "1", "2"), pa.string()),
    "numbers or names": (_texts("0", "1", "b"), pa.string()),
    "sets": (_texts("a;b", "b", "c;a"), pa.string()),
    "values": (st.floats(-100, 100).map(lambda x: x + 0.0), pa.float64()),
    "whole values": (st.integers(0, 3).map(float), pa.float64()),
    "far": (st.integers(10**6, 10**12), pa.int64()),
    "targets": (st.integers(-3, 100_000), pa.int64()),
    "targets as text": (st.integers(-3, 100_000).map(str), pa.string()),
    "beyond float64": (st.sampled_from([5, 2**53, 2**60 + 1]), pa.int64()),
    "switch": (st.booleans(), pa.bool_()),
    "nothing": (st.none(), pa.string()),
}
_SPLITS = {
    "names": (_texts("train", "val", "test", "none"), pa.string()),
    "other names": (_texts("train", "valid", "dev", "Train"), pa.string()),
    "numbers": (st.integers(0, 3), pa.int64()),
    "switch": (st.booleans(), pa.bool_()),
}
_WEIGHTS = {
    "positive": (st.floats(0.125, 100), pa.float64()),
    "any": (st.floats(-10, 10), pa.float64()),
    "whole": (st.integers(0, 5), pa.int64()),
    "as text": (_texts("1", "2.5"), pa.string()),
    "words": (_texts("heavy", "1"), pa.string()),
    "not finite": (st.sampled_from([1.0, float("inf")]), pa.float64()),
}
_TYPES = {
    "names": (_texts("likes", "knows"), pa.string()),
    "numbers": (st.integers(0, 2), pa.int64()),
    "fractions": (st.sampled_from([0.0, 0.5]), pa.float64()),
}
_IDS = {
    "in order": (None, pa.int64()),
    "whole": (st.integers(-50, 1000), pa.int64()),
    "sparse": (st.integers(1, 9 * 10**9), pa.int64()),
    "from 1": (st.integers(1, 6), pa.int64()),
    "large": (st.integers(2**53 - 4, 2**53 + 30), pa.int64()),
    "small type": (st.integers(0, 100), pa.int16()),
    "text": (_texts(*"abcdefghijkl", "A", "b ", "ü", "a b"), pa.string()),
    "digits": (_texts("7", "007", "07", "8", "9", "10", "1.0", "1", "-0", "0"), pa.string()),
    "fractions": (st.integers(0, 40).map(float), pa.float64()),
    "mixed": (_texts(*"123456789", "x"), pa.string()),
}
_INDEX = ("Unnamed: 0", "__index_level_0__", "")  # names that pandas gives an index
_NAMES = ("a", "b", "index", *_INDEX)


def _cells(draw: st.DrawFn, kind: tuple[st.SearchStrategy[Any], pa.DataType], count: int) -> pa.Array:
    """Draws a column, in one of three with missing cells."""
    cells, dtype = kind
    if draw(st.sampled_from([False, False, True])):
        cells = st.none() | cells
    return pa.array(draw(st.lists(cells, min_size=count, max_size=count)), dtype)


def _column(draw: st.DrawFn, kinds: Mapping[str, Any], count: int) -> pa.Array:
    return _cells(draw, kinds[draw(st.sampled_from(sorted(kinds)))], count)


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    """Draws nodes with ids of one kind, and edges between these."""
    count, num_edges = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    cells, dtype = _IDS[draw(st.sampled_from(sorted(_IDS)))]
    repeats = draw(st.integers(0, 9)) == 0
    ids = (
        list(range(count))
        if cells is None
        else draw(st.lists(cells, min_size=count, max_size=count, unique=not repeats))
    )
    ends = st.sampled_from(ids)
    if draw(st.integers(0, 7)) == 0:
        ends |= st.none()
    if draw(st.integers(0, 7)) == 0 and cells is not None:
        ends |= cells
    edges = {
        end: pa.array(draw(st.lists(ends, min_size=num_edges, max_size=num_edges)), dtype) for end in ("src", "dst")
    }
    for name, kinds in (("weight", _WEIGHTS), ("type", _TYPES), ("length", _FEATURES)):
        if draw(st.booleans()):
            edges[name] = _column(draw, kinds, num_edges)
    if draw(st.integers(0, 4)) == 0:
        return Tables(edges)
    nodes = {"id": pa.array([*ids[:-1], None] if draw(st.integers(0, 15)) == 0 else ids, dtype)}
    for name, kinds in (("label", _LABELS), ("split", _SPLITS)):
        if draw(st.booleans()):
            nodes[name] = _column(draw, kinds, count)
    for name in draw(st.lists(st.sampled_from(_NAMES), max_size=2, unique=True)):
        nodes[name] = _column(draw, _FEATURES, count)
    return Tables(edges, nodes)


# What a form cannot express is not compared.
def _have_whole_numbers_gaps(given: Tables) -> bool:
    """Whether whole numbers have gaps, so that pandas makes fractions of these."""
    columns = (given.nodes.get("label"), given.nodes.get("split"), given.edges.get("type"))
    return any(column is not None and column.null_count and not pa.types.is_string(column.type) for column in columns)


def _have_text_ids(given: Tables) -> bool:
    return pa.types.is_string(given.edges["src"].type)


def _have_numbers_as_text_ids(given: Tables) -> bool:
    """Whether ids are text that looks like numbers, which a CSV does not tell apart.

    Without a table of nodes, most of the ids are enough.
    """
    columns = [given.edges["src"], given.edges["dst"], *([given.nodes["id"]] if given.nodes else [])]
    ids = {cell for column in columns for cell in column.to_pylist() if cell is not None}
    if not _have_text_ids(given):
        return False
    numbers = [cell for cell in ids if re.fullmatch(r"-?\d+(\.0)?", cell)]
    return len(numbers) == len(ids) if given.nodes else 2 * len(numbers) >= len(ids)


# Readers. Each returns a graph, or None where the form cannot express the tables.
def _frames(make: Callable[[pa.Table], Any]) -> Callable[[Tables, Path], Graph]:
    def read(given: Tables, _: Path) -> Graph:
        return Graph.from_tables(make(pa.table(given.edges)), make(pa.table(given.nodes)) if given.nodes else None)

    return read


def _pandas(given: Tables, folder: Path) -> Graph | None:
    read = _frames(lambda table: table.to_pandas())
    return None if _have_whole_numbers_gaps(given) else read(given, folder)


def _polars(given: Tables, folder: Path) -> Graph | None:
    return None if "" in given.nodes else _frames(pl.from_arrow)(given, folder)  # polars names such a column


def _spelt(value: Any) -> str:
    """Spells a cell as pandas and pyarrow write it."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _write(given: Tables, folder: Path, form: str) -> EdgeFolder:
    for name, columns in (("edges", given.edges), ("nodes", given.nodes)):
        if columns and form == "parquet":
            pa.parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
        elif columns:
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                rows = zip(*(column.to_pylist() for column in columns.values()), strict=True)
                csv.writer(file).writerows([list(columns), *([_spelt(cell) for cell in row] for row in rows)])
    return EdgeFolder(str(folder), symmetrize=False)


def _loaded(form: str) -> Callable[[Tables, Path], Graph | None]:
    def read(given: Tables, folder: Path) -> Graph | None:
        if form == "csv" and _have_numbers_as_text_ids(given):
            return None
        return _write(given, folder, form).load()

    return read


def _imported(form: str) -> Callable[[Tables, Path], Graph | None]:
    def read(given: Tables, folder: Path) -> Graph | None:
        needs_nodes = not given.nodes and _have_text_ids(given)  # an import numbers text by a table of nodes
        if needs_nodes or (form == "csv" and _have_numbers_as_text_ids(given)):
            return None
        pieces, work = in_pieces(_write(given, folder, form)), folder / "work"
        work.mkdir()
        room, journal = Room(1 << 26, 1, bucket=7), Journal(work, "asked")
        return Graph.load(import_graph(pieces, work, room, journal, ProgressReporter(quiet=True), group=WorkGroup(2)))

    return read


def _networkx(given: Tables, _: Path) -> Graph | None:
    """Reads the tables as a graph of networkx, whose nodes are distinct."""
    if not given.nodes or "type" in given.edges or given.nodes["id"].null_count:
        return None
    nodes, edges = (
        {name: column.to_pylist() for name, column in table.items()} for table in (given.nodes, given.edges)
    )
    ends = [end for name in ("src", "dst") for end in edges[name]]
    if len(set(nodes["id"])) < given.num_nodes or not set(ends) <= set(nodes["id"]):
        return None
    if pa.types.is_floating(given.nodes["id"].type):
        nodes["id"], edges["src"], edges["dst"] = (
            list(map(int, table)) for table in (nodes["id"], edges["src"], edges["dst"])
        )
    graph = nx.MultiDiGraph()
    for place, node in enumerate(nodes["id"]):
        graph.add_node(node, **{name: values[place] for name, values in nodes.items() if name != "id"})
    for place, (u, v) in enumerate(zip(edges["src"], edges["dst"], strict=True)):
        graph.add_edge(u, v, **{name: values[place] for name, values in edges.items() if name not in ("src", "dst")})
    named = {name: name for name in ("label", "split") if name in nodes} | (
        {"weight": "weight"} if "weight" in edges else {}
    )
    features = [name for name in nodes if name not in ("id", "label", "split", *_INDEX)]
    return Graph.from_networkx(graph, features=features, edge_features=[n for n in edges if n == "length"], **named)


def _pyg(given: Tables, folder: Path) -> Graph | None:
    """Reads what arrow's reader has made as PyG's `Data`, where tensors hold all."""
    try:
        graph = READERS["arrow"](given, folder)
    except UserError:
        return None
    assert graph is not None
    ids = graph.node_ids
    one_type = graph.edge_types is not None and len(set(graph.edge_types.tolist())) == 1  # which PyG's Data drops
    if one_type or graph.missing is not None or (ids is not None and ids.dtype.kind not in "iu"):
        return None
    order = np.argsort(graph.edge_positions)
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    of_edges = {"edge_attr": graph.edge_features, "edge_weight": graph.csc.weight, "edge_type": graph.edge_types}
    parts = {
        f"{name}_mask": torch.from_numpy(graph.split == part) for part, name in enumerate(("train", "val", "test"), 1)
    }
    data = Data(
        torch.tensor(np.asarray(graph.features)),
        torch.from_numpy(np.stack([graph.csc.indices[order], dst[order]]).astype(np.int64)),
        y=torch.tensor(graph.labels),
        num_nodes=graph.num_nodes,
        **{name: torch.tensor(values[order]) for name, values in of_edges.items() if values is not None},
        **parts,
        **({} if ids is None else {"n_id": torch.tensor(ids.astype(np.int64))}),
    )
    return Graph.from_pyg(data)


READERS: dict[str, Callable[[Tables, Path], Graph | None]] = {
    "arrow": _frames(lambda table: table),
    "pandas": _pandas,
    "pandas of arrow": _frames(lambda table: table.to_pandas(types_mapper=pd.ArrowDtype)),
    "polars": _polars,
    "parquet": _loaded("parquet"),
    "import of parquet": _imported("parquet"),
    "csv": _loaded("csv"),
    "import of csv": _imported("csv"),
    "networkx": _networkx,
    "pyg": _pyg,
}
_NAMELESS = {"pyg": ("class_names", "feature_names", "category_of", "edge_feature_names", "edge_type_names")}


def _sorted_edges(graph: Graph) -> list[tuple[Any, ...]]:
    """Lists the edges with all that belongs to each, in an order of their own."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    columns = [graph.csc.indices, dst, graph.csc.weight, graph.edge_types]
    values = [column.tolist() for column in columns if column is not None]
    values += [] if graph.edge_features is None else [list(map(tuple, graph.edge_features.tolist()))]
    return sorted(zip(*values, strict=True))


def outcome(reader: str, given: Tables) -> dict[str, Any] | None:
    """Returns what a reader makes of tables. None: its form cannot express these.

    A column that is refused is left out, and the rest is read again, because readers
    look at columns in different orders. A refusal of ids ends this.
    """
    errors: list[tuple[str, str]] = []
    while True:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                graph = READERS[reader](given, Path(folder))
            except UserError as error:
                column, reason = _refused(str(error))
                if column not in given.optional:
                    return {"refused": ["ids"]}
                given, errors = given.without(column), [*errors, (column, reason)]
                continue
            return None if graph is None else {"refused": sorted(errors), **_plain(graph, reader)}


def _refused(message: str) -> tuple[str, str]:
    """Returns the column that a message names, and why it is refused."""
    match = re.search(r"(?:column|attribute) '([^']*)'(.*)", message)
    if match is None:
        return "", message
    table = "edges" if re.search(r"\bedges\b", message[: match.start()]) else "nodes"
    reason = re.split(r": (?:edge_)?features=|: dataset\.ignore=| \(also |; (?:edges|nodes)\b", match[2])[
        0
    ]  # one column at a time
    if table == "edges":  # rows without the cell, which a CSV does not have for a missing value
        reason = re.sub(r"row \d+: (?!is )\S+", "row", re.sub(r"row \d+: is", "row is", reason))
    return f"{table}.{match[1]}", reason.replace("large_string", "string")


def _labels(graph: Graph) -> tuple[str, str]:
    """Returns labels and their kind, as text, since NaN is not equal to itself.

    Without any label, the kind is that of an empty column, which differs by form.
    """
    return (graph.labels.dtype.kind, str(graph.labels.tolist())) if graph.labelled.any() else ("", "")


def _plain(graph: Graph, reader: str) -> dict[str, Any]:
    names = ("class_names", "feature_names", "category_of", "edge_feature_names", "edge_type_names")
    features = np.asarray(graph.features)
    return {
        "nodes": graph.num_nodes,
        "edges": _sorted_edges(graph),
        "ids": list(range(graph.num_nodes)) if graph.node_ids is None else graph.node_ids.tolist(),
        "features": (str(features.dtype), features.tolist()),
        "missing": [] if graph.missing is None else graph.missing.tolist(),
        "labels": _labels(graph),
        "split": graph.split.tolist(),
        **{name: getattr(graph, name) for name in names if name not in _NAMELESS.get(reader, ())},
    }


def _without_reasons(refused: Any) -> Any:
    """Drops reasons of edge columns: the first bad edge depends on the order."""
    return [(one[0], "") if one[0].startswith("edges") else one for one in refused]


def disagreements(given: Tables) -> list[str]:
    """Describes where readers do not agree with arrow's."""
    reference, lines = outcome("arrow", given), []
    assert reference is not None
    for reader in READERS:
        actual = outcome(reader, given)
        for name in actual or ():
            assert actual is not None
            is_refusal = reader == "networkx" and name == "refused"
            values = [
                _without_reasons(values_of_field) if is_refusal else values_of_field
                for values_of_field in (actual[name], reference.get(name))
            ]
            if values[0] != values[1]:
                lines.append(f"{reader}: {name} is {values[0]}, and {values[1]} of arrow")
                break
    return lines


def _tables(edges: Mapping[str, Any], nodes: Mapping[str, Any]) -> Tables:
    return Tables(*({name: pa.array(*cells) for name, cells in each.items()} for each in (edges, nodes)))


_ENDS = {"src": ([0, 1],), "dst": ([1, 1],)}
_ALONE = {"id": ([0, 1],)}
# Tables that some readers read in another way once.
ONCE = [
    _tables(_ENDS, {**_ALONE, "a": ([None, ""], pa.string())}),
    _tables({**_ENDS, "length": ([None, None], pa.string())}, _ALONE),
    _tables({**_ENDS, "type": ([0.0, 1.0],)}, {}),
    _tables({**_ENDS, "type": ([0.0, 0.5],)}, _ALONE),
    _tables({"src": (["7", "a"],), "dst": (["007", "a"],)}, {"id": (["7", "007", "a"],)}),
    _tables({**_ENDS, "length": (["NA", "NA"],)}, {}),
    _tables({"src": ([27.0],), "dst": ([3.0],)}, {"id": ([3.0, 27.0],)}),
    _tables({"src": (["a", None],), "dst": (["b", "a"],)}, {}),
    _tables({**_ENDS, "type": ([0.5, None],), "length": ([float("inf"), None],)}, _ALONE),
    _tables({**_ENDS, "weight": ([1e39, None],), "length": ([None, 1e39],)}, _ALONE),
    _tables({**_ENDS, "length": (["true", "FALSE"],)}, {**_ALONE, "a": (["true", "?"],), "b": (["1", "true"],)}),
    _tables({**_ENDS, "length": (["true", "2"],)}, {**_ALONE, "a": (["true", "2"],)}),
    _tables(_ENDS, {**_ALONE, "label": ([5, 2**53],)}),
    _tables(_ENDS, {**_ALONE, "": ([0, 1],), "a": ([1_700_000_000, 1_700_000_059],)}),
]


@pytest.mark.slow
@pytest.mark.parametrize("given", ONCE, ids=range(len(ONCE)))
def test_tables_that_were_read_differently_once_agree(given: Tables) -> None:
    assert not disagreements(given)


@pytest.mark.exhaustive
@pytest.mark.slow
@settings(max_examples=NUM_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(given=tables())
def test_every_reader_gives_the_same_graph_or_the_same_refusal(given: Tables) -> None:
    assert not disagreements(given)
