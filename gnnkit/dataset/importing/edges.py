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

import bisect
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from gnnkit import _core
from gnnkit.checks import FLOAT32_MAX, Array, check_finite, check_range
from gnnkit.crew import Crew
from gnnkit.dataset.importing.progress import Journal, Teller
from gnnkit.dataset.importing.read import ReadEdges
from gnnkit.dataset.pieces import EdgePiece, GraphPieces, Room, Stretch, check_ends
from gnnkit.errors import UserError
from gnnkit.graph.duplicates import JOIN, KEEP, join
from gnnkit.graph.fields import MOST_RELATIONS, check_implied, edge_types_of, names_of, relation_names
from gnnkit.rows import Behind, File, Rows, append_all
from gnnkit.storage import save_array

T = TypeVar("T")
MOST_BINS = 1 << 16
RELATION = np.int16  # type of the types of edges
_INT32 = 2**31
_BUCKET, _MOST_BUCKETS = 1 << 21, 1 << 10  # edges of a bucket and number of buckets to aim at


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

    def facts(self) -> dict[str, Any]:
        """Returns the fields as plain data."""
        return {name: getattr(self, name) for name in Counted.__slots__}

    def all_bins(self) -> Array:
        """Returns the bins, with empty ones up to the last possible."""
        return np.pad(np.array(self.bins, np.int64), (0, MOST_BINS - len(self.bins)))

    @property
    def row(self) -> int:
        """Bytes of the further columns of an edge."""
        types = 0 if self.relation is None else np.dtype(RELATION).itemsize
        weight = 0 if self.weight is None else np.dtype(self.weight).itemsize
        return types + weight + (0 if self.width is None else self.width * np.dtype(self.features).itemsize)


def count(
    graph: GraphPieces, known: int | None, room: Room, journal: Journal, teller: Teller, crew: Crew
) -> tuple[Counted, int]:
    """Reads and checks all edges. Returns what was found, and the number of nodes.

    Args:
        graph: the edges.
        known: number of nodes. None: one more than the largest id.
        room: memory and threads of each member.
        journal: keeps what was found.
        teller: tells how far the pass is.
        crew: shares the stretches of the graph.
    """
    if (earlier := journal["counted"]) is not None:
        found = Counted(**earlier)
        return found, found.largest + 1 if known is None else known
    stretches = stretches_of(graph, crew)

    def work(member: int) -> None:
        told = teller.of(member, crew.size)
        told.begin("counting edges")
        for number in range(member, len(stretches), crew.size):
            own = _part(journal, number, len(stretches))
            if own["counted"] is None:
                one, kept = _count(graph, stretches[number], known, room, own.folder, told)
                own.write(counted=one.facts(), kept=kept)

    crew.share(work)
    found = joined(counted_of(journal, len(stretches)))
    _finish(found, graph, known)
    journal.write(counted=found.facts())
    return found, found.largest + 1 if known is None else known


def stretches_of(graph: GraphPieces, crew: Crew) -> Sequence[Stretch | None]:
    """Divides the edges. A single None: one member reads all of these."""
    return graph.stretches(crew.size) if graph.is_divided and crew.size > 1 else [None]


def counted_of(journal: Journal, stretches: int) -> list[Counted]:
    """Returns what was found in each stretch."""
    return [Counted(**_part(journal, number, stretches)["counted"]) for number in range(stretches)]


def _part(journal: Journal, number: int, stretches: int) -> Journal:
    """Returns the journal of a stretch."""
    return journal.of(f"stretch {number} of {stretches}")


def pieces_of(graph: GraphPieces, stretch: Stretch | None, rows: int, first: int) -> Iterator[EdgePiece]:
    """Yields the edges of a stretch, one piece ahead. Arguments as of `edges_of`."""
    return _ahead(graph.edges(rows) if stretch is None else graph.edges_of(stretch, rows, first))


def _count(
    graph: GraphPieces, stretch: Stretch | None, known: int | None, room: Room, folder: Path, teller: Teller
) -> tuple[Counted, dict[str, Any] | None]:
    """Reads and checks the edges of a stretch. Keeps these where it finds ids."""
    found, bins, kept = Counted(), np.zeros(MOST_BINS, np.int64), ReadEdges(folder)
    if known is not None:
        found.shift = _shift(known - 1)
    for piece in pieces_of(graph, stretch, room.piece(graph.edge_row), 0):
        check_ends(piece, _INT32 * _INT32 if known is None else known, found.num_edges)
        _look(found, piece, graph.edge_type_names())
        more = _shift(max(int(piece.src.max(initial=0)), int(piece.dst.max(initial=0)))) - found.shift
        if more > 0:
            bins, found.shift = _folded(bins, more), found.shift + more
        for ids in (piece.dst, piece.src[piece.src != piece.dst]) if graph.symmetrize else (piece.dst,):
            bins += _core.count_bins(np.ascontiguousarray(ids), found.shift, MOST_BINS, room.threads)
        if graph.finds_ids:
            kept.add(piece)
        found.num_edges += len(piece.src)
        teller.tell(found.num_edges, graph.num_edges, "edges")
    names = graph.edge_feature_names()
    found.names = None if names is None else list(names)
    found.bins = np.trim_zeros(bins, "b").tolist()
    return found, kept.finish()


def joined(parts: Sequence[Counted]) -> Counted:
    """Returns what was found in several stretches together.

    Raises `UserError` for features of edges of two widths.
    """
    found = Counted(num_edges=sum(each.num_edges for each in parts), shift=max(each.shift for each in parts))
    bins = np.zeros(MOST_BINS, np.int64)
    for each in parts:
        bins += _folded(each.all_bins(), found.shift - each.shift)
        if each.largest > found.largest:
            found.largest, found.place = each.largest, each.place
        if each.width is not None:
            if found.width not in (None, each.width):
                raise UserError(_widths("edges", each.width, found.width))
            found.width, found.names = each.width, each.names
        for name in ("weight", "features", "positions", "sources"):
            kinds = {kind for kind in (getattr(found, name), getattr(each, name)) if kind is not None}
            setattr(found, name, str(np.result_type(*kinds)) if kinds else None)
        if each.relation is not None:
            found.relation = max(each.relation, found.relation or 0)
    if found.positions is not None and found.num_edges >= _INT32:  # of which each stretch has fewer
        found.positions = "int64"
    found.bins = np.trim_zeros(bins, "b").tolist()
    return found


def _finish(found: Counted, graph: GraphPieces, known: int | None) -> None:
    """Checks and completes what was found in all edges."""
    if known is None:
        check_implied(found.place, found.largest, found.num_edges)
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
            raise UserError(_widths(piece.place, width, found.width))
        check_finite("edge_features", piece.features, bound=FLOAT32_MAX, first=found.num_edges)
        found.width = width
        found.features = str(np.promote_types(found.features or piece.features.dtype, piece.features.dtype))


def _shift(largest: int) -> int:
    """Returns the shift by which ids up to the largest one fall in the bins."""
    return max(max(largest, 0).bit_length() - (MOST_BINS.bit_length() - 1), 0)


def _widths(place: str, width: int, other: int | None) -> str:
    return f"{place}: the features of edges are {width} numbers in some rows, and {other} in others"


def _folded(bins: Array, more: int) -> Array:
    """Returns bins of ids with a greater shift, by `more`."""
    if not more:
        return bins
    wider, together = np.zeros_like(bins), min(1 << more, len(bins))
    wider[: len(bins) // together] = bins.reshape(-1, together).sum(1)
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
        """Joins bins until their edges fill the memory, or are the share of a process.

        Raises `UserError` for a bin that memory cannot hold.
        """
        fit, shift, records = room.edges(found.row), found.shift, sum(found.bins)
        # Small buckets are sorted in the caches. Very many would be written in crumbs.
        quick = room.bucket or max(_BUCKET, -(-records // _MOST_BUCKETS))
        most = min(fit, quick, -(-records // room.processes))
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
            if edges > fit and room.bucket is None:
                nodes = f"the nodes {number << shift} to {(number + 1 << shift) - 1}"
                needed = edges * room.sorting(found.row)
                raise room.too_little(f"{nodes} have {edges:,} in-edges, which are sorted together", needed)
        return cls(shift, of_bin, [*first, num_nodes], [*start, total], num_nodes)

    def __len__(self) -> int:
        return len(self.start) - 1

    def sizes(self, part: Counted, shift: int) -> npt.NDArray[np.int64]:  # [num_buckets]
        """Counts the records of each bucket in a part of the edges."""
        bins = _folded(part.all_bins(), shift - part.shift)[: len(self.of_bin)]
        return np.bincount(self.of_bin, bins, len(self)).astype(np.int64)

    def shares(self, members: int) -> list[range]:
        """Divides the buckets by their records."""
        ends = [bisect.bisect_left(self.start, self.start[-1] * part // members) for part in range(members + 1)]
        ends[0], ends[-1] = 0, len(self)
        return [range(first, last) for first, last in pairwise(ends)]


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

    def put(self, rows: Mapping[str, Array], sizes: Array, place: Array) -> None:
        """Writes rows by column, of which each bucket gets some at its place.

        Args:
            rows: in the order of buckets.
            sizes: rows of each bucket.
            place: number of the first record that is written, for each bucket.
        """
        bounds = np.concatenate([[0], np.cumsum(sizes)]).tolist()
        for name, file in self._files.items():
            for bucket in np.flatnonzero(sizes).tolist():
                values = rows[name][bounds[bucket] : bounds[bucket + 1]]
                file.write(values, int(place[bucket]) * self.kinds[name].itemsize)

    def read(self, place: int, count: int) -> dict[str, Array]:
        """Reads some records, by column."""
        return {
            name: file.read((count, *self.kinds[name].shape), self.kinds[name].base, place * self.kinds[name].itemsize)
            for name, file in self._files.items()
        }

    def commit(self) -> None:
        for file in self._files.values():
            file.commit()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files.values():
            file.close()


def scatter(
    graph: GraphPieces,
    found: Counted,
    buckets: Buckets,
    columns: Columns,
    room: Room,
    journal: Journal,
    teller: Teller,
    crew: Crew,
) -> None:
    """Writes each edge to the bucket of its destination, in the order of the data.

    Each bucket has room for the edges of each stretch, one stretch behind the other.
    """
    if journal["scattered"] is not None:
        return
    stretches = stretches_of(graph, crew)
    parts = counted_of(journal, len(stretches))
    sizes = np.array([buckets.sizes(part, found.shift) for part in parts])
    starts = np.array(buckets.start[:-1]) + np.cumsum(sizes, 0) - sizes
    before = np.cumsum([0, *(part.num_edges for part in parts)]).tolist()

    def work(member: int) -> None:
        told = teller.of(member, crew.size)
        told.begin("scattering edges")
        for number in range(member, len(stretches), crew.size):
            own = _part(journal, number, len(stretches))
            scattering = _Scattering(buckets, columns, room, own, starts[number], sizes[number])
            scattering.write(graph, stretches[number], before[number], parts[number].num_edges, found, told)

    crew.share(work)
    journal.write(scattered=True)


@dataclass(frozen=True, slots=True)
class _Scattering:
    """The records of a stretch, which are written to the buckets."""

    buckets: Buckets
    columns: Columns
    room: Room
    journal: Journal  # of the stretch
    start: Array  # [num_buckets] first record of the stretch in each bucket
    sizes: Array  # [num_buckets] its records there

    def write(
        self, graph: GraphPieces, stretch: Stretch | None, before: int, count: int, found: Counted, teller: Teller
    ) -> None:
        """Writes the records, behind those that the journal knows.

        Args:
            graph: the edges.
            stretch: the stretch.
            before: edges of earlier stretches.
            count: edges of the stretch.
            found: what the first pass has found in all.
            teller: tells how far the pass is.
        """
        done, cursors = self.journal["scattered"] or (0, self.start)
        if done == count and self.journal["scattered"] is not None:
            return
        buckets, room = self.buckets, self.room
        place, stop, last, end = np.array(cursors, np.int64), self.start + self.sizes, time.monotonic(), 0
        first = np.array(buckets.first)
        with Behind() as behind:
            for piece in self._pieces(graph, stretch, room.piece(found.row), before):
                begin, end = end, end + len(piece.src)
                if end <= done:
                    continue
                if end > count:
                    raise _changed(piece.place)
                rows = columns_of(piece.behind(max(done - begin, 0)), bool(graph.symmetrize))
                order, sizes = _core.bucket_order(
                    rows["dst"], buckets.shift, buckets.of_bin, len(buckets), room.threads
                )
                if np.any(place + sizes > stop):
                    raise _changed(piece.place)
                behind.do(self.columns.put, _by_bucket(rows, self.columns.kinds, order, sizes, first), sizes, place)
                place = place + sizes
                teller.tell(end, found.num_edges, "edges")
                if time.monotonic() - last > room.commit:
                    behind.wait()
                    self._commit(end, place)
                    last = time.monotonic()
        if not np.array_equal(place, stop):
            raise _changed(graph.files[0].name)
        self._commit(count, place)
        ReadEdges(self.journal.folder).remove()

    def _pieces(self, graph: GraphPieces, stretch: Stretch | None, rows: int, before: int) -> Iterator[EdgePiece]:
        """Yields the edges that the first pass has kept, or reads all again."""
        if (kept := self.journal["kept"]) is None:
            return pieces_of(graph, stretch, rows, before)
        return _ahead(ReadEdges(self.journal.folder).pieces(kept, rows, before))

    def _commit(self, done: int, place: Array) -> None:
        self.columns.commit()
        self.journal.write(scattered=(done, place.tolist()))


def _by_bucket(
    rows: Mapping[str, Array], kinds: Mapping[str, np.dtype[Any]], order: Array, sizes: Array, first: Array
) -> dict[str, Array]:
    """Returns the columns in the order of buckets, in the types of the files.

    Args:
        rows: columns of edges.
        kinds: types of the columns.
        order: positions of edges by bucket.
        sizes: edges of each bucket.
        first: first node of each bucket.
    """
    dst = rows["dst"][order]
    dst -= np.repeat(first[:-1], sizes).astype(dst.dtype, copy=False)
    others = {name: rows[name].astype(kind.base, copy=False)[order] for name, kind in kinds.items() if name != "dst"}
    return {"dst": dst.astype(kinds["dst"], copy=False), **others}


def append(graph: GraphPieces, found: Counted, num_nodes: int, folder: Path, room: Room, teller: Teller) -> None:
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


def _changed(name: str) -> UserError:
    return UserError(f"{name} has other edges than a moment ago: it changes while it is read")


def sort(
    found: Counted,
    buckets: Buckets,
    columns: Columns,
    folder: Path,
    room: Room,
    journal: Journal,
    teller: Teller,
    crew: Crew,
    duplicates: str = KEEP,
) -> None:
    """Sorts the buckets, and writes the arrays of a saved graph in `folder`.

    Where edges are left out, nobody knows the place of a bucket before those before are
    sorted. One member sorts all then.
    """
    alone = "reverse" in columns.kinds or duplicates != KEEP
    shares = buckets.shares(1 if alone else crew.size)

    def work(member: int) -> int:
        own = journal.of(f"sorted {member} of {crew.size}")
        told = teller.of(member, len(shares))
        return _sort(found, buckets, shares[member], columns, folder, room, own, told, duplicates)

    num_edges = crew.lead(lambda: work(0)) if alone else crew.share(work)[-1]

    def finish() -> None:
        for each in _outputs(found, buckets, columns, folder, len(buckets), num_edges, alone=True).values():
            each.finish()

    crew.lead(finish)


def _sort(
    found: Counted,
    buckets: Buckets,
    share: range,
    columns: Columns,
    folder: Path,
    room: Room,
    journal: Journal,
    teller: Teller,
    duplicates: str,
) -> int:
    """Sorts some buckets behind each other. Returns the edges up to their end.

    Duplicates and reverse edges that are not missing are left out, and are no edges.
    """
    done, num_edges = journal["sorted"] or (share.start, buckets.start[share.start])
    arrays = _outputs(found, buckets, columns, folder, done, num_edges, alone=len(share) == len(buckets))
    if not done:
        arrays["indptr"].append(np.zeros(1, np.int64))
    last, from_ = time.monotonic(), buckets.start[share.start]
    teller.begin("sorting edges", buckets.start[done] - from_)
    records = (columns.read(start, end - start) for start, end in pairwise(buckets.start[done : share.stop + 1]))
    with Behind() as behind:
        for bucket, rows in enumerate(_ahead(records), done):
            width = buckets.first[bucket + 1] - buckets.first[bucket]
            indptr, written = _sorted(rows, width, buckets.num_nodes, room.threads, duplicates)
            behind.do(append_all, arrays, {"indptr": num_edges + indptr[1:], **written})
            num_edges += len(written["indices"])
            teller.tell(buckets.start[bucket + 1] - from_, buckets.start[-1], "edges")
            if time.monotonic() - last > room.commit:
                behind.wait()
                _commit(arrays, journal, bucket + 1, num_edges)
                last = time.monotonic()
    _commit(arrays, journal, share.stop, num_edges)
    for each in arrays.values():
        each.close()
    return num_edges


def _commit(arrays: Mapping[str, Rows], journal: Journal, done: int, num_edges: int) -> None:
    for each in arrays.values():
        each.commit()
    journal.write(sorted=(done, num_edges))


def _sorted(
    rows: dict[str, Array], width: int, num_nodes: int, threads: int, duplicates: str
) -> tuple[Array, dict[str, Array]]:
    """Sorts the records of a bucket of `width` nodes.

    Returns indptr, and the other arrays by name.
    """
    src, dst = rows.pop("src"), rows.pop("dst")
    if rows.keys() == {"positions"} and duplicates == KEEP:  # which then need not be fetched by their order
        indptr, sources, positions = _core.csc_with_tags(src, dst, rows["positions"], width, num_nodes, threads)
        return indptr, {"indices": sources, "positions": positions}
    indptr, sources, order = _core.csc_with_tags(src, dst, np.arange(len(src)), width, num_nodes, threads)
    if duplicates != KEEP:
        rows = {name: values[order] for name, values in rows.items()}
        indptr, sources, rows = _joined(indptr, sources, rows, duplicates)
        order = np.arange(len(sources))
    reverse = rows.pop("reverse", None)
    if reverse is not None:
        indptr, sources, order = _without_doubles(indptr, sources, order, reverse)
    return indptr, {"indices": sources, **{name: values[order] for name, values in rows.items()}}


def _joined(
    indptr: Array, sources: Array, rows: dict[str, Array], duplicates: str
) -> tuple[Array, Array, dict[str, Array]]:
    """Joins edges of a bucket that occur several times, and reverse edges likewise."""
    ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    keys = {name: each for name, each in rows.items() if name in ("types", "reverse")}
    values = {name: each for name, each in rows.items() if name in ("weight", "features")}
    kept, joined = join(sources, ends, keys, values, rows["positions"], duplicates, JOIN)
    before = np.cumsum(np.bincount(ends[kept], minlength=len(indptr) - 1))
    others = {name: each[kept] for name, each in rows.items() if name not in values}
    return np.concatenate([np.zeros(1, np.int64), before]), sources[kept], others | joined


def _outputs(
    found: Counted, buckets: Buckets, columns: Columns, folder: Path, done: int, num_edges: int, *, alone: bool
) -> dict[str, Rows]:
    """Opens the arrays behind what is done. Arguments are those of `_sort`."""
    kinds = columns.kinds
    first = buckets.first[done] + 1 if done else 0
    arrays = {
        "indptr": Rows(folder / "indptr.npy", np.int64, (), first, alone=alone),
        "indices": Rows(folder / "indices.npy", kinds["src"], (), num_edges, alone=alone),
    }
    return arrays | further_outputs(found, folder, num_edges, alone=alone)


def further_outputs(found: Counted, folder: Path, num_edges: int, *, alone: bool = True) -> dict[str, Rows]:
    """Opens the arrays of what edges have beside their ends, behind the first edges."""
    kinds: dict[str, tuple[str, npt.DTypeLike, tuple[int, ...]]] = {}
    if found.positions is not None:
        kinds["positions"] = ("edge_positions", found.positions, ())
    if found.relation is not None:
        kinds["types"] = ("edge_types", RELATION, ())
    if found.weight is not None:
        kinds["weight"] = ("weight", found.weight, ())
    if found.width is not None and found.features is not None:
        kinds["features"] = ("edge_features", found.features, (found.width,))
    return {
        name: Rows(folder / f"{file}.npy", kind, width, num_edges, alone=alone)
        for name, (file, kind, width) in kinds.items()
    }


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
