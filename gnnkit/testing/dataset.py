"""The contract of datasets."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from gnnkit.dataset.base import Dataset
from gnnkit.dataset.importing.graph import import_graph
from gnnkit.dataset.importing.progress import Journal, ProgressReporter
from gnnkit.dataset.pieces import GraphPieces, Room
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.testing.arguments import check_instance
from gnnkit.utils.work_group import ALONE, SequentialGroup, WorkGroup


def check_dataset(dataset: Dataset) -> Graph:
    """Checks a dataset's graph, and returns it.

    `load` must return a `Graph` with at least one node and floating-point features. If
    nodes have splits, one of them must be a training node. A second call must be
    bitwise equal, and so must the pieces of `in_pieces` and their stretches, unless
    these raise `UserError`. Raises `AssertionError` for the first violation.
    """
    check_instance(dataset, Dataset)
    graph = dataset.load()
    assert isinstance(graph, Graph), f"load returned a {type(graph).__name__}, not a Graph"
    assert graph.num_nodes > 0, "the graph has no nodes"
    assert np.issubdtype(graph.features.dtype, np.floating), f"features are {graph.features.dtype}, not floating-point"
    assert not graph.split.any() or (graph.split == Split.TRAIN).any(), "nodes are in use, but none trains"
    _check_same(graph, dataset.load(), "the second load gives")
    if (pieces := dataset.in_pieces()) is not None:
        with suppress(UserError):
            _check_pieces(graph, pieces, ALONE, "the pieces give")
            if pieces.is_divided:
                _check_pieces(graph, pieces, SequentialGroup(3), "the stretches give")
    return graph


def _check_pieces(graph: Graph, pieces: GraphPieces, group: WorkGroup, who: str) -> None:
    with TemporaryDirectory() as folder:
        room, journal = Room(1 << 28, 1, bucket=16), Journal(Path(folder), "")
        reporter = ProgressReporter(quiet=True)
        imported = import_graph(pieces, Path(folder), room, journal, reporter, group=group)
        _check_same(graph, Graph.load(imported), who)


def _check_same(graph: Graph, again: Graph, who: str) -> None:
    assert graph.class_names == again.class_names, f"{who} other class_names"
    for (name, one), (_, other) in zip(_arrays(graph), _arrays(again), strict=True):
        same = (
            one is other
            if one is None or other is None
            else np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
        )
        assert same, f"{who} other {name}"


def _arrays(graph: Graph) -> list[tuple[str, np.ndarray | None]]:
    fields = ("features", "labels", "split", "edge_features", "edge_types", "coordinates", "edge_positions", "node_ids")
    return [
        *((n, getattr(graph.csc, n)) for n in ("indptr", "indices", "weight")),
        *((n, getattr(graph, n)) for n in fields),
    ]
