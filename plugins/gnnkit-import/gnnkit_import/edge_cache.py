"""Edges that were read once, on disk for the next pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_formats.pieces import EdgePiece, list_positions

from gnnkit.utils.documents import Json
from gnnkit_import.npy_writer import BinaryFile

_COLUMNS = ("src", "dst", "weight", "features", "types", "time")


class EdgeCache:
    """A stretch's edges, one file per column.

    Writing and reading these is faster than looking up ids a second time.
    """

    def __init__(self, folder: Path) -> None:
        """Opens no file yet. `folder` is where the files are written."""
        self._folder = folder
        self._files: dict[str, BinaryFile] = {}
        self._kinds: dict[str, tuple[str, list[int]]] | None = None  # dtype and width of each column
        self._count = 0
        self._place = ""
        self._has_positions = self._failed = False

    def add(self, piece: EdgePiece) -> None:
        """Writes a piece. Gives up if a column's type differs from earlier pieces."""
        rows = {name: values for name in _COLUMNS if (values := getattr(piece, name)) is not None}
        kinds = {name: (str(values.dtype), list(values.shape[1:])) for name, values in rows.items()}
        if self._kinds is None:
            self._kinds, self._place, self._has_positions = kinds, piece.place, piece.positions is not None
            self._files = {name: BinaryFile(self._path(name)) for name in kinds}
        self._failed |= kinds != self._kinds
        if not self._failed:
            for name, values in rows.items():
                self._files[name].write(values, self._count * _row_bytes(*kinds[name]))
            self._count += len(piece.src)

    def finish(self) -> Json | None:
        """Syncs the files. Returns the header for `pieces`, or None without a cache."""
        for file in self._files.values():
            file.commit()
            file.close()
        if self._failed or self._kinds is None:
            return None
        return {"kinds": self._kinds, "count": self._count, "place": self._place, "positions": self._has_positions}

    def pieces(self, header: Mapping[str, Any], rows: int, first: int) -> Iterator[EdgePiece]:
        """Yields the edges again.

        Args:
            header: from `finish`.
            rows: edges per piece.
            first: number of edges before these in the full list.
        """
        files = {name: BinaryFile(self._path(name)) for name in header["kinds"]}
        for begin in range(0, header["count"], rows):
            count = min(rows, header["count"] - begin)
            columns = {
                name: files[name].read((count, *width), np.dtype(kind), begin * _row_bytes(kind, width))
                for name, (kind, width) in header["kinds"].items()
            }
            positions = list_positions(first + begin, count) if header["positions"] else None
            yield EdgePiece(header["place"], **columns, positions=positions)
        for file in files.values():
            file.close()

    def remove(self) -> None:
        """Removes the files."""
        for name in _COLUMNS:
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.read"


def _row_bytes(kind: str, width: list[int]) -> int:
    return np.dtype(kind).itemsize * int(np.prod(width))
