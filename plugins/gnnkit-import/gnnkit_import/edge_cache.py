"""Edges that were read once, on disk for the next pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gnnkit_formats.pieces import EdgePiece, list_positions

from gnnkit.utils.documents import Json
from gnnkit_import.npy_writer import ColumnFiles

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

    def remove(self) -> None:
        """Removes the files."""
        for name in _COLUMNS:
            (self._folder / f"{name}.{_SUFFIX}").unlink(missing_ok=True)
