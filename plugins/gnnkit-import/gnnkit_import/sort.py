"""Third pass over edges: sorts bucket by bucket, and appends to the graph's arrays."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from gnnkit_formats.duplicates import JOIN, KEEP, join

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph.types import offsets_of
from gnnkit.utils.checks import Array
from gnnkit.utils.storage import save_array
from gnnkit_import.count import EdgeSummary
from gnnkit_import.npy_writer import BackgroundTask, ColumnFiles, NpyWriter, append_all
from gnnkit_import.passes import ImportRun, changed_file, read_ahead
from gnnkit_import.progress import Journal, ProgressReporter
from gnnkit_import.scatter import Buckets, columns_of


def append_edges(run: ImportRun, summary: EdgeSummary, num_nodes: int) -> None:
    """Writes edges that are sorted by destination, and stay in their order."""
    graph, folder = run.graph, run.folder
    arrays = {"indices": NpyWriter(folder / "indices.npy", summary.sources), **summary.outputs(folder)}
    indptr, last, done = np.zeros(num_nodes + 1, np.int64), 0, 0
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
    """Sorts the buckets, and writes a saved graph's arrays.

    If edges are dropped, a bucket's position is known only after all earlier buckets
    are sorted, so a single process sorts all buckets.
    """

    run: ImportRun
    summary: EdgeSummary
    buckets: Buckets
    records: ColumnFiles

    def write(self) -> None:
        """Sorts all buckets."""
        group = self.run.group
        alone = "reverse" in self.records.kinds or self.run.graph.duplicates != KEEP
        shares = self.buckets.shares(1 if alone else group.size)

        def work(rank: int) -> int:
            journal = self.run.journal.part(f"sorted {rank} of {group.size}")
            return self._sort(shares[rank], journal, self.run.reporter.of(rank, len(shares)))

        num_edges = group.run_on_leader(lambda: work(0)) if alone else group.run(work)[-1]

        def finish() -> None:
            for writer in self._outputs(len(self.buckets), num_edges, alone=True).values():
                writer.finish()

        group.run_on_leader(finish)

    def _sort(self, share: range, journal: Journal, reporter: ProgressReporter) -> int:
        """Sorts consecutive buckets. Counts the edges up to their end.

        Dropped duplicates and reverse edges do not count.
        """
        buckets, start = self.buckets, self.buckets.start
        done, num_edges = journal["sorted"] or (share.start, start[share.start])
        arrays = self._outputs(done, num_edges, alone=len(share) == len(buckets))
        if not done:
            arrays["indptr"].append(np.zeros(1, np.int64))
        committed, first = time.monotonic(), start[share.start]
        reporter.begin("sorting edges", start[done] - first)
        records = (self.records.read(begin, end - begin) for begin, end in pairwise(start[done : share.stop + 1]))
        with BackgroundTask() as writer:
            for bucket, rows in enumerate(read_ahead(records), done):
                indptr, columns = self._sorted(rows, buckets.first[bucket + 1] - buckets.first[bucket])
                writer.start(append_all, arrays, {"indptr": num_edges + indptr[1:], **columns})
                num_edges += len(columns["indices"])
                reporter.update(start[bucket + 1] - first, start[-1], "edges")
                if time.monotonic() - committed > self.run.room.commit:
                    writer.wait()
                    _commit(arrays, journal, bucket + 1, num_edges)
                    committed = time.monotonic()
        _commit(arrays, journal, share.stop, num_edges)
        for array in arrays.values():
            array.close()
        return num_edges

    def _outputs(self, done: int, num_edges: int, *, alone: bool) -> dict[str, NpyWriter]:
        """Opens the arrays after `done` buckets with `num_edges` edges."""
        folder, first = self.run.folder, self.buckets.first[done] + 1 if done else 0
        return {
            "indptr": NpyWriter(folder / "indptr.npy", np.int64, (), first, alone=alone),
            "indices": NpyWriter(folder / "indices.npy", self.records.kinds["src"], (), num_edges, alone=alone),
            **self.summary.outputs(folder, num_edges, alone=alone),
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


def _commit(arrays: Mapping[str, NpyWriter], journal: Journal, done: int, num_edges: int) -> None:
    for array in arrays.values():
        array.commit()
    journal.write(sorted=(done, num_edges))


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
