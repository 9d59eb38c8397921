"""A graph that is read piece by piece, so that `job=import` needs bounded memory."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gnnkit.errors import UserError
from gnnkit.graph import EdgeColumns, Floats, Ids, Labels
from gnnkit.graph.duplicates import KEEP
from gnnkit.graph.schema import NodeTypes
from gnnkit.partition.pieces import least_memory
from gnnkit.storage import read_npy

FILLED_BY = (
    "choose features.fill=mean (of the nodes that train), zero, or drop (columns with empty cells), or fill the cells"
)
COMMIT = 10.0  # seconds of work that an interrupted import does again at most, beside one piece
_DATA = 0.6  # of the memory that is given. The rest is for the program and its copies
_PIECE_SHARE = 4  # of the memory, for a piece that is read
_PIECE_BYTES = 120  # of an edge in such a piece
_SORT_BYTES = 76  # of an edge in a bucket that is sorted, and of one in the next bucket, which is read meanwhile
_MOST_PIECE, _LEAST_PIECE = 1 << 20, 1 << 10  # edges
_INT32 = 2**31
_MOST_ROWS, _CELLS = 1 << 16, 1 << 20  # rows and numbers of features that are read at once


@dataclass(frozen=True, slots=True)
class Share:
    """One of several stretches of the same table, of about equal length."""

    number: int  # 0 to of - 1
    of: int

    def range(self, count: int) -> range:
        """Returns the share of `count` things in a row."""
        return range(count * self.number // self.of, count * (self.number + 1) // self.of)


WHOLE = Share(0, 1)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Some edges that one process reads at a time."""

    table: int  # number of the table or the relation
    share: Share  # of the table


@dataclass(frozen=True, slots=True)
class Room:
    """The memory and the threads of an import, or of one of its processes."""

    given: int  # bytes that the import may take
    threads: int
    commit: float = COMMIT  # seconds
    bucket: int | None = None  # edges of a bucket. None: by the memory
    processes: int = 1  # that share the memory

    @property
    def memory(self) -> int:
        """Bytes of data at the same time, in each process."""
        return int(_DATA * self.given / self.processes)

    def of(self, processes: int) -> Room:
        """Returns the memory and the threads of each of several processes."""
        return replace(self, threads=max(self.threads // processes, 1), processes=processes)

    def too_little(self, what: str, needed: int) -> UserError:
        """Returns the error for `what` that needs more bytes of data than there are."""
        needed = math.ceil(needed * self.processes / _DATA)
        return UserError(f"memory={self.given}: {what}: give memory={needed} or more")

    def piece(self, row: int) -> int:
        """Returns the edges of a piece, for further columns of `row` bytes."""
        fit = self.memory // _PIECE_SHARE // (_PIECE_BYTES + 4 * row)
        return min(max(fit, _LEAST_PIECE), _MOST_PIECE)

    def edges(self, row: int) -> int:
        """Returns the edges of a bucket, for further columns of `row` bytes."""
        return self.bucket or max(self.memory // self.sorting(row), 1)

    @staticmethod
    def sorting(row: int) -> int:
        """Returns the bytes of an edge while edges are sorted."""
        return _SORT_BYTES + 4 * row

    @staticmethod
    def rows(width: int) -> int:
        """Returns the rows of features of a piece."""
        return max(min(_MOST_ROWS, _CELLS // max(width, 1)), 1)

    def check_nodes(self, count: int) -> None:
        """Raises `UserError` for more nodes than there is room for."""
        if (needed := least_memory(count)) > self.memory:
            raise self.too_little(f"labels, splits and parts of {count:,} nodes need more than that", needed)


@dataclass(frozen=True, slots=True)
class EdgePiece:
    """Some edges, one behind the other in the data. All pieces have the same fields."""

    place: str  # file and the like, for messages
    src: Ids  # [k]
    dst: Ids  # [k]
    weight: Floats | None = None  # [k] finite
    features: Floats | None = None  # [k, width] finite
    positions: Ids | None = None  # [k] `Graph.edge_positions`, None where `Dataset.load` gives none
    types: Ids | None = None  # [k] `Graph.edge_types`

    def behind(self, count: int) -> EdgePiece:
        """Returns the edges behind the first ones."""
        rows = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "place"}
        return replace(self, **{name: values[count:] for name, values in rows.items() if values is not None})

    @property
    def columns(self) -> EdgeColumns:
        """The values of the edges, by the names that graphs use."""
        return EdgeColumns(
            {"weight": self.weight, "features": self.features, "relation": self.types, "position": self.positions}
        )


@dataclass(frozen=True, slots=True)
class NodeFields:
    """What belongs to nodes beside features, in the forms that `Graph` takes.

    Arrays may be mapped. Without a split of the data, none is in use.
    """

    labels: Labels | npt.NDArray[Any] | None = None  # [num_nodes, ...]
    split: npt.NDArray[Any] | None = None  # [num_nodes]
    class_names: Sequence[str] | None = None
    node_ids: Any = None  # [num_nodes] numbers or text of NumPy or Arrow
    coordinates: npt.NDArray[Any] | None = None  # [num_nodes, 2 or 3]
    node_types: NodeTypes | None = None
    category_of: Sequence[str] | None = None  # [width]
    one_class: bool = False  # as of `Graph.from_edges`
    types: Mapping[str, Any] = field(default_factory=dict)  # feature tables and relations, as `Schema.to_dict`


class GraphPieces(ABC):
    """A graph that `job=import` reads piece by piece, from `Dataset.in_pieces`.

    A data set of yours makes one of these to be imported in bounded memory. The store
    then has the bytes of the one that `job=partition` cuts from `Dataset.load`.

    Methods are called in the order `open`, `edges`, `nodes`, `features`, and those that
    yield may be called again. Each reads the same data in the same order every time.
    """

    symmetrize: bool | None = False  # add the reverse edges that are missing. None: no, with a hint
    row_normalize: bool = False  # divide each row of features by its sum
    shares: Sequence[float] | None = None  # of labelled nodes that train, validate and test, where none do so far
    seed: int = 0  # of this draw
    duplicates: str = KEEP  # what becomes of edges with the same ends and type, one of `DUPLICATES`
    # Whether edges come in ascending order of destinations, and keep this order if none
    # are added. Otherwise the edges of a destination are sorted by source, and equal
    # ones by their place.
    in_order: bool = False
    is_divided: bool = False  # whether several processes may read edges: `stretches` and `edges_of`
    finds_ids: bool = False  # whether ends are looked up, so that edges are kept and not read a second time
    has_gaps: bool = False  # whether NaN in `features` are cells that are empty. Otherwise these are refused

    def __init__(self, root: Path) -> None:
        """Keeps the folder or the file, which messages name."""
        self.root = root

    @property
    @abstractmethod
    def files(self) -> Sequence[Path]:
        """All files that are read. The import starts over where one has changed.

        Called before `open`.
        """

    @abstractmethod
    def open(self, room: Room) -> int | None:
        """Returns the number of nodes. None: one more than the largest id of an edge.

        Raises `UserError` for files that are missing, and for what is not read in
        pieces, with the way to read it.

        Args:
            room: memory that what stays open may take.
        """

    @property
    def num_edges(self) -> int | None:
        """The number of edges, for messages. None where only reading tells."""
        return None

    @property
    def edge_row(self) -> int:
        """Bytes of an edge as it is read, beside both ends."""
        return 0

    @abstractmethod
    def edges(self, rows: int) -> Iterator[EdgePiece]:
        """Yields all edges, at most about `rows` in a piece.

        Raises `UserError` that names file and place for bad data. The caller looks for
        ids out of range.
        """

    def stretches(self, count: int) -> Sequence[Stretch]:
        """Divides all edges, in order, into stretches for several processes.

        Called where `is_divided`, before processes read.

        Args:
            count: processes. Each table has as many stretches.
        """
        raise NotImplementedError(f"{type(self).__name__} has no stretches")

    def edges_of(self, stretch: Stretch, rows: int, first: int) -> Iterator[EdgePiece]:
        """Yields the edges of a stretch as `edges` does.

        Args:
            stretch: one of `stretches`.
            rows: edges of a piece, about.
            first: edges of earlier stretches, before which `positions` begin.
        """
        raise NotImplementedError(f"{type(self).__name__} has no stretches")

    def edge_feature_names(self) -> Sequence[str] | None:
        """Names the columns of the features of edges, after these were read."""
        return None

    def edge_texts(self) -> Mapping[str, str]:
        """Maps the edge features that are values of text to the column of the text.

        Called after edges were read. Default: there are none.
        """
        return {}

    def edge_category_of(self, names: Sequence[str] | None) -> list[str] | None:
        """Returns `Graph.edge_category_of` for edge features of some names."""
        texts = self.edge_texts()
        return [texts.get(name, "") for name in names] if texts and names is not None else None

    def edge_type_names(self) -> Sequence[str] | None:
        """Names the relations of edges, after some of these were read.

        None where edges have no types, and where the names are 0, 1, ...
        """
        return None

    @abstractmethod
    def nodes(self, num_nodes: int, room: Room) -> NodeFields:
        """Reads what belongs to nodes, at once.

        Args:
            num_nodes: number of nodes.
            room: memory that this may take.
        """

    def features(self, room: Room) -> Iterator[Floats] | None:
        """Yields the features of nodes by rows, `room.rows` in a piece. None: none.

        NaN are cells that are empty, where `has_gaps`.
        """
        return None

    def feature_names(self) -> Sequence[str] | None:
        """Names the columns of `features`, after these were read."""
        return None


def mapped_rows(path: Path) -> Iterator[npt.NDArray[Any]]:
    """Yields the rows of an .npy, some at a time."""
    return pieces_of(read_npy(path))


def pieces_of(rows: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yields rows of an array, some at a time. An array without rows is one piece."""
    step = Room.rows(int(np.prod(rows.shape[1:])))
    for first in range(0, max(len(rows), 1), step):
        yield rows[first : first + step]


def list_positions(first: int, count: int) -> Ids:  # [count]
    """Returns the positions of edges in their list, in the type that `Graph` keeps.

    Args:
        first: position of the first edge.
        count: number of edges.
    """
    return np.arange(first, first + count, dtype=np.int32 if first + count < _INT32 else np.int64)


def check_ends(piece: EdgePiece, num_nodes: int, first: int) -> None:
    """Raises `UserError` for an edge whose end is no node.

    Args:
        piece: the edges.
        num_nodes: number of nodes.
        first: number of the first edge, for the message.
    """
    for name, ids in (("src", piece.src), ("dst", piece.dst)):
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_nodes):
            bad = np.flatnonzero((ids < 0) | (ids >= num_nodes))[0]
            raise UserError(f"{piece.place}: {name}[{first + bad}] = {ids[bad]} is out of range for {num_nodes} nodes")
