"""Degrees of all nodes of a graph, once for all ranks of a process."""

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
from gnnkit.storage import Array, load_arrays, reserve, write_meta

_KNOWN: WeakKeyDictionary[CSC, Degrees] = WeakKeyDictionary()
_lock = threading.Lock()


class Degrees:
    """Degrees, and which nodes have a loop, in memory or mapped from files.

    Ranks of a process that read one graph share these. Each array is made at first use,
    in a pass over the edges, unless a file has it.
    """

    def __init__(self, csc: CSC, arrays: dict[str, Array] | None = None) -> None:
        """Makes nothing.

        Args:
            csc: The graph.
            arrays: Some of `in_degree`, `out_degree` and `looped`, [num_nodes] each.
        """
        self._csc = ref(csc)  # whoever asks holds the graph
        self._arrays, self._lock = dict(arrays or {}), threading.Lock()

    @classmethod
    def of(cls, csc: CSC) -> Degrees:
        """Returns those of a graph, the same ones in every call."""
        with _lock:
            if csc not in _KNOWN:
                _KNOWN[csc] = cls(csc)
            return _KNOWN[csc]

    @classmethod
    def load(cls, csc: CSC, folder: Path) -> None:
        """Maps those of a graph from the files of `save`."""
        with _lock:
            _KNOWN[csc] = cls(csc, load_arrays(folder)[0])

    def in_degree(self, nodes: Ids) -> Floats:  # [k] -> [k] float64
        """Sums the weights of in-edges. Counts edges without weights."""
        csc = self._graph
        if csc.weight is not None:
            return self._array("in_degree", csc.in_degree)[nodes]
        ids = nodes.astype(np.int64)
        return (csc.indptr[ids + 1] - csc.indptr[ids]).astype(np.float64)

    def out_degree(self, nodes: Ids) -> Floats:  # [k] -> [k] float64
        """Sums the weights of out-edges. Counts edges without weights."""
        return self._array("out_degree", self._graph.out_degree)[nodes]

    def looped(self, nodes: Ids) -> npt.NDArray[np.bool_]:  # [k] -> [k]
        """Says which nodes have a loop."""
        return self._array("looped", lambda: looped(self._graph))[nodes]

    @property
    def made(self) -> list[str]:
        """The names of the arrays that are at hand."""
        return list(self._arrays)

    @property
    def _graph(self) -> CSC:
        csc = self._csc()
        assert csc is not None
        return csc

    def _array(self, name: str, make: Callable[[], Array]) -> Array:
        with self._lock:  # other ranks of the process wait, and make none of their own
            if name not in self._arrays:
                self._arrays[name] = make()
            return self._arrays[name]


def save(shards: list[Shard], folder: Path) -> None:
    """Writes the degrees of a graph from those of its parts, without a look at edges.

    Args:
        shards: All parts of one cut.
        folder: The folder, for `Degrees.load`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = ["out_degree", "looped"] if shards[0].csc.weight is None else ["in_degree", "out_degree", "looped"]
    for name in names:
        kind = getattr(shards[0], name).dtype
        whole = np.lib.format.open_memmap(folder / f"{name}.npy", "w+", kind, (shards[0].num_nodes,))
        reserve(folder / f"{name}.npy")
        for shard in shards:
            whole[shard.cell_nodes] = getattr(shard, name)
        whole.flush()
    write_meta(folder, {})
