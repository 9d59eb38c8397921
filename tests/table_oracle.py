"""Tables drawn at random, and the graph that each must become, in plain Python.

    python -m tests.table_oracle --count 10000 --seed 0

A column is drawn as what its cells mean, and as the cells themselves. The expected
graph comes from the former, so it shares no code with the readers. Each table is read
by several adapters: data frames of three libraries, folders of CSV and Parquet files
and of parts, and imports of these.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import math
import random
import re
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.passes import WorkGroup
from gnnkit_import.progress import Journal, ProgressReporter

from gnnkit.errors import UserError
from gnnkit.graph import Graph

EPOCH = datetime.datetime(1970, 1, 1)
MISSING = ("NA", "unknown", "?", "None", "", " nan ")
PER_SECOND = {None: 1, "s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
SPLITS = {"none": 0, "train": 1, "val": 2, "test": 3}


@dataclass(frozen=True)
class Column:
    """Cells, and what they mean: numbers, texts, or None if missing."""

    cells: pa.Array
    meant: list[Any]
    is_category: bool = False


@dataclass
class Case:
    """Tables with the graph that they mean, or the refusal."""

    edges: dict[str, Column]
    nodes: dict[str, Column] = field(default_factory=dict)  # empty: no table
    duplicates: str = "keep"
    refused: str = ""  # a part of the message. "": the tables are a graph


def _texts(values: Sequence[str | None]) -> pa.Array:
    return pa.array(values, pa.string())


def _moment(rng: random.Random) -> datetime.datetime:
    return EPOCH + datetime.timedelta(days=rng.randint(1000, 19_000), seconds=rng.randint(0, 86_399))


def _seconds(moment: datetime.datetime) -> float:
    return (moment - EPOCH).total_seconds()


def _plain_numbers(rng: random.Random, count: int) -> tuple[list[Any], list[Any]]:
    values = [rng.choice([rng.randint(-9, 300), round(rng.uniform(-5, 5), 3)]) for _ in range(count)]
    return [float(value) for value in values], [repr(value) for value in values]


def _comma(rng: random.Random, count: int) -> tuple[list[Any], list[Any]]:
    values = [rng.randint(0, 90) + rng.choice([0.5, 0.25, 0.75]) for _ in range(count)]
    return values, [f"{value:.2f}".replace(".", ",") for value in values]


def _units(rng: random.Random, count: int) -> tuple[list[Any], list[Any]]:
    values, unit = [float(rng.randint(1, 5_000)) for _ in range(count)], rng.choice(["${}", "{} €", "£ {}"])
    return values, [unit.format(int(value)) for value in values]


def _percent(rng: random.Random, count: int) -> tuple[list[Any], list[Any]]:
    values = [rng.randint(0, 100) for _ in range(count)]
    return [value / 100 for value in values], [f"{value}{rng.choice(['', ' '])}%" for value in values]


def _formatter(*forms: str, zone: bool = False) -> Callable[[random.Random, int], tuple[list[Any], list[Any]]]:
    """Returns a writer of dates in some forms. Years are 1972 to 2022."""

    def write(rng: random.Random, count: int) -> tuple[list[Any], list[Any]]:
        form, offset = rng.choice(forms), rng.choice([0, 2, -5])
        moments = [_moment(rng) for _ in range(count)]
        if "%H" not in form and "%I" not in form:
            moments = [moment.replace(hour=0, minute=0, second=0) for moment in moments]
        if "%S" not in form:
            moments = [moment.replace(second=0) for moment in moments]
        if "/" in form or form == "%d.%m.%Y":  # else day and month might be confused
            moments = [moment.replace(day=13 + moment.day % 15) for moment in moments]
        if not zone:
            return [*map(_seconds, moments)], [moment.strftime(form) for moment in moments]
        text = "Z" if not offset else f"{offset:+03d}:00"
        return [_seconds(moment) - 3600 * offset for moment in moments], [f"{m:{form}}{text}" for m in moments]

    return write


def _clock(rng: random.Random, count: int) -> tuple[list[Any], list[Any]]:
    minutes = [rng.randint(0, 1439) for _ in range(count)]
    return [60.0 * value for value in minutes], [f"{value // 60}:{value % 60:02d}" for value in minutes]


def _lap(rng: random.Random, count: int) -> tuple[list[Any], list[Any]]:
    laps = [rng.randint(1, 300_000) for _ in range(count)]
    return [value / 1000 for value in laps], [f"{v // 60_000}:{v % 60_000 / 1000:06.3f}" for v in laps]


ISO = _formatter("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S")
ZONED = _formatter("%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", zone=True)
OTHERS = _formatter(
    "%m/%d/%Y",
    "%d/%m/%Y %H:%M",
    "%d-%b-%Y",
    "%d.%m.%Y",
    "%d.%m.%y",
    "%d %b %y",
    "%b %d, %Y",
    "%Y/%m/%d %H:%M:%S",
    "%m/%d/%Y %I:%M %p",
)
WRITERS = {
    "numbers": _plain_numbers, "comma": _comma, "units": _units, "percent": _percent, "iso": ISO, "zoned": ZONED,
    "other dates": OTHERS, "clock": _clock, "lap": _lap,
}  # fmt: skip


def _with_gaps(rng: random.Random, meant: list[Any], cells: list[Any], words: Sequence[str | None]) -> None:
    """Makes some cells missing."""
    if rng.random() < 0.4:
        for row in range(len(cells)):
            if rng.random() < 0.3:
                meant[row], cells[row] = None, rng.choice(words)


def draw_feature(rng: random.Random, count: int, *, gaps: bool) -> Column:
    """Draws a column of numbers, dates or categories."""
    kind = rng.choice([*WRITERS, "int", "float", "bool", "timestamp", "date", "duration", "category"])
    words: Sequence[str | None] = (None,)
    dtype = pa.string()
    if kind in WRITERS:
        meant, cells = WRITERS[kind](rng, count)
        words = (None, *MISSING)
    elif kind == "category":
        meant = [rng.choice(["red", "blue", "Red", "ü", "a,b", 'x "y"', "0x1f", "5 kg"]) for _ in range(count)]
        cells = [value + rng.choice(["", "", " "]) for value in meant]
        words = (None, *MISSING)
    elif kind == "int":
        dtype = rng.choice([pa.int8(), pa.int32(), pa.int64(), pa.uint16()])
        cells = [rng.randint(0, 100) for _ in range(count)]
        meant = [float(value) for value in cells]
    elif kind == "float":
        dtype = rng.choice([pa.float32(), pa.float64()])
        cells = [rng.randint(-1000, 1000) / 8 for _ in range(count)]
        meant = [*cells]
    elif kind == "bool":
        dtype, cells = pa.bool_(), [rng.random() < 0.5 for _ in range(count)]
        meant = [float(value) for value in cells]
    elif kind == "date":
        dtype, cells = pa.date32(), [_moment(rng).date() for _ in range(count)]
        meant = [_seconds(datetime.datetime(day.year, day.month, day.day)) for day in cells]
    else:
        unit = rng.choice(["s", "ms", "us", "ns"])
        dtype = pa.duration(unit) if kind == "duration" else pa.timestamp(unit, rng.choice([None, "UTC"]))
        meant = [float(rng.randint(0, 10**6)) if kind == "duration" else _seconds(_moment(rng)) for _ in range(count)]
        cells = [int(value) * PER_SECOND[unit] for value in meant]
    if gaps:
        _with_gaps(rng, meant, cells, words)
    if dtype == pa.string() and all(value is None for value in meant):
        return Column(_texts(cells), meant)  # which names no category
    return Column(pa.array(cells, dtype), meant, kind == "category")


def draw_time(rng: random.Random, count: int, kind: str) -> Column:
    """Draws row times: integers, or dates in microseconds since 1970."""
    if kind == "int":
        values: list[Any] = [rng.randint(1, 10**6) for _ in range(count)]
        return Column(pa.array(values, pa.int64()), values)
    if kind == "timestamp":
        unit, moments = rng.choice(["s", "ms", "us"]), [_seconds(_moment(rng)) for _ in range(count)]
        cells = pa.array([int(value) * PER_SECOND[unit] for value in moments], pa.timestamp(unit))
        return Column(cells, [int(value * 10**6) for value in moments])
    meant, texts = {"iso": ISO, "zoned": ZONED, "other dates": OTHERS}[kind](rng, count)
    return Column(_texts(texts), [int(value * 10**6) for value in meant])


def draw_ids(rng: random.Random, count: int) -> tuple[list[Any], pa.DataType]:
    """Draws distinct ids: in order, sparse or large numbers, or text."""
    kind = rng.choice(["in order", "sparse", "large", "text", "codes"])
    if kind == "in order":
        return list(range(count)), pa.int64()
    if kind == "text":
        return rng.sample(["ann", "Bob", "ü", "a b", "x,y", "z-1", "7a", "é", "q", "w", "e", "r"], count), pa.string()
    if kind == "codes":
        return [f"{number:03d}" for number in rng.sample(range(90), count)], pa.string()
    low = 2**53 if kind == "large" else 5
    return [low + number for number in rng.sample(range(1000), count)], pa.int64()


def draw_labels(rng: random.Random, count: int) -> Column:
    """Draws classes as numbers or names, or numbers to predict."""
    kind = rng.choice(["classes", "names", "values", "switch"])
    if kind == "switch":
        names = [rng.choice(["true", "false"]) for _ in range(count)]
        as_text = [name.title() if rng.random() < 0.5 else name for name in names]
        bools = pa.array([name == "true" for name in names])
        return Column(rng.choice([bools, _texts(as_text)]), [*names], is_category=True)
    if kind == "classes":
        cells = [rng.randint(0, 3) for _ in range(count)]
        return Column(pa.array(cells, pa.int64()), [*cells])
    if kind == "values":
        values = [rng.randint(-9, 9) + 0.5 for _ in range(count)]
        return Column(pa.array(values, pa.float64()), [*values])
    names = [rng.choice(["cat", "dog", "Emu"]) for _ in range(count)]
    meant, texts = [*names], [*names]
    _with_gaps(rng, meant, texts, (None, *MISSING))
    return Column(_texts(texts), meant, is_category=any(name is not None for name in meant))


def draw(rng: random.Random) -> Case:
    """Draws a case."""
    count, num_edges = rng.randint(2, 7), rng.randint(1, 9)
    ids, dtype = draw_ids(rng, count)
    has_nodes = rng.random() < 0.8
    ends = [[rng.choice(ids) for _ in range(num_edges)] for _ in range(2)]
    edges = {name: Column(pa.array(cells, dtype), cells) for name, cells in zip(("src", "dst"), ends, strict=True)}
    timed = rng.choice([None, None, "int", "timestamp", "iso", "zoned", "other dates"])
    if rng.random() < 0.4:
        weights = [rng.randint(1, 80) / 8 for _ in range(num_edges)]
        edges["weight"] = Column(pa.array(weights), weights)
    if rng.random() < 0.3:
        types = [rng.choice(["likes", "knows"]) for _ in range(num_edges)]
        edges["type"] = Column(_texts(types), types)
    if rng.random() < 0.5:
        edges["e"] = draw_feature(rng, num_edges, gaps=False)
    if timed:
        edges["time"] = draw_time(rng, num_edges, timed)
    case = Case(edges, duplicates=rng.choice(["keep"] * 3 + ["first", "refuse"]))
    if has_nodes:
        order = rng.sample(ids, count)
        case.nodes["id"] = Column(pa.array(order, dtype), order)
        if rng.random() < 0.6:
            case.nodes["label"] = draw_labels(rng, count)
            labelled = [value is not None for value in case.nodes["label"].meant]
            if rng.random() < 0.5:
                words = [rng.choice(["train", "val", "test", "none"]) if known else "none" for known in labelled]
                case.nodes["split"] = Column(_texts(words), words)
        for name in rng.sample(["a", "b", "c d"], rng.randint(0, 2)):
            case.nodes[name] = draw_feature(rng, count, gaps=True)
        if timed and rng.random() < 0.5:
            case.nodes["time"] = draw_time(rng, count, timed)
    spoil(rng, case, ids, dtype)
    return case


def spoil(rng: random.Random, case: Case, ids: list[Any], dtype: pa.DataType) -> None:
    """Makes some cases ones that all readers must refuse, and says why."""
    pairs: list[tuple[Any, ...]] = list(zip(case.edges["src"].meant, case.edges["dst"].meant, strict=True))
    if "type" in case.edges:
        pairs = [(*pair, kind) for pair, kind in zip(pairs, case.edges["type"].meant, strict=True)]
    if case.duplicates == "refuse" and len(set(pairs)) < len(pairs):
        case.refused = "are the same edge"
    kind, row = rng.choice(["no"] * 9 + ["unknown", "empty end", "repeated", "infinite"]), rng.randrange(len(pairs))
    if kind in ("unknown", "empty end"):
        end = rng.choice(["src", "dst"])
        cells = [*case.edges[end].meant]
        cells[row] = None if kind == "empty end" else "nobody" if dtype == pa.string() else 4_000
        if kind == "unknown" and not case.nodes:
            return
        case.edges[end] = Column(pa.array(cells, dtype), cells)
        case.refused = f"column {end!r}, row {row}: "
    elif kind == "repeated" and case.nodes and case.duplicates != "first":
        cells = [*case.nodes["id"].meant]
        cells[-1] = cells[0]
        case.nodes["id"] = Column(pa.array(cells, dtype), cells)
        case.refused = f"column 'id', row {len(cells) - 1}: {cells[0]!r} occurs a second time"
    elif kind == "infinite":
        case.edges["e"] = Column(pa.array([1.0] * row + [math.inf] + [1.0] * (len(pairs) - row - 1)), [])
        case.refused = f"column 'e', row {row}: inf is not finite"


# The expected graph.
def expected(case: Case) -> dict[str, Any]:
    """Returns the graph's fields as plain values."""
    ends = [case.edges[end].meant for end in ("src", "dst")]
    ids = case.nodes["id"].meant if case.nodes else sorted({*ends[0], *ends[1]})
    place = {value: number for number, value in enumerate(ids)}
    types = case.edges["type"].meant if "type" in case.edges else [None] * len(ends[0])
    rows = list(zip(*([place[value] for value in end] for end in ends), types, strict=True))
    if case.duplicates == "first":
        positions = [row for row in range(len(rows)) if rows[row] not in rows[:row]]
    else:
        positions = list(range(len(rows)))
    names, table = _matrix({name: column for name, column in case.nodes.items() if name in ("a", "b", "c d")}, len(ids))
    edge_names, edge_table = _matrix({"e": case.edges["e"]} if "e" in case.edges else {}, len(rows))
    label = case.nodes.get("label")
    classes = sorted({*label.meant} - {None}) if label is not None and label.is_category else None
    known = [] if label is None else [value is not None for value in label.meant]
    of = {name: case.edges[name].meant for name in ("weight", "time") if name in case.edges}
    return {
        "ids": ids,
        "edges": sorted(
            (rows[row], row, *(of[name][row] if name in of else None for name in ("weight", "time")), *edge_table[row])
            for row in positions
        ),
        "names": (names, edge_names),
        "features": table,
        "labels": None if label is None or not any(known) else [_label(value, classes) for value in label.meant],
        "classes": classes,
        "split": [SPLITS[word] for word in case.nodes["split"].meant] if "split" in case.nodes else [0] * len(ids),
        "node_time": case.nodes["time"].meant if "time" in case.nodes else None,
    }


def _label(value: Any, classes: Sequence[str] | None) -> float:
    if value is None:
        return -1
    return float(classes.index(value) if classes is not None else value)


def _matrix(columns: dict[str, Column], count: int) -> tuple[list[str], list[list[float | None]]]:
    names, rows = list[str](), [list[float | None]() for _ in range(count)]
    for name, column in columns.items():
        if column.is_category:
            values = sorted({*column.meant} - {None})
            names += [f"{name}={value}" for value in values]
            for row, cell in zip(rows, column.meant, strict=True):
                row += [None if cell is None else float(cell == value) for value in values]
        else:
            names.append(name)
            for row, cell in zip(rows, column.meant, strict=True):
                row.append(cell)
    return names, rows


def plain(graph: Graph) -> dict[str, Any]:
    """Returns a graph in the form of `expected`."""
    dst = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr)).tolist()
    features = np.array(graph.features, np.float64)
    if graph.missing is not None:
        features[graph.missing[:, 0], graph.missing[:, 1]] = np.nan
    table = [[None if math.isnan(value) else value for value in row] for row in features.tolist()]
    types = [None] * graph.num_edges
    if graph.edge_types is not None and graph.edge_type_names is not None:
        types = [graph.edge_type_names[number] for number in graph.edge_types]
    positions = np.arange(graph.num_edges) if graph.edge_positions is None else graph.edge_positions
    columns: list[list[Any]] = [
        list(zip(graph.csc.indices.tolist(), dst, types, strict=True)),
        positions.tolist(),
        [None] * graph.num_edges if graph.csc.weight is None else graph.csc.weight.tolist(),
        _times(graph.edge_time, graph.time_unit) or [None] * graph.num_edges,
    ]
    rows = [[]] * graph.num_edges if graph.edge_features is None else graph.edge_features.tolist()
    labels = np.asarray(graph.labels, np.float64)
    return {
        "ids": list(range(graph.num_nodes)) if graph.node_ids is None else graph.node_ids.tolist(),
        "edges": sorted((*facts, *row) for *facts, row in zip(*columns, rows, strict=True)),
        "names": (list(graph.feature_names or ()), list(graph.edge_feature_names or ())),
        "features": table,
        "labels": None if (labels == -1).all() else np.where(np.isnan(labels), -1, labels).tolist(),
        "classes": None if graph.class_names is None else list(graph.class_names),
        "split": graph.split.tolist(),
        "node_time": _times(graph.node_time, graph.time_unit),
    }


def _times(values: Any, unit: str | None) -> list[int] | None:
    if values is None:
        return None
    factor = 1 if unit is None else 10**6 // PER_SECOND[unit]
    return [int(value) * factor for value in values]


def differs(one: Any, other: Any) -> bool:
    """Compares plain values, numbers up to float32's rounding."""
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) != len(other) or any(map(differs, one, other))
    if isinstance(one, float) and isinstance(other, float | int):
        return not math.isclose(one, other, rel_tol=3e-7, abs_tol=1e-6)
    return bool(one != other)


# Adapters.
def _write(case: Case, folder: Path, form: str) -> EdgeFolder:
    for name, columns in (("edges", case.edges), ("nodes", case.nodes)):
        if not columns:
            continue
        table = pa.table({key: column.cells for key, column in columns.items()})
        if form == "csv":
            with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
                rows = zip(*(map(_spelt, column.to_pylist()) for column in table.columns), strict=True)
                csv.writer(file).writerows([table.column_names, *rows])
        elif form == "parts":
            (folder / f"{name}.parquet").mkdir()
            half = len(table) // 2
            for number, part in enumerate((table[:half], table[half:])):
                pa.parquet.write_table(part, folder / f"{name}.parquet" / f"part-{number}.parquet")
        else:
            pa.parquet.write_table(table, folder / f"{name}.parquet")
    return EdgeFolder(str(folder), symmetrize=False, duplicates=case.duplicates)


def _spelt(value: Any) -> str:
    if isinstance(value, pd.Timestamp | datetime.datetime):
        value = value.isoformat(sep=" ")
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _frames(make: Callable[[pa.Table], Any]) -> Callable[[Case, Path], Graph]:
    def read(case: Case, _: Path) -> Graph:
        tables = [
            make(pa.table({key: column.cells for key, column in columns.items()})) if columns else None
            for columns in (case.edges, case.nodes)
        ]
        return Graph.from_tables(*tables, duplicates=case.duplicates)

    return read


def _loader(form: str) -> Callable[[Case, Path], Graph]:
    return lambda case, folder: _write(case, folder, form).load()


def _importer(form: str) -> Callable[[Case, Path], Graph]:
    def read(case: Case, folder: Path) -> Graph:
        pieces, work = in_pieces(_write(case, folder, form)), folder / "work"
        assert pieces is not None
        work.mkdir()
        room, reporter = Room(1 << 26, 1, bucket=7), ProgressReporter(quiet=True)
        return Graph.load(import_graph(pieces, work, room, Journal(work, "key"), reporter, group=WorkGroup(2)))

    return read


ADAPTERS: dict[str, Callable[[Case, Path], Graph]] = {
    "arrow": _frames(lambda table: table),
    "pandas": _frames(lambda table: table.to_pandas()),
    "pandas of arrow": _frames(lambda table: table.to_pandas(types_mapper=pd.ArrowDtype)),
    "polars": _frames(pl.from_arrow),
    "csv": _loader("csv"),
    "parquet": _loader("parquet"),
    "parts": _loader("parts"),
    "import of csv": _importer("csv"),
    "import of parquet": _importer("parquet"),
    "import of parts": _importer("parts"),
}


def reads(case: Case, adapter: str) -> bool:
    """Returns whether an adapter can express a case."""
    text = pa.types.is_string(case.edges["src"].cells.type)
    durations = any(pa.types.is_duration(c.cells.type) for c in (*case.edges.values(), *case.nodes.values()))
    if "csv" in adapter and durations:
        return False
    if "import" in adapter and (text and not case.nodes):
        return False  # an import numbers text by a table of nodes
    gaps = any(case.edges[end].cells.null_count for end in ("src", "dst"))
    return not (adapter == "pandas" and gaps)  # whose integers are then floating-point numbers


def compare(case: Case, adapter: str) -> str:
    """Reads a case by an adapter. Returns what differs, or ""."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            graph = plain(ADAPTERS[adapter](case, Path(folder)))
        except UserError as error:
            message, wanted_text = str(error), case.refused
            if adapter == "import of parts":  # whose rows are those of a part
                message, wanted_text = (re.sub(r"row \d+", "row", text) for text in (message, wanted_text))
            wrong = not wanted_text or wanted_text not in message
            return f"refused: {str(error).replace(folder, '')}" if wrong else ""
    if case.refused:
        return f"read, expected {case.refused!r}"
    target = expected(case)
    names = [name for name, value in target.items() if differs(value, graph[name])]
    return "; ".join(f"{name}: {graph[name]}, expected {target[name]}" for name in names)


def check(seed: int, num_adapters: int) -> list[str]:
    """Draws one case. Returns the differences of some adapters."""
    rng = random.Random(seed)
    case = draw(rng)
    names = [name for name in ADAPTERS if reads(case, name)]
    results = {name: compare(case, name) for name in rng.sample(names, min(num_adapters, len(names)))}
    return [f"seed {seed}, {name}: {text}" for name, text in results.items() if text]


def main() -> int:
    """Checks as many cases as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adapters", type=int, default=4, help="adapters that read each table")
    options = parser.parse_args()
    start, lines = time.monotonic(), list[str]()
    for seed in range(options.seed, options.seed + options.count):
        lines += (new := check(seed, options.adapters))
        if new:
            print(*new, sep="\n", flush=True)
        if (seed + 1) % 100 == 0:
            print(f"{seed + 1 - options.seed} tables in {time.process_time():.0f} processor seconds", flush=True)
    print(f"{options.count} tables in {time.monotonic() - start:.0f} s, {len(lines)} differences")
    print(*Counter(line.partition(", ")[2].partition(":")[0] for line in lines).items(), sep="\n")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main())
