"""Typed tables that are read in pieces, in row order, and those in memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from gnnkit.graph.ids import is_consecutive, narrow_text
from gnnkit.graph.missing import MISSING
from gnnkit_formats.index_columns import index_columns
from gnnkit_formats.pieces import WHOLE, TableShare
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text

Names = Sequence[str] | None
Types = Mapping[str, pa.DataType] | None
_INDEX_ROWS = 1 << 16  # rows of a column checked at once


class Columns(ABC):
    """A table with typed columns, in memory or in one or more files.

    Each format is an adapter that yields `Table`s. All readers of columns take these
    pieces, so a table gives the same values in memory, in a file, and piece by piece.
    """

    parses = False  # whether pieces are parsed from text, as the types that the caller gives

    def __init__(self, title: str, files: Sequence[Path] = ()) -> None:
        """Stores the name of the table, for messages, and its files."""
        self.title, self.files = title, list(files)
        self.ignored: tuple[str, ...] = ()  # columns that are not read
        self.missing: Sequence[str] = MISSING  # words for missing values

    @property
    def kept(self) -> list[str]:
        """Names all columns that are not ignored."""
        return self.others(())

    def others(self, known: Collection[str | None]) -> list[str]:
        """Names the columns that are neither ignored nor in `known`."""
        return [name for name in self.names if name not in self.ignored and name not in known]

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """The column names."""

    @property
    def num_rows(self) -> int | None:
        """The number of rows, None if unknown before all are read."""
        return None

    def empty(self) -> Table:
        """Returns the table without rows."""
        return Table(self.title, pa.schema(list(self.types().items())).empty_table(), 0, self.missing)

    def index_columns(self, known: Collection[str | None]) -> list[str]:
        """Lists columns outside `known` that contain a data frame's index."""
        return index_columns(self.schema, self.others(known), self._counts_rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns declared by the first file, none for a CSV."""
        return pa.schema([])

    def _counts_rows(self, name: str) -> bool:
        """Returns whether a column is 0, 1, ... Stops at the first mismatch."""
        row = 0
        for piece in self.pieces(_INDEX_ROWS, [name], self.as_text(name)):
            column = pa.chunked_array([piece.plain(name)])
            if not is_consecutive((narrow_text(column) if self.parses else column).combine_chunks(), row):
                return False
            row += len(column)
        return True

    @abstractmethod
    def types(self) -> dict[str, pa.DataType]:
        """Returns each column's type. May read the entire file."""

    @property
    def first_types(self) -> list[pa.DataType]:
        """The columns' types in the first rows."""
        return list(self.types().values())

    def type_of(self, name: str) -> pa.DataType:
        """Returns the type of a column's values."""
        kind = self.types()[name]
        return kind.value_type if pa.types.is_dictionary(kind) else kind

    def are_text(self, names: Sequence[str]) -> bool:
        """Returns whether columns are text, as far as their first rows tell."""
        kinds = dict(zip(self.names, self.first_types, strict=True))
        return all(is_text(kinds[name]) for name in names)

    def as_text(self, *names: str) -> dict[str, pa.DataType]:
        """Returns types with which a parsed table yields columns as text."""
        return dict.fromkeys(names, pa.string()) if self.parses else {}

    @abstractmethod
    def pieces(
        self, rows: int, columns: Names = None, types: Types = None, share: TableShare = WHOLE
    ) -> Iterator[Table]:
        """Yields all rows in order, about `rows` at a time.

        Raises `UserError` with file and position.

        Args:
            rows: Number of rows in a piece.
            columns: Columns to read. Default: all.
            types: Types of a CSV's columns.
            share: Rows to read. Shares 0, 1, ... together are all rows in order.
        """


class TableInMemory(Columns):
    """A data frame, or a file that was read at once. It is a single piece."""

    def __init__(self, table: Table) -> None:
        super().__init__(table.name)
        self.table, self.missing = table, table.missing

    @property
    def names(self) -> list[str]:
        return self.table.names

    @property
    def num_rows(self) -> int:
        return self.table.num_rows

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def types(self) -> dict[str, pa.DataType]:
        return self.table.kinds

    def pieces(
        self, rows: int, columns: Names = None, types: Types = None, share: TableShare = WHOLE
    ) -> Iterator[Table]:
        del rows, columns, types
        span = share.range(self.num_rows)
        yield self.table if share is WHOLE else self.table.part(span.start, span.stop)
