"""Reader for data frames of edges and nodes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gnnkit.errors import UserError
from gnnkit.graph.features import rows_of
from gnnkit.graph.graph import Graph
from gnnkit.graph.missing import read_missing
from gnnkit.graph.types import Fields
from gnnkit.graph.unfit_columns import UnfitColumns
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import one_of
from gnnkit_formats.column_table import require
from gnnkit_formats.columns import Columns, TableInMemory
from gnnkit_formats.duplicates import DUPLICATES, FIRST, without_duplicates
from gnnkit_formats.frames import table_of
from gnnkit_formats.pieces import join_pieces
from gnnkit_formats.table_graph import ONE, GraphTables, TableGraph, TableNames, leave_out_index


def from_tables(
    edges: Any,
    nodes: Any,
    ends: tuple[str, str],
    weight: str | None,
    edge_type: str,
    columns: tuple[str, str, str],
    features: str | Sequence[str] | Array | None,
    edge_features: Sequence[str] | None,
    missing: Sequence[str] | None,
    duplicates: str,
    bipartite: bool | None,
    edge_label: str | None,
    time: str | Sequence[str] | None,
) -> Graph:
    """Implements `Graph.from_tables`. `columns` are those of id, label and split."""
    one_of("duplicates", duplicates, DUPLICATES)
    words = read_missing("missing", missing)
    links = TableInMemory(table_of("edges", edges, words))
    for name in filter(None, (*ends, weight, edge_label)):
        require(links.title, links.names, name)
    named = None if nodes is None else table_of("nodes", nodes, words)
    named = named.first_rows(columns[0]) if named is not None and duplicates == FIRST else named
    frames = FrameGraph(links, None if named is None else TableInMemory(named), duplicates, bipartite)
    id_, label, split = columns
    names = TableNames(ends, weight or "weight", edge_type, edge_label, None, id_, label, split)
    given = frames.use_columns(names, features, edge_features, [time] if isinstance(time, str) else time)
    return without_duplicates(
        join_pieces(frames, **given), duplicates, "duplicates=first, sum or mean keeps one of them"
    )


class FrameGraph(TableGraph):
    """A graph in data frames."""

    def __init__(self, edges: Columns, nodes: Columns | None, duplicates: str, bipartite: bool | None) -> None:
        super().__init__(Path(), duplicates)
        self._frames, self.bipartite = (edges, nodes), bipartite
        if nodes is not None and bipartite:
            raise UserError(
                "bipartite=True reads edges only, and nodes are given: leave nodes out, or use a HeteroData"
            )

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
            argument, without = "features" if is_nodes else "edge_features", f"without {', '.join(error.names)}"
            raise UserError(f"{error}: {argument}=[NAME, ...] names the columns to read, {without}") from error


def _default_features(table: Columns, known: Sequence[str], hint: str) -> list[str]:
    """Returns all columns except `known`, and warns about an index."""
    leave_out_index([table], known, hint)
    return table.others(known)
