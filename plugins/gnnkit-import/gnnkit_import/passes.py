"""What the passes over a graph's edges share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gnnkit_formats.pieces import EdgePiece, GraphPieces, Room, Stretch, list_positions

from gnnkit.errors import UserError
from gnnkit.launch.child import Child
from gnnkit.launch.processes import Group
from gnnkit.launch.progress import progress
from gnnkit.launch.watchdog import Patience
from gnnkit.utils.documents import Json
from gnnkit_import.npy_writer import ColumnFiles, disk_errors
from gnnkit_import.progress import Journal, ProgressReporter


class WorkGroup:
    """Ranks that share the work of each pass, one after the other in this process."""

    def __init__(self, size: int) -> None:
        """Stores the number of ranks."""
        self.size = size

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        """Calls `work(rank)` for each rank, and returns the results in rank order.

        Results are plain data for JSON. Raises the error of the rank that failed, and
        ends the others.
        """
        return [work(rank) for rank in range(self.size)]


ALONE = WorkGroup(1)


class ForkedGroup(WorkGroup):
    """Forks a process per rank for each pass, so they share the data read before."""

    def __init__(self, size: int, patience: Patience, folder: Path) -> None:
        """Stores the arguments. `run` starts the processes.

        Args:
            patience: How long to wait for a sign of progress.
            folder: Folder that they write into, for messages.
        """
        super().__init__(size)
        self._patience, self._folder = patience, folder

    def run(self, work: Callable[[int], Any]) -> list[Any]:
        def checked(rank: int) -> Any:
            with disk_errors(self._folder):
                return work(rank)

        children = [Child(f"importer {rank}", "fork", {}, checked, (rank,)) for rank in range(self.size)]
        results = Group(children, self._patience, meanwhile=lambda: progress("the importers' pass")).run()
        return [results[rank] for rank in range(self.size)]


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ImportRun:
    """The graph, and where and by whom its edges are imported."""

    graph: GraphPieces
    folder: Path  # folder of the graph's arrays
    room: Room  # memory and threads of each process
    journal: Journal
    reporter: ProgressReporter
    group: WorkGroup  # processes that share each pass

    def share(self, phase: str, work: Callable[[int, Stretch | None, ProgressReporter], Any]) -> list[Any]:
        """Divides the edges among the processes, which all do the same with their part.

        A single None stands for all edges, which one process reads. Returns the results
        in the order of edges.

        Args:
            phase: Name of the pass, for messages.
            work: Called with a stretch's number, the stretch and a reporter. Returns
                plain data for JSON.
        """
        size = self.group.size
        stretches = self.graph.stretches(size) if self.graph.is_divided and size > 1 else [None]

        def on_rank(rank: int) -> list[Any]:
            reporter = self.reporter.of(rank, size)
            reporter.begin(phase)
            return [work(number, stretches[number], reporter) for number in range(rank, len(stretches), size)]

        by_rank = self.group.run(on_rank)
        return [by_rank[number % size][number // size] for number in range(len(stretches))]

    @property
    def caches(self) -> Path:
        """The folder of `EdgeCache`s, one for each stretch."""
        return self.journal.folder / "caches"

    def pieces(self, stretch: Stretch | None, row: int, first: int) -> Iterator[EdgePiece]:
        """Yields a stretch's edges, and reads one piece ahead.

        Args:
            stretch: Its part of the edges, or None for all.
            row: Bytes per edge in further columns, which determine the piece size.
            first: Number of edges before the stretch.
        """
        rows = self.room.piece(row)
        return read_ahead(self.graph.edges(rows) if stretch is None else self.graph.edges_of(stretch, rows, first))


def read_ahead(items: Iterator[T]) -> Iterator[T]:
    """Reads the next item in a thread while the caller processes one."""
    with ThreadPoolExecutor(1, "ahead") as reader:
        pending = reader.submit(next, items, None)
        while (item := pending.result()) is not None:
            pending = reader.submit(next, items, None)
            yield item


def changed_file(name: str) -> UserError:
    """Returns the error for edges that have changed since the first pass."""
    return UserError(f"{name} changed during the import: its edges differ from those read first")


_COLUMNS = ("src", "dst", "weight", "features", "types", "time")
_SUFFIX = "read"  # of the files' names


class EdgeCache:
    """A stretch's edges, one file per column.

    Writing and reading these is faster than looking up ids a second time.
    """

    def __init__(self, folder: Path) -> None:
        """Opens no file yet. `folder` is where the files are written."""
        self._folder = folder
        self._files: ColumnFiles | None = None
        self._count = 0
        self._place = ""
        self._has_positions = self._failed = False

    def add(self, piece: EdgePiece) -> None:
        """Writes a piece. Gives up if a column's type differs from earlier pieces."""
        rows = {name: values for name in _COLUMNS if (values := getattr(piece, name)) is not None}
        kinds = {name: np.dtype((values.dtype, values.shape[1:])) for name, values in rows.items()}
        if self._files is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._files, self._place = ColumnFiles(self._folder, _SUFFIX, kinds), piece.place
            self._has_positions = piece.positions is not None
        self._failed |= kinds != self._files.kinds
        if not self._failed:
            self._files.write(rows, self._count)
            self._count += len(piece.src)

    def finish(self) -> Json | None:
        """Syncs the files. Returns the header for `pieces`, or None without a cache."""
        if self._files is None:
            return None
        with self._files as files:
            files.commit()
        kinds = {name: (str(kind.base), kind.shape) for name, kind in files.kinds.items()}
        facts = {"kinds": kinds, "count": self._count, "place": self._place, "positions": self._has_positions}
        return None if self._failed else facts

    def pieces(self, header: Mapping[str, Any], rows: int, first: int) -> Iterator[EdgePiece]:
        """Yields the edges again.

        Args:
            header: from `finish`.
            rows: edges per piece.
            first: number of edges before these in the full list.
        """
        kinds = {name: np.dtype((kind, tuple(shape))) for name, (kind, shape) in header["kinds"].items()}
        with ColumnFiles(self._folder, _SUFFIX, kinds) as files:
            for begin in range(0, header["count"], rows):
                count = min(rows, header["count"] - begin)
                positions = list_positions(first + begin, count) if header["positions"] else None
                yield EdgePiece(header["place"], **files.read(begin, count), positions=positions)
