"""Edges that were read once, kept on disk for the next pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gnnkit.dataset.pieces import EdgePiece, list_positions
from gnnkit.rows import File

_COLUMNS = ("src", "dst", "weight", "features", "types")


class ReadEdges:
    """The columns of a stretch of edges, a file for each.

    To find the numbers of ids takes longer than to write and read these.
    """

    def __init__(self, folder: Path) -> None:
        """Keeps the folder of the files."""
        self._folder = folder
        self._files: dict[str, File] = {}
        self._kinds: dict[str, Any] | None = None  # types and widths of the columns
        self._count = 0
        self._place = ""
        self._has_positions = self._failed = False

    def add(self, piece: EdgePiece) -> None:
        """Writes a piece. Gives up where a column has another type than before."""
        rows = {name: values for name in _COLUMNS if (values := getattr(piece, name)) is not None}
        kinds = {name: (str(values.dtype), list(values.shape[1:])) for name, values in rows.items()}
        if self._kinds is None:
            self._kinds, self._place, self._has_positions = kinds, piece.place, piece.positions is not None
            self._files = {name: File(self._path(name)) for name in kinds}
        self._failed |= kinds != self._kinds
        if not self._failed:
            for name, values in rows.items():
                self._files[name].write(values, self._count * _bytes(*kinds[name]))
            self._count += len(piece.src)

    def finish(self) -> dict[str, Any] | None:
        """Brings all to disk. Returns what `pieces` asks for. None: nothing is kept."""
        for file in self._files.values():
            file.commit()
            file.close()
        if self._failed or self._kinds is None:
            return None
        return {"kinds": self._kinds, "count": self._count, "place": self._place, "positions": self._has_positions}

    def pieces(self, known: Mapping[str, Any], rows: int, first: int) -> Iterator[EdgePiece]:
        """Yields the edges again.

        Args:
            known: from `finish`.
            rows: edges of a piece.
            first: edges before these in the whole list.
        """
        files = {name: File(self._path(name)) for name in known["kinds"]}
        for begin in range(0, known["count"], rows):
            count = min(rows, known["count"] - begin)
            found = {
                name: files[name].read((count, *width), np.dtype(kind), begin * _bytes(kind, width))
                for name, (kind, width) in known["kinds"].items()
            }
            positions = list_positions(first + begin, count) if known["positions"] else None
            yield EdgePiece(known["place"], **found, positions=positions)
        for file in files.values():
            file.close()

    def remove(self) -> None:
        """Removes the files."""
        for name in _COLUMNS:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.read"


def _bytes(kind: str, width: list[int]) -> int:
    return np.dtype(kind).itemsize * int(np.prod(width))
