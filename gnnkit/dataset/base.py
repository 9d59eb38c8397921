"""The source of a graph."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gnnkit.checks import Array, one_line
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph

_LOOKED_AT = 1000  # edges


class Dataset(ABC):
    """A source of one graph. Constructor arguments are the keys of the YAML file.

    `load` may be slow, and runs in one process only. The same process cuts the graph.
    """

    @abstractmethod
    def load(self) -> Graph:
        """Returns the whole graph.

        Raises `UserError` that names file, field and position for bad data, and the
        configuration key for bad arguments.
        """


@contextmanager
def blame(what: str) -> Iterator[None]:
    """Puts a configuration key or file before the message of an error, in one line."""
    try:
        yield
    except ValueError as error:
        raise UserError(one_line(f"{what}: {error}")) from error


def with_split(graph: Graph, shares: Sequence[float] | None, seed: int) -> Graph:
    """Draws a split for a graph that has none, if shares are given.

    Args:
        graph: the graph.
        shares: the key `dataset.split`, or None.
        seed: the key `dataset.seed`.
    """
    if shares is None:
        return graph
    if graph.split.any():
        raise UserError(f"the data has a split, so dataset.split={list(shares)} must go")
    with blame("dataset.split"):
        return graph.draw_split(shares, seed)


def finished(graph: Graph, symmetrize: bool | None, row_normalize: bool) -> Graph:
    """Applies the keys that most data sets share.

    Args:
        graph: the graph.
        symmetrize: whether to add reverse edges. None: no, with a warning where no edge
            has a reverse edge.
        row_normalize: whether to divide each node's features by the sum.
    """
    if symmetrize is None and runs_one_way(graph.csc):
        warnings.warn(
            f"none of {graph.num_edges:,} edges has a reverse edge, so messages flow from src to dst alone: "
            "dataset.symmetrize=true if edges are undirected, dataset.symmetrize=false if not",
            stacklevel=3,
        )
    graph = graph.symmetrize() if symmetrize else graph
    return graph.row_normalize() if row_normalize else graph


def runs_one_way(csc: CSC) -> bool:
    """Says whether no edge has a reverse edge, by a look at a thousand edges."""
    chosen = np.linspace(0, csc.num_edges - 1, min(csc.num_edges, _LOOKED_AT)).astype(np.int64)
    dst, src = np.searchsorted(csc.indptr, chosen, side="right") - 1, csc.indices[chosen]
    ends = [(v, u) for v, u in zip(dst.tolist(), src.tolist(), strict=True) if u != v]
    return bool(ends) and not any((csc.indices[csc.indptr[u] : csc.indptr[u + 1]] == v).any() for v, u in ends)


def sources_by_row(indptr: Array, indices: Array, weight: Array | None, shape: Array | None) -> CSC:
    """Reads a square CSR matrix of SciPy, whose row u lists the nodes that u points to.

    Weights that are all 1 are left out.

    Args:
        indptr: [num_nodes + 1] begin of each row.
        indices: [num_edges] destination of each edge.
        weight: [num_edges] numbers, or None.
        shape: [2] numbers of rows and columns, or None.
    """
    if shape is not None and shape.tolist() != [len(indptr) - 1] * 2:
        raise UserError(f"the matrix has shape {shape.tolist()}, expected one row and one column for each node")
    weight = None if weight is not None and np.all(weight == 1) else weight
    return CSC(indptr, indices, weight).transpose()[0]
