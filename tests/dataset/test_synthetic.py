"""Synthetic graphs: their laws, and the same bits on any number of threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gnnkit_formats.synthetic import Synthetic
from hypothesis import given
from hypothesis import strategies as st

from gnnkit.graph import Graph, Ids, Split

KINDS = ("sbm", "rmat", "grid2d", "grid3d")


def make(kind: str, **options: Any) -> Graph:
    return Synthetic(
        kind, **({"num_nodes": 3000, "num_edges": 60_000, "width": 8, "symmetrize": False} | options)
    ).load()


def endpoints(graph: Graph) -> tuple[Ids, Ids]:
    return graph.csc.indices, np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_threads_gives_the_same_bits(kind: str) -> None:
    first, *others = [make(kind, num_nodes=40_000, symmetrize=True, threads=threads) for threads in (1, 2, 3)]
    for graph in others:
        np.testing.assert_array_equal(graph.csc.indptr, first.csc.indptr)
        np.testing.assert_array_equal(graph.csc.indices, first.csc.indices)
        np.testing.assert_array_equal(graph.features, first.features)
        np.testing.assert_array_equal(graph.labels, first.labels)
        np.testing.assert_array_equal(graph.split, first.split)


@pytest.mark.parametrize("kind", ["sbm", "rmat"])
def test_every_seed_is_another_graph_of_exactly_num_edges(kind: str) -> None:
    graphs = [make(kind, seed=seed) for seed in (0, 1, -1)]
    assert [graph.num_edges for graph in graphs] == [60_000] * 3
    assert len({graph.csc.indices.tobytes() for graph in graphs}) == 3
    assert len({graph.features.tobytes() for graph in graphs}) == 3
    assert len({graph.split.tobytes() for graph in graphs}) == 3


@pytest.mark.slow
@given(st.sampled_from(KINDS), st.integers(2, 70), st.integers(0, 100), st.integers(1, 2), st.booleans())
def test_every_size_gives_a_valid_graph(
    kind: str, num_nodes: int, num_edges: int, num_classes: int, symmetrize: bool
) -> None:
    graph = make(kind, num_nodes=num_nodes, num_edges=num_edges, num_classes=num_classes, symmetrize=symmetrize)
    assert graph.num_nodes == num_nodes
    assert graph.num_classes == num_classes
    counts = np.bincount(graph.labels)
    assert counts.max() - counts.min() <= 1


def test_blocks_hold_their_share_of_edges_and_no_self_loops() -> None:
    graph = make("sbm", in_block=0.7, num_classes=6)
    src, dst = endpoints(graph)
    assert abs((graph.labels[src] == graph.labels[dst]).mean() - 0.7) < 0.01
    assert not (src == dst).any()
    across = graph.labels[src] != graph.labels[dst]
    pairs = np.bincount(graph.labels[src][across] * 6 + graph.labels[dst][across], minlength=36).reshape(6, 6)
    reference = 60_000 * 0.3 / 30
    off_diagonal = pairs[~np.eye(6, dtype=bool)]
    assert ((off_diagonal - reference) ** 2 / reference).sum() < 59.7  # chi-square, 30 degrees of freedom, p = 0.001


def test_block_model_degrees_are_poisson() -> None:
    degree = make("sbm").csc.in_degree()
    assert degree.mean() == 20
    assert abs(degree.var() / 20 - 1) < 0.15


def test_rmat_is_skewed_and_its_hubs_stand_anywhere() -> None:
    graph = make("rmat", num_nodes=3000)
    degree = graph.csc.in_degree()
    assert degree.max() > 20 * degree.mean()
    assert (degree == 0).mean() > 0.1
    hubs = np.argsort(degree)[-300:]
    assert abs(hubs.mean() / 3000 - 0.5) < 0.06  # 3.6 standard deviations


@pytest.mark.parametrize(("kind", "num_nodes", "side", "edges"), [("grid2d", 30, 6, 98), ("grid3d", 64, 4, 288)])
def test_grids_join_exactly_the_nodes_at_distance_one(kind: str, num_nodes: int, side: int, edges: int) -> None:
    graph = make(kind, num_nodes=num_nodes)
    assert graph.coordinates is not None
    assert graph.coordinates.max() == side - 1
    distance = np.abs(graph.coordinates[:, None] - graph.coordinates[None]).sum(axis=2)
    reference = np.argwhere(distance == 1)
    src, dst = endpoints(graph)
    np.testing.assert_array_equal(np.stack([dst, src], axis=1), reference)
    assert graph.num_edges == edges
    assert graph.csc.in_degree().max() <= 2 * graph.coordinates.shape[1]


def test_features_scatter_around_the_mean_of_their_class() -> None:
    graph = make("sbm", num_classes=3, noise=2.0, width=16)
    for label in range(3):
        rows = graph.features[graph.labels == label]
        np.testing.assert_allclose(rows.std(axis=0), 2, rtol=0.1)
    assert abs(make("sbm", num_classes=500, noise=0.0, width=100).features.std() - 1) < 0.02


def test_nodes_are_split_10_10_80() -> None:
    split = make("sbm").split
    assert [(split == value).sum() for value in (Split.TRAIN, Split.VAL, Split.TEST)] == [300, 300, 2400]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "ring"}, r"dataset.kind=ring is not known: there are: grid2d, grid3d, rmat, sbm"),
        ({"num_nodes": 0}, r"dataset.num_nodes=0 must be a whole number of at least 2"),
        ({"num_edges": -1}, r"dataset.num_edges=-1 must be a whole number of at least 0"),
        ({"num_classes": 0}, r"dataset.num_classes=0 must be a whole number from 1 to 3000"),
        ({"num_classes": 3001}, r"dataset.num_classes=3001 must be a whole number from 1 to 3000"),
        ({"in_block": 1.5}, r"dataset.in_block=1.5 must be in \[0, 1\]"),
        ({"noise": float("nan")}, r"dataset.noise=nan must be finite"),
        ({"threads": 0}, r"dataset.options.threads=0 must be a whole number from 1 to 1024"),
        ({"num_edges": 2**60}, r"num_edges = 1152921504606846976 needs more memory"),
        ({"num_nodes": 2**50}, r"num_nodes = 1125899906842624 needs more memory"),
        ({"width": 2**50}, r"width = 1125899906842624 needs more memory"),
    ],
)
def test_impossible_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(**({"kind": "sbm"} | options))
