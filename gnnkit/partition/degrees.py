"""Degrees of nodes: of the graph, within relations, and with self-loops added."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC, Floats, Ids
from gnnkit.graph.csc import sort_edges
from gnnkit.graph.types import offsets_of
from gnnkit.utils.storage import Array, load_arrays, reserve, write_meta

if TYPE_CHECKING:
    from gnnkit.partition.shard import Shard

_EDGES_AT_A_TIME = 1 << 22


def looped(csc: CSC) -> npt.NDArray[np.bool_]:  # [num_nodes]
    """Returns whether each node has a loop.

    Reads a few million edges at a time, because the edges may be in a file that exceeds
    memory.
    """
    result = np.zeros(csc.num_nodes, bool)
    for first, last in stretches(csc.indptr):
        degree = np.diff(csc.indptr[first : last + 1])
        destinations = np.repeat(np.arange(first, last, dtype=csc.indices.dtype), degree)
        sources = csc.indices[csc.indptr[first] : csc.indptr[last]]
        result[sources[sources == destinations]] = True
    return result


def stretches(indptr: Ids, edges: int = _EDGES_AT_A_TIME) -> Iterator[tuple[int, int]]:
    """Yields consecutive node ranges with about `edges` in-edges each.

    A node's in-edges are never split, so a range may have more.

    Args:
        indptr: [num_nodes + 1] offsets of each node's in-edges.
        edges: Approximate number of edges per range. Default: 4 million.
    """
    num_nodes, pieces = len(indptr) - 1, np.arange(0, int(indptr[-1]), edges)
    bounds = np.unique([0, *np.searchsorted(indptr, pieces), num_nodes])
    yield from pairwise(bounds.tolist())


def mean_in_edges(indptr: Ids, edge_features: Floats | None) -> Floats | None:  # [num_nodes, edge_width]
    """Returns each node's mean in-edge features, or zeros without in-edges.

    An added loop gets these features.

    Args:
        indptr: [num_nodes + 1] offsets of each node's in-edges.
        edge_features: [num_edges, edge_width], or None.
    """
    if edge_features is None:
        return None
    degree = np.diff(indptr)
    mean = np.zeros((len(degree), edge_features.shape[1]), edge_features.dtype)
    read = degree > 0  # reduceat does not support empty ranges
    if read.any():
        mean[read] = np.add.reduceat(edge_features, indptr[:-1][read], axis=0) / degree[read, None]
    return mean


@dataclass(frozen=True, slots=True, eq=False)
class AddedLoops:
    """Loops appended to some rows of a CSC."""

    rows: Ids  # [num_added] rows with an added loop
    indptr: Ids  # [num_rows + 1] offsets, including the loops
    last: Ids  # [num_added] positions of the loops among all edges
    exists: npt.NDArray[np.bool_]  # [num_edges] whether the edge existed before

    @classmethod
    def to(cls, rows: Ids, degree: Ids) -> AddedLoops:
        """Adds a loop to each of some rows.

        Args:
            rows: [num_added] rows without a loop.
            degree: [num_rows] number of edges per row, without the loops.
        """
        degree = degree.copy()
        degree[rows] += 1
        indptr = offsets_of(degree)
        last = indptr[rows + 1] - 1
        exists = np.ones(indptr[-1], bool)
        exists[last] = False
        return cls(rows, indptr, last, exists)

    def insert(self, old: npt.NDArray[Any], new: npt.NDArray[Any] | float) -> npt.NDArray[Any]:  # [num_edges, ...]
        """Merges the values of edges and loops.

        Args:
            old: [num_old_edges, ...] values of the existing edges, which set the
                result's dtype.
            new: [num_added, ...] values of the loops, or one value for all.
        """
        values = np.empty((len(self.exists), *old.shape[1:]), old.dtype)
        values[self.exists] = old
        values[self.last] = new
        return values


_KNOWN: WeakKeyDictionary[CSC, Degrees] = WeakKeyDictionary()
_lock = threading.Lock()


class Degrees:
    """Degrees and self-loop flags, in memory or mapped from files.

    Shared by the ranks of a process that read one graph. Unless a file provides it,
    each array is computed at first use, in one pass over the edges.
    """

    def __init__(self, csc: CSC, arrays: dict[str, Array] | None = None) -> None:
        """Stores the arguments.

        Args:
            arrays: Known arrays among `in_degree`, `out_degree` and `looped`,
                [num_nodes] each.
        """
        self._csc = ref(csc)  # callers hold the graph
        self._arrays, self._lock = dict(arrays or {}), threading.Lock()

    @classmethod
    def of(cls, csc: CSC) -> Degrees:
        """Returns a graph's degrees, the same object in every call."""
        with _lock:
            if csc not in _KNOWN:
                _KNOWN[csc] = cls(csc)
            return _KNOWN[csc]

    @classmethod
    def set(cls, csc: CSC, arrays: dict[str, Array]) -> None:
        """Makes `of` return known arrays, such as degrees in a larger graph."""
        with _lock:
            _KNOWN[csc] = cls(csc, arrays)

    @classmethod
    def load(cls, csc: CSC, folder: Path) -> None:
        """Maps a graph's degrees from the files written by `save`."""
        cls.set(csc, load_arrays(folder)[0])

    def in_degree(self, nodes: Ids) -> Floats:  # [k] -> [k] float64
        """Sums the weights of in-edges, or counts unweighted ones."""
        csc = self._graph
        if csc.weight is not None or "in_degree" in self._arrays:
            return self._array("in_degree", csc.in_degree)[nodes]
        ids = nodes.astype(np.int64)
        return (csc.indptr[ids + 1] - csc.indptr[ids]).astype(np.float64)

    def out_degree(self, nodes: Ids) -> Floats:  # [k] -> [k] float64
        """Sums the weights of out-edges, or counts unweighted ones."""
        return self._array("out_degree", self._graph.out_degree)[nodes]

    def looped(self, nodes: Ids) -> npt.NDArray[np.bool_]:  # [k] -> [k]
        """Returns which nodes have a self-loop."""
        return self._array("looped", lambda: looped(self._graph))[nodes]

    @property
    def _graph(self) -> CSC:
        csc = self._csc()
        assert csc is not None
        return csc

    def _array(self, name: str, make: Callable[[], Array]) -> Array:
        with self._lock:  # the process's other ranks wait instead of computing them too
            if name not in self._arrays:
                self._arrays[name] = make()
            return self._arrays[name]


def save(shards: list[Shard], folder: Path) -> None:
    """Writes a graph's degrees, read from its shards.

    Args:
        shards: All shards of one cut.
        folder: The folder, for `Degrees.load`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ["out_degree", "looped"] if shards[0].csc.weight is None else ["in_degree", "out_degree", "looped"]
    for name in names:
        kind = getattr(shards[0], name).dtype
        array = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, (shards[0].num_nodes,))
        reserve(folder / f"{name}.npy")
        for shard in shards:
            array[shard.cell_nodes] = getattr(shard, name)
        array.flush()
    write_meta(folder, {})


def relation_degrees(csc: CSC, destinations: Ids, types: Ids) -> Floats:  # [num_edges, 2] float64
    """Sums, for each edge, the weights of its relation's edges at its two ends.

    Column 0 covers the destination's in-edges, column 1 the source's out-edges.
    Unweighted edges count 1.

    Args:
        csc: All edges of a graph.
        destinations: [num_edges] each edge's destination.
        types: [num_edges] each edge's relation.
    """
    ends = (destinations, csc.indices)
    return np.stack([shared_weights(nodes, types, csc.num_nodes, csc.weight) for nodes in ends], axis=1)


def shared_weights(nodes: Ids, types: Ids, num_nodes: int, weight: Floats | None) -> Floats:  # [num_edges] float64
    """Sums, for each edge, the weights of all edges with its node and type.

    Args:
        nodes: [num_edges] one end of each edge.
        types: [num_edges] each edge's relation.
        weight: [num_edges] weights. If None, 1.
    """
    order, first = by_pair(nodes, types, num_nodes)
    pair = np.empty(len(nodes), np.int64)
    pair[order] = np.cumsum(first) - 1
    return np.bincount(pair, weight)[pair].astype(np.float64, copy=False)


def by_pair(nodes: Ids, types: Ids, num_nodes: int) -> tuple[Ids, np.ndarray]:
    """Sorts edges by (type, node).

    Also returns which sorted edges are the first of their pair [num_edges].

    Args:
        nodes: [num_edges] one end of each edge.
        types: [num_edges] each edge's relation.
    """
    num_relations = int(types.max(initial=-1)) + 1
    by_type = np.ascontiguousarray(types, np.int32)
    pairs, order = sort_edges(nodes, by_type, num_relations, num_nodes, True, None)
    first = np.ones(len(nodes), bool)
    first[1:] = pairs.indices[1:] != pairs.indices[:-1]
    first[pairs.indptr[:-1][np.diff(pairs.indptr) > 0]] = True
    return order, first
