"""All nodes' degrees, computed once for all ranks of a process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from weakref import WeakKeyDictionary, ref

import numpy as np
import numpy.typing as npt

from gnnkit.graph import CSC, Floats, Ids
from gnnkit.partition.loops import looped
from gnnkit.partition.shard import Shard
from gnnkit.utils.storage import Array, load_arrays, reserve, write_meta

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
