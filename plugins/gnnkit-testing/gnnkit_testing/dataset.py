"""The contract of datasets."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import numpy as np

from gnnkit.dataset.base import Dataset
from gnnkit.graph import Graph, Split
from gnnkit_testing.arguments import check_instance

_IMPORT = "gnnkit_import"  # the package that reads data sets in pieces


def check_dataset(dataset: Dataset) -> Graph:
    """Checks a dataset's graph, and returns it.

    `load` must return a `Graph` with at least one node and floating-point features. If
    nodes have splits, one of them must be a training node. A second call must be
    bitwise equal. So must the pieces of `in_pieces` and their stretches, unless these
    raise `UserError`, if the package gnnkit-import is installed. Raises
    `AssertionError` for the first violation.

    Examples:
        >>> from gnnkit_formats.synthetic import Synthetic
        >>> from gnnkit.testing import check_dataset
        >>> check_dataset(Synthetic(num_nodes=100, num_edges=400)).num_nodes
        100
    """
    check_instance(dataset, Dataset)
    graph = dataset.load()
    assert isinstance(graph, Graph), f"load returned a {type(graph).__name__}, not a Graph"
    assert graph.num_nodes > 0, "the graph has no nodes"
    assert np.issubdtype(graph.features.dtype, np.floating), f"features are {graph.features.dtype}, not floating-point"
    assert not graph.split.any() or (graph.split == Split.TRAIN).any(), "nodes are in use, but none trains"
    check_same(graph, dataset.load(), "the second load gives")
    if find_spec(_IMPORT) is not None:
        import_module(f"{_IMPORT}.testing").check_pieces(dataset, graph)
    return graph


def check_same(graph: Graph, again: Graph, subject: str) -> None:
    """Raises `AssertionError` if the arrays of two graphs differ.

    Args:
        subject: Start of the message.
    """
    assert graph.class_names == again.class_names, f"{subject} other class_names"
    for (name, value), (_, value_again) in zip(_arrays(graph), _arrays(again), strict=True):
        is_same = (
            value is value_again
            if value is None or value_again is None
            else np.array_equal(value, value_again, equal_nan=value.dtype.kind == "f")
        )
        assert is_same, f"{subject} other {name}"


def _arrays(graph: Graph) -> list[tuple[str, np.ndarray | None]]:
    fields = ("features", "labels", "split", "edge_features", "edge_types", "coordinates", "edge_positions", "node_ids")
    return [
        *((n, getattr(graph.csc, n)) for n in ("indptr", "indices", "weight")),
        *((n, getattr(graph, n)) for n in fields),
    ]
