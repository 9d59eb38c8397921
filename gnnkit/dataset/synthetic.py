"""Graphs of any size, made from a seed."""

from __future__ import annotations

import math

import numpy as np

from gnnkit import _core
from gnnkit.dataset.base import Dataset, blame, random_split
from gnnkit.graph import CSC, Floats, Graph, Ids

_DIMS = {"grid2d": 2, "grid3d": 3}
_KINDS = ("sbm", "rmat", *_DIMS)


class Synthetic(Dataset):
    """Made in parallel, edge by edge from `seed`: the same bits on any number of threads.

    `sbm`: a stochastic block model, one block per class: `num_edges` edges, each from a uniform node into its own block
    with probability `in_block`, else into another; no self-loops, parallel edges stay. `rmat`: R-MAT (Chakrabarti et
    al., 2004) with Graph500's .57, .19, .19, .05 on the next power of two, ids permuted; pairs beyond `num_nodes` are
    drawn again, self-loops and parallel edges stay; the classes are ranges of its ids before the permutation.
    `grid2d`, `grid3d`: a square or cube, its last rows as far as the nodes go, with 4 or 6 neighbours, coordinates, and
    ranges of ids as classes; `num_edges` follows.

    Features are the mean of the node's class, whose entries have variance 1, plus noise of standard deviation `noise`.
    `symmetrize` adds the reverse edges, which are not counted in `num_edges`. Of the nodes 10 % train, 10 % validate.
    """

    def __init__(
        self,
        kind: str = "sbm",
        num_nodes: int = 10_000,
        num_edges: int = 50_000,
        num_classes: int = 10,
        width: int = 32,
        in_block: float = 0.8,
        noise: float = 5.0,
        symmetrize: bool = True,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        if kind not in _KINDS:
            raise ValueError(f"dataset.kind={kind} is not known: there are {', '.join(_KINDS)}")
        for name, value, low in (("num_nodes", num_nodes, 2), ("num_edges", num_edges, 0), ("width", width, 1)):
            if value < low:
                raise ValueError(f"dataset.{name}={value} must be at least {low}")
        if not 1 <= num_classes <= num_nodes:
            raise ValueError(f"dataset.num_classes={num_classes} must be within 1..{num_nodes} (dataset.num_nodes)")
        if not 0 <= in_block <= 1:
            raise ValueError(f"dataset.in_block={in_block} must be within 0..1")
        if not 0 <= noise < np.inf:
            raise ValueError(f"dataset.noise={noise} must be finite and not negative")
        self.kind = kind
        self.num_nodes = num_nodes
        self.num_edges = num_edges
        self.num_classes = num_classes
        self.width = width
        self.in_block = in_block
        self.noise = noise
        self.symmetrize = symmetrize
        self.seed = seed
        self.threads = threads

    def load(self) -> Graph:
        with blame("dataset=synthetic"):
            csc = self._edges()
            key = None if self.kind in _DIMS else self._key
            labels = _core.generate_labels(self.num_nodes, self.num_classes, key)
            features = _core.generate_features(labels, self.width, self.noise, self._key, self.threads)
        return Graph(
            csc,
            features.reshape(-1, self.width),
            labels,
            random_split(labels, 0.1, 0.1, self.seed),
            coordinates=_coordinates(self.num_nodes, _DIMS[self.kind]) if self.kind in _DIMS else None,
        )

    @property
    def _key(self) -> int:
        return self.seed % 2**64

    def _edges(self) -> CSC:
        n, m, key, threads = self.num_nodes, self.num_edges, self._key, self.threads
        if self.kind in _DIMS:
            return _csc(*_core.generate_lattice(n, _side(n, _DIMS[self.kind]), _DIMS[self.kind], threads))
        if self.kind == "rmat":
            csc = _csc(*_core.generate_rmat(n, m, key, threads))
        else:
            csc = _csc(*_core.generate_block_model(n, m, self.num_classes, self.in_block, key, threads))
        return csc.symmetrize(threads=threads)[0] if self.symmetrize else csc


def _csc(indptr: Ids, indices: Ids, _: Ids) -> CSC:
    return CSC(indptr, indices)


def _side(num_nodes: int, dims: int) -> int:
    """The smallest side whose square or cube holds all nodes."""
    side = math.isqrt(num_nodes) if dims == 2 else round(num_nodes ** (1 / 3))
    return side if side**dims >= num_nodes else side + 1


def _coordinates(num_nodes: int, dims: int) -> Floats:  # [num_nodes, dims] float32
    """Whole numbers; the first runs fastest with the id."""
    side, ids = _side(num_nodes, dims), np.arange(num_nodes)
    return np.stack([ids // side**axis % side for axis in range(dims)], axis=1).astype(np.float32)
