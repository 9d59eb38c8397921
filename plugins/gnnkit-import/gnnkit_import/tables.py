"""A folder with tables, read in pieces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from gnnkit_formats.columns import Columns
from gnnkit_formats.edges import EdgeFolder, FolderGraph
from gnnkit_formats.pieces import Room, mapped_rows
from gnnkit_formats.table_files import form_of, parts_of
from gnnkit_formats.table_graph import GraphTables

from gnnkit.errors import UserError
from gnnkit.utils.checks import Array
from gnnkit_import.csv_source import CsvSource
from gnnkit_import.sources import ArraySource, ParquetSource


class TablePieces(FolderGraph):
    """Tables and arrays in a data set `edges`, which are read in pieces."""

    id_hint = (
        "; remove the row, join the columns that identify rows together into one, or use job=partition "
        "dataset.duplicates=first"
    )

    def __init__(self, folder: EdgeFolder) -> None:
        if folder.bipartite:
            raise UserError("dataset.bipartite=true is not supported by job=import; use job=partition")
        super().__init__(folder)

    def open_tables(self) -> GraphTables:
        if self.sort_ids and self.root.is_dir():
            raise UserError("dataset.sort_ids=true: job=import numbers nodes in table order; sort the table")
        tables = super().open_tables()
        first, ends = next(iter(tables.edges.values())), tables.names.ends
        if tables.is_bipartite:
            raise UserError(
                f"{first.title}: the columns {' and '.join(ends)} are two node types, which job=import does not support; "
                f"use job=partition, or dataset.bipartite=false dataset.src={ends[0]} dataset.dst={ends[1]} if they share ids"
            )
        if tables.nodes is None and all(source.are_text(ends) for source in tables.edges.values()):
            raise UserError(
                f"{first.title}, column {ends[0]!r} holds text, for which job=import needs a node table; add one or use "
                "job=partition dataset=edges"
            )
        return tables

    def open_table(self, path: Path, root: Path, ids: Sequence[str], label: str | None, narrow: bool = True) -> Columns:
        del label, narrow
        if parts := parts_of(path):
            return ParquetSource(parts, root)
        if path.is_dir():
            raise UserError(f"{path.name} is a folder without parts such as part-0.parquet")
        if form_of(path) == "npy":
            return ArraySource(path, root)
        if form_of(path) == "parquet":
            return ParquetSource([path], root)
        return CsvSource([path], root, dict.fromkeys(ids, pa.string()) if len(ids) == 1 else {})

    def features(self, room: Room) -> Iterator[Array] | None:
        path = self.root / "features.npy"
        rows = super().features(room)
        return rows if self._cells is not None or rows is None else mapped_rows(path)
