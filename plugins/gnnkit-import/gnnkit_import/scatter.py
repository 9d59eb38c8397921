"""Second pass over edges: writes each to its destination's bucket."""

from __future__ import annotations

import bisect
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gnnkit_formats.pieces import COLUMNS, EdgePiece, Room, Stretch

from gnnkit import _core
from gnnkit.graph.types import offsets_of
from gnnkit.utils.checks import Array
from gnnkit_import.count import EdgeSummary, fold_bins, stretch_summaries
from gnnkit_import.edge_cache import EdgeCache
from gnnkit_import.npy_writer import BackgroundTask, ColumnFiles
from gnnkit_import.passes import ImportRun, changed_file, read_ahead
from gnnkit_import.progress import Journal, ProgressReporter

_INT32 = 2**31
_BUCKET, _MAX_BUCKETS = 1 << 21, 1 << 10  # target edges per bucket, and target number of buckets


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


def _write_buckets(records: ColumnFiles, rows: Mapping[str, Array], sizes: Array, start: Array) -> None:
    """Writes each bucket's rows at its position.

    Args:
        records: The files.
        rows: Rows by column, ordered by bucket.
        sizes: Rows by bucket.
        start: Each bucket's first written record.
    """
    bounds = offsets_of(sizes).tolist()
    for bucket in np.flatnonzero(sizes).tolist():
        records.write(
            {name: values[bounds[bucket] : bounds[bucket + 1]] for name, values in rows.items()}, int(start[bucket])
        )


def scatter_edges(run: ImportRun, summary: EdgeSummary, buckets: Buckets, records: ColumnFiles) -> None:
    """Writes each edge to its destination's bucket, in the data's order.

    Within a bucket, each stretch (range of the input) has its own region, in order.
    """
    if run.journal["scattered"] is not None:
        return
    stretches, size = run.stretches(), run.group.size
    parts = stretch_summaries(run, len(stretches))
    sizes = np.array([buckets.sizes(part, summary.shift) for part in parts])
    starts = np.array(buckets.start[:-1]) + np.cumsum(sizes, 0) - sizes
    before = np.cumsum([0, *(part.num_edges for part in parts)]).tolist()

    def work(rank: int) -> None:
        reporter = run.reporter.of(rank, size)
        reporter.begin("scattering edges")
        for number in range(rank, len(stretches), size):
            journal, count = run.journal_of(number, len(stretches)), parts[number].num_edges
            scatter = _Scatter(run, summary, buckets, records, journal, reporter)
            scatter.write(
                stretches[number], range(before[number], before[number] + count), starts[number], sizes[number]
            )

    run.group.run(work)
    run.journal.write(scattered=True)


@dataclass(frozen=True, slots=True)
class _Scatter:
    """Writes a stretch's records to the buckets."""

    run: ImportRun
    summary: EdgeSummary  # of all edges
    buckets: Buckets
    records: ColumnFiles
    journal: Journal  # of the stretch
    reporter: ProgressReporter

    def write(self, stretch: Stretch | None, edges: range, start: Array, sizes: Array) -> None:
        """Writes the records, after those that the journal lists.

        Args:
            stretch: the stretch.
            edges: numbers of its edges among all.
            start: [num_buckets] the stretch's first record in each bucket.
            sizes: [num_buckets] how many of the stretch's records are in each bucket.
        """
        done, cursors = self.journal["scattered"] or (0, start)
        if done == len(edges) and self.journal["scattered"] is not None:
            return
        position, stop, committed, end = np.array(cursors, np.int64), start + sizes, time.monotonic(), 0
        with BackgroundTask() as writer:
            for piece in self._pieces(stretch, edges.start):
                begin, end = end, end + len(piece.src)
                if end <= done:
                    continue
                if end > len(edges):
                    raise changed_file(piece.place)
                rows, counts = self._by_bucket(piece.without_first(max(done - begin, 0)))
                if np.any(position + counts > stop):
                    raise changed_file(piece.place)
                writer.start(_write_buckets, self.records, rows, counts, position)
                position = position + counts
                self.reporter.update(end, self.summary.num_edges, "edges")
                if time.monotonic() - committed > self.run.room.commit:
                    writer.wait()
                    self._commit(end, position)
                    committed = time.monotonic()
        if not np.array_equal(position, stop):
            raise changed_file(self.run.graph.files[0].name)
        self._commit(len(edges), position)
        EdgeCache(self.journal.folder).remove()

    def _pieces(self, stretch: Stretch | None, before: int) -> Iterator[EdgePiece]:
        """Yields the edges cached by the first pass, or reads them again."""
        if (header := self.journal["kept"]) is None:
            return self.run.pieces(stretch, self.summary.row, before)
        rows = self.run.room.piece(self.summary.row)
        return read_ahead(EdgeCache(self.journal.folder).pieces(header, rows, before))

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

    def _commit(self, done: int, position: Array) -> None:
        self.records.commit()
        self.journal.write(scattered=(done, position.tolist()))
