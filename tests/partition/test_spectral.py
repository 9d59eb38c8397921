"""Graphs are divided over a grid by the eigenvectors of their Laplacian."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from partition_cases import cliques, graphs, make_graph

from gnnkit.graph import Graph
from gnnkit.partition import undirected
from gnnkit.partition.tiles import _leading_eigenvectors, spectral_cells

SHAPES = [(1, 1), (1, 2), (2, 2), (3, 1), (3, 2), (3, 3), (7, 1)]


def cells_of(graph: Graph, shape: tuple[int, int]) -> np.ndarray:
    return spectral_cells(undirected(graph.csc)[0], shape)


@pytest.mark.slow
@given(graphs(), st.sampled_from(SHAPES))
def test_cells_of_any_graph_differ_by_at_most_one_node(graph: Graph, shape: tuple[int, int]) -> None:
    counts = np.bincount(cells_of(graph, shape), minlength=np.prod(shape))
    assert len(counts) == np.prod(shape)
    assert counts.sum() == graph.num_nodes
    assert np.ptp(counts) <= 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("num_nodes", [0, 1, 2, 5, 40])
def test_graphs_without_edges_are_divided_evenly(num_nodes: int, shape: tuple[int, int]) -> None:
    counts = np.bincount(cells_of(make_graph([], [], num_nodes), shape), minlength=np.prod(shape))
    assert (counts.sum(), np.ptp(counts) <= 1) == (num_nodes, True)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("linked", [False, True])
def test_no_cell_divides_a_clique(shape: tuple[int, int], linked: bool) -> None:
    count = int(np.prod(shape))
    ring = [(k, (k + 1) % count) for k in range(count)] if linked and count > 1 else None
    graph = cliques(count, 12, ring)
    pairs = set(zip(graph.labels.tolist(), cells_of(graph, shape).tolist(), strict=True))
    assert len(pairs) == count


def test_isolated_nodes_and_small_components_leave_the_large_one_whole_where_it_fits() -> None:
    """Half of the nodes are isolated or in pairs, and the other half is a clique."""
    clique = cliques(1, 40)
    src = np.r_[clique.csc.indices, np.arange(40, 60, 2)]
    dst = np.r_[np.repeat(np.arange(40), np.diff(clique.csc.indptr)), np.arange(41, 61, 2)]
    cells = cells_of(make_graph(src, dst, 80), (2, 1))
    assert len(np.unique(cells[:40])) == 1


def test_eigenvectors_are_those_of_the_dense_matrix() -> None:
    rng = np.random.default_rng(0)
    csc, _ = undirected(make_graph(rng.integers(0, 60, 150), rng.integers(0, 60, 150), 60).csc)
    adjacency = np.zeros((60, 60))
    adjacency[np.repeat(np.arange(60), np.diff(csc.indptr)), csc.indices] = 1
    degree = adjacency.sum(axis=1)
    scale = 1 / np.sqrt(degree + 0.03 * degree.mean())
    vectors = np.linalg.eigh(scale[:, None] * adjacency * scale)[1][:, ::-1]
    leading = _leading_eigenvectors(csc) / scale[:, None]
    for k in range(3):
        cosine = vectors[:, k] @ leading[:, k] / np.linalg.norm(leading[:, k])
        assert abs(cosine) == pytest.approx(1, abs=1e-4)
