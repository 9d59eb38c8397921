"""A folder with tables, read in pieces."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from gnnkit_formats.bipartite import check_one_type
from gnnkit_formats.duplicates import SUM
from gnnkit_formats.edges import ARRAYS, NODES, NUMBERS_HINT, ONE, RENAME_HINT, EdgeFolder, check_relations
from gnnkit_formats.feature_columns import TableColumns, find_readings, warn_readings
from gnnkit_formats.id_columns import joined_numbers
from gnnkit_formats.index_columns import common_index, warn_index
from gnnkit_formats.label_columns import read_labels
from gnnkit_formats.table import Table
from gnnkit_formats.table_files import are_classes, form_of, parts_of
from gnnkit_formats.time_columns import date_names, find_times, holds_times, time_unit
from gnnkit_formats.values import ColumnReading, is_listed, is_text

from gnnkit.errors import UserError
from gnnkit.graph import Floats, Ids, Labels
from gnnkit.graph.arrow import numbers_of
from gnnkit.graph.fields import edge_types_of
from gnnkit.graph.ids import IdTable, is_consecutive, narrow_text
from gnnkit.graph.times import Times, read_time_fields, to_unit
from gnnkit.graph.unfit_columns import UnfitColumns
from gnnkit.utils.checks import Array
from gnnkit.utils.storage import read_npy
from gnnkit_import.csv_source import CsvSource
from gnnkit_import.pieces import (
    WHOLE,
    EdgePiece,
    GraphPieces,
    NodeFields,
    Room,
    Stretch,
    TableShare,
    list_positions,
    mapped_rows,
)
from gnnkit_import.source import Source
from gnnkit_import.sources import ArraySource, ParquetSource

_ID_BYTES = 64  # of a numeric id, while ids are read and looked up
_INT32 = 2**31
_PIECE = 1 << 16  # rows of a column that are read at once
_ONE_ROW = (
    "; remove the row, join the columns that identify rows together into one, or use job=partition "
    "dataset.duplicates=first"  # appended to the error about an id in two rows
)


class Cells:
    """A table's columns as features, as in `Table.cells`.

    Columns are read twice if their type does not determine how.
    """

    def __init__(self, source: Source, columns: Sequence[str]) -> None:
        self.source, self.columns = source, list(columns)

    @cached_property
    def _types(self) -> dict[str, pa.DataType]:
        kinds = self.source.types()
        return {name: kinds[name] for name in self.columns}

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
        first = next(self.source.pieces(1, self.columns, self._types), None)
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
        for piece in self.source.pieces(step, self.columns, self._types):
            values = piece.use_readings(self.readings).rows_with_nan(self.columns)
            if width != values.shape[1]:
                raise UnfitColumns(
                    f"{piece.name}: lists have {values.shape[1]} numbers in some rows, {width} in others"
                )
            yield values


def texts_of(readings: Mapping[str, ColumnReading]) -> dict[str, str]:
    """Maps features that encode text to the text's column."""
    return {f"{name}={value}": name for name, reading in readings.items() for value in reading.categories}


def survey(sources: Sequence[Source], names: Sequence[str]) -> dict[str, ColumnReading]:
    """Determines how columns are read, over several tables' rows."""
    kinds = [source.types() for source in sources]
    several = len(sources) > 1 or len(sources[0].files) > 1
    open_ = [name for name in names if several or _needs_survey(kinds[0][name])]
    readings = find_readings(sources[0].title, _column_pieces(sources, open_) if open_ else (), open_)
    return {name: readings.get(name, ColumnReading("numbers")) for name in names}


def _needs_survey(kind: pa.DataType) -> bool:
    """Checks whether a column's values decide on its reading or on float64."""
    small = (pa.float16(), pa.float32(), pa.int8(), pa.int16(), pa.uint8(), pa.uint16(), pa.bool_(), pa.null())
    inner = kind.value_type if is_listed(kind) else kind
    return inner not in small


def _column_pieces(sources: Sequence[Source], names: Sequence[str]) -> Iterator[Table]:
    """Yields some columns of several tables in pieces."""
    for source in sources:
        types = source.types()
        yield from source.pieces(_PIECE, names, {name: types[name] for name in names})


def _table_columns(sources: Sequence[Source], known: Sequence[str], *, is_nodes: bool) -> TableColumns:
    """Returns the columns that may be unfit, without `known`."""
    names = sources[0].others(known)
    return TableColumns(sources[0].title, names, lambda some: _column_pieces(sources, some), is_nodes)


class EdgeTables:
    """The edge tables: one per relation, or one of all under the name `ONE`."""

    def __init__(self, folder: EdgeFolder, sources: Mapping[str, Source]) -> None:
        self._folder, self.sources = folder, sources
        self.first = next(iter(sources.values()))
        self.columns = self.first.others(folder.known_edge_columns)  # of features
        self.ids: IdTable | None = None  # finds the nodes. None: ids are node numbers
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

    @cached_property
    def readings(self) -> dict[str, ColumnReading]:
        """How feature columns and text weights are read."""
        sources, names = list(self.sources.values()), list(self.columns)
        if "weight" in self.first.kept and any(_are_text(source, ["weight"]) for source in sources):
            names.append("weight")
        return survey(sources, names) if names else {}

    @cached_property
    def relations(self) -> list[str] | None:
        """Relation names, None for numbers. Reads the column."""
        if ONE not in self.sources:
            return list(self.sources)
        source = self.first
        if "type" not in source.kept or not is_text(_plain_type(source, "type")):
            return None
        names = _words(source.pieces(_PIECE, ["type"], {"type": pa.string()}), "type")
        edge_types_of(np.empty(0, np.int64), 0, names)  # raises for too many
        return names

    @cached_property
    def time_readings(self) -> dict[str, ColumnReading]:
        """How dates in text are read, if edges have such times."""
        return _time_readings(list(self.sources.values()), self._folder.edge_time)

    def pieces(self, stretch: Stretch, rows: int, first: int) -> Iterator[EdgePiece]:
        """Yields a stretch's edges. Arguments as of `GraphPieces.edges_of`."""
        name, source = list(self.sources.items())[stretch.table]
        tables = source.pieces(rows, None, self._types_of(source), stretch.share)
        head = next(tables, None) or (None if stretch.share.number else source.empty())
        for table in itertools.chain([] if head is None else [head], tables):
            src, dst = self._ends(source, table)
            features, weight = table.use_readings(self.readings).rows(self.columns), self._weight(table)
            if weight is None and self._folder.duplicates == SUM:
                weight = np.ones(len(src), np.float32)
            self.feature_names = self.feature_names or table.column_names(self.columns)
            if features is not None and len(src) and features.shape[1] != len(self.feature_names or ()):
                raise UnfitColumns("lists of edges differ in length")
            if name == ONE:
                types, _ = table.types("type", self.relations) if "type" in source.kept else (None, None)
            else:
                types = np.full(len(src), stretch.table)
            positions, column = list_positions(first, len(src)), self._folder.edge_time
            times = None
            if column is not None:
                times = to_unit("edge_time", table.use_readings(self.time_readings).times(column), self.time_unit)
            yield EdgePiece(table.name, src, dst, weight, features, positions, types, times)
            first += len(src)

    def _types_of(self, source: Source) -> dict[str, pa.DataType]:
        """Returns the types in which a CSV's columns are read."""
        types = {**dict.fromkeys(self._folder.ends, pa.string()), "weight": pa.float64()}
        time = [] if self._folder.edge_time is None else [self._folder.edge_time]
        if names := [*self.columns, *time, *({"weight"} & {*self.readings})]:
            types |= {name: source.types()[name] for name in names}
        if "type" in source.kept:
            types["type"] = _plain_type(source, "type") if self.relations is None else pa.string()
        return types

    def read_ids(self, room: Room) -> pa.Array | None:
        """Reads the distinct ids of both ends. Returns None for 0, 1, ..."""
        columns = [self._distinct_ids(name, room) for name in self._folder.ends]
        if ONE in self.sources and self._folder.bipartite is None:
            hint = check_one_type(self.first.title, columns, self._folder.ends, "dataset.bipartite")
            if hint:
                warnings.warn(hint, stacklevel=4)
        return joined_numbers(self.first.title, columns, NUMBERS_HINT)

    def _distinct_ids(self, name: str, room: Room) -> pa.Array:
        ids, parts, size = np.empty(0, np.int64), list[Array](), 0
        low_ids, rows = np.zeros(0, np.bool_), 0  # which ids below `limit` occur, as dense ids do
        for source in self.sources.values():
            kinds = {name: pa.string()} if isinstance(source, CsvSource) else None
            for piece in source.pieces(_PIECE, [name], kinds):
                numbers = piece.positions(name, None, fraction=_has_fraction(source, name))
                rows += len(numbers)
                limit = min(room.memory // _ID_BYTES, _ID_BYTES * rows)  # no more bytes than a list would take
                is_low = (numbers >= 0) & (numbers < limit)
                if (high := int(numbers[is_low].max(initial=-1)) + 1) > len(low_ids):
                    low_ids = np.pad(low_ids, (0, max(high, min(2 * len(low_ids), limit)) - len(low_ids)))
                low_ids[numbers[is_low]] = True
                parts.append(np.unique(numbers[~is_low]))
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

    def _ends(self, source: Source, table: Table) -> tuple[Ids, Ids]:
        """Reads edges' sources and destinations."""
        src, dst = (table.positions(name, self.ids, fraction=_has_fraction(source, name)) for name in self._folder.ends)
        if self.ids is None:
            high = _INT32 * _INT32 if self.num_nodes is None else self.num_nodes
            for name, ids in zip(self._folder.ends, (src, dst), strict=True):
                table.check_range(name, ids, high)
        return src, dst

    def _weight(self, table: Table) -> Floats | None:
        return table.weights("weight") if "weight" in self.first.kept else None


class NodeTable:
    """The node table, with the columns that `EdgeFolder` names."""

    def __init__(self, folder: EdgeFolder, source: Source) -> None:
        self._folder, self.source = folder, source

    def ids(self, room: Room) -> pa.Array | int:
        """Reads the ids, which must fit into memory. Returns a number for 0, 1, ..."""
        source, name = self.source, self._folder.id
        self._folder.check_column("id", source.names, source.title)
        parts, size, rows = [], 0, 0
        in_order = True  # ids so far are 0, 1, ..., so counting them is enough
        for piece in source.pieces(_PIECE, [name], {name: pa.string()} if isinstance(source, CsvSource) else None):
            column = piece.plain(name)
            if in_order and not is_consecutive(column, rows):
                in_order = False
                parts = [pa.array(np.arange(rows), column.type)] if rows else []
                size = 2 * (sum(part.nbytes for part in parts) + _ID_BYTES * rows)
            rows += len(column)
            if in_order:
                continue
            parts.append(column)
            size += 2 * (column.nbytes + _ID_BYTES * len(column))  # as they are read, and in `IdTable`
            if size > room.memory:
                raise room.too_little(f"the ids of {source.title} do not fit, {rows:,} of them so far", size)
        if in_order and rows:
            return rows
        column = pa.chunked_array(parts, parts[0].type if parts else pa.null())
        if isinstance(source, CsvSource):
            column = narrow_text(column)
        ids = Table(source.title, pa.table({name: column}), missing=source.missing).ids(name, _ONE_ROW)
        in_order = not is_text(ids.type) and np.array_equal(numbers_of(ids), np.arange(len(ids)))
        return len(ids) if in_order else ids

    def labels(self) -> tuple[Labels | None, list[str] | None]:
        """Reads labels and class names."""
        name = self._folder.label
        if name != "label":
            self._folder.check_column("label", self.source.names, self.source.title)
        return labels_of(self.source, name) if name in self.source.kept else (None, None)

    @cached_property
    def time_readings(self) -> dict[str, ColumnReading]:
        """How dates in text are read, if nodes have such times."""
        return _time_readings([self.source], self._folder.node_time)

    def times(self, unit: str | None) -> Times | None:
        """Reads the nodes' times."""
        name, kinds = self._folder.node_time, self.source.types()
        if name is None:
            return None
        pieces = self.source.pieces(_PIECE, [name], {name: kinds[name]})
        parts = (piece.use_readings(self.time_readings).times(name) for piece in pieces)
        return np.concatenate([*(to_unit(name, times, unit) for times in parts), np.empty(0, np.int64)])

    @cached_property
    def cells(self) -> Cells | None:
        """The feature columns."""
        columns = self.source.others(self._folder.known_node_columns)
        if columns and (self._folder.root / "features.npy").exists():
            raise UserError(
                f"features.npy and {self.source.title} both hold features: remove one, or list columns in dataset.ignore"
            )
        return Cells(self.source, columns) if columns else None


class TablePieces(GraphPieces):
    """Tables and arrays in a data set `edges`."""

    has_gaps = is_divided = True

    def __init__(self, folder: EdgeFolder) -> None:
        if folder.bipartite:
            raise UserError("dataset.bipartite=true is not supported by job=import; use job=partition")
        super().__init__(folder.root)
        self._folder = folder
        self.symmetrize, self.row_normalize = folder.symmetrize, folder.row_normalize
        self.shares, self.seed = folder.split, folder.seed
        self.duplicates = folder.duplicates
        self._node_ids: pa.Array | None = None  # of the user, unless these are 0, 1, ...

    @cached_property
    def _tables(self) -> tuple[EdgeTables, NodeTable | None]:
        edges, nodes = _sources_of(self._folder)
        tables = EdgeTables(self._folder, edges), None if nodes is None else NodeTable(self._folder, nodes)
        tables[0].time_unit = _unit_of(self._folder, *tables)
        return tables

    @property
    def time_unit(self) -> str | None:  # type: ignore[override]
        return self._tables[0].time_unit

    @cached_property
    def _surveyed(self) -> tuple[EdgeTables, Cells | None]:
        """The edges and the node features, once it is known how to read them."""
        edges, nodes = self._tables
        cells = None if nodes is None else nodes.cells
        with self._list_unfit():
            _ = edges.readings, cells and cells.readings
        return edges, cells

    @property
    def _edges(self) -> EdgeTables:
        return self._surveyed[0]

    @property
    def _cells(self) -> Cells | None:
        return self._surveyed[1]

    @property
    def files(self) -> list[Path]:
        edges, nodes = self._tables
        paths = [self.root / f"{name}.npy" for name in ARRAYS]
        for source in (*edges.sources.values(), *([] if nodes is None else [nodes.source])):
            paths += source.files
        return [path for path in paths if path.exists()]

    @property
    def num_edges(self) -> int | None:
        return self._tables[0].num_edges

    @property
    def edge_row(self) -> int:
        return self._edges.row

    def open(self, room: Room) -> int | None:
        """Reads the ids of nodes, which must fit into memory."""
        edges, nodes = self._tables
        if nodes is None:
            count = self._folder.num_nodes
            edges.num_nodes = self._rows_of_features() if count is None else count
            ids = None if self._folder.sized_by else edges.read_ids(room)
        elif isinstance(ids := nodes.ids(room), int):
            edges.num_nodes, ids = ids, None
        if ids is not None:
            edges.num_nodes, edges.ids = len(ids), IdTable(ids, room.threads)
            self._node_ids, self.finds_ids = ids, True
        return edges.num_nodes

    def _rows_of_features(self) -> int | None:
        path = self.root / "features.npy"
        return len(read_npy(path)) if path.exists() and read_npy(path).ndim else None

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
        with self._list_unfit():
            yield from self._edges.pieces(stretch, rows, first)

    def edge_type_names(self) -> Sequence[str] | None:
        return self._edges.relations

    def edge_feature_names(self) -> Sequence[str] | None:
        return self._edges.feature_names

    def edge_texts(self) -> Mapping[str, str]:
        return texts_of(self._edges.readings)

    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        del num_nodes, room
        (edges, nodes), cells, folder = self._tables, self._cells, self._folder
        if nodes is not None and cells is not None:
            warn_readings(nodes.source.title, cells.readings)
        warn_readings(edges.first.title, edges.readings)
        labels, names, split, title = None, None, None, ""
        if nodes is not None:
            title, split, (labels, names) = nodes.source.title, split_of(nodes.source), nodes.labels()
        return NodeFields(
            folder.column_or_array("labels", labels, title),
            folder.column_or_array("split", split, title),
            names,
            self._node_ids,
            folder.array("coordinates"),
            category_of=cells.category_of if cells and any(cells.category_of) else None,
            one_class=True,
            node_time=None if nodes is None else nodes.times(self.time_unit),
        )

    def date_columns(self) -> Sequence[str] | None:
        edges, cells = self._surveyed
        readings = {name: edges.readings[name] for name in edges.columns}
        of_nodes = [] if cells is None else date_names(cells.readings, cells.source.types())
        return list(dict.fromkeys([*of_nodes, *date_names(readings, edges.first.types())])) or None

    def features(self, room: Room) -> Iterator[Array] | None:
        path = self.root / "features.npy"
        if self._cells is None:
            return mapped_rows(path) if path.exists() or path.is_symlink() else None
        return self._feature_rows(self._cells, room)

    def _feature_rows(self, cells: Cells, room: Room) -> Iterator[Array]:
        with self._list_unfit():
            yield from cells.rows(room.rows(len(cells.names)))

    def _list_unfit(self) -> AbstractContextManager[None]:
        """Completes errors about unfit columns, as `EdgeFolder.list_unfit` does."""
        (edges, nodes), folder = self._tables, self._folder
        of_nodes = [] if nodes is None else [_table_columns([nodes.source], folder.known_node_columns, is_nodes=True)]
        of_edges = _table_columns(list(edges.sources.values()), (*folder.ends, "type"), is_nodes=False)
        return folder.list_unfit([*of_nodes, of_edges])

    def feature_names(self) -> Sequence[str] | None:
        return None if self._cells is None else self._cells.names or None


def labels_of(source: Source, name: str) -> tuple[Labels, list[str] | None]:
    """Reads a label column, and class names, like `read_labels`."""
    kind = _plain_type(source, name)
    if isinstance(source, CsvSource) and are_classes(kind):
        kind = pa.string()  # class names are the cells' text
    return read_labels(lambda: source.pieces(_PIECE, [name], {name: kind}), name)


def split_of(source: Source) -> Array | None:
    """Reads the column `split`, if there is one."""
    if "split" not in source.kept:
        return None
    types = {"split": pa.string()} if isinstance(source, CsvSource) else None
    splits = (piece.splits("split") for piece in source.pieces(_PIECE, ["split"], types))
    return np.concatenate([*(split for split in splits if split is not None), np.empty(0, np.int8)])


def _words(pieces: Iterable[Table], name: str) -> list[str]:
    """Returns a column's distinct texts in code point order, without empty ones."""
    words: set[str | None] = set()
    for piece in pieces:
        words |= set(pc.unique(pc.utf8_trim_whitespace(piece.plain(name).cast(pa.string()))).to_pylist())
    return sorted(word for word in words if word)


def _plain_type(source: Source, name: str) -> pa.DataType:
    """Returns a column's value type."""
    kind = source.types()[name]
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _sources_of(folder: EdgeFolder) -> tuple[dict[str, Source], Source | None]:
    """Opens the edge and node tables.

    Raises `UserError` for what is not read in pieces, with an alternative.
    """
    root = folder.root
    if not root.is_dir():
        raise UserError("is not a folder")
    if folder.sort_ids:
        raise UserError("dataset.sort_ids=true: job=import numbers nodes in table order; sort the table")
    path = folder.table("nodes", NODES)
    nodes = None if path is None else _opened(path, root, {folder.id: pa.string()})
    if path and folder.num_nodes is not None:
        raise UserError(f"dataset.num_nodes={folder.num_nodes}: {path.name} already defines the nodes; remove the key")
    paths = folder.edge_tables()
    edges = {name: _opened(path, root if name == ONE else path.parent, {}) for name, path in paths.items()}
    _check_ends(folder, edges, nodes)
    sources = [*([] if nodes is None else [nodes]), *edges.values()]
    for source in sources:
        source.ignored, source.missing = folder.ignore, folder.missing
    folder.check_ignored({source.title: source.names for source in sources})
    if ONE not in edges:
        check_relations({source.title: source.kept for source in edges.values()})
    tables = [next(iter(edges.values())), *([] if nodes is None else [nodes])]
    facts = [(source.title, source.kept, partial(_holds_times, source)) for source in tables]
    folder.set_times(find_times(facts, folder.time, "dataset.time"))
    _leave_out_index(list(edges.values()), folder.known_edge_columns)
    if nodes is not None:
        _leave_out_index([nodes], folder.known_node_columns)
    return edges, nodes


def _holds_times(source: Source, name: str) -> bool:
    """Returns whether a column holds integers or dates, also in text."""
    kind = source.types()[name]
    if not is_text(kind):
        return holds_times(kind)
    with suppress(UserError):
        return survey([source], [name])[name].kind == "seconds"
    return False


def _time_readings(sources: Sequence[Source], name: str | None) -> dict[str, ColumnReading]:
    """Determines how a column of times is read if it is text."""
    return survey(sources, [name]) if name is not None and is_text(sources[0].types()[name]) else {}


def _unit_of(folder: EdgeFolder, edges: EdgeTables, nodes: NodeTable | None) -> str | None:
    """Returns the unit of all times, as `read_time_fields` does.

    Text is read as microseconds, or as plain numbers.
    """
    columns = [("edge_time", edges.time_readings, edges.first, folder.edge_time)]
    columns += [] if nodes is None else [("node_time", nodes.time_readings, nodes.source, folder.node_time)]
    empty: dict[str, Any] = {}
    for name, readings, source, column in columns:
        if column is not None:
            is_date = any(reading.kind == "seconds" for reading in readings.values())
            unit = "us" if is_date else time_unit(source.types()[column])
            empty[name] = np.empty(0, np.int64 if unit is None else f"M8[{unit}]")
    result: str | None = read_time_fields(empty).get("time_unit")
    return result


def _check_ends(folder: EdgeFolder, edges: Mapping[str, Source], nodes: Source | None) -> None:
    """Raises `UserError` for missing id columns, and for text ids without nodes."""
    for source in edges.values():
        pair = folder.user_and_item(source.names)
        if pair is not None and nodes is None and folder.bipartite is None:
            raise UserError(
                f"{source.title}: the columns {' and '.join(pair)} are two node types, which job=import does not support; "
                f"use job=partition, or dataset.bipartite=false dataset.src={pair[0]} dataset.dst={pair[1]} if they share ids"
            )
        for end in ("src", "dst"):
            folder.check_column(end, source.names, source.title)
    if nodes is None and all(_are_text(source, folder.ends) for source in edges.values()):
        raise UserError(
            f"{next(iter(edges.values())).title}, column {folder.ends[0]!r} holds text, for which job=import needs a "
            "node table; add one or use job=partition dataset=edges"
        )


def _leave_out_index(sources: Sequence[Source], known: Sequence[str]) -> None:
    """Drops columns that hold a data frame's index, with a warning."""
    index = common_index([source.index_columns(known) for source in sources])
    warn_index(sources[0].title, index, RENAME_HINT)
    for source in sources:
        source.ignored = (*source.ignored, *index)


def _are_text(source: Source, names: Sequence[str]) -> bool:
    kinds = dict(zip(source.names, source.first_types, strict=True))
    return all(is_text(kinds[name]) for name in names)


def _has_fraction(source: Source, name: str) -> bool:
    """Returns whether a CSV's ids are written like 7.0."""
    kinds = dict(zip(source.names, source.first_types, strict=True)) if isinstance(source, CsvSource) else {}
    return bool(pa.types.is_floating(kinds.get(name, pa.null())))


def _opened(path: Path, root: Path, types: dict[str, pa.DataType]) -> Source:
    if parts := parts_of(path):
        return ParquetSource(parts, root)
    if path.is_dir():
        raise UserError(f"{path.name} is a folder without parts such as part-0.parquet")
    if form_of(path) == "npy":
        return ArraySource(path, root)
    return ParquetSource([path], root) if form_of(path) == "parquet" else CsvSource([path], root, types)
