"""A graph partitioned by `job=partition`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gnnkit.dataset.base import Dataset
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.store.join import join_store
from gnnkit.partition.store.manifest import Manifest
from gnnkit.utils.ranges import local_path


class Store(Dataset):
    """A store written by `job=partition` or `job=import`.

    Each rank opens only its own part, so no process reads the complete graph. Workers,
    partition, inputs and task are taken from the store.
    """

    def __init__(self, root: str) -> None:
        """Creates the data set.

        Args:
            root: The folder that `job=partition` wrote.
        """
        self.root = local_path("dataset.root", root)

    @property
    def store_folder(self) -> Path:
        return self.root

    @classmethod
    def brought_keys(cls, root: str) -> Mapping[str, object]:
        return Manifest.load(local_path("dataset.root", root)).keys

    def load(self) -> Graph:
        """Merges the parts into one graph, with the features that models read.

        Used by jobs that need the full graph. Raises `UserError` if the store holds out
        edges.
        """
        if Manifest.load(self.root).holds["links"]:
            raise UserError(
                f"dataset.root={self.root}: the parts omit held-out edges, but this job needs all edges; use the "
                "original data set"
            )
        return join_store(self.root)
