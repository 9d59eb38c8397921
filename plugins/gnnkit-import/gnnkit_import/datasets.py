"""The data sets that are read in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gnnkit_formats.edges import EdgeFolder
from gnnkit_formats.npz import Npz
from gnnkit_formats.ogb import Ogb
from gnnkit_formats.pieces import GraphPieces

from gnnkit.dataset.base import Dataset
from gnnkit.dataset.saved import Saved
from gnnkit.dataset.store import Store
from gnnkit.errors import UserError
from gnnkit_import.arrays import NpzPieces, SavedPieces
from gnnkit_import.ogb import OgbPieces
from gnnkit_import.store import StorePieces
from gnnkit_import.tables import TablePieces

_READERS: dict[type[Dataset], Callable[[Any], GraphPieces]] = {
    EdgeFolder: TablePieces,
    Npz: NpzPieces,
    Ogb: OgbPieces,
    Saved: SavedPieces,
    Store: StorePieces,
}  # of the data sets in gnnkit; those of other packages have a method `in_pieces`


def in_pieces(dataset: Dataset) -> GraphPieces | None:
    """Returns a reader that yields a data set's graph in pieces.

    None if the data set is not supported. No file is opened yet.
    """
    if getattr(dataset, "edge_label", None) is not None:
        raise UserError(
            "dataset.edge_label: job=import reads no labels of edges: train with the data set itself, or remove the key"
        )
    pieces = dataset.in_pieces()
    if pieces is None:
        return next((reader(dataset) for kind, reader in _READERS.items() if isinstance(dataset, kind)), None)
    assert isinstance(pieces, GraphPieces)
    return pieces
