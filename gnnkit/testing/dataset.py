"""The promises of data sets."""

from __future__ import annotations

import numpy as np

from gnnkit.dataset.base import Dataset
from gnnkit.graph import Graph, Split


def check_dataset(dataset: Dataset) -> Graph:
    """Checks the graph of a data set, and returns it.

    `load` returns a `Graph` with a node and float features. Where nodes are in use, one
    of them trains. A second call returns the same bits. Raises `AssertionError` for the
    first broken promise.
    """
    graph, again = dataset.load(), dataset.load()
    assert isinstance(graph, Graph), f"load returned a {type(graph).__name__}, not a Graph"
    assert graph.num_nodes > 0, "the graph has no nodes"
    assert np.issubdtype(graph.features.dtype, np.floating), f"features are {graph.features.dtype}, not floating-point"
    assert not graph.split.any() or (graph.split == Split.TRAIN).any(), "nodes are in use, but none trains"
    assert graph.class_names == again.class_names, "the second load gives other class_names"
    for (name, one), (_, other) in zip(_arrays(graph), _arrays(again), strict=True):
        same = (
            one is other
            if one is None or other is None
            else np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        )
        assert same, f"the second load gives other {name}"
    return graph


def _arrays(graph: Graph) -> list[tuple[str, np.ndarray | None]]:
    fields = ("features", "labels", "split", "edge_features", "edge_types", "coordinates", "edge_positions", "node_ids")
    return [
        *((n, getattr(graph.csc, n)) for n in ("indptr", "indices", "weight")),
        *((n, getattr(graph, n)) for n in fields),
    ]
