"""Edges of any number -> CSC, in three passes that append and keep what is done.

1. `count` reads all edges, checks these, and counts destinations in 65,536 bins.
2. `scatter` writes each edge to the bucket of its destination: a range of nodes whose
   in-edges fit memory.
3. `sort` sorts one bucket after the other, and appends to the arrays of the graph.

The scheme is that of a distribution sort (Knuth, The Art of Computer Programming, vol.
3, section 5.4.9). A bucket keeps the order of the tables, and the sort is stable, so
results are those of `Graph.from_edges`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gnnkit import _core
from gnnkit.checks import Array
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.importing.sources import Source
from gnnkit.errors import UserError
from gnnkit.graph.fields import check_implied
from gnnkit.graph.ids import IdTable
from gnnkit.graph.table import Table
from gnnkit.rows import File, Rows

MOST_BINS = 1 << 16
COMMIT = 10.0  # seconds of work that an interrupted import does again at most, beside one piece
_DATA = 0.6  # of the memory that is given. The rest is for the program and its copies
_PIECE_SHARE = 4  # of the memory, for a piece that is read
_PIECE_BYTES = 120  # of an edge in such a piece
_SORT_BYTES = 64  # of an edge in a bucket that is sorted
_MOST_PIECE, _LEAST_PIECE = 1 << 20, 1 << 10  # edges
_INT32 = 2**31


@dataclass(frozen=True, slots=True)
class Room:
    """The memory and the threads of an import."""

    given: int  # bytes that the import may take
    threads: int
    commit: float = COMMIT  # seconds
    bucket: int | None = None  # edges of a bucket. None: by the memory

    @property
    def memory(self) -> int:
        """Bytes of data at the same time."""
        return int(_DATA * self.given)

    def too_little(self, what: str, needed: int) -> UserError:
        """Returns the error for `what` that needs more bytes of data than there are."""
        return UserError(f"memory={self.given}: {what}: give memory={math.ceil(needed / _DATA)} or more")

    def piece(self, row: int) -> int:
        """Returns the edges of a piece, for further columns of `row` bytes."""
        fit = self.memory // _PIECE_SHARE // (_PIECE_BYTES + 4 * row)
        return min(max(fit, _LEAST_PIECE), _MOST_PIECE)

    def edges(self, row: int) -> int:
        """Returns the edges of a bucket, for further columns of `row` bytes."""
        return self.bucket or max(self.memory // (_SORT_BYTES + 3 * row), 1)


@dataclass(frozen=True, slots=True)
class Ends:
    """How edges are read from their table."""

    source: Source
    ends: tuple[str, str]  # columns of sources and destinations
    ids: IdTable | None  # finds the nodes. None: ids are the numbers of nodes
    symmetrize: bool
    num_nodes: int | None  # None: one more than the largest id

    def pieces(self, rows: int) -> Iterator[Piece]:
        """Yields all edges in the order of the table, without edges one empty piece."""
        others = [name for name in self.source.kept if name not in (*self.ends, "weight")]
        types: dict[str, pa.DataType] = dict.fromkeys(self.ends, pa.int64() if self.ids is None else self.ids.type)
        types |= dict.fromkeys([*others, "weight"], pa.float64())
        first, tables = 0, self.source.pieces(rows, None, types)
        for table in itertools.chain([next(tables, None) or self.source.empty()], tables):
            src, dst = (table.positions(name, self.ids) for name in self.ends)
            piece = Piece(first, src, dst, table, "weight" in self.source.kept, others)
            self._check(piece)
            first += len(src)
            yield piece

    def _check(self, piece: Piece) -> None:
        """Raises `UserError` for an id that is the number of no node."""
        for name, ids in zip(self.ends, (piece.src, piece.dst), strict=True):
            if self.ids is None and len(ids):
                high = _INT32 * _INT32 if self.num_nodes is None else self.num_nodes
                piece.table.check_range(name, ids, high)


@dataclass(frozen=True, slots=True)
class Piece:
    """Some edges, one behind the other in the table."""

    first: int  # position of the first one
    src: Array  # [k] int64
    dst: Array  # [k] int64
    table: Table
    weighted: bool
    others: list[str]

    def weight(self) -> Array | None:  # [k]
        if not self.weighted:
            return None
        found = self.table.numbers("weight")
        if found.itemsize > 4:
            self.table.check_bound("weight", found)
        return found

    def features(self) -> Array | None:  # [k, width] float32
        return self.table.rows(self.others)

    def columns(self, symmetrize: bool) -> dict[str, Array]:
        """Returns what a bucket keeps of each edge, with edges turned around.

        A reverse edge stands behind the edges of the piece.
        """
        found = {"src": self.src, "dst": self.dst, "position": np.arange(self.first, self.first + len(self.src))}
        found |= {
            name: rows for name, rows in (("weight", self.weight()), ("features", self.features())) if rows is not None
        }
        if not symmetrize:
            return found
        kept = np.flatnonzero(self.src != self.dst)
        back = {**found, "src": self.dst, "dst": self.src}
        both = {name: np.concatenate([rows, back[name][kept]]) for name, rows in found.items()}
        return both | {"reverse": np.repeat(np.array([0, 1], np.uint8), [len(self.src), len(kept)])}


@dataclass(slots=True)
class Counted:
    """What the first pass has found."""

    num_edges: int = 0
    largest: int = -1
    place: str = ""  # of the largest id, for people
    weight: str | None = None  # type of the weights
    width: int | None = None  # of edge features
    names: list[str] | None = None  # of edge features
    shift: int = 0  # bin b has the destinations b << shift to ((b + 1) << shift) - 1
    bins: list[int] = field(default_factory=list)  # records of each bin, reverse edges too

    @property
    def row(self) -> int:
        """Bytes of the further columns of an edge."""
        return (0 if self.weight is None else np.dtype(self.weight).itemsize) + 4 * (self.width or 0)


def count(ends: Ends, room: Room, journal: Journal, teller: Teller) -> tuple[Counted, int]:
    """Reads and checks all edges. Returns what was found, and the number of nodes."""
    if (known := journal["counted"]) is not None:
        found = Counted(**known)
        return found, found.largest + 1 if ends.num_nodes is None else ends.num_nodes
    teller.begin("counting edges")
    found, bins = Counted(), np.zeros(MOST_BINS, np.int64)
    num_columns = len(ends.source.names)
    if ends.num_nodes is not None:
        found.shift = _shift(ends.num_nodes - 1)
    for piece in ends.pieces(room.piece(8 * num_columns)):
        _look(found, piece)
        bins = _folded(found, piece, bins)
        for ids in (piece.dst, piece.src[piece.src != piece.dst]) if ends.symmetrize else (piece.dst,):
            bins += _core.count_bins(np.ascontiguousarray(ids), found.shift, MOST_BINS, room.threads)
        found.num_edges += len(piece.src)
        teller.tell(found.num_edges, ends.source.num_rows, "edges")
    num_nodes = found.largest + 1 if ends.num_nodes is None else ends.num_nodes
    if ends.num_nodes is None:
        check_implied(found.place, found.largest, found.num_edges)
    found.bins = np.trim_zeros(bins, "b").tolist()
    journal.write(counted={name: getattr(found, name) for name in Counted.__slots__})
    return found, num_nodes


def _look(found: Counted, piece: Piece) -> None:
    """Checks the columns of a piece beside those before."""
    for name, ids in (("src", piece.src), ("dst", piece.dst)):
        largest = int(ids.max(initial=-1))
        if largest > found.largest:
            found.largest = largest
            found.place = f"{piece.table.name}, {name} = {largest}"
    if (weight := piece.weight()) is not None:
        kind = np.promote_types(weight.dtype, np.float32)
        found.weight = str(kind if found.weight is None else np.promote_types(kind, found.weight))
    if (features := piece.features()) is not None:
        width = features.shape[1]
        if found.width not in (None, width):
            raise UserError(
                f"{piece.table.name}: the columns {', '.join(piece.others)} hold {width} numbers in some rows, and "
                f"{found.width} in others"
            )
        found.width = width
        found.names = found.names or piece.table.column_names(piece.others)


def _shift(largest: int) -> int:
    """Returns the shift by which ids up to the largest one fall in the bins."""
    return max(max(largest, 0).bit_length() - (MOST_BINS.bit_length() - 1), 0)


def _folded(found: Counted, piece: Piece, bins: Array) -> Array:
    """Returns wider bins, where a piece has ids beyond the last one."""
    more = _shift(max(int(piece.src.max(initial=0)), int(piece.dst.max(initial=0)))) - found.shift
    if more <= 0:
        return bins
    found.shift += more
    wider, joined = np.zeros_like(bins), min(1 << more, len(bins))
    wider[: len(bins) // joined] = bins.reshape(-1, joined).sum(1)
    return wider


@dataclass(frozen=True, slots=True)
class Buckets:
    """Ranges of destinations, and where the records of each stand in the files."""

    shift: int
    of_bin: npt.NDArray[np.int32]  # [num_bins]
    first: list[int]  # [num_buckets + 1] first node of each
    start: list[int]  # [num_buckets + 1] first record of each
    num_nodes: int

    @classmethod
    def of(cls, found: Counted, num_nodes: int, room: Room) -> Buckets:
        """Joins bins until their edges fill the memory.

        Raises `UserError` for a bin that memory cannot hold.
        """
        most, shift = room.edges(found.row), found.shift
        bins = [*found.bins, *[0] * (((num_nodes - 1) >> shift) + 1 - len(found.bins))]
        of_bin, first, start = np.zeros(len(bins), np.int32), [0], [0]
        size = total = 0
        for number, edges in enumerate(bins):
            if size and (size + edges > most or (number + 1 << shift) - first[-1] >= _INT32):
                first.append(number << shift)
                start.append(total)
                size = 0
            of_bin[number] = len(first) - 1
            size, total = size + edges, total + edges
            if edges > most and room.bucket is None:
                nodes = f"the nodes {number << shift} to {(number + 1 << shift) - 1}"
                needed = edges * (_SORT_BYTES + 3 * found.row)
                raise room.too_little(f"{nodes} have {edges:,} in-edges, which are sorted together", needed)
        return cls(shift, of_bin, [*first, num_nodes], [*start, total], num_nodes)

    def __len__(self) -> int:
        return len(self.start) - 1


def kinds_of(found: Counted, num_nodes: int, symmetrize: bool) -> dict[str, np.dtype[Any]]:
    """Returns the types of the columns that buckets keep."""
    kinds: dict[str, npt.DTypeLike] = {
        "dst": np.int32,  # from the first node of the bucket on
        "src": np.int32 if num_nodes < _INT32 else np.int64,
        "position": np.int32 if found.num_edges < _INT32 else np.int64,
    }
    if found.weight is not None:
        kinds["weight"] = found.weight
    if found.width is not None:
        kinds["features"] = np.dtype((np.float32, (found.width,)))
    if symmetrize:
        kinds["reverse"] = np.uint8
    return {name: np.dtype(kind) for name, kind in kinds.items()}


class Columns:
    """The records of all buckets on disk, a file for each column."""

    def __init__(self, folder: Path, kinds: Mapping[str, np.dtype[Any]]) -> None:
        self.kinds = kinds
        self._files = {name: File(folder / f"{name}.records") for name in kinds}

    def write(self, name: str, rows: Array, place: int) -> None:
        """Writes rows of a column. `place` is the number of the first record."""
        self._files[name].write(rows, place * self.kinds[name].itemsize)

    def read(self, place: int, count: int) -> dict[str, Array]:
        """Reads some records, by column."""
        return {
            name: file.read((count, *self.kinds[name].shape), self.kinds[name].base, place * self.kinds[name].itemsize)
            for name, file in self._files.items()
        }

    def commit(self) -> None:
        for file in self._files.values():
            file.commit()

    def close(self, *, remove: bool = False) -> None:
        for file in self._files.values():
            file.close()
            if remove:
                file.path.unlink()


def scatter(
    ends: Ends, found: Counted, buckets: Buckets, columns: Columns, room: Room, journal: Journal, teller: Teller
) -> None:
    """Writes each edge to the bucket of its destination, in the order of the table."""
    done, cursors = journal["scattered"] or (0, buckets.start[:-1])
    if done == found.num_edges:
        return
    place, first, last = np.array(cursors, np.int64), np.array(buckets.first), time.monotonic()
    teller.begin("scattering edges", done)
    for piece in ends.pieces(room.piece(found.row)):
        end = piece.first + len(piece.src)
        if end <= done:
            continue
        rows = piece.columns(ends.symmetrize)
        if end > found.num_edges:
            raise _changed(piece.table.name)
        rows = rows if piece.first >= done else _behind(rows, done)
        order, sizes = _core.bucket_order(rows["dst"], buckets.shift, buckets.of_bin, len(buckets), room.threads)
        if np.any(place + sizes > buckets.start[1:]):
            raise _changed(piece.table.name)
        bounds = np.concatenate([[0], np.cumsum(sizes)])
        for name, kind in columns.kinds.items():
            if name == "dst":
                values = (rows[name][order] - np.repeat(first[:-1], sizes)).astype(kind)
            else:
                values = rows[name].astype(kind.base, copy=False)[order]
            for bucket in np.flatnonzero(sizes):
                columns.write(name, values[bounds[bucket] : bounds[bucket + 1]], int(place[bucket]))
        place += sizes
        teller.tell(end, found.num_edges, "edges")
        if time.monotonic() - last > room.commit:
            columns.commit()
            journal.write(scattered=(end, place.tolist()))
            last = time.monotonic()
    if not np.array_equal(place, buckets.start[1:]):
        raise _changed(ends.source.files[0].name)
    columns.commit()
    journal.write(scattered=(found.num_edges, place.tolist()))


def _behind(rows: dict[str, Array], done: int) -> dict[str, Array]:
    """Leaves out edges that are written already."""
    kept = rows["position"] >= done
    return {name: values[kept] for name, values in rows.items()}


def _changed(name: str) -> UserError:
    return UserError(f"{name} has other edges than a moment ago: it changes while it is read")


def sort(
    found: Counted, buckets: Buckets, columns: Columns, folder: Path, room: Room, journal: Journal, teller: Teller
) -> int:
    """Sorts the buckets, and appends to the arrays of a saved graph in `folder`.

    Returns the number of edges, with reverse edges that were missing.
    """
    done, num_edges, all_done = journal["sorted"] or (0, 0, False)
    assert not all_done
    arrays = _outputs(found, buckets, columns, folder, done, num_edges)
    if not done:
        arrays["indptr"].append(np.zeros(1, np.int64))
    last = time.monotonic()
    teller.begin("sorting edges", buckets.start[done])
    for bucket in range(done, len(buckets)):
        start, end = buckets.start[bucket : bucket + 2]
        rows = columns.read(start, end - start)
        width = buckets.first[bucket + 1] - buckets.first[bucket]
        indptr, sources, order = _core.csc_from_edges(
            rows.pop("src"), rows.pop("dst"), width, buckets.num_nodes, True, room.threads
        )
        reverse = rows.pop("reverse", None)
        if reverse is not None:
            indptr, sources, order = _without_doubles(indptr, sources, order, reverse)
        arrays["indptr"].append(num_edges + indptr[1:])
        arrays["indices"].append(sources)
        for name, values in rows.items():
            arrays[name].append(values[order])
        num_edges += len(sources)
        teller.tell(end, buckets.start[-1], "edges")
        if time.monotonic() - last > room.commit:
            for each in arrays.values():
                each.commit()
            journal.write(sorted=(bucket + 1, num_edges, False))
            last = time.monotonic()
    for each in arrays.values():
        each.finish()
    journal.write(sorted=(len(buckets), num_edges, True))
    return num_edges


def _outputs(
    found: Counted, buckets: Buckets, columns: Columns, folder: Path, done: int, num_edges: int
) -> dict[str, Rows]:
    """Opens the arrays behind what is done. Arguments as those of `sort`."""
    kinds = columns.kinds
    first = buckets.first[done] + 1 if done else 0
    arrays = {
        "indptr": Rows(folder / "indptr.npy", np.int64, (), first),
        "indices": Rows(folder / "indices.npy", kinds["src"], (), num_edges),
        "position": Rows(folder / "edge_positions.npy", kinds["position"], (), num_edges),
    }
    if found.weight is not None:
        arrays["weight"] = Rows(folder / "weight.npy", found.weight, (), num_edges)
    if found.width is not None:
        arrays["features"] = Rows(folder / "edge_features.npy", np.float32, (found.width,), num_edges)
    return arrays


def _without_doubles(indptr: Array, sources: Array, order: Array, reverse: Array) -> tuple[Array, Array, Array]:
    """Leaves out reverse edges between nodes that an edge joins anyway."""
    if not len(sources):
        return indptr, sources, order
    ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(sources) != 0) | (np.diff(ends) != 0)]))
    added = reverse[order]
    joined = np.minimum.reduceat(added, begins) == 0  # whether a pair has an edge of the table
    kept = (added == 0) | np.repeat(~joined, np.diff(np.append(begins, len(sources))))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(kept)])
    return before[indptr], sources[kept], order[kept]
