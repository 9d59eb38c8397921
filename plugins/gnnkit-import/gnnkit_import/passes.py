"""What the passes over a graph's edges share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gnnkit_formats.pieces import EdgePiece, GraphPieces, Room, Stretch

from gnnkit.errors import UserError
from gnnkit_import.progress import Journal, ProgressReporter
from gnnkit_import.work_group import WorkGroup

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

    def stretches(self) -> Sequence[Stretch | None]:
        """Divides the edges. A single None: one process reads all edges."""
        divides = self.graph.is_divided and self.group.size > 1
        return self.graph.stretches(self.group.size) if divides else [None]

    def journal_of(self, number: int, count: int) -> Journal:
        """Returns stretch `number`'s journal."""
        return self.journal.part(f"stretch {number} of {count}")

    def pieces(self, stretch: Stretch | None, row: int, first: int) -> Iterator[EdgePiece]:
        """Yields a stretch's edges, and reads one piece ahead.

        Args:
            stretch: One of `stretches`.
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
