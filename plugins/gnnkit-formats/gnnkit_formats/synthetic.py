"""Synthetic graphs, generated from a seed."""

from __future__ import annotations

import math

import numpy as np

from gnnkit import _core
from gnnkit.dataset.base import Dataset, blame
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Floats, Graph, Ids, Labels, random_split
from gnnkit.utils.checks import MAX_THREADS, whole
from gnnkit.utils.ranges import one_of

_DIMS = {"grid2d": 2, "grid3d": 3}
_TARGETS = ("class", "classes", "number")
_KINDS = ("sbm", "rmat", *_DIMS)


class Synthetic(Dataset):
    """A random graph, generated in parallel, with equal bits on any thread count.

    `sbm` is a stochastic block model with one block per class. Each edge starts at a
    uniformly drawn node and ends in the same block with probability `in_block`,
    otherwise in another block. It has no self-loops, but may have parallel edges.

    `rmat` is R-MAT (Chakrabarti et al., 2004) with Graph500's probabilities .57, .19,
    .19, .05 on the next power of two, with permuted ids. Pairs beyond `num_nodes` are
    redrawn. Self-loops and parallel edges are kept. Classes are id ranges before the
    permutation.

    `grid2d` and `grid3d` are a square and a cube with 4 and 6 neighbours per node, and
    coordinates. The last row may be incomplete. Classes are id ranges.

    Features are the class mean plus noise. The entries of a mean have variance 1. 10 %
    of the nodes are used for training and 10 % for validation.

    `targets` selects the labels. `class` is the node's class. `classes` is the set of
    its class and all classes that at least a third of its in-neighbours have. `number`
    is the mean class of the node and its in-neighbours, divided by the number of
    classes.

    Args:
        kind: sbm, rmat, grid2d or grid3d.
        num_nodes: At least 2.
        num_edges: Number of generated edges. Ignored by grids.
        num_classes: Number of blocks or id ranges.
        width: Number of features per node.
        in_block: Probability that an edge stays in its block, for sbm.
        noise: Standard deviation of features around the class mean.
        targets: class, classes or number.
        symmetrize: Add the reverse edges. `num_edges` does not count them.
        seed: Any integer. It determines the graph.
        threads: Number of threads. Default: the available cores.
    """

    of_data = (
        "kind", "num_nodes", "num_edges", "num_classes", "width", "in_block", "noise", "targets", "seed", "threads",
    )  # fmt: skip

    def __init__(
        self,
        kind: str = "sbm",
        num_nodes: int = 10_000,
        num_edges: int = 50_000,
        num_classes: int = 10,
        width: int = 32,
        in_block: float = 0.8,
        noise: float = 5.0,
        targets: str = "class",
        symmetrize: bool = True,
        seed: int = 0,
        threads: int | None = None,
    ) -> None:
        if not 0 <= in_block <= 1:
            raise UserError(f"dataset.in_block={in_block} must be in [0, 1]")
        if not 0 <= noise < np.inf:
            raise UserError(f"dataset.noise={noise} must be finite and not negative")
        self.kind = one_of("dataset.kind", kind, _KINDS)
        self.targets = one_of("dataset.targets", targets, _TARGETS)
        self.num_nodes = whole("dataset.num_nodes", num_nodes, 2)
        self.num_edges = whole("dataset.num_edges", num_edges, 0)
        self.num_classes = whole("dataset.num_classes", num_classes, 1, self.num_nodes)
        self.width = whole("dataset.width", width, 1)
        self.in_block = in_block
        self.noise = noise
        self.symmetrize = symmetrize
        self.seed = whole("dataset.seed", seed)
        self.threads = None if threads is None else whole("dataset.options.threads", threads, 1, MAX_THREADS)

    def load(self) -> Graph:
        with blame("dataset=synthetic"):
            csc = self._edges()
            key = None if self.kind in _DIMS else self._key
            labels = _core.generate_labels(self.num_nodes, self.num_classes, key)
            features = _core.generate_features(labels, self.width, self.noise, self._key, self.threads)
        return Graph(
            csc,
            features.reshape(-1, self.width),
            self._targets(csc, labels),
            random_split(labels >= 0, (0.1, 0.1, 0.8), self.seed),
            coordinates=_coordinates(self.num_nodes, _DIMS[self.kind]) if self.kind in _DIMS else None,
        )

    def _targets(self, csc: CSC, classes: Ids) -> Labels:
        """Computes labels from the [num_nodes] classes."""
        if self.targets == "class":
            return classes
        dst, degree = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr)), np.diff(csc.indptr)
        near = classes[csc.indices]
        if self.targets == "number":
            sums = classes + np.bincount(dst, near, csc.num_nodes)
            return np.asarray(sums / (degree + 1) / self.num_classes, np.float32)
        places = np.bincount(dst * self.num_classes + near, minlength=csc.num_nodes * self.num_classes)
        shared = places.reshape(-1, self.num_classes) * 3 >= np.maximum(degree, 1)[:, None]
        return np.asarray(shared | (classes[:, None] == np.arange(self.num_classes)))

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
    """Returns the smallest side of a square or cube that holds all nodes."""
    side = math.isqrt(num_nodes) if dims == 2 else round(num_nodes ** (1 / 3))
    return side if side**dims >= num_nodes else side + 1


def _coordinates(num_nodes: int, dims: int) -> Floats:  # [num_nodes, dims] float32
    """Returns integer coordinates. The first one varies fastest with the id."""
    side, ids = _side(num_nodes, dims), np.arange(num_nodes)
    return np.stack([ids // side**axis % side for axis in range(dims)], axis=1).astype(np.float32)
