"""The parts of a graph as a rank reads these: its own, and what all ranks share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal
from weakref import WeakValueDictionary

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC, Graph, SparseFeatures, read_features
from gnnkit.partition.base import Partition
from gnnkit.partition.degrees import Degrees
from gnnkit.partition.degrees import save as save_degrees
from gnnkit.partition.shard import Shard, cut
from gnnkit.sampler.links import Links
from gnnkit.storage import META, load_arrays
from gnnkit.store.manifest import FILE, PARTS, Manifest

GRAPH = "graph"  # the whole graph
LINKS = "links"  # the edges to predict
ROUNDED = "rounded"  # features of the whole graph, in bfloat16
# A shard, and a graph without features or with features. Both: shards have edges too.
Reads = Literal["shard", "topology", "graph", "both"]
DEGREES = "degrees"  # of all nodes of the whole graph
_MAPPED: WeakValueDictionary[tuple[Path, int, Reads], Graph] = WeakValueDictionary()  # of this process
_mapping = threading.Lock()
WHOLE = "whole"  # the shard of one rank with the whole graph, for job=verify


@dataclass(frozen=True, slots=True)
class Parts:
    """Folders of shards, and of arrays that all ranks read.

    Parts that the run has made itself come first. The others are of a store, where the
    run reads one, and are checked before they are opened.
    """

    own: Path  # folder that the run has made
    store: Path | None = None
    reads: Reads = "shard"  # of a store
    dense: bool = False  # of a store: whether ranks read features with their zeros

    def shard(self, name: int | str) -> Shard:
        """Maps the shard of a rank, or `WHOLE`."""
        folder = self._folder(str(name))
        stored = self.store is not None and folder.parent != self.own
        if stored and self.reads == "graph":  # so shards only say who owns what
            return _bare(Shard.trusted(folder))
        shard = Shard.load(folder)
        if not stored:
            return shard
        if self.of_ranges and len(shard.owned):
            rows = read_features(load_arrays(self._folder(GRAPH))[0])
            return replace(shard, features=rows[shard.owned[0] : shard.owned[-1] + 1])
        return replace(shard, features=np.asarray(shard.features)) if self.dense and _sparse(shard) else shard

    @property
    def of_ranges(self) -> bool:
        """Whether the rows of a store's parts are ranges of those of its graph."""
        return self.store is not None and not _manifest(self.store, _stamp(self.store / FILE)).holds["rows"]

    def graph(self) -> Graph | None:
        """Maps the whole graph, where ranks read one. Ranks of a process share it."""
        owned = (self.own / GRAPH).exists()
        if not owned and (self.store is None or self.reads == "shard"):
            return None
        with _mapping:
            folder = self._folder(GRAPH)
            key = (folder, _stamp(folder / META), self.reads)
            graph = _MAPPED.get(key)
            if graph is None:
                graph = _MAPPED[key] = Graph.trusted(folder, features=owned or self.reads != "topology")
                if (self.own / DEGREES).exists():
                    Degrees.load(graph.csc, self.own / DEGREES)
            return graph

    def save_degrees(self, world_size: int) -> None:
        """Writes the degrees of the whole graph of a store, from those of its parts."""
        save_degrees([Shard.trusted(self._folder(str(rank))) for rank in range(world_size)], self.own / DEGREES)

    def links(self) -> Links | None:
        """Maps the edges to predict, where the task is about edges."""
        stored = self.store is not None and (self.store / PARTS / LINKS).exists()
        return Links.load(self._folder(LINKS)) if stored or (self.own / LINKS).exists() else None

    def rounded(self) -> npt.NDArray[np.uint16] | None:  # [num_nodes, width]
        """Maps all features in bfloat16, where batches read these."""
        path = self.own / ROUNDED
        return load_arrays(path)[0]["features"] if path.exists() else None

    def files(self, name: str) -> list[Path]:
        """Lists the arrays of a part, unchecked. None where there is no such part."""
        stored = self.store is not None and not (self.own / name).exists()
        folder = self.store / PARTS / name if self.store is not None and stored else self.own / name
        return sorted(folder.glob("*.npy"))

    def adopting(self, others: Collection[int]) -> Shard:
        """Makes the shard of rank 0 that also owns the nodes of other ranks.

        For ranks that read the whole graph.
        """
        own_shard, graph = self.shard(0), self.graph()
        assert graph is not None
        node_rank = np.full(graph.num_nodes, max(own_shard.grid.world_size - 1, 0), np.int32)
        for rank in (0, *others):
            node_rank[self.shard(rank).owned] = 0
        return cut(without_edges(graph), Partition(node_rank, None, own_shard.grid), 0)

    def _folder(self, name: str) -> Path:
        if self.store is None or (self.own / name).exists():
            return self.own / name
        _manifest(self.store, _stamp(self.store / FILE)).check_part(self.store, name)
        return self.store / PARTS / name


@functools.lru_cache(maxsize=4)
def _manifest(store: Path, stamp: int) -> Manifest:
    """Reads a manifest once a process. `stamp` tells another one of the same name."""
    del stamp
    return Manifest.load(store)


def _stamp(path: Path) -> int:
    """Returns the time of the last change, 0 for no file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def without_edges(graph: Graph) -> Graph:
    """Returns the same nodes, labels and splits without edges and features."""
    empty = CSC(np.zeros(graph.num_nodes + 1, np.int64), np.zeros(0, np.int32))
    return replace(without_features(graph), csc=empty, edge_features=None, edge_positions=None, edge_types=None)


def without_features(graph: Graph) -> Graph:
    """Returns the graph with features of width 0."""
    return replace(
        graph, features=np.empty((graph.num_nodes, 0), np.float32), feature_names=None, category_of=None, missing=None
    )


def _sparse(shard: Shard) -> bool:
    return isinstance(shard.features, SparseFeatures)


def _bare(shard: Shard) -> Shard:
    """Returns the shard as cut from `without_edges`: owned nodes, labels and splits."""
    num, no_ids = len(shard.owned), np.zeros(0, np.int64)
    return replace(
        shard,
        num_edges=0,
        cell_nodes=shard.owned,
        halo=no_ids,
        halo_cell=np.zeros(0, np.int32),
        partial=no_ids,
        partial_cell=np.zeros(0, np.int32),
        csc=CSC(np.zeros(num + 1, np.int64), np.zeros(0, np.int32), None, num),
        edge_ids=no_ids,
        in_degree=np.zeros(num),
        out_degree=np.zeros(num),
        looped=np.zeros(num, np.bool_),
        features=np.empty((num, 0), np.float32),
        edge_features=None,
        mean_edge_features=None,
        edge_types=None,
        relation_degrees=None,
    )
