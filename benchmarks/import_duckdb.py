"""The sort of an import, by job=import's own passes and by DuckDB.

    uv run --with duckdb python benchmarks/import_duckdb.py --folder DISK --ids text

Draws edges as `benchmarks/importing.py` does. Each contender writes `indptr`, `indices`
and `edge_positions`, which must be equal: `gnnkit` with the passes of job=import,
`stream` with the same readers and a sort by DuckDB, `duckdb` with DuckDB's own readers
and joins. Prints the processor seconds (user and system) and the peak of resident
memory of each, in turns.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import os
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.pieces import Room
from gnnkit_import.datasets import in_pieces
from gnnkit_import.graph import import_graph
from gnnkit_import.npy_writer import NpyWriter
from gnnkit_import.progress import Journal, ProgressReporter
from importing import draw

from gnnkit.utils.storage import save_array

ARRAYS = ("indptr", "indices", "edge_positions")
ENDS = pa.schema([("src", pa.int32()), ("dst", pa.int32()), ("position", pa.int32())])


def gnnkit(tables: Path, work: Path, room: Room) -> None:
    """Imports with gnnkit's own passes."""
    pieces = in_pieces(EdgeFolder(str(tables), symmetrize=False))
    import_graph(pieces, work, room, Journal(work, ""), ProgressReporter(quiet=True))


def stream(tables: Path, work: Path, room: Room) -> None:
    """Reads with gnnkit, and sorts with DuckDB."""
    pieces = in_pieces(EdgeFolder(str(tables), symmetrize=False))
    num_nodes = pieces.open(room)

    def batches() -> Iterator[pa.RecordBatch]:
        for piece in pieces.edges(room.piece(0)):
            columns = (piece.src, piece.dst, piece.positions)
            yield pa.record_batch([pa.array(column).cast(pa.int32()) for column in columns], schema=ENDS)

    edges = pa.RecordBatchReader.from_batches(ENDS, batches())
    write(work, num_nodes, room, "SELECT dst, src, position FROM edges ORDER BY ALL", edges)


def duckdb(tables: Path, work: Path, room: Room) -> None:
    """Reads, looks up ids and sorts with DuckDB."""
    nodes, row_number = tables / "nodes.parquet", "(row_number() OVER () - 1)::INTEGER"
    edges = f"(SELECT src, dst, {row_number} AS position FROM '{tables}/edges.parquet/*.parquet')"
    query = f"SELECT dst, src, position FROM {edges} ORDER BY ALL"
    if nodes.exists():
        ids = f"(SELECT id, {row_number} AS number FROM '{nodes}')"
        query = (
            f"SELECT d.number, s.number, position FROM {edges} LEFT JOIN {ids} s ON s.id = src "
            f"LEFT JOIN {ids} d ON d.id = dst ORDER BY ALL"
        )
        num_nodes = pa.parquet.read_metadata(nodes).num_rows
    else:
        num_nodes = len(np.load(tables / "labels.npy", mmap_mode="r"))
    write(work, num_nodes, room, query)


def write(work: Path, num_nodes: int | None, room: Room, query: str, edges: Any = None) -> None:
    """Writes the edges that a query sorts. `edges` is the stream that it may name."""
    settings = {
        "memory_limit": f"{room.limit >> 20}MiB",
        "threads": room.threads,
        "temp_directory": str(work / "spill"),
    }
    connection = importlib.import_module("duckdb").connect(config=settings)
    if edges is not None:
        connection.register("edges", edges)
    folder, indptr = work / "graph", np.zeros((num_nodes or 0) + 1, np.int64)
    folder.mkdir()
    arrays = [NpyWriter(folder / f"{name}.npy", np.int32) for name in ARRAYS[1:]]
    for batch in connection.execute(query).to_arrow_reader(1 << 20):
        dst, *columns = (column.to_numpy() for column in batch.columns)
        indptr[1:] += np.bincount(dst, minlength=len(indptr) - 1)
        for array, rows in zip(arrays, columns, strict=True):
            array.append(rows)
    for array in arrays:
        array.finish()
    save_array(folder / "indptr.npy", np.cumsum(indptr))


def measure(contender: Callable[[Path, Path, Room], None], tables: Path, work: Path, room: Room) -> tuple[float, float]:
    """Returns the processor seconds and the peak MiB of a contender in a child."""
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    if (pid := os.fork()) == 0:
        warnings.simplefilter("ignore")
        contender(tables, work, room)
        os._exit(0)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{contender.__name__} failed")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    """Prints a line for each contender and turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="on a disk with room for 80 bytes an edge")
    parser.add_argument("--edges", type=float, default=1e7)
    parser.add_argument("--degree", type=float, default=20)
    parser.add_argument("--ids", choices=["numbers", "text"], default="numbers")
    parser.add_argument("--memory", type=int, default=2048, help="MiB")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    tables, edges, room = options.folder / options.ids, int(options.edges), Room(options.memory << 20, 2)
    draw(tables, int(edges / options.degree), edges, options.ids == "text")
    for _, contender in itertools.product(range(options.turns), (gnnkit, stream, duckdb)):
        work = options.folder / contender.__name__
        seconds, peak = measure(contender, tables, work, room)
        print(f"{contender.__name__:<8}{seconds:>8.2f} s{peak:>8,.0f} MiB", flush=True)
        for name in ARRAYS:
            rows, reference = (np.load(path / f"graph/{name}.npy") for path in (work, options.folder / "gnnkit"))
            assert np.array_equal(rows, reference), f"{contender.__name__} writes other {name}"


if __name__ == "__main__":
    main()
