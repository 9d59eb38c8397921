"""Typed tables that are read in pieces, in row order, and those in memory."""

from __future__ import annotations

import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from gnnkit.graph.cells import MISSING, is_consecutive, narrow_text
from gnnkit.utils.documents import parse_json
from gnnkit_formats.pieces import WHOLE, TableShare
from gnnkit_formats.table import Table
from gnnkit_formats.values import is_text

# The index's name in a CSV that pandas wrote, in one that it re-wrote, and in Parquet.
_INDEX = re.compile(r"|Unnamed: 0(\.\d+)*|__index_level_\d+__")
_COUNTERS = ("index", "level_0")  # names from `reset_index`; an index only if the column counts the rows


def index_columns(schema: pa.Schema, names: Sequence[str], counts_rows: Callable[[str], bool]) -> list[str]:
    """Returns the columns that hold a data frame's index.

    Args:
        schema: Schema of the table, where pandas stores the names of index columns.
        names: Columns to check.
        counts_rows: Checks whether a column is 0, 1, ... It is called only for columns
            with an ambiguous name.
    """
    written = _read_pandas_index(schema)
    return [
        name for name in names if _INDEX.fullmatch(name) or name in written or (name in _COUNTERS and counts_rows(name))
    ]


def common_index(index_names: Sequence[Sequence[str]]) -> list[str]:
    """Returns the index columns that all tables share."""
    return [name for name in index_names[0] if all(name in names for names in index_names)]


def warn_index(table: str, names: Collection[str], hint: str) -> None:
    """Warns about index columns that are not used as features."""
    if names:
        shown = ", ".join(map(repr, names))
        warnings.warn(f"{table}: {shown} left out of the features, as a data frame's index: {hint}", stacklevel=4)


def _read_pandas_index(schema: pa.Schema) -> set[str]:
    try:
        facts = parse_json((schema.metadata or {}).get(b"pandas", b"{}"), "the schema")
        return {name for name in facts.get("index_columns", ()) if isinstance(name, str)}
    except (ValueError, AttributeError, TypeError):
        return set()


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
        self._fractions: dict[str, bool] = {}  # `has_fraction` of columns

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

    def has_fraction(self, name: str) -> bool:
        """Returns whether a CSV's ids are written like 7.0, as the first one is."""
        if name not in self._fractions:
            first = next(iter(self.pieces(1, [name], self.as_text(name))), None)
            self._fractions[name] = first is not None and first.has_fraction(name)
        return self._fractions[name]

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
