"""The graph in tables of edges and nodes, read in pieces from any `Columns`."""

from __future__ import annotations

import itertools
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from gnnkit.errors import UserError
from gnnkit.graph.cells import IdTable, is_consecutive, narrow_text, numbers_of
from gnnkit.graph.labels import check_present
from gnnkit.graph.times import TIME_NAMES, Times, read_time_fields, to_unit
from gnnkit.graph.types import Fields, Floats, Ids, Labels, edge_types_of
from gnnkit.graph.unfit_columns import UnfitColumns
from gnnkit.utils.checks import Array
from gnnkit.utils.ranges import shown
from gnnkit_formats.column_table import CSV_FORMS
from gnnkit_formats.columns import Columns, common_index, warn_index
from gnnkit_formats.duplicates import KEEP, SUM, node_hint
from gnnkit_formats.feature_columns import find_readings, find_unfit, warn_readings
from gnnkit_formats.id_columns import (
    NO_NODE,
    UNNAMED,
    check_one_type,
    join_ids,
    joined_ids,
    joined_numbers,
    name_one_type,
    two_types,
)
from gnnkit_formats.label_columns import MASKS, SPLIT, read_labels
from gnnkit_formats.pieces import WHOLE, EdgePiece, GraphPieces, NodeFields, Room, Stretch, TableShare, list_positions
from gnnkit_formats.table import Table
from gnnkit_formats.table_files import are_classes, form_of
from gnnkit_formats.time_columns import forms_of, holds_times, time_unit
from gnnkit_formats.values import ColumnReading, is_listed, is_text

ONE = ""  # name of a table with all relations
_ID_BYTES = 64  # of a numeric id, while ids are read and looked up
_INT32 = 2**31
_LABELS = ("label", "labels", "class", "target", "y")  # names of columns that may hold labels
_PIECE = 1 << 16  # rows of a column that are read at once


@dataclass(frozen=True, slots=True)
class TableNames:
    """Names of the columns that are no features."""

    ends: tuple[str, str] = ("src", "dst")  # source and destination ids
    weight: str = "weight"  # read if the tables have it, as are relation, label and split
    relation: str = "type"
    edge_label: str | None = None
    edge_time: str | None = None
    id: str = "id"
    label: str = "label"
    split: str = SPLIT  # of nodes
    node_time: str | None = None

    @property
    def of_edges(self) -> tuple[str, ...]:
        times = () if self.edge_time is None else (self.edge_time,)
        labels = () if self.edge_label is None else (self.edge_label, SPLIT, *MASKS)
        return (*self.ends, self.weight, *times, self.relation, *labels)

    @property
    def of_nodes(self) -> tuple[str, ...]:
        times = [] if self.node_time is None else [self.node_time]
        return (self.id, self.label, self.split, *MASKS, *times)

    def with_times(self, edges: Columns, nodes: Columns | None, columns: Sequence[str] | None, key: str) -> TableNames:
        """Adds each table's column of times, if it has one.

        Without `columns`, this is the only column that is named like times and holds
        integers or dates. Raises `UserError` for a column that no table has.

        Args:
            edges: The edge table.
            nodes: The node table, or None.
            columns: Names that the user gives. If None, recognise them.
            key: Configuration key or argument, for messages.
        """
        tables = [table for table in (edges, nodes) if table is not None]
        for column in columns or ():
            if not any(column in table.kept for table in tables):
                places = " or ".join(table.title for table in tables)
                raise UserError(f"{key}={shown(list(columns or ()))}: no column {column!r} in {places}")
        times = [_find_time(table, columns, key) for table in tables]
        return replace(self, edge_time=times[0], node_time=times[-1] if nodes is not None else None)


@dataclass(frozen=True, slots=True)
class GraphTables:
    """The tables of a graph, and what their columns mean."""

    names: TableNames
    edges: Mapping[str, Columns]  # by relation, or one of all under the name `ONE`
    nodes: Columns | None
    edge_features: Sequence[str]
    node_features: Sequence[str] = ()
    is_bipartite: bool = False  # whether sources and destinations are two node types


class Cells:
    """A table's columns as features, as in `Table.rows_with_nan`.

    Columns are read twice if their type does not determine how.
    """

    def __init__(self, source: Columns, columns: Sequence[str]) -> None:
        self.source, self.columns = source, list(columns)

    @cached_property
    def readings(self) -> dict[str, ColumnReading]:
        """How each column's cells are read."""
        return survey([self.source], self.columns)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of `rows`."""
        return np.result_type(np.float32, *(reading.dtype for reading in self.readings.values()))

    @cached_property
    def _first(self) -> Table:
        first = next(self.source.pieces(1, self.columns, self.source.types()), None)
        return (first or self.source.empty()).use_readings(self.readings)

    @property
    def names(self) -> list[str]:
        """The column names in `rows`."""
        return self._first.column_names(self.columns) or []

    @property
    def category_of(self) -> list[str]:
        """The column of text that each of `names` is a value of, or ""."""
        return self._first.category_of(self.columns) or [""] * len(self.names)

    def rows(self, step: int) -> Iterator[Floats]:
        """Yields all rows, `step` at once, with NaN in empty cells."""
        width = len(self.names)
        for piece in self.source.pieces(step, self.columns, self.source.types()):
            values = piece.use_readings(self.readings).rows_with_nan(self.columns)
            if width != values.shape[1]:
                raise UnfitColumns(
                    f"{piece.name}: lists have {values.shape[1]} numbers in some rows, {width} in others"
                )
            yield values


def texts_of(readings: Mapping[str, ColumnReading]) -> dict[str, str]:
    """Maps features that encode text to the text's column."""
    return {f"{name}={value}": name for name, reading in readings.items() for value in reading.categories}


def survey(sources: Sequence[Columns], names: Sequence[str]) -> dict[str, ColumnReading]:
    """Determines how columns are read, over several tables' rows."""
    kinds = [source.types() for source in sources]
    several = len(sources) > 1 or len(sources[0].files) > 1
    open_ = [name for name in names if several or _needs_survey(kinds[0].get(name, pa.string()))]
    readings = find_readings(sources[0].title, _column_pieces(sources, open_) if open_ else (), open_)
    return {name: readings.get(name, ColumnReading("numbers")) for name in names}


def _needs_survey(kind: pa.DataType) -> bool:
    """Checks whether a column's values decide on its reading or on float64."""
    small = (pa.float16(), pa.float32(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.bool_(), pa.null())
    inner = kind.value_type if is_listed(kind) else kind
    return inner not in small


def _column_pieces(sources: Sequence[Columns], names: Sequence[str]) -> Iterator[Table]:
    """Yields some columns of several tables in pieces."""
    for source in sources:
        yield from source.pieces(_PIECE, names, source.types())


def list_unfit(sources: Sequence[Columns], names: Sequence[str], *, is_nodes: bool) -> list[tuple[str, str]]:
    """Returns the unfit columns of several tables, like `find_unfit`."""
    return find_unfit(sources[0].title, lambda some: _column_pieces(sources, some), names, is_nodes=is_nodes)


class EdgeTables:
    """The edges of one table per relation, or of one table."""

    def __init__(self, tables: GraphTables, duplicates: str) -> None:
        self.sources, self._names, self.columns = tables.edges, tables.names, list(tables.edge_features)
        self._is_bipartite, self._has_nodes = tables.is_bipartite, tables.nodes is not None
        self._sums = duplicates == SUM
        self.first = next(iter(self.sources.values()))
        self.ids: tuple[IdTable | None, IdTable | None] = (None, None)  # of each end's nodes. None: node numbers
        self.offset = 0  # of destinations, which are a node type of their own
        self.num_nodes: int | None = None  # None: any id is a node
        self.feature_names: Sequence[str] | None = None  # once a piece was read
        self.time_unit: str | None = None  # of all times of the data

    @property
    def num_edges(self) -> int | None:
        rows = [source.num_rows for source in self.sources.values()]
        return None if None in rows else sum(count or 0 for count in rows)

    @property
    def row(self) -> int:
        """Bytes per edge."""
        values = sum(len(reading.categories) for reading in self.readings.values())
        return 8 * len(self.first.names) + 4 * values

    @property
    def _weight_names(self) -> list[str]:
        return [self._names.weight] if self._names.weight in self.first.kept else []

    @cached_property
    def readings(self) -> dict[str, ColumnReading]:
        """How feature columns and text weights are read."""
        sources, names = list(self.sources.values()), list(self.columns)
        if any(source.are_text([name]) for name in self._weight_names for source in sources):
            names.append(self._names.weight)
        return survey(sources, names) if names else {}

    @cached_property
    def relations(self) -> list[str] | None:
        """Relation names, None for numbers. Reads the column."""
        if ONE not in self.sources:
            return list(self.sources)
        source, name = self.first, self._names.relation
        if name not in source.kept or not is_text(source.type_of(name)):
            return [UNNAMED] if self._is_bipartite else None
        names = _words(source.pieces(_PIECE, [name], {name: pa.string()}), name)
        edge_types_of(np.empty(0, np.int64), 0, names)  # raises for too many
        return names

    @cached_property
    def time_readings(self) -> dict[str, ColumnReading]:
        """How dates in text are read, if edges have such times."""
        return _time_readings(list(self.sources.values()), self._names.edge_time)

    def pieces(self, stretch: Stretch, rows: int, first: int) -> Iterator[EdgePiece]:
        """Yields a stretch's edges. Arguments as of `GraphPieces.edges_of`."""
        name, source = list(self.sources.items())[stretch.table]
        tables = source.pieces(rows, None, self._types_of(source), stretch.share)
        head = next(tables, None) or (None if stretch.share.number else source.empty())
        for table in itertools.chain([] if head is None else [head], tables):
            src, dst = self._ends(source, table)
            features, weight = table.use_readings(self.readings).rows(self.columns), self._weight(table)
            if weight is None and self._sums:
                weight = np.ones(len(src), np.float32)
            self.feature_names = self.feature_names or table.column_names(self.columns)
            if features is not None and len(src) and features.shape[1] != len(self.feature_names or ()):
                raise UnfitColumns("lists of edges differ in length")
            types = self._types(table) if name == ONE else np.full(len(src), stretch.table)
            positions = list_positions(first, len(src))
            yield EdgePiece(table.name, src, dst, weight, features, positions, types, self._times(table))
            first += len(src)

    def _types(self, table: Table) -> Ids | None:
        if self._names.relation in self.first.kept:
            return table.types(self._names.relation, self.relations)
        return np.zeros(table.num_rows, np.int64) if self._is_bipartite else None

    def _times(self, table: Table) -> Times | None:
        if (name := self._names.edge_time) is None:
            return None
        return to_unit("edge_time", table.use_readings(self.time_readings).times(name), self.time_unit)

    def _types_of(self, source: Columns) -> dict[str, pa.DataType]:
        """Returns the types in which a CSV's columns are read."""
        if not source.parses:
            return {}
        weight, relation, time = self._names.weight, self._names.relation, self._names.edge_time
        types = {**source.as_text(*self._names.ends), weight: pa.float64()}
        times = [] if time is None else [time]
        if names := [*self.columns, *times, *({weight} & {*self.readings})]:
            types |= {name: source.types()[name] for name in names}
        if relation in source.kept:
            types[relation] = source.type_of(relation) if self.relations is None else pa.string()
        return types

    def read_ids(self, room: Room, sized_by: Sequence[str], key: str, hint: str) -> pa.Array | None:
        """Reads the distinct ids of both ends. Returns None for 0, 1, ...

        Text is sorted by code point.

        Args:
            room: Memory for the ids.
            sized_by: What defines the number of nodes, whose numbers the ids then are.
            key: Argument or key that decides whether the ends are two node types. "" if
                it is set.
            hint: How else to number the nodes.
        """
        ends, sources = self._names.ends, list(self.sources.values())
        are_text = all(source.are_text(ends) for source in sources)
        if sized_by and not are_text:
            return None
        tables = list(_column_pieces(sources, ends)) if are_text else []
        columns = [] if are_text else [self.distinct_ids(name, room) for name in ends]
        if ONE in self.sources and key and not sized_by:
            plain = columns or [pa.concat_arrays([table.plain(end) for table in tables]) for end in ends]
            if advice := check_one_type(self.first.title, plain, ends, key):
                warnings.warn(advice, stacklevel=4)
        if not are_text:
            return joined_numbers(self.first.title, columns, hint)
        if any(form_of(Path(table.name)) in CSV_FORMS and table.holds_numbers(ends) for table in tables):
            return None  # numbers and a few words, which are rejected later
        if sized_by:
            raise UserError(f"the ids of edges are text, so {sized_by[0]} needs a node table with these ids")
        return joined_ids(tables, ends)

    def distinct_ids(self, name: str, room: Room) -> pa.Array:
        """Returns the distinct integers of an end, in ascending order."""
        ids, parts, size = np.empty(0, np.int64), list[Array](), 0
        low_ids, rows = np.zeros(0, np.bool_), 0  # which ids below `limit` occur, as dense ids do
        for source in self.sources.values():
            for piece in source.pieces(_PIECE, [name], source.as_text(name)):
                numbers = piece.positions(name, None, fraction=source.has_fraction(name))
                rows += len(numbers)
                limit = min(room.memory // _ID_BYTES, _ID_BYTES * rows)  # no more bytes than a list would take
                is_low = (numbers >= 0) & (numbers < limit)
                if (high := int(numbers[is_low].max(initial=-1)) + 1) > len(low_ids):
                    low_ids = np.pad(low_ids, (0, max(high, min(2 * len(low_ids), limit)) - len(low_ids)))
                low_ids[numbers[is_low]] = True
                parts.append(numbers_of(pc.unique(pa.array(numbers[~is_low]))))
                size += len(parts[-1])
                if size > max(len(ids), _PIECE):  # merging after each piece would take quadratic time
                    ids, parts, size = np.unique(np.concatenate([ids, *parts])), [], 0
                if _ID_BYTES * (len(ids) + size) > room.memory:
                    raise room.too_little(
                        f"the ids of {source.title} do not fit, if not numbered by dataset.num_nodes",
                        2 * _ID_BYTES * (len(ids) + size),
                    )
        low = np.flatnonzero(low_ids)  # an id above an early limit may be below a later one
        return pa.array(np.unique(np.concatenate([low, ids, *parts])) if size + len(ids) else low)

    def _ends(self, source: Columns, table: Table) -> tuple[Ids, Ids]:
        """Reads edges' sources and destinations."""
        pairs = list(zip(self._names.ends, self.ids, strict=True))
        src, dst = (table.positions(name, ids, fraction=source.has_fraction(name)) for name, ids in pairs)
        if self.ids[0] is None:
            high = _INT32 * _INT32 if self.num_nodes is None else self.num_nodes
            why = [NO_NODE] if self._has_nodes else []
            for name, ids in zip(self._names.ends, (src, dst), strict=True):
                table.check_range(name, ids, high, *why)
        return src, dst + self.offset if self.offset else dst

    def _weight(self, table: Table) -> Floats | None:
        return table.weights(self._names.weight) if self._weight_names else None


class NodeTable:
    """The nodes of a table."""

    def __init__(self, source: Columns, tables: GraphTables) -> None:
        self.source, self._names = source, tables.names
        self.cells = Cells(source, tables.node_features) if tables.node_features else None

    def ids(self, room: Room, hint: str) -> IdTable | int:
        """Reads the ids, which must fit into memory. Returns a number for 0, 1, ...

        Args:
            room: Memory for the ids.
            hint: Remedy for an id in two rows.
        """
        source, name = self.source, self._names.id
        parts, size, rows = [], 0, 0
        in_order = True  # ids so far are 0, 1, ..., so counting them is enough
        piece: Table | None = None
        for piece in source.pieces(_PIECE, [name], source.as_text(name)):
            column = piece.plain(name)
            if in_order and not is_consecutive(column, rows):
                in_order = False
                parts = [pa.array(np.arange(rows), column.type)] if rows else []
                size = 2 * sum(part.nbytes for part in parts) + _ID_BYTES * rows
            rows += len(column)
            if in_order:
                continue
            parts.append(column)
            size += 2 * column.nbytes + _ID_BYTES * len(column)  # as they are read, and in `IdTable`
            if size > room.memory:
                raise room.too_little(f"the ids of {source.title} do not fit, {rows:,} of them so far", size)
        if in_order and rows:
            return rows
        if piece is None or source.parses or piece.num_rows < rows:
            column = pa.chunked_array(parts, parts[0].type if parts else pa.null())
            column = narrow_text(column) if source.parses else column
            piece = Table(source.title, pa.table({name: column}), missing=source.missing)
        if (word := piece.find_word(name)) is not None:
            warnings.warn(
                f"{source.title}: the id {word!r} is text, and most ids are integers; remove the row if it is no node, such "
                "as a row of totals",
                stacklevel=5,
            )
        table = piece.ids(name, hint, room.threads)
        return len(table.ids) if is_consecutive(table.ids, 0) else table

    def labels(self) -> tuple[Labels | None, list[str] | None]:
        """Reads labels and class names."""
        name = self._names.label
        return labels_of(self.source, name) if name in self.source.kept else (None, None)

    @cached_property
    def time_readings(self) -> dict[str, ColumnReading]:
        """How dates in text are read, if nodes have such times."""
        return _time_readings([self.source], self._names.node_time)

    def times(self, unit: str | None) -> Times | None:
        """Reads the nodes' times."""
        if (name := self._names.node_time) is None:
            return None
        pieces = self.source.pieces(_PIECE, [name], {name: self.source.types()[name]})
        parts = [to_unit(name, piece.use_readings(self.time_readings).times(name), unit) for piece in pieces]
        return np.concatenate([*parts, np.empty(0, np.int64)])


class TableGraph(GraphPieces):
    """A graph in tables. Subclasses open them, from a folder or from data frames."""

    has_gaps = is_divided = True
    key = ""  # prefix of configuration keys, whose names are those of arguments
    numbers_hint = ""  # how else to number the nodes
    bipartite: bool | None = None  # whether the ends are two node types. None: look at the ids
    id_hint: str | None = None  # remedy for an id in two rows

    def __init__(self, root: Path, duplicates: str = KEEP) -> None:
        super().__init__(root)
        self.duplicates = duplicates
        self._node_ids: pa.Array | Array | None = None  # of the user, unless these are 0, 1, ...
        self._two_types: Fields = {}

    @abstractmethod
    def open_tables(self) -> GraphTables:
        """Opens the tables. Raises `UserError` for missing files and columns."""

    @property
    def sized_by(self) -> Sequence[str]:
        """The arrays and the key that define the number of nodes, without a table."""
        return ()

    @property
    def implied_nodes(self) -> int | None:
        """The number of nodes without a table, if something defines it."""
        return None

    def blame_unfit(self, *, is_nodes: bool) -> AbstractContextManager[None]:
        """Completes errors about unfit columns."""
        del is_nodes
        return nullcontext()

    @cached_property
    def tables(self) -> GraphTables:
        return self.open_tables()

    @cached_property
    def _opened(self) -> tuple[EdgeTables, NodeTable | None]:
        tables = self.tables
        nodes = None if tables.nodes is None else NodeTable(tables.nodes, tables)
        edges = EdgeTables(tables, self.duplicates)
        edges.time_unit = _unit_of(tables.names, edges, nodes)
        return edges, nodes

    @property
    def time_unit(self) -> str | None:  # type: ignore[override]
        return self._opened[0].time_unit

    @cached_property
    def _surveyed(self) -> tuple[EdgeTables, Cells | None]:
        """The edges and the node features, once it is known how to read them."""
        edges, nodes = self._opened
        cells = None if nodes is None else nodes.cells
        with self.blame_unfit(is_nodes=True):
            _ = cells and cells.readings
        with self.blame_unfit(is_nodes=False):
            _ = edges.readings
        return edges, cells

    @property
    def _edges(self) -> EdgeTables:
        return self._surveyed[0]

    @property
    def _cells(self) -> Cells | None:
        return self._surveyed[1]

    @property
    def files(self) -> list[Path]:
        edges, nodes = self._opened
        sources = (*edges.sources.values(), *([] if nodes is None else [nodes.source]))
        return [path for source in sources for path in source.files]

    @property
    def num_edges(self) -> int | None:
        return self._opened[0].num_edges

    @property
    def edge_row(self) -> int:
        return self._edges.row

    def open(self, room: Room) -> int | None:
        """Reads the ids of nodes, which must fit into memory."""
        edges, nodes = self._opened
        _check_edges(self.tables)
        if self.tables.is_bipartite:
            return self._number_two_types(edges, room)
        table: IdTable | int | None
        key = "" if self.bipartite is not None else f"{self.key}bipartite"
        if nodes is None:
            edges.num_nodes = self.implied_nodes
            ids = edges.read_ids(room, self.sized_by, key, self.numbers_hint)
            table = None if ids is None else IdTable(ids, room.threads)
        else:
            if key:
                _check_ids(edges, self.tables, room, key)
            hint = node_hint(f"{self.key}duplicates", self.duplicates) if self.id_hint is None else self.id_hint
            table = nodes.ids(room, hint)
        if isinstance(table, int):
            edges.num_nodes = table
        elif table is not None:
            edges.num_nodes, edges.ids = len(table.ids), (table, table)
            self._node_ids, self.finds_ids = table.ids, True
        return edges.num_nodes

    def _number_two_types(self, edges: EdgeTables, room: Room) -> int:
        """Numbers sources before destinations, in ascending id order."""
        (source,), ends = edges.sources.values(), self.tables.names.ends
        pieces = list(source.pieces(_PIECE, ends, source.as_text(*ends)))
        ids = [pc.unique(pa.concat_arrays([piece.id_column(end) for piece in pieces])).sort() for end in ends]
        first, second = (IdTable(of_end, room.threads) for of_end in ids)
        edges.ids, edges.offset, edges.num_nodes = (first, second), len(ids[0]), sum(map(len, ids))
        self._node_ids, self.finds_ids = join_ids(ids), True
        self._two_types = two_types(ends, list(map(len, ids)), edges.relations)
        return edges.num_nodes

    def edges(self, rows: int) -> Iterator[EdgePiece]:
        first = 0
        for table in range(len(self._edges.sources)):
            for piece in self.edges_of(Stretch(table, WHOLE), rows, first):
                yield piece
                first += len(piece.src)

    def stretches(self, count: int) -> Sequence[Stretch]:
        edges = self._edges
        _ = edges.relations  # read once, before processes fork
        return [
            Stretch(table, TableShare(number, count)) for table in range(len(edges.sources)) for number in range(count)
        ]

    def edges_of(self, stretch: Stretch, rows: int, first: int) -> Iterator[EdgePiece]:
        with self.blame_unfit(is_nodes=False):
            yield from self._edges.pieces(stretch, rows, first)

    def edge_type_names(self) -> Sequence[str] | None:
        relations = self._two_types.get("relations")
        return self._edges.relations if relations is None else [one.edge_type for one in relations]

    def edge_feature_names(self) -> Sequence[str] | None:
        return self._edges.feature_names

    def edge_texts(self) -> Mapping[str, str]:
        return texts_of(self._edges.readings)

    def edge_labels(self) -> Fields:
        """Reads the labels of edges."""
        name, sources = self.tables.names.edge_label, list(self.tables.edges.values())
        if name is None:
            return {}
        labels, names = read_labels(lambda: _column_pieces(sources, [name]), name)
        splits = [part for source in sources if (part := split_of(source)) is not None]
        split = np.concatenate(splits) if splits else None
        return {"edge_labels": labels, "edge_split": split, "edge_class_names": names}

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        del num_nodes, room
        (edges, nodes), cells, names = self._opened, self._cells, self.tables.names
        if nodes is not None and cells is not None:
            warn_readings(nodes.source.title, cells.readings)
        warn_readings(edges.first.title, edges.readings)
        labels, class_names, split = None, None, None
        if nodes is not None:
            split, (labels, class_names) = split_of(nodes.source, names.split), nodes.labels()
        labels, split = self.node_array("labels", labels), self.node_array("split", split)
        _warn_lookalikes(self.tables, self.key, has_labels=labels is not None, is_split=split is not None)
        if nodes is not None:
            remedy, place = f", set {self.key}label=COLUMN for another column", f"column {names.label!r}"
            columns = [f"column {name!r}" for name in _split_columns(nodes.source, names.split)]
            check_present(labels, split, f"{nodes.source.title}: {place}", columns, remedy)
        return NodeFields(
            labels,
            split,
            class_names,
            self._node_ids,
            self.node_array("coordinates"),
            category_of=cells.category_of if cells and any(cells.category_of) else None,
            one_class=True,
            node_time=None if nodes is None else nodes.times(self.time_unit),
            node_types=self._two_types.get("node_types"),
            types={key: values for key, values in self._two_types.items() if key == "relations"},
        )

    def node_array(self, name: str, column: Array | None = None) -> Array | None:
        """Returns a column, or else an array beside the tables, if there is one."""
        del name
        return column

    def column_forms(self) -> Sequence[str] | None:
        edges, cells = self._surveyed
        readings = {name: edges.readings[name] for name in edges.columns}
        of_nodes = [] if cells is None else forms_of(cells.readings, cells.source.types())
        return list(dict.fromkeys([*of_nodes, *forms_of(readings, edges.first.types())])) or None

    def features(self, room: Room) -> Iterator[Array] | None:
        return None if self._cells is None else self._feature_rows(self._cells, room)

    def _feature_rows(self, cells: Cells, room: Room) -> Iterator[Array]:
        with self.blame_unfit(is_nodes=True):
            yield from cells.rows(room.rows(len(cells.names)))

    def feature_names(self) -> Sequence[str] | None:
        return None if self._cells is None else self._cells.names or None


def labels_of(source: Columns, name: str) -> tuple[Labels, list[str] | None]:
    """Reads a label column, and class names, like `read_labels`."""
    kind = source.type_of(name)
    if source.parses and are_classes(kind):
        kind = pa.string()  # class names are the cells' text
    return read_labels(lambda: source.pieces(_PIECE, [name], {name: kind}), name)


def split_of(source: Columns, name: str = SPLIT) -> Array | None:
    """Reads a column of splits, if there is one."""
    if not (names := _split_columns(source, name)):
        return None
    pieces = source.pieces(_PIECE, names, source.as_text(*names))
    splits = (piece.splits(name) if name in names else piece.masks(names) for piece in pieces)
    return np.concatenate([*splits, np.empty(0, np.int8)])


def _split_columns(source: Columns, name: str) -> list[str]:
    """Returns the column of splits or the masks of a table, whichever it has."""
    masks = [mask for mask in MASKS if mask in source.kept]
    if masks and name in source.kept:
        raise UserError(f"{source.title} has {name!r} and {masks[0]!r}, and both are splits: remove one of them")
    return [name] if name in source.kept else masks


def _check_edges(tables: GraphTables) -> None:
    """Raises `UserError` if both ends are one column. Warns about no rows."""
    (src, dst), (first, *others) = tables.names.ends, tables.edges.values()
    if src == dst:
        raise UserError(f"{first.title}: src and dst are both the column {src!r}, expected two columns")
    if not others and next(iter(first.pieces(1, [src], first.as_text(src))), first.empty()).num_rows == 0:
        warnings.warn(f"{first.title} has no rows, so the graph has no edges", stacklevel=5)


def _check_ids(edges: EdgeTables, tables: GraphTables, room: Room, key: str) -> None:
    """Raises `UserError` if equal ids of both ends may be two nodes of the node table.

    Arguments as of `EdgeTables.read_ids`.
    """
    ends, source = tables.names.ends, edges.first
    if tables.nodes is not None and ONE in tables.edges and not name_one_type(ends) and not source.are_text(ends):
        columns = [edges.distinct_ids(name, room) for name in ends]
        check_one_type(source.title, columns, ends, key, tables.nodes.title)


def _warn_lookalikes(tables: GraphTables, key: str, *, has_labels: bool, is_split: bool) -> None:
    """Warns about features that are named like labels, splits or weights.

    Args:
        key: Prefix of keys, as `TableGraph.key`.
    """
    names, edges = tables.names, next(iter(tables.edges.values()))
    of_labels = () if has_labels or names.edge_label is not None else _LABELS
    of_weights = () if names.weight in edges.kept else ("weight", "weights")
    rules = [
        (tables.nodes, () if is_split else ("split", "fold"), "rename it to 'split' if it holds train, val and test"),
        (edges, of_weights, f"rename it to {names.weight!r} to use it"),
        (tables.nodes, of_labels, f"use {key}label=COLUMN if it has the labels"),
        (edges, of_labels, f"use {key}edge_label=COLUMN if it has the labels"),
    ]
    for table, words, remedy in rules:
        features = tables.edge_features if table is edges else tables.node_features
        if table is not None and (name := next((name for name in features if name.lower() in words), None)):
            warnings.warn(f"{table.title}: {name!r} is a feature; {remedy.replace('COLUMN', name)}", stacklevel=5)


def leave_out_index(sources: Sequence[Columns], known: Sequence[str], hint: str) -> None:
    """Ignores columns that hold a data frame's index, with a warning."""
    index = common_index([source.index_columns(known) for source in sources])
    warn_index(sources[0].title, index, hint)
    for source in sources:
        source.ignored = (*source.ignored, *index)


def _words(pieces: Iterable[Table], name: str) -> list[str]:
    """Returns a column's distinct texts in code point order, without empty ones."""
    words: set[str | None] = set()
    for piece in pieces:
        words |= set(pc.unique(pc.utf8_trim_whitespace(piece.plain(name).cast(pa.string()))).to_pylist())
    return sorted(word for word in words if word)


def _find_time(table: Columns, columns: Sequence[str] | None, key: str) -> str | None:
    """Returns a table's column of times. Arguments as of `TableNames.with_times`."""
    if columns is not None:
        if len(several := [name for name in columns if name in table.kept]) > 1:
            raise UserError(f"{key}={shown(list(columns))}: {table.title} has {len(several)} of them, expected one")
        return next(iter(several), None)

    def holds(name: str) -> bool:
        return holds_times(table.types()[name], lambda: survey([table], [name])[name])

    times = [name for name in table.kept if name.lower() in TIME_NAMES and holds(name)]
    if times:
        some = ", ".join(map(repr, times))
        what = f"{some} is the time of each row, and no feature: {key}=[] makes it a feature"
        choice = f"{some} are features, of which one may be the time of each row: use {key}={times[0]}"
        warnings.warn(f"{table.title}: {what if len(times) == 1 else choice}", stacklevel=4)
    return times[0] if len(times) == 1 else None


def _time_readings(sources: Sequence[Columns], name: str | None) -> dict[str, ColumnReading]:
    """Determines how a column of times is read if it is text.

    An error names the row if a piece of the table shows it.
    """
    if name is None or not is_text(sources[0].types()[name]):
        return {}
    try:
        return survey(sources, [name])
    except UserError:
        for piece in _column_pieces(sources, [name]):
            piece.times(name)
        raise


def _unit_of(names: TableNames, edges: EdgeTables, nodes: NodeTable | None) -> str | None:
    """Returns the unit of all times, as `read_time_fields` does.

    Text is read as microseconds, or as plain numbers.
    """
    columns = [("edge_time", edges.time_readings, edges.first, names.edge_time)]
    columns += [] if nodes is None else [("node_time", nodes.time_readings, nodes.source, names.node_time)]
    empty: dict[str, Any] = {}
    for name, readings, source, column in columns:
        if column is not None:
            is_date = any(reading.kind == "seconds" for reading in readings.values())
            unit = "us" if is_date else time_unit(source.types()[column])
            empty[name] = np.empty(0, np.int64 if unit is None else f"M8[{unit}]")
    result: str | None = read_time_fields(empty).get("time_unit")
    return result
