"""Sorts edges by destination on disk: into buckets, and then bucket by bucket."""

from __future__ import annotations

import bisect
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gnnkit_formats.duplicates import JOIN, KEEP, join
from gnnkit_formats.pieces import COLUMNS, EdgePiece, Room, Stretch

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph.types import offsets_of
from gnnkit.utils.checks import Array
from gnnkit.utils.storage import save_array
from gnnkit_import.count import Counted, EdgeSummary, fold_bins
from gnnkit_import.npy_writer import ColumnFiles, NpyWriter, append_all, write_behind
from gnnkit_import.passes import EdgeCache, ImportRun, changed_file, read_ahead
from gnnkit_import.progress import ProgressReporter

_INT32 = 2**31
_BUCKET, _MAX_BUCKETS = 1 << 21, 1 << 10  # target edges per bucket, and target number of buckets


@dataclass(frozen=True, slots=True)
class Buckets:
    """Destination ranges, and where their records are in the files."""

    shift: int
    of_bin: npt.NDArray[np.int32]  # [num_bins]
    first: list[int]  # [num_buckets + 1] first node of each bucket
    start: list[int]  # [num_buckets + 1] first record of each bucket
    num_nodes: int

    @classmethod
    def of(cls, summary: EdgeSummary, num_nodes: int, room: Room) -> Buckets:
        """Merges adjacent bins into buckets.

        A bucket's edges fit into memory, and it has at most a size that suits caches
        and one process's share of the edges. Raises `UserError` for a bin that does not
        fit into memory.
        """
        fit, shift, records = room.edges(summary.row), summary.shift, sum(summary.bins)
        # Small buckets fit into the CPU caches. Too many would be written in small
        # blocks.
        quick = room.bucket or max(_BUCKET, -(-records // _MAX_BUCKETS))
        limit = min(fit, quick, -(-records // room.processes))
        bins = [*summary.bins, *[0] * (((num_nodes - 1) >> shift) + 1 - len(summary.bins))]
        of_bin, first, start = np.zeros(len(bins), np.int32), [0], [0]
        size = total = 0
        for number, edges in enumerate(bins):
            if size and (size + edges > limit or (number + 1 << shift) - first[-1] >= _INT32):
                first.append(number << shift)
                start.append(total)
                size = 0
            of_bin[number] = len(first) - 1
            size, total = size + edges, total + edges
            if edges > fit and room.bucket is None:
                nodes = f"the nodes {number << shift} to {(number + 1 << shift) - 1}"
                needed = edges * room.sorting(summary.row)
                raise room.too_little(f"{nodes} have {edges:,} in-edges, which are sorted together", needed)
        return cls(shift, of_bin, [*first, num_nodes], [*start, total], num_nodes)

    def __len__(self) -> int:
        return len(self.start) - 1

    def sizes(self, part: EdgeSummary, shift: int) -> npt.NDArray[np.int64]:  # [num_buckets]
        """Counts each bucket's records among some edges."""
        bins = fold_bins(part.all_bins(), shift - part.shift)[: len(self.of_bin)]
        return np.bincount(self.of_bin, bins, len(self)).astype(np.int64)

    def shares(self, processes: int) -> list[range]:
        """Divides the buckets evenly by their records."""
        ends = [bisect.bisect_left(self.start, self.start[-1] * part // processes) for part in range(processes + 1)]
        ends[0], ends[-1] = 0, len(self)
        return [range(first, last) for first, last in pairwise(ends)]


def open_records(folder: Path, summary: EdgeSummary, num_nodes: int, symmetrize: bool) -> ColumnFiles:
    """Opens the files of all buckets' records."""
    kinds: dict[str, np.dtype[Any]] = {
        "dst": np.dtype(np.int32),  # relative to the bucket's first node
        "src": np.dtype(np.int32 if num_nodes < _INT32 else np.int64),
        **summary.columns(),
    }
    return ColumnFiles(folder, "records", kinds | ({"reverse": np.dtype(np.uint8)} if symmetrize else {}))


def columns_of(piece: EdgePiece, symmetrize: bool) -> dict[str, Array]:
    """Returns a piece's columns, with the reverse edges after its edges."""
    names = ("src", "dst", *COLUMNS)
    columns: dict[str, Array] = {name: rows for name in names if (rows := getattr(piece, name)) is not None}
    if not symmetrize:
        return columns
    turned = np.flatnonzero(piece.src != piece.dst)
    reverse = {**columns, "src": piece.dst, "dst": piece.src}
    both = {name: np.concatenate([rows, reverse[name][turned]]) for name, rows in columns.items()}
    return both | {"reverse": np.repeat(np.array([0, 1], np.uint8), [len(piece.src), len(turned)])}


def append_edges(run: ImportRun, counted: Counted) -> None:
    """Writes edges that are sorted by destination, and stay in their order."""
    graph, folder, summary = run.graph, run.folder, counted.summary
    arrays = {"indices": NpyWriter(folder / "indices.npy", summary.sources), **summary.outputs(folder)}
    indptr, last, done = np.zeros(counted.num_nodes + 1, np.int64), 0, 0
    run.reporter.begin("writing edges")
    for piece in graph.edges(run.room.piece(summary.row)):
        steps = np.diff(piece.dst, prepend=last)
        if len(steps) and steps.min() < 0:
            raise UserError(f"{piece.place}: edge {done + int(steps.argmin())} is not sorted by destination")
        if len(steps):
            first, last = int(piece.dst[0]), int(piece.dst[-1])
            indptr[first + 1 : last + 2] += np.bincount(piece.dst - first, minlength=last - first + 1)
        for name, rows in columns_of(piece, False).items():
            if name != "dst":
                arrays["indices" if name == "src" else name].append(rows)
        done += len(piece.src)
        run.reporter.update(done, summary.num_edges, "edges")
    if done != summary.num_edges:
        raise changed_file(graph.files[0].name)
    for writer in arrays.values():
        writer.finish()
    save_array(folder / "indptr.npy", np.cumsum(indptr))


@dataclass(frozen=True, slots=True)
class BucketSort:
    """Edges in buckets on disk, which are sorted one by one.

    If edges are dropped, a bucket's position is known only after all earlier buckets
    are sorted, so a single process sorts all buckets.
    """

    run: ImportRun
    counted: Counted
    buckets: Buckets
    records: ColumnFiles

    def scatter(self) -> None:
        """Writes each edge to its destination's bucket, in the data's order.

        Within a bucket, each stretch (range of the input) has its own region, in order.
        """
        run, parts, summary = self.run, self.counted.stretches, self.counted.summary
        if run.journal["scattered"] is not None:
            return
        sizes = np.array([self.buckets.sizes(part, summary.shift) for part in parts])
        starts = np.array(self.buckets.start[:-1]) + np.cumsum(sizes, 0) - sizes
        before = np.cumsum([0, *(part.num_edges for part in parts)]).tolist()

        def work(number: int, stretch: Stretch | None, reporter: ProgressReporter) -> None:
            if (header := self.counted.caches[number]) is None:
                pieces = run.pieces(stretch, summary.row, before[number])
            else:
                cached = EdgeCache(run.caches / str(number)).pieces(header, run.room.piece(summary.row), before[number])
                pieces = read_ahead(cached)
            start = starts[number]
            write_behind(self._write_buckets, self._parts(pieces, start, start + sizes[number], reporter))
            self.records.commit()

        run.share("scattering edges", work)
        run.journal.write(scattered=True)
        shutil.rmtree(run.caches, ignore_errors=True)

    def _parts(
        self, pieces: Iterator[EdgePiece], position: Array, stop: Array, reporter: ProgressReporter
    ) -> Iterator[tuple[dict[str, Array], Array, Array]]:
        """Yields rows ordered by bucket, sizes of buckets, and where each begins."""
        num_edges = 0
        for piece in pieces:
            rows, counts = self._by_bucket(piece)
            if np.any(position + counts > stop):
                raise changed_file(piece.place)
            yield rows, counts, position
            position = position + counts
            num_edges += len(piece.src)
            reporter.update(num_edges, self.counted.summary.num_edges, "edges")
        if not np.array_equal(position, stop):
            raise changed_file(self.run.graph.files[0].name)

    def _write_buckets(self, part: tuple[dict[str, Array], Array, Array]) -> None:
        """Writes each bucket's rows of one of `_parts`."""
        rows, sizes, start = part
        bounds = offsets_of(sizes).tolist()
        for bucket in np.flatnonzero(sizes).tolist():
            some = slice(bounds[bucket], bounds[bucket + 1])
            self.records.write({name: values[some] for name, values in rows.items()}, int(start[bucket]))

    def _by_bucket(self, piece: EdgePiece) -> tuple[dict[str, Array], Array]:
        """Orders columns by bucket, in the files' dtypes. Returns bucket sizes."""
        buckets, kinds = self.buckets, self.records.kinds
        rows = columns_of(piece, bool(self.run.graph.symmetrize))
        order, sizes = _core.bucket_order(
            rows["dst"], buckets.shift, buckets.of_bin, len(buckets), self.run.room.threads
        )
        dst = rows["dst"][order]
        dst -= np.repeat(np.array(buckets.first[:-1]), sizes).astype(dst.dtype, copy=False)
        others = {
            name: rows[name].astype(kind.base, copy=False)[order] for name, kind in kinds.items() if name != "dst"
        }
        return {"dst": dst.astype(kinds["dst"], copy=False), **others}, sizes

    def sort(self) -> None:
        """Sorts all buckets, and writes a saved graph's arrays."""
        group = self.run.group
        alone = "reverse" in self.records.kinds or self.run.graph.duplicates != KEEP
        shares = self.buckets.shares(1 if alone else group.size)

        def work(rank: int) -> int:
            return self._sort(shares[rank], self.run.reporter.of(rank, len(shares)))

        num_edges = work(0) if alone else group.run(work)[-1]
        for writer in self._outputs(len(self.buckets), num_edges, alone=True).values():
            writer.finish()

    def _sort(self, share: range, reporter: ProgressReporter) -> int:
        """Sorts consecutive buckets. Counts the edges up to their end.

        Dropped duplicates and reverse edges do not count.
        """
        buckets, start = self.buckets, self.buckets.start
        first, num_edges = share.start, start[share.start]
        arrays = self._outputs(first, num_edges, alone=len(share) == len(buckets))
        if not first:
            arrays["indptr"].append(np.zeros(1, np.int64))
        reporter.begin("sorting edges")
        records = (self.records.read(begin, end - begin) for begin, end in pairwise(start[first : share.stop + 1]))

        def parts() -> Iterator[dict[str, Array]]:
            nonlocal num_edges
            for bucket, rows in enumerate(read_ahead(records), first):
                indptr, columns = self._sorted(rows, buckets.first[bucket + 1] - buckets.first[bucket])
                yield {"indptr": num_edges + indptr[1:], **columns}
                num_edges += len(columns["indices"])
                reporter.update(start[bucket + 1] - start[first], start[-1], "edges")

        write_behind(lambda rows: append_all(arrays, rows), parts())
        for array in arrays.values():
            array.commit()
            array.close()
        return num_edges

    def _outputs(self, done: int, num_edges: int, *, alone: bool) -> dict[str, NpyWriter]:
        """Opens the arrays after `done` buckets with `num_edges` edges."""
        folder, first = self.run.folder, self.buckets.first[done] + 1 if done else 0
        return {
            "indptr": NpyWriter(folder / "indptr.npy", np.int64, (), first, alone=alone),
            "indices": NpyWriter(folder / "indices.npy", self.records.kinds["src"], (), num_edges, alone=alone),
            **self.counted.summary.outputs(folder, num_edges, alone=alone),
        }

    def _sorted(self, rows: dict[str, Array], width: int) -> tuple[Array, dict[str, Array]]:
        """Sorts a bucket's records, for `width` nodes.

        Returns indptr, and the other arrays by name.
        """
        num_nodes, threads = self.buckets.num_nodes, self.run.room.threads
        duplicates = self.run.graph.duplicates
        src, dst = rows.pop("src"), rows.pop("dst")
        if rows.keys() == {"positions"} and duplicates == KEEP:  # which need not be gathered by their order
            indptr, sources, positions = _core.csc_with_tags(src, dst, rows["positions"], width, num_nodes, threads)
            return indptr, {"indices": sources, "positions": positions}
        indptr, sources, order = _core.csc_with_tags(src, dst, np.arange(len(src)), width, num_nodes, threads)
        if duplicates != KEEP:
            rows = {name: values[order] for name, values in rows.items()}
            indptr, sources, rows = _merge_duplicates(indptr, sources, rows, duplicates)
            order = np.arange(len(sources))
        reverse = rows.pop("reverse", None)
        if reverse is not None:
            indptr, sources, order = _drop_reverse(indptr, sources, order, reverse)
        return indptr, {"indices": sources, **{name: values[order] for name, values in rows.items()}}


def _merge_duplicates(
    indptr: Array, sources: Array, rows: dict[str, Array], duplicates: str
) -> tuple[Array, Array, dict[str, Array]]:
    """Merges a bucket's parallel edges, and its parallel reverse edges."""
    ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    keys = {name: column for name, column in rows.items() if name in ("types", "reverse")}
    values = {name: column for name, column in rows.items() if name in ("weight", "features", "time")}
    first, merged = join(sources, ends, keys, values, rows["positions"], duplicates, JOIN)
    before = np.cumsum(np.bincount(ends[first], minlength=len(indptr) - 1))
    others = {name: column[first] for name, column in rows.items() if name not in values}
    return np.concatenate([np.zeros(1, np.int64), before]), sources[first], others | merged


def _drop_reverse(indptr: Array, sources: Array, order: Array, reverse: Array) -> tuple[Array, Array, Array]:
    """Drops reverse edges that already exist in the data."""
    if not len(sources):
        return indptr, sources, order
    ends = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    begins = np.flatnonzero(np.concatenate([[True], (np.diff(sources) != 0) | (np.diff(ends) != 0)]))
    added = reverse[order]
    joined = np.minimum.reduceat(added, begins) == 0  # whether a pair has an edge in the data
    remains = (added == 0) | np.repeat(~joined, np.diff(np.append(begins, len(sources))))
    before = offsets_of(remains)
    return before[indptr], sources[remains], order[remains]
