"""Detection of data frame index columns, which are no features."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Collection, Sequence

import pyarrow as pa

from gnnkit.utils.documents import parse_json

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
