"""The parts of every layout together are the graph."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.graph import Graph, SparseFeatures
from gnnkit.partition import cut_all
from gnnkit.partition.by_id import Contiguous
from gnnkit.partition.grid import make_grid
from gnnkit.partition.store.join import join_shards
from gnnkit.partition.vertex_cut import Hdrf


@pytest.mark.parametrize("spec", ["1d", "2d", "3d", "cut of nodes"])
@pytest.mark.parametrize("sparse", [False, True])
def test_parts_together_are_the_graph(spec: str, sparse: bool) -> None:
    graph = replace(check_graph(), edge_positions=None, coordinates=None)
    rng = np.random.default_rng(0)
    types = rng.integers(0, 2, graph.num_edges).astype(np.int16)
    weight = rng.random(graph.num_edges).astype(np.float32)
    graph = replace(graph, csc=replace(graph.csc, weight=weight), edge_types=types, edge_type_names=("a", "b"))
    graph = replace(graph, features=SparseFeatures.of(graph.features)) if sparse else graph
    grid = make_grid("1d" if spec == "cut of nodes" else spec, 4, None)
    partitioner = Hdrf() if spec == "cut of nodes" else Contiguous()
    actual = join_shards(
        cut_all(graph, partitioner.assign(graph, grid)), graph.class_names, {"edge_types": graph.edge_type_names}
    )
    assert actual.edge_type_names == graph.edge_type_names
    for name, first, second in _arrays(actual, graph):
        assert (first is None) == (second is None), name
        if first is not None:
            assert first.dtype == second.dtype, name
            np.testing.assert_array_equal(first, second, name)


def _arrays(*graphs: Graph) -> list[tuple[str, np.ndarray, np.ndarray]]:
    names = [each.name for each in fields(Graph) if each.name not in ("csc", "features", "class_names")]
    arrays = [(name, *(getattr(graph, name) for graph in graphs)) for name in names if not name.endswith("names")]
    arrays += [(name, *(getattr(graph.csc, name) for graph in graphs)) for name in ("indptr", "indices", "weight")]
    return [*arrays, ("features", *(np.asarray(graph.features) for graph in graphs))]  # type: ignore[list-item]
