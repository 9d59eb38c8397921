"""Columns that hold the index of a data frame, which are no features."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

from gnnkit.documents import parse_json

# Names that pandas gives the index in a CSV, in one read and written again, in Parquet.
_INDEX = re.compile(r"|Unnamed: 0(\.\d+)*|__index_level_\d+__")
_COUNTERS = ("index", "level_0")  # from `reset_index`. Only a column that counts the rows is an index


def index_columns(schema: pa.Schema, names: Sequence[str], counts_rows: Callable[[str], bool]) -> list[str]:
    """Returns the columns that hold the index of a data frame.

    Args:
        schema: of the table. pandas names the columns of its index there.
        names: columns to look at.
        counts_rows: returns whether a column is 0, 1, ... Asked of columns whose name
            alone does not say that they are an index.
    """
    written = _pandas_index(schema)
    return [
        name for name in names if _INDEX.fullmatch(name) or name in written or (name in _COUNTERS and counts_rows(name))
    ]


def common_index(found: Sequence[Sequence[str]]) -> list[str]:
    """Returns the columns that hold an index in each of several tables."""
    return [name for name in found[0] if all(name in names for names in found)]


def warn_index(table: str, names: Collection[str], cure: str) -> None:
    """Warns, in one line, of columns that are left out of the features.

    Args:
        table: name of the table.
        names: columns that hold an index.
        cure: says how to read these.
    """
    if names:
        shown = ", ".join(map(repr, names))
        warnings.warn(f"{table}: {shown} left out of the features, as a data frame's index: {cure}", stacklevel=4)


def _pandas_index(schema: pa.Schema) -> set[str]:
    """Returns the columns that pandas has written for its index."""
    try:
        facts = parse_json((schema.metadata or {}).get(b"pandas", b"{}"), "the schema")
        return {name for name in facts.get("index_columns", ()) if isinstance(name, str)}
    except (ValueError, AttributeError, TypeError):
        return set()
