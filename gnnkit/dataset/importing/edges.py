"""Edges of any number -> CSC, in three passes that append and keep what is done.

Edges that come in the order of destinations, and keep it, are counted and written. For
others:

1. `count` reads all edges, checks these, and counts destinations in 65,536 bins.
2. `scatter` writes each edge to the bucket of its destination: a range of nodes whose
   in-edges fit memory.
3. `sort` sorts one bucket after the other, and appends to the arrays of the graph.

The scheme is that of a distribution sort (Knuth, The Art of Computer Programming, vol.
3, section 5.4.9). A bucket keeps the order of the tables, and the sort is stable, so
results are those of `Graph.from_edges`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.checks import FLOAT32_MAX, Array, check_finite, check_range
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.pieces import EdgePiece, GraphPieces, Room, check_ends
from gnnkit.errors import UserError
from gnnkit.graph.fields import MOST_RELATIONS, check_implied, edge_types_of, names_of, relation_names
from gnnkit.rows import File, Rows
from gnnkit.storage import save_array

T = TypeVar("T")
MOST_BINS = 1 << 16
RELATION = np.int16  # type of the types of edges
_INT32 = 2**31


def columns_of(piece: EdgePiece, symmetrize: bool) -> dict[str, Array]:
    """Returns what a bucket keeps of each edge, with edges turned around.

    A reverse edge stands behind the edges of the piece.
    """
    fields = ("src", "dst", "positions", "types", "weight", "features")
    found: dict[str, Array] = {name: rows for name in fields if (rows := getattr(piece, name)) is not None}
    if not symmetrize:
        return found
    kept = np.flatnonzero(piece.src != piece.dst)
    back = {**found, "src": piece.dst, "dst": piece.src}
    both = {name: np.concatenate([rows, back[name][kept]]) for name, rows in found.items()}
    return both | {"reverse": np.repeat(np.array([0, 1], np.uint8), [len(piece.src), len(kept)])}


def _ahead(items: Iterator[T]) -> Iterator[T]:
    """Reads the next item while one is worked on."""
    with ThreadPoolExecutor(1, "ahead") as reader:
        coming = reader.submit(next, items, None)
        while (item := coming.result()) is not None:
            coming = reader.submit(next, items, None)
            yield item


@dataclass(slots=True)
class Counted:
    """What the first pass has found."""

    num_edges: int = 0
    largest: int = -1
    place: str = ""  # of the largest id, for people
    weight: str | None = None  # type of the weights
    width: int | None = None  # of edge features
    features: str | None = None  # type of edge features
    names: list[str] | None = None  # of edge features
    positions: str | None = None  # type of the positions
    relation: int | None = None  # largest number of a relation. None: edges have no types
    relations: list[str] | None = None  # names of the relations
    sources: str = "int32"  # type of the sources, as these are read
    shift: int = 0  # bin b has the destinations b << shift to ((b + 1) << shift) - 1
    bins: list[int] = field(default_factory=list)  # records of each bin, reverse edges too

    @property
    def row(self) -> int:
        """Bytes of the further columns of an edge."""
        types = 0 if self.relation is None else np.dtype(RELATION).itemsize
        weight = 0 if self.weight is None else np.dtype(self.weight).itemsize
        return types + weight + (0 if self.width is None else self.width * np.dtype(self.features).itemsize)


def count(graph: GraphPieces, known: int | None, room: Room, journal: Journal, teller: Teller) -> tuple[Counted, int]:
    """Reads and checks all edges. Returns what was found, and the number of nodes.

    Args:
        graph: the edges.
        known: number of nodes. None: one more than the largest id.
        room: memory and threads.
        journal: keeps what was found.
        teller: tells how far the pass is.
    """
    if (earlier := journal["counted"]) is not None:
        found = Counted(**earlier)
        return found, found.largest + 1 if known is None else known
    teller.begin("counting edges")
    found, bins = Counted(), np.zeros(MOST_BINS, np.int64)
    if known is not None:
        found.shift = _shift(known - 1)
    for piece in _ahead(graph.edges(room.piece(graph.edge_row))):
        check_ends(piece, _INT32 * _INT32 if known is None else known, found.num_edges)
        _look(found, piece, graph.edge_type_names())
        bins = _folded(found, piece, bins)
        for ids in (piece.dst, piece.src[piece.src != piece.dst]) if graph.symmetrize else (piece.dst,):
            bins += _core.count_bins(np.ascontiguousarray(ids), found.shift, MOST_BINS, room.threads)
        found.num_edges += len(piece.src)
        teller.tell(found.num_edges, graph.num_edges, "edges")
    _finish(found, graph, known)
    found.bins = np.trim_zeros(bins, "b").tolist()
    journal.write(counted={name: getattr(found, name) for name in Counted.__slots__})
    return found, found.largest + 1 if known is None else known


def _finish(found: Counted, graph: GraphPieces, known: int | None) -> None:
    """Checks and completes what was found in all edges."""
    if known is None:
        check_implied(found.place, found.largest, found.num_edges)
    names = graph.edge_feature_names()
    found.names = None if names is None else list(names)
    names_of("edge_feature_names", found.names, found.width or 0)
    given = names_of("edge_type_names", graph.edge_type_names())
    if found.relation is None:
        edge_types_of(None, found.num_edges, given)
    relations = relation_names(None if found.relation is None else np.array([found.relation]), given)
    found.relations = None if relations is None else list(relations)


def _look(found: Counted, piece: EdgePiece, names: Sequence[str] | None) -> None:
    """Checks the columns of a piece beside those before. `names` are of relations."""
    for name, ids in (("src", piece.src), ("dst", piece.dst)):
        largest = int(ids.max(initial=-1))
        if largest > found.largest:
            found.largest = largest
            found.place = f"{piece.place}, {name} = {largest}"
    found.sources = str(np.promote_types(found.sources, piece.src.dtype))
    if piece.weight is not None:
        check_finite("weight", piece.weight, bound=FLOAT32_MAX, first=found.num_edges)
        kind = np.promote_types(piece.weight.dtype, np.float32)
        found.weight = str(kind if found.weight is None else np.promote_types(kind, found.weight))
    if piece.positions is not None:
        found.positions = str(np.promote_types(found.positions or np.int32, piece.positions.dtype))
    if piece.types is not None:
        high = MOST_RELATIONS if names is None else len(names)
        check_range("edge_types", piece.types, 0, high, first=found.num_edges)
        found.relation = max(int(piece.types.max(initial=0)), found.relation or 0)
    if piece.features is not None:
        width = piece.features.shape[1]
        if found.width not in (None, width):
            raise UserError(
                f"{piece.place}: the features of edges are {width} numbers in some rows, and {found.width} in others"
            )
        check_finite("edge_features", piece.features, bound=FLOAT32_MAX, first=found.num_edges)
        found.width = width
        found.features = str(np.promote_types(found.features or piece.features.dtype, piece.features.dtype))


def _shift(largest: int) -> int:
    """Returns the shift by which ids up to the largest one fall in the bins."""
    return max(max(largest, 0).bit_length() - (MOST_BINS.bit_length() - 1), 0)


def _folded(found: Counted, piece: EdgePiece, bins: Array) -> Array:
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
                needed = edges * room.sorting(found.row)
                raise room.too_little(f"{nodes} have {edges:,} in-edges, which are sorted together", needed)
        return cls(shift, of_bin, [*first, num_nodes], [*start, total], num_nodes)

    def __len__(self) -> int:
        return len(self.start) - 1


def kinds_of(found: Counted, num_nodes: int, symmetrize: bool) -> dict[str, np.dtype[Any]]:
    """Returns the types of the columns that buckets keep."""
    kinds: dict[str, npt.DTypeLike] = {
        "dst": np.int32,  # from the first node of the bucket on
        "src": np.int32 if num_nodes < _INT32 else np.int64,
    }
    if found.positions is not None:
        kinds["positions"] = found.positions
    if found.relation is not None:
        kinds["types"] = RELATION
    if found.weight is not None:
        kinds["weight"] = found.weight
    if found.width is not None:
        kinds["features"] = np.dtype((np.dtype(found.features), (found.width,)))
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

    def close(self) -> None:
        for file in self._files.values():
            file.close()


def scatter(
    graph: GraphPieces, found: Counted, buckets: Buckets, columns: Columns, room: Room, journal: Journal, teller: Teller
) -> None:
    """Writes each edge to the bucket of its destination, in the order of the data."""
    done, cursors = journal["scattered"] or (0, buckets.start[:-1])
    if done == found.num_edges:
        return
    place, first, last = np.array(cursors, np.int64), np.array(buckets.first), time.monotonic()
    teller.begin("scattering edges", done)
    end = 0
    for piece in _ahead(graph.edges(room.piece(found.row))):
        begin, end = end, end + len(piece.src)
        if end <= done:
            continue
        if end > found.num_edges:
            raise _changed(piece.place)
        rows = columns_of(piece.behind(max(done - begin, 0)), bool(graph.symmetrize))
        order, sizes = _core.bucket_order(rows["dst"], buckets.shift, buckets.of_bin, len(buckets), room.threads)
        if np.any(place + sizes > buckets.start[1:]):
            raise _changed(piece.place)
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
        raise _changed(graph.files[0].name)
    columns.commit()
    journal.write(scattered=(found.num_edges, place.tolist()))


def append(
    graph: GraphPieces, found: Counted, num_nodes: int, folder: Path, room: Room, journal: Journal, teller: Teller
) -> None:
    """Writes edges that come in the order of destinations, and stay in their order."""
    arrays = {"indices": Rows(folder / "indices.npy", found.sources), **further_outputs(found, folder, 0)}
    indptr, last, done = np.zeros(num_nodes + 1, np.int64), 0, 0
    teller.begin("writing edges")
    for piece in graph.edges(room.piece(found.row)):
        steps = np.diff(piece.dst, prepend=last)
        if len(steps) and steps.min() < 0:
            raise UserError(f"{piece.place}: edge {done + int(steps.argmin())} is not in the order of destinations")
        if len(steps):
            first, last = int(piece.dst[0]), int(piece.dst[-1])
            indptr[first + 1 : last + 2] += np.bincount(piece.dst - first, minlength=last - first + 1)
        for name, rows in columns_of(piece, False).items():
            if name != "dst":
                arrays["indices" if name == "src" else name].append(rows)
        done += len(piece.src)
        teller.tell(done, found.num_edges, "edges")
    if done != found.num_edges:
        raise _changed(graph.files[0].name)
    for each in arrays.values():
        each.finish()
    save_array(folder / "indptr.npy", np.cumsum(indptr))
    journal.write(sorted=(0, done, True))


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
    records = (columns.read(start, end - start) for start, end in pairwise(buckets.start[done:]))
    for bucket, rows in enumerate(_ahead(records), done):
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
        teller.tell(buckets.start[bucket + 1], buckets.start[-1], "edges")
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
    }
    return arrays | further_outputs(found, folder, num_edges)


def further_outputs(found: Counted, folder: Path, num_edges: int) -> dict[str, Rows]:
    """Opens the arrays of what edges have beside their ends, behind the first edges."""
    arrays = {}
    if found.positions is not None:
        arrays["positions"] = Rows(folder / "edge_positions.npy", found.positions, (), num_edges)
    if found.relation is not None:
        arrays["types"] = Rows(folder / "edge_types.npy", RELATION, (), num_edges)
    if found.weight is not None:
        arrays["weight"] = Rows(folder / "weight.npy", found.weight, (), num_edges)
    if found.width is not None and found.features is not None:
        arrays["features"] = Rows(folder / "edge_features.npy", found.features, (found.width,), num_edges)
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
