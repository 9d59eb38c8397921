"""The interface for tables that are read in pieces, in row order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from gnnkit_formats.index_columns import index_columns
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text

from gnnkit.graph.ids import is_consecutive, narrow_text
from gnnkit.graph.missing import MISSING
from gnnkit_import.pieces import WHOLE, TableShare

Names = Sequence[str] | None
Types = Mapping[str, pa.DataType] | None
_INDEX_ROWS = 1 << 16  # rows of a column checked at once


class Source(ABC):
    """A table in one or more files, which are concatenated."""

    def __init__(self, files: Sequence[Path], root: Path) -> None:
        """Stores the files. Messages name them relative to `root`."""
        self.files = list(files)
        self.title = files[0].relative_to(root).parts[0]  # of all files, for messages
        self._names = {path: path.relative_to(root).as_posix() for path in self.files}
        self.ignored: tuple[str, ...] = ()  # columns that are not read
        self.missing: Sequence[str] = MISSING  # words for missing values

    @property
    def kept(self) -> list[str]:
        """Names all columns that are not ignored."""
        return self.others(())

    def others(self, known: Collection[str]) -> list[str]:
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

    def index_columns(self, known: Collection[str]) -> list[str]:
        """Lists columns outside `known` that contain a data frame's index."""
        return index_columns(self.schema, self.others(known), self._counts_rows)

    @property
    def schema(self) -> pa.Schema:
        """The columns declared by the first file, none for a CSV."""
        return pa.schema([])

    def _counts_rows(self, name: str) -> bool:
        """Returns whether a column is 0, 1, ... Stops at the first mismatch."""
        row = 0
        for piece in self.pieces(_INDEX_ROWS, [name], {name: pa.string()}):
            column = pa.chunked_array([piece.plain(name)])
            if not is_consecutive((narrow_text(column) if is_text(column.type) else column).combine_chunks(), row):
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
