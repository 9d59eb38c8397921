"""Reads an Apache GraphAr graph in pieces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.pieces import EdgePiece, GraphPieces, NodeFields, Room, list_positions
from gnnkit_import.readers import (
    Cells,
    ColumnReading,
    Columns,
    Table,
    date_names,
    is_text,
    labels_of,
    split_of,
    survey,
    texts_of,
    unlabelled,
    warn_readings,
)

from gnnkit.errors import UserError
from gnnkit.graph import Floats
from gnnkit.utils.ranges import shown, unknown
from gnnkit_graphar.layout import ENDS, EdgeType, GraphArLayout, PropertyGroup, VertexType

if TYPE_CHECKING:
    from gnnkit_graphar import GraphAr

T = TypeVar("T")
_IDS_PER_PIECE = 1 << 16


class GraphArPieces(GraphPieces):
    """The chunks listed in a graph's YAML files."""

    has_gaps = True

    def __init__(self, dataset: GraphAr) -> None:
        super().__init__(dataset.root)
        self.row_normalize, self.shares, self.seed = dataset.row_normalize, dataset.split, dataset.seed
        self.symmetrize = dataset.symmetrize
        self._label, self._ignore = dataset.label, dataset.ignore
        self._layout = GraphArLayout(dataset.root, dataset.graph, dataset.ignore, dataset.missing)
        self._edge_names: list[str] = []

    @property
    def _vertex_types(self) -> list[VertexType]:
        return list(self._layout.vertex_types.values())

    @property
    def _edge_types(self) -> list[EdgeType]:
        return self._layout.edge_types

    @property
    def files(self) -> Sequence[Path]:
        return self._layout.files

    def open(self, room: Room) -> int:
        self._check_ignored()
        self._check_relations()
        if self.symmetrize is None and self._edge_types and not any(relation.directed for relation in self._edge_types):
            self.symmetrize = True
        return sum(vertices.count for vertices in self._vertex_types)

    def _check_ignored(self) -> None:
        """Raises `UserError` for ignored names that no type has."""
        known = {name for relation in self._edge_types for group in relation.groups for name in group.names}
        for vertices in self._vertex_types:
            names = [name for group in vertices.groups for name in group.names]
            known |= {*names, *(f"{vertices.name}.{name}" for name in names)}
        for name in self._ignore:
            if name not in known:
                raise unknown(f"dataset.ignore={shown(name)}", name, sorted(known))

    def _check_relations(self) -> None:
        """Raises `UserError` if relations have different features."""
        for relation in self._edge_types[1:]:
            first = self._edge_types[0]
            if relation.feature_names != first.feature_names:
                names, expected = (", ".join(edges.feature_names) or "none" for edges in (relation, first))
                raise UserError(
                    f"edges {relation.name} have the properties {names}, but {first.name} have {expected}: all relations "
                    "need the same, use dataset.ignore=[NAME] to omit some"
                )

    @property
    def num_edges(self) -> int:
        return sum(relation.count for relation in self._edge_types)

    @property
    def edge_row(self) -> int:
        return 8 * max((len(relation.names) for relation in self._edge_types), default=0)

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        first, weighted = 0, any("weight" in relation.names for relation in self._edge_types)
        for number, relation in enumerate(self._edge_types):
            if relation.ends is None:
                continue
            groups = [group for group in relation.groups if {*group.names} & {*relation.names}]
            streams = [relation.ends.pieces(rows, ENDS), *(_pieces(group, relation.names, rows) for group in groups)]
            for tables in _align(streams, lambda table: table.num_rows, Table.part):
                yield self._edge_piece(relation, number, first, tables, weighted)
                first += tables[0].num_rows
        if not first:
            none = np.empty(0, np.int64)
            weight = np.empty(0, np.float32) if weighted else None
            types = none if self._edge_types else None
            yield EdgePiece(str(self.root), none, none, weight, None, list_positions(0, 0), types)

    def _edge_piece(
        self, relation: EdgeType, number: int, first: int, tables: Sequence[Table], weighted: bool
    ) -> EdgePiece:
        head, *others = tables
        ends = []
        for name, vertices in zip(ENDS, (relation.src, relation.dst), strict=True):
            ids = head.positions(name, None)
            head.check_range(name, ids, vertices.count)
            ends.append(ids + vertices.first)
        weight = next((table.weights("weight") for table in others if "weight" in table.names), None)
        if weight is None and weighted:
            weight = np.ones(head.num_rows, np.float32)
        columns = [(name, table) for name in relation.feature_names for table in others if name in table.names]
        parts = [
            rows
            for name, table in columns
            if (rows := table.use_readings(self._edge_readings).rows([name])) is not None
        ]
        self._edge_names = [column for name, table in columns for column in table.column_names([name]) or []]
        features = np.concatenate(parts, 1) if parts else None
        types = np.full(head.num_rows, number)
        positions = list_positions(first, head.num_rows)
        return EdgePiece(head.name, ends[0], ends[1], weight, features, positions, types)

    @cached_property
    def _edge_readings(self) -> dict[str, ColumnReading]:
        """How each edge property is read, over all relations."""
        readings: dict[str, ColumnReading] = {}
        for name in dict.fromkeys(name for relation in self._edge_types for name in relation.feature_names):
            groups = [group for relation in self._edge_types for group in relation.groups if name in group.names]
            readings |= survey([group.source for group in groups], [name]) if groups else {}
        return readings

    def edge_type_names(self) -> Sequence[str] | None:
        return [relation.name for relation in self._edge_types] or None

    def edge_feature_names(self) -> Sequence[str] | None:
        return self._edge_names or None

    def edge_texts(self) -> Mapping[str, str]:
        return texts_of(self._edge_readings)

    def date_columns(self) -> Sequence[str] | None:
        groups = [group for relation in self._edge_types for group in relation.groups]
        kinds = {name: kind for group in groups for name, kind in group.source.types().items()}
        tables = [cells for _, tables in self._columns for cells in tables]
        names = [name for cells in tables for name in date_names(cells.readings, cells.source.types())]
        return list(dict.fromkeys([*names, *date_names(self._edge_readings, kinds)])) or None

    @cached_property
    def _predicted(self) -> tuple[VertexType, str | None]:
        """The labelled type, and its label property.

        Without labels, this is the first type with a split, or the first one.
        """
        label, types = self._label, self._vertex_types
        candidates = [
            (vertices, name)
            for vertices in types
            for name in {label, label.removeprefix(f"{vertices.name}.")}
            if self._table_of(vertices, name)
        ]
        if len(candidates) > 1:
            names = ", ".join(f"{vertices.name}.{name}" for vertices, name in candidates)
            raise UserError(f"nodes of several types have labels: set dataset.label=TYPE.NAME to one of {names}")
        if candidates:
            return candidates[0]
        if label != "label":
            known = [
                f"{vertices.name}.{name}" for vertices in types for group in vertices.groups for name in group.names
            ]
            raise unknown(f"dataset.label={label}", label, known)
        return next((vertices for vertices in types if self._table_of(vertices, "split")), types[0]), None

    def _table_of(self, vertices: VertexType, name: str) -> Columns | None:
        """Returns a property's table, or None if it is ignored."""
        return None if {name, f"{vertices.name}.{name}"} & {*self._ignore} else vertices.table_of(name)

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        vertices, name = self._predicted
        nodes = slice(vertices.first, vertices.first + vertices.count)
        labels, names, split = None, None, np.zeros(num_nodes, np.int8)
        if name is not None and (source := vertices.table_of(name)) is not None:
            known, names = labels_of(source, name)
            labels = unlabelled(known, num_nodes)
            labels[nodes] = known
        if (source := self._table_of(vertices, "split")) is not None and (column := split_of(source)) is not None:
            split[nodes] = column
        types = self._vertex_types
        categories = [text for _, text in self._names]
        for vertex_type, tables in self._columns:
            for cells in tables:
                warn_readings(vertex_type.name, cells.readings)
        warn_readings("edges", self._edge_readings)
        return NodeFields(
            labels,
            split,
            names,
            self._read_ids(room),
            node_types=tuple((vertex_type.name, vertex_type.count) for vertex_type in types)
            if len(types) > 1
            else None,
            category_of=categories if any(categories) and self.feature_names() else None,
            one_class=True,
        )

    def _read_ids(self, room: Room) -> pa.Array | None:
        """Reads the node ids. Returns None if they are 0, 1, ..."""
        types = self._vertex_types
        if not any(vertices.primary and vertices.count for vertices in types):
            return None
        columns: list[pa.Array] = []
        for vertices in types:
            column = _ids_of(vertices)
            if len(types) > 1:
                text = pa.large_string()
                prefix, separator = pa.scalar(f"{vertices.name}:", text), pa.scalar("", text)
                column = pc.binary_join_element_wise(prefix, column.cast(text), separator)
            columns.append(column)
            if (size := 4 * sum(ids.nbytes for ids in columns)) > room.memory:
                raise room.too_little(f"the ids of {vertices.name} are more than that", size)
        ids = pa.concat_arrays(columns)
        if not is_text(ids.type) and np.array_equal(ids.to_numpy(), np.arange(len(ids))):
            return None
        return ids

    @cached_property
    def _columns(self) -> list[tuple[VertexType, list[Cells]]]:
        """Each vertex type's feature columns."""
        predicted, label = self._predicted
        columns = []
        for vertices in self._vertex_types:
            left_out = {vertices.primary, "split", *self._ignore}
            left_out |= {name.removeprefix(f"{vertices.name}.") for name in self._ignore}
            left_out |= {label} if vertices is predicted else set()
            tables = [
                (group.source, [name for name in group.names if name not in left_out]) for group in vertices.groups
            ]
            columns.append((vertices, [Cells(source, names) for source, names in tables if names]))
        return columns

    @cached_property
    def _names(self) -> list[tuple[str, str]]:
        """The feature names, each with the text property it encodes, if any."""
        several, names = len(self._columns) > 1, []
        for vertices, tables in self._columns:
            prefix = f"{vertices.name}." if several else ""
            pairs = [pair for cells in tables for pair in zip(cells.names, cells.category_of, strict=True)]
            names += [
                (prefix + name, prefix + text if text else "") for name, text in pairs or ([("is", "")] * several)
            ]
        return names

    def features(self, room: Room) -> Iterator[Floats] | None:
        if not any(tables for _, tables in self._columns):
            return None
        return self._rows(room.rows(len(self._names)))

    def _rows(self, step: int) -> Iterator[Floats]:
        """Yields each type's rows, with 0 in other types' columns."""
        before = 0
        dtype = np.result_type(np.float32, *(cells.dtype for _, tables in self._columns for cells in tables))
        for vertices, tables in self._columns:
            ones = (np.ones((min(step, vertices.count - at), 1), np.float32) for at in range(0, vertices.count, step))
            for values in _join_columns([cells.rows(step) for cells in tables]) if tables else ones:
                rows = np.zeros((len(values), len(self._names)), dtype)
                rows[:, before : before + values.shape[1]] = values
                yield rows
            before += sum(len(cells.names) for cells in tables) if tables else 1

    def feature_names(self) -> Sequence[str] | None:
        return [name for name, _ in self._names] if any(tables for _, tables in self._columns) else None


def _ids_of(vertices: VertexType) -> pa.Array:
    """Reads a type's ids, or returns 0, 1, ... without a primary property."""
    name = vertices.primary
    source = None if name is None else vertices.table_of(name)
    if source is None or name is None:
        return pa.array(np.arange(vertices.count))
    parts = [piece.plain(name) for piece in source.pieces(_IDS_PER_PIECE, [name])]
    return Table(source.title, pa.table({name: pa.chunked_array(parts)})).ids(name).ids


def _pieces(group: PropertyGroup, names: Sequence[str], rows: int) -> Iterator[Table]:
    return group.source.pieces(rows, [name for name in group.names if name in names])


def _join_columns(streams: Sequence[Iterator[Floats]]) -> Iterator[Floats]:
    """Yields the streams' rows, concatenated along the columns."""
    return (np.concatenate(parts, 1) for parts in _align(streams, len, lambda rows, first, last: rows[first:last]))


def _align(
    streams: Sequence[Iterator[T]], size: Callable[[T], int], part: Callable[[T, int, int], T]
) -> Iterator[list[T]]:
    """Yields equally many rows of each stream, although their pieces may differ."""
    heads = [next(stream, None) for stream in streams]
    while pieces := [head for head in heads if head is not None]:
        if len(pieces) < len(heads):
            raise UserError("property groups have different numbers of rows: a file has changed while it was read")
        count = min(map(size, pieces))
        yield [part(piece, 0, count) for piece in pieces]
        heads = [
            part(piece, count, size(piece)) if size(piece) > count else next(stream, None)
            for piece, stream in zip(pieces, streams, strict=True)
        ]
