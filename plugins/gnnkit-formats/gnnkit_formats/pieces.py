"""The interface for graphs read in pieces, and the graph of all pieces."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gnnkit.dataset.base import blame, finished, with_split
from gnnkit.errors import UserError
from gnnkit.graph import EdgeColumns, Floats, Graph, Ids, Labels, TimeSplit
from gnnkit.graph.features import replace_nan
from gnnkit.graph.graph import count_nodes
from gnnkit.graph.schema import NodeTypes
from gnnkit.graph.types import Fields
from gnnkit.utils.checks import Array
from gnnkit.utils.storage import read_npy
from gnnkit_formats.duplicates import JOIN, KEEP, without_duplicates
from gnnkit_formats.id_columns import as_ids
from gnnkit_formats.npz import Arrays

_DATA = 0.6  # share of the memory limit for data; the rest is for the program and copies
_PIECE_SHARE = 4  # a piece may take this fraction of the memory
_PIECE_BYTES = 120  # per edge of a piece
_SORT_BYTES = 76  # per edge of a bucket being sorted, including the next bucket, which is read ahead
_MOST_PIECE, _LEAST_PIECE = 1 << 20, 1 << 10  # edges of a piece
_ALL = 1 << 60  # bytes: unlimited memory
_INT32 = 2**31
_MOST_ROWS, _CELLS = 1 << 16, 1 << 20  # rows and numbers of a piece of features


@dataclass(frozen=True, slots=True)
class TableShare:
    """One of several consecutive row ranges of a table, of about equal length."""

    number: int  # 0 to of - 1
    of: int

    def range(self, count: int) -> range:
        """Returns the positions of this share among `count` consecutive items."""
        return range(count * self.number // self.of, count * (self.number + 1) // self.of)


WHOLE = TableShare(0, 1)


class Rows(Protocol):
    """An array that is read piece by piece. Without rows it is one empty piece."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def pieces(self, step: int) -> Iterator[Array]: ...


@dataclass(frozen=True, slots=True, eq=False)
class InMemory:
    """Rows that were read at once, as a single piece."""

    array: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def pieces(self, step: int) -> Iterator[Array]:
        del step
        yield self.array


class WholeArrays(Arrays):
    """The arrays of an .npz file, each of which is read at once."""

    def rows(self, name: str) -> Rows:
        """Opens an array to read it piece by piece."""
        return InMemory(self[name])


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive edges that one process reads."""

    table: int  # number of the table or relation
    share: TableShare


@dataclass(frozen=True, slots=True)
class Room:
    """Memory and threads for an import, or for one process in it."""

    limit: int  # bytes: the key `memory`
    threads: int
    bucket: int | None = None  # edges of a bucket; None: computed from the memory
    processes: int = 1  # processes that share the memory

    @property
    def memory(self) -> int:
        """Bytes of data that each process may hold at once."""
        return int(_DATA * self.limit / self.processes)

    def of(self, processes: int) -> Room:
        """Returns the resources of each of several processes."""
        return replace(self, threads=max(self.threads // processes, 1), processes=processes)

    def too_little(self, what: str, needed: int) -> UserError:
        """Returns the error for `what`, which needs `needed` bytes of data."""
        needed = math.ceil(needed * self.processes / _DATA)
        return UserError(f"memory={self.limit}: {what}; use memory={needed} or more")

    def piece(self, row: int) -> int:
        """Returns the edges per piece, if other columns take `row` bytes per edge."""
        fit = self.memory // _PIECE_SHARE // (_PIECE_BYTES + 4 * row)
        return min(max(fit, _LEAST_PIECE), _MOST_PIECE)

    def edges(self, row: int) -> int:
        """Returns the edges per bucket, if other columns take `row` bytes per edge."""
        return self.bucket or max(self.memory // self.sorting(row), 1)

    @staticmethod
    def sorting(row: int) -> int:
        """Returns the bytes that an edge takes while it is sorted."""
        return _SORT_BYTES + 4 * row

    @staticmethod
    def rows(width: int) -> int:
        """Returns the number of feature rows in a piece."""
        return max(min(_MOST_ROWS, _CELLS // max(width, 1)), 1)


# The fields of pieces with edge columns, and the names of these in `EdgeColumns`.
COLUMNS = {"weight": "weight", "features": "features", "types": "relation", "time": "time", "positions": "position"}


@dataclass(frozen=True, slots=True)
class EdgePiece:
    """Consecutive edges in the data. All pieces have the same fields."""

    place: str  # file and position, for messages
    src: Ids  # [k]
    dst: Ids  # [k]
    weight: Floats | None = None  # [k] finite
    features: Floats | None = None  # [k, width] finite
    positions: Ids | None = None  # [k] `Graph.edge_positions`, None if `Dataset.load` has none
    types: Ids | None = None  # [k] `Graph.edge_types`
    time: Ids | None = None  # [k] int64 `Graph.edge_time`

    @property
    def columns(self) -> EdgeColumns:
        """The edge columns, by the names that graphs use."""
        return EdgeColumns({column: getattr(self, name) for name, column in COLUMNS.items()})


@dataclass(frozen=True, slots=True)
class NodeFields:
    """Node data other than features, in the formats that `Graph` accepts.

    Arrays may be memory-mapped. If `split` is None, no node is in a split.
    """

    labels: Labels | npt.NDArray[Any] | None = None  # [num_nodes, ...]
    split: npt.NDArray[Any] | None = None  # [num_nodes]
    class_names: Sequence[str] | None = None
    node_ids: Any = None  # [num_nodes] numbers or text, in NumPy or Arrow
    coordinates: npt.NDArray[Any] | None = None  # [num_nodes, 2 or 3]
    node_types: NodeTypes | None = None
    category_of: Sequence[str] | None = None  # [width]
    one_class: bool = False  # see `Graph.from_edges`
    node_time: npt.NDArray[np.int64] | None = None  # [num_nodes]
    types: Mapping[str, Any] = field(default_factory=dict)  # feature tables and relations, see `Schema.to_dict`


class GraphPieces(ABC):
    """A graph that is read in pieces, such as by `job=import` in bounded memory.

    `read_whole` joins all pieces, so that a data set with `Dataset.in_pieces` needs no
    other reader. `job=import` writes a store that is byte-identical to the one that
    `job=partition` writes from `Dataset.load`.

    Methods are called in the order `open`, `edges`, `nodes`, `features`. Those that
    yield may be called again, and must yield the same data in the same order.
    """

    symmetrize: bool | None = False  # add missing reverse edges; None: no, but warn if few edges have one
    row_normalize: bool = False  # divide each row of features by its sum
    shares: Sequence[float] | TimeSplit | None = None  # of training, validation and test nodes, if there is no split
    seed: int = 0  # seed of this split
    duplicates: str = KEEP  # how to handle edges with the same ends and type, one of `DUPLICATES`
    # Whether edges are sorted by destination. They then keep their order, unless
    # reverse edges are added. Otherwise in-edges are sorted by source, stably.
    in_order: bool = False
    is_divided: bool = False  # whether several processes may read edges, by `stretches` and `edges_of`
    finds_ids: bool = False  # whether ids are looked up; edges are then cached for the second pass
    time_unit: str | None = None  # `Graph.time_unit` of all times
    sort_ids: bool = False  # whether `read_whole` numbers nodes in ascending id order
    has_gaps: bool = False  # whether NaN in `features` are empty cells; otherwise NaN is an error

    def __init__(self, root: Path) -> None:
        """Stores the folder or file, for messages."""
        self.root = root

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """All files that are read. The import restarts if one of them changes.

        Called before `open`.
        """

    @abstractmethod
    def open(self, room: Room) -> int | None:
        """Opens the data, and returns the number of nodes.

        None means the largest id plus one. Raises `UserError` for missing files, and
        for unsupported data with an alternative.

        Args:
            room: Memory for data that stays open.
        """

    @property
    def num_edges(self) -> int | None:
        """The number of edges for progress messages, None if unknown before reading."""
        return None

    @property
    def edge_row(self) -> int:
        """Bytes per edge while it is read, in addition to both ends."""
        return 0

    @abstractmethod
    def edges(self, rows: int) -> Iterator[EdgePiece]:
        """Yields all edges, in pieces of about `rows` edges at most.

        Raises `UserError` with file and position for invalid data. The caller checks
        the range of ids.
        """

    def stretches(self, count: int) -> Sequence[Stretch]:
        """Divides all edges into consecutive stretches for several processes.

        Called if `is_divided`, before the processes read.

        Args:
            count: Number of processes, and of stretches per table.
        """
        raise NotImplementedError(f"{type(self).__name__} has no stretches")

    def edges_of(self, stretch: Stretch, rows: int, first: int) -> Iterator[EdgePiece]:
        """Yields a stretch's edges, like `edges`.

        Args:
            stretch: One of `stretches`.
            rows: Approximate number of edges in a piece.
            first: Position of the first edge, for `positions`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no stretches")

    def edge_feature_names(self) -> Sequence[str] | None:
        """Returns the names of edge features. Called after edges were read."""
        return None

    def edge_texts(self) -> Mapping[str, str]:
        """Maps each edge feature that one-hot encodes a text value to its text column.

        Called after edges were read. Default: none.
        """
        return {}

    def edge_category_of(self, names: Sequence[str] | None) -> list[str] | None:
        """Returns `Graph.edge_category_of` for the named edge features."""
        texts = self.edge_texts()
        return [texts.get(name, "") for name in names] if texts and names is not None else None

    def edge_type_names(self) -> Sequence[str] | None:
        """Returns the names of relations. Called after some edges were read.

        None if edges have no types, or if the names are 0, 1, ...
        """
        return None

    def edge_labels(self) -> Fields:
        """Reads the labels of edges, for `read_whole` only. Default: none."""
        return {}

    def column_forms(self) -> Sequence[str] | None:
        """Returns `Graph.column_forms`. Default: unknown."""
        return None

    @abstractmethod
    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        """Reads all node data other than features.

        Args:
            room: Memory for this data.
        """

    def features(self, room: Room) -> Iterator[Floats] | None:
        """Yields node features, `room.rows` rows at a time. If None, there are none.

        NaN marks an empty cell if `has_gaps`.
        """
        return None

    def feature_names(self) -> Sequence[str] | None:
        """Returns the names of features. Called after `features` were read."""
        return None


def read_whole(pieces: GraphPieces) -> Graph:
    """Loads a data set from all of its pieces."""
    with blame(f"dataset.root={pieces.root}"):
        graph = without_duplicates(join_pieces(pieces), pieces.duplicates, JOIN)
        if pieces.sort_ids and graph.node_ids is not None:
            graph = graph.renumber(np.argsort(graph.node_ids, kind="stable"))
        graph = with_split(graph, pieces.shares, pieces.seed)
    return finished(graph, pieces.symmetrize, pieces.row_normalize)


def join_pieces(pieces: GraphPieces, **others: Any) -> Graph:
    """Returns the graph of all pieces, as the data list its edges.

    Args:
        others: Arguments of `Graph.from_edges` that replace those of the pieces.
    """
    room = Room(_ALL, 1)
    num_nodes = pieces.open(room)
    edges = list(pieces.edges(room.piece(0)))
    src, dst = (_join([getattr(piece, end) for piece in edges]) for end in ("src", "dst"))
    num_nodes = count_nodes(src, dst, None) if num_nodes is None else num_nodes
    fields, rows = pieces.nodes(num_nodes, room), pieces.features(room)
    features, missing = None if rows is None else _join(list(rows)), None
    if features is not None and pieces.has_gaps:
        features, missing = replace_nan(features)
    columns = edges[0].columns if len(edges) == 1 else EdgeColumns.concat([piece.columns for piece in edges])
    arrays = columns.without("position").arrays()
    values: Fields = {**_fields_of(pieces, fields), **arrays, "features": features, "missing": missing, **others}
    ids = as_ids(fields.node_ids) if isinstance(fields.node_ids, pa.Array) else fields.node_ids
    if fields.node_types is None:
        values["node_ids"] = ids
    graph = Graph.from_edges(src, dst, num_nodes, one_class=fields.one_class, **values)
    return graph if fields.node_types is None else graph.evolve(node_ids=ids)  # distinct within a type only


def _fields_of(pieces: GraphPieces, fields: NodeFields) -> Fields:
    """Returns what pieces tell besides their rows, after these were read."""
    of_nodes = ("labels", "split", "coordinates", "class_names", "category_of", "node_types", "node_time")
    return {
        **{name: getattr(fields, name) for name in of_nodes},
        "feature_names": pieces.feature_names(),
        "edge_feature_names": pieces.edge_feature_names(),
        "edge_category_of": pieces.edge_category_of(pieces.edge_feature_names()),
        "edge_type_names": pieces.edge_type_names(),
        "time_unit": pieces.time_unit,
        "column_forms": pieces.column_forms(),
        **pieces.edge_labels(),
        **fields.types,
    }


def _join(parts: Sequence[Array]) -> Array:
    """Concatenates arrays. A single one is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def mapped_rows(path: Path) -> Iterator[npt.NDArray[Any]]:
    """Yields an .npy file's rows in pieces."""
    return pieces_of(read_npy(path))


def pieces_of(rows: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yields an array's rows in pieces. An array without rows is one piece."""
    step = Room.rows(int(np.prod(rows.shape[1:])))
    for first in range(0, max(len(rows), 1), step):
        yield rows[first : first + step]


def list_positions(first: int, count: int) -> Ids:  # [count]
    """Returns consecutive edge positions, in the dtype that `Graph` uses.

    Args:
        first: First position.
    """
    return np.arange(first, first + count, dtype=np.int32 if first + count < _INT32 else np.int64)


def check_ends(piece: EdgePiece, num_nodes: int, first: int) -> None:
    """Raises `UserError` for an edge with an unknown end.

    Args:
        first: Position of the piece's first edge, for the message.
    """
    for name, ids in (("src", piece.src), ("dst", piece.dst)):
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_nodes):
            bad = np.flatnonzero((ids < 0) | (ids >= num_nodes))[0]
            raise UserError(f"{piece.place}: {name}[{first + bad}] = {ids[bad]} is out of range for {num_nodes} nodes")
