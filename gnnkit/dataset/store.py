"""A graph that `job=partition` has cut into parts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gnnkit.dataset.base import Dataset
from gnnkit.dataset.importing.store import StorePieces
from gnnkit.dataset.pieces import GraphPieces
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.ranges import local_path
from gnnkit.store.join import whole
from gnnkit.store.manifest import Manifest


class Store(Dataset):
    """A store of `job=partition`, of which each rank opens its own part.

    Workers, partition, inputs and task are those of the store.
    """

    def __init__(self, root: str) -> None:
        """Keeps the place.

        Args:
            root: the folder that `job=partition` has written.
        """
        self.root = local_path("dataset.root", root)

    @property
    def store_folder(self) -> Path:
        return self.root

    @classmethod
    def brought_keys(cls, root: str) -> Mapping[str, Any]:
        return Manifest.load(local_path("dataset.root", root)).keys

    def in_pieces(self) -> GraphPieces:
        return StorePieces(self)

    def load(self) -> Graph:
        """Puts the graph together from its parts, with the features that models read.

        For jobs that read a whole graph. Raises `UserError` for parts that lack edges.
        """
        if Manifest.load(self.root).holds["links"]:
            raise UserError(
                f"dataset.root={self.root}: the parts lack the edges that are held out, and this job reads all edges: name "
                "the data set itself"
            )
        return whole(self.root)
