"""The parts of a graph as a rank reads them: its own part, and shared arrays."""

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

from gnnkit.graph import CSC, EdgeColumns, Graph, SparseFeatures, read_features
from gnnkit.partition.base import Partition
from gnnkit.partition.degrees import Degrees
from gnnkit.partition.degrees import save as save_degrees
from gnnkit.partition.shard import Shard, cut
from gnnkit.partition.store.manifest import FILE, PARTS, Manifest
from gnnkit.sampler.links import load_rows
from gnnkit.sampler.targets import NODES, TaskRows
from gnnkit.utils.storage import META, load_arrays

GRAPH = "graph"  # the complete graph
LATER = "later"  # folder of the parts that evaluate val and test, if edges are later than training
LINKS = "links"  # the edges to predict
ROUNDED = "rounded"  # the complete graph's features in bfloat16
# A shard, a graph with or without features, or both: a shard with edges and a graph.
StoreParts = Literal["shard", "topology", "graph", "both"]
DEGREES = "degrees"  # of all nodes
_MAPPED: WeakValueDictionary[tuple[Path, int, StoreParts], Graph] = WeakValueDictionary()  # in this process
_mapping = threading.Lock()
WHOLE = "whole"  # a single rank's shard of the complete graph, for job=verify


@dataclass(frozen=True, slots=True)
class RankParts:
    """Folders of shards, and of arrays that all ranks read.

    Parts written by the run take precedence. Other parts are read from a store, if the
    run uses one, and checked before they are opened.
    """

    own: Path  # folder written by the run
    store: Path | None = None
    reads: StoreParts = "shard"  # the parts of a store that ranks read
    dense: bool = False  # whether ranks read a store's features as dense arrays

    def shard(self, name: int | str) -> Shard:
        """Maps the shard of a rank, or of `WHOLE`."""
        folder = self._folder(str(name))
        from_store = self.store is not None and folder.parent != self.own
        if from_store and self.reads == "graph":  # shards are then needed only for ownership
            return _bare(Shard.trusted(folder))
        shard = Shard.load(folder)
        if not from_store:
            return shard
        if self.of_ranges and len(shard.owned):
            rows = read_features(load_arrays(self._folder(GRAPH))[0])
            return replace(shard, features=rows[shard.owned[0] : shard.owned[-1] + 1])
        return replace(shard, features=np.asarray(shard.features)) if self.dense and _sparse(shard) else shard

    @property
    def of_ranges(self) -> bool:
        """Whether the parts' rows are contiguous ranges of the graph's rows."""
        return self.store is not None and not _manifest(self.store, _stamp(self.store / FILE)).holds["rows"]

    def graph(self) -> Graph | None:
        """Maps the complete graph, if ranks read it. Ranks of one process share it."""
        is_own = (self.own / GRAPH).exists()
        if not is_own and (self.store is None or self.reads == "shard"):
            return None
        with _mapping:
            folder = self._folder(GRAPH)
            key = (folder, _stamp(folder / META), self.reads)
            graph = _MAPPED.get(key)
            if graph is None:
                graph = _MAPPED[key] = Graph.trusted(folder, features=is_own or self.reads != "topology")
                if (self.own / DEGREES).exists():
                    Degrees.load(graph.csc, self.own / DEGREES)
            return graph

    def save_degrees(self, world_size: int) -> None:
        """Writes the degrees of a store's complete graph, from its parts' degrees."""
        save_degrees([Shard.trusted(self._folder(str(rank))) for rank in range(world_size)], self.own / DEGREES)

    def rows(self) -> TaskRows:
        """Maps the rows to predict, or returns `NODES` if none are stored."""
        from_store = self.store is not None and (self.store / PARTS / LINKS).exists()
        return load_rows(self._folder(LINKS)) if from_store or (self.own / LINKS).exists() else NODES

    def later(self) -> dict[str, RankParts]:
        """Returns the parts that evaluate each split, if they read later edges."""
        return {path.name: RankParts(path) for path in (self.own / LATER).glob("*")}

    def rounded(self) -> npt.NDArray[np.uint16] | None:  # [num_nodes, width]
        """Maps all features in bfloat16, if batches read them."""
        path = self.own / ROUNDED
        return load_arrays(path)[0]["features"] if path.exists() else None

    def files(self, name: str) -> list[Path]:
        """Returns a part's files, unchecked. Empty if there is no such part."""
        from_store = self.store is not None and not (self.own / name).exists()
        folder = self.store / PARTS / name if self.store is not None and from_store else self.own / name
        return sorted(folder.glob("*.npy"))

    def adopting(self, ranks: Collection[int]) -> Shard:
        """Returns rank 0's shard extended by the nodes of other ranks.

        Only for ranks that read the complete graph.
        """
        own_shard, graph = self.shard(0), self.graph()
        assert graph is not None
        node_rank = np.full(graph.num_nodes, max(own_shard.grid.world_size - 1, 0), np.int32)
        for rank in (0, *ranks):
            node_rank[self.shard(rank).owned] = 0
        return cut(without_edges(graph), Partition(node_rank, None, own_shard.grid), 0)

    def _folder(self, name: str) -> Path:
        if self.store is None or (self.own / name).exists():
            return self.own / name
        _manifest(self.store, _stamp(self.store / FILE)).check_part(self.store, name)
        return self.store / PARTS / name


@functools.lru_cache(maxsize=4)
def _manifest(store: Path, stamp: int) -> Manifest:
    """Reads a manifest once per process. `stamp` distinguishes rewritten files."""
    del stamp
    return Manifest.load(store)


def _stamp(path: Path) -> int:
    """Returns the modification time, 0 if there is no file."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def without_edges(graph: Graph) -> Graph:
    """Returns the graph with nodes, labels and splits only."""
    empty = CSC(np.zeros(graph.num_nodes + 1, np.int64), np.zeros(0, np.int32))
    return without_features(graph).with_edges(empty, EdgeColumns())


def without_features(graph: Graph) -> Graph:
    """Returns the graph with features of width 0."""
    return graph.evolve(
        features=np.empty((graph.num_nodes, 0), np.float32), feature_names=None, category_of=None, missing=None
    )


def _sparse(shard: Shard) -> bool:
    return isinstance(shard.features, SparseFeatures)


def _bare(shard: Shard) -> Shard:
    """Returns the shard with owned nodes, labels and splits only."""
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
        mean_edge_features=None,
        relation_degrees=None,
        **EdgeColumns().fields_of(Shard),
    )
