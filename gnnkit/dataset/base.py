"""The data set interface, and shared functions."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Schema, TimeSplit
from gnnkit.graph.types import Ids
from gnnkit.utils.checks import Array, one_line
from gnnkit.utils.ranges import shown, shown_names

ONE_WAY = 0.1  # warn if the share of edges with a reverse edge is smaller
_LOOKED_AT = 1000  # edges that `both_ways` samples


@dataclass(frozen=True, slots=True)
class Advice:
    """What a data set contributes to the configuration that `job=init` writes."""

    keys: Mapping[str, tuple[Any, str]] = field(default_factory=dict)  # value and reason by configuration key
    files: Mapping[str, str | bytes] = field(
        default_factory=dict
    )  # content by file name; a key with this value names its path
    graph: Graph | None = None  # what `load` returns, if the advice needed it
    missing: str = ""  # properties that a configuration needs and the data lack. If set, only `files` are written


class Dataset(ABC):
    """A graph's source. The constructor's arguments are keys of `dataset`.

    `load` may be slow. It runs in one process, which also partitions the graph.

    Keys outside `of_data`, such as `symmetrize`, control how data is read. A trained
    model needs new data read in the same way, so `job=predict` and `job=test` take
    these keys from the run.

    Examples:
        >>> import numpy
        >>> from gnnkit.dataset.base import Dataset
        >>> from gnnkit.graph import Graph
        >>> from gnnkit.utils.ranges import whole
        >>> class Ring(Dataset):
        ...     '''A ring of `num_nodes` nodes.'''
        ...     def __init__(self, num_nodes=10):
        ...         self.num_nodes = whole("dataset.num_nodes", num_nodes, 1)
        ...     def load(self):
        ...         src = numpy.arange(self.num_nodes)
        ...         return Graph.from_edges(src, (src + 1) % self.num_nodes)
        >>> Ring(num_nodes=5).load().num_edges
        5
    """

    of_data: ClassVar[tuple[str, ...]] = ("root", "split", "seed", "num_nodes")  # keys that locate and split the data
    of_task: ClassVar[tuple[str, ...]] = ()  # keys read from the section `task`, of `plugins.TASK_KEYS`
    of_training: ClassVar[tuple[str, ...]] = ("split",)  # keys that `job=predict` resets for new data

    @property
    def store_folder(self) -> Path | None:
        """The folder of a partitioned graph, or None if runs call `load`.

        Runs open such a folder directly. Each rank maps its own files, so no process
        needs memory for the graph.
        """
        return None

    @classmethod
    def brought_keys(cls, root: str) -> Mapping[str, object]:
        """Returns configuration sections that come with the data.

        The user's values take precedence. Called if the key `root` is set. Default:
        none.
        """
        return {}

    def in_pieces(self) -> object | None:
        """Returns a reader for `job=import`, a `gnnkit_formats.pieces.GraphPieces`.

        It yields the same edges, rows and labels as `load`. No file is opened yet.
        Default: None, so `job=import` supports gnnkit's own data sets only.
        """
        return None

    def advise(self, minutes: float, seed: int) -> Advice:
        """Returns keys and files for `job=init`, which replace its choices.

        Keys that the user has set take precedence. If the model is among the keys,
        `job=init` runs no trials. Default: none.

        Args:
            minutes: Time budget of trial runs. 0: no trials.
            seed: The configured seed, for trial runs.
        """
        return Advice()

    def predicted_nodes(self, schema: Schema, ids: Array) -> slice | Ids:
        """Returns the nodes that tables of predictions list. Default: all.

        Args:
            schema: The graph's node types.
            ids: [num_nodes] names of the nodes.
        """
        return slice(None)

    @abstractmethod
    def load(self) -> Graph:
        """Loads the graph.

        Raises `UserError` with file, field and position for invalid data, and with the
        configuration key for invalid arguments.
        """


@contextmanager
def blame(source: str) -> Iterator[None]:
    """Prefixes error messages with a key or file name, and joins them into one line."""
    try:
        yield
    except ValueError as error:
        raise UserError(one_line(f"{source}: {error}")) from error


def with_split(graph: Graph, split: Sequence[float] | TimeSplit | None, seed: int) -> Graph:
    """Splits the nodes, or by time also edges, if `dataset.split` is set.

    A split of nodes only is kept, and labelled edges are then split. Raises `UserError`
    if the graph has another split.

    Args:
        split: Value of `dataset.split`, or None.
        seed: Value of `dataset.seed`.
    """
    if split is None:
        return graph
    of_edges = graph.edge_split is not None
    if graph.is_split and graph.has_undivided_edges:
        bare = graph.evolve(split=np.zeros_like(graph.split), labels=np.full(graph.num_nodes, -1), class_names=None)
        with_edges = with_split(bare, split, seed)
        return graph.evolve(edge_split=with_edges.edge_split, time_borders=with_edges.time_borders)
    if graph.is_split:
        text = "by time" if isinstance(split, TimeSplit) else list(split)
        raise UserError(f"dataset.split={text}: the data already has a split; remove the key")
    if isinstance(split, TimeSplit):
        return graph.split_by_time(split.shares, split.borders, name=split.name)
    with blame("dataset.split"):
        graph = graph.draw_edge_split(split, seed) if of_edges else graph
        return graph if of_edges and not graph.labelled.any() else graph.draw_split(split, seed)


def finished(graph: Graph, symmetrize: bool | None, row_normalize: bool) -> Graph:
    """Applies the keys that most data sets share.

    Args:
        symmetrize: Add missing reverse edges. If None, no, but warn if few edges have
            one.
        row_normalize: Divide each node's features by their sum.
    """
    if symmetrize is None:
        warn_of_one_way(graph.csc)
    graph = graph.symmetrize() if symmetrize else graph
    return graph.row_normalize() if row_normalize else graph


def name_list(key: str, value: object) -> tuple[str, ...]:
    """Reads column names."""
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise UserError(f"{key}={shown(value)} must be a list of column names")
    return tuple(names)


class UnlabelledEdges(UserError, UserWarning):
    """Warns that data lack the labels of edges. Jobs that need these raise it."""


def warn_unlabelled(source: str, name: str, names: Sequence[str]) -> None:
    """Warns that data lack the labels of edges, as new data may."""
    text = f"{source} has no {name!r} (dataset.edge_label), only {shown_names(names)}, so no edge has a label"
    warnings.warn(UnlabelledEdges(text), stacklevel=5)


def warn_of_one_way(csc: CSC) -> None:
    """Warns if few edges have a reverse edge."""
    if (share := both_ways(csc)) < ONE_WAY:
        warnings.warn(
            f"{describe_share(share, csc.num_edges)}, so messages flow from src to dst only; use "
            "dataset.symmetrize=true if edges are undirected, dataset.symmetrize=false otherwise",
            stacklevel=4,
        )


def both_ways(csc: CSC) -> float:
    """Estimates from 1,000 edges how many have a reverse edge.

    Self-loops are ignored. Without other edges the share is 1.
    """
    positions = np.linspace(0, csc.num_edges - 1, min(csc.num_edges, _LOOKED_AT)).astype(np.int64)
    dst, src = np.searchsorted(csc.indptr, positions, side="right") - 1, csc.indices[positions]
    ends = [(v, u) for v, u in zip(dst.tolist(), src.tolist(), strict=True) if u != v]
    num_reversed = sum((csc.indices[csc.indptr[u] : csc.indptr[u + 1]] == v).any() for v, u in ends)
    return float(num_reversed / len(ends)) if ends else 1.0


def describe_share(share: float, num_edges: int) -> str:
    """Describes a share from `both_ways` for a warning."""
    text = f"{100 * share:.2g} % of {num_edges:,} edges have"
    return f"{text if share else f'none of {num_edges:,} edges has'} a reverse edge"


def sources_by_row(indptr: Array, indices: Array, weight: Array | None, shape: Array | None) -> CSC:
    """Reads a square SciPy CSR matrix, where row u lists the targets of u's edges.

    If all weights are 1, they are dropped.

    Args:
        indptr: [num_nodes + 1] row pointers.
        indices: [num_edges] destinations.
        weight: [num_edges] weights, or None.
        shape: [2] numbers of rows and columns, or None.
    """
    if shape is not None and shape.tolist() != [len(indptr) - 1] * 2:
        raise UserError(f"the matrix has shape {shape.tolist()}, expected one row and one column for each node")
    weight = None if weight is not None and np.all(weight == 1) else weight
    return CSC(indptr, indices, weight).transpose()[0]
