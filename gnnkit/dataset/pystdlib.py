"""The default data set: a code graph of Python's standard library."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gnnkit.dataset.base import Dataset, finished
from gnnkit.graph import CSC, Graph, SparseFeatures, random_split
from gnnkit.utils.checks import Array, whole

_FILE = Path(__file__).with_suffix(".npz")


class PyStdlib(Dataset):
    """A code graph of Python's standard library, real data on every machine.

    Nodes are functions and classes of CPython 3.11. Edges point to callees, bases and
    members. The task is to predict a node's top-level module.

    Features are counts of frequent words in names, arguments and docstrings. Each row
    is scaled to length 1. Nodes of small modules are unlabelled. Of the others, 10 %
    are used for training, 10 % for validation and 80 % for test.

    The graph is part of the package. `benchmarks/code_graph.py` makes the same of other
    Python sources, for `dataset=npz`.
    """

    def __init__(self, symmetrize: bool = True, seed: int = 0) -> None:
        """Creates the data set.

        Args:
            symmetrize: Add missing reverse edges. Default: yes.
            seed: Seed of the split, any integer.
        """
        self.symmetrize = symmetrize
        self.seed = whole("dataset.seed", seed)

    def load(self) -> Graph:
        with np.load(_FILE) as fields:
            csc = CSC(fields["indptr"], fields["indices"])
            labels, names = fields["y"], fields["class_names"].tobytes().decode().split("\n")
            features = _scaled_rows(fields)
        split = random_split(labels >= 0, (0.1, 0.1, 0.8), self.seed)
        return finished(Graph(csc, features, labels, split, class_names=tuple(names)), self.symmetrize, False)


def _scaled_rows(fields: Mapping[str, Array]) -> SparseFeatures:  # [num_nodes, num_words] float32
    """Reads word counts, and scales each row to length 1."""
    indptr, counts = fields["x_indptr"], fields["x_data"].astype(np.float64)
    squares = np.concatenate([[0.0], np.cumsum(counts * counts)])[indptr]
    lengths = np.sqrt(np.maximum(np.diff(squares), 1))
    values = (counts / np.repeat(lengths, np.diff(indptr))).astype(np.float32)
    return SparseFeatures(CSC(indptr, fields["x_indices"], values, int(fields["x_shape"][1])))
