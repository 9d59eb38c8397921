"""Reader for data frames of edges and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from numbers import Number
from pathlib import Path
from typing import Any

import pyarrow as pa

from gnnkit.errors import UserError
from gnnkit.graph.cells import MISSING, read_missing
from gnnkit.graph.features import rows_of
from gnnkit.graph.graph import Graph
from gnnkit.graph.types import Fields
from gnnkit.graph.unfit_columns import UnfitColumns
from gnnkit.utils.checks import Array, one_line
from gnnkit.utils.ranges import one_of
from gnnkit_formats.column_table import check_distinct, require
from gnnkit_formats.columns import Columns, TableInMemory
from gnnkit_formats.duplicates import DUPLICATES, FIRST, KEEP, without_duplicates
from gnnkit_formats.pieces import join_pieces
from gnnkit_formats.table import Table
from gnnkit_formats.table_graph import ONE, GraphTables, TableGraph, TableNames, leave_out_index

_LAZY = ("collect", "compute", "toPandas")  # methods that materialise lazy frames of polars, Dask and Spark


def table_of(name: str, frame: Any, missing: Sequence[str] = MISSING) -> Table:
    """Converts a pyarrow table, or a pandas or polars data frame.

    Raises `UserError` for other types, and for columns of mixed types. `missing` is the
    argument of `ColumnTable`.
    """
    if isinstance(frame, pa.Table):
        return Table(name, frame, missing=missing)
    if method := next((candidate for candidate in _LAZY if hasattr(type(frame), candidate)), None):
        raise UserError(f"{name} is a {type(frame).__name__}, which holds no rows yet: give {name}.{method}()")
    if not (hasattr(frame, "columns") and hasattr(frame, "__getitem__")):
        raise UserError(f"{name} is a {type(frame).__name__}, expected a table of pandas, polars or pyarrow")
    columns = list(frame.columns)
    for column in columns:
        if not isinstance(column, str):
            raise UserError(f"{name} has a column {column!r}, names of columns must be text")
    check_distinct(name, columns)
    arrays = [_convert_series(f"{name}, column {column!r}", frame[column], missing) for column in columns]
    return Table(name, pa.table(dict(zip(columns, arrays, strict=True))), missing=missing)


def _convert_series(place: str, series: Any, missing: Sequence[str]) -> pa.ChunkedArray:
    kind = str(series.dtype)
    if kind.startswith("Sparse["):  # pandas type that Arrow cannot read
        series = series.sparse.to_dense()
    try:
        if kind == "Object":  # polars type that Arrow reads as addresses
            column = values_as_arrow(place, list(series), missing)
        else:
            column = series.to_arrow() if hasattr(series, "to_arrow") else pa.array(series, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        column = values_as_arrow(place, list(series), missing)
    inner = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if str(getattr(inner, "extension_name", "")).startswith("pandas."):  # intervals and periods
        values = series.astype(object).where(series.notna(), None)
        column = pa.array([None if value is None else str(value) for value in values], pa.string())
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def values_as_arrow(place: str, values: Sequence[Any], missing: Sequence[str] = MISSING) -> pa.Array:
    """Converts Python objects. Values without an Arrow type become text.

    Words for missing values among other types become empty cells. Raises `UserError`
    for other values of mixed types.

    Args:
        place: Name of the column, for the message.
        values: [n] values, None if missing.
        missing: Words for missing values, in lower case.
    """
    others = {type(value) for value in values if value is not None and not isinstance(value, str)}
    if others and all(value.strip().lower() in missing for value in values if isinstance(value, str)):
        values = [None if isinstance(value, str) else value for value in values]
    try:
        return pa.array(values, from_pandas=True)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        return as_text(place, values, error)


def as_text(place: str, values: Sequence[Any], error: BaseException | None = None) -> pa.Array:
    """Converts values of one type to text, None to null.

    Raises `UserError` for values of mixed types.

    Args:
        place: Name of the column, for the message.
        values: [n] values.
        error: Why Arrow cannot read the values.
    """
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise UserError(f"{place} mixes {names}: give all values one type") from error
    if kinds == {int}:
        raise UserError(
            f"{place} holds whole numbers beyond 64 bits: give ids as text, and features as floating-point numbers"
        ) from error
    if any(not _has_text(kind) for kind in kinds):
        raise UserError(f"{place} cannot be read: {one_line(error or 'the values have no text form')}") from error
    return pa.array([None if value is None else str(value) for value in values], pa.string())


def _has_text(kind: type) -> bool:
    """Checks whether a type defines its own text, as UUIDs do."""
    has_repr = "__repr__" in {name for base in kind.__mro__[:-1] for name in vars(base)}
    return has_repr and not issubclass(kind, list | dict | set | Number)


def from_tables(
    edges: Any,
    nodes: Any,
    names: TableNames,
    required: Sequence[str],
    features: str | Sequence[str] | Array | None,
    edge_features: Sequence[str] | None,
    missing: Sequence[str | float] | None,
    duplicates: str,
    bipartite: bool | None,
    time: str | Sequence[str] | None,
) -> Graph:
    """Implements `Graph.from_tables`. `required` are columns that edges must have."""
    one_of("duplicates", duplicates, DUPLICATES)
    words = read_missing("missing", missing)
    links = TableInMemory(table_of("edges", edges, words))
    for name in required:
        require(links.title, links.names, name, _explain_index(edges, name))
    named = None if nodes is None else table_of("nodes", nodes, words)
    if named is not None:
        require(named.name, named.names, names.id, _explain_index(nodes, names.id))
    named = named.first_rows(names.id) if named is not None and duplicates == FIRST else named
    frames = FrameGraph(links, None if named is None else TableInMemory(named), duplicates, bipartite)
    given = frames.use_columns(names, features, edge_features, [time] if isinstance(time, str) else time)
    return without_duplicates(
        join_pieces(frames, **given), duplicates, "duplicates=first, sum or mean keeps one of them"
    )


class FrameGraph(TableGraph):
    """A graph in data frames."""

    def __init__(
        self, edges: Columns, nodes: Columns | None, duplicates: str = KEEP, bipartite: bool | None = None
    ) -> None:
        super().__init__(Path(), duplicates)
        self._frames, self.bipartite = (edges, nodes), bipartite
        if nodes is not None and bipartite:
            raise UserError("bipartite=True reads edges only, but nodes are given: leave them out, or use HeteroData")

    def use_columns(
        self,
        names: TableNames,
        features: str | Sequence[str] | Array | None,
        edge_features: Sequence[str] | None,
        times: Sequence[str] | None,
    ) -> Fields:
        """Sets what the columns mean. Returns the features if they are an array."""
        edges, nodes = self._frames
        names = names.with_times(edges, nodes, times, "time")
        if edge_features is None:
            edge_features = _default_features(edges, names.of_edges, "edge_features=[NAME, ...] reads it")
        if features is None and nodes is not None:
            features = _default_features(nodes, names.of_nodes, "features=[NAME, ...] reads it")
        columns: Any = [features] if isinstance(features, str) else features if features is not None else []
        is_array = not isinstance(columns, list | tuple) or not all(isinstance(name, str) for name in columns)
        if nodes is None and not is_array and columns:
            raise UserError(f"features={columns} are columns of a table of nodes: give nodes too")
        of_nodes = [] if is_array else columns
        self._tables = GraphTables(names, {ONE: edges}, nodes, list(edge_features), of_nodes, bool(self.bipartite))
        return {"features": rows_of(features)} if is_array else {}

    def open_tables(self) -> GraphTables:
        return self._tables

    @contextmanager
    def blame_unfit(self, *, is_nodes: bool) -> Iterator[None]:
        """Appends the argument that excludes columns."""
        try:
            yield
        except UnfitColumns as error:
            if not error.names:  # weights
                raise
            argument, without = "features" if is_nodes else "edge_features", f"without {', '.join(error.names)}"
            raise UserError(f"{error}: {argument}=[NAME, ...] names the columns to read, {without}") from error


def _explain_index(frame: Any, name: str) -> str:
    """Returns the remedy if a column is the index of a pandas data frame, or ""."""
    return (
        "; use reset_index(), as it is the index" if name in getattr(getattr(frame, "index", None), "names", ()) else ""
    )


def _default_features(table: Columns, known: Sequence[str], hint: str) -> list[str]:
    """Returns all columns except `known`, and warns about an index."""
    leave_out_index([table], known, hint)
    return table.others(known)
