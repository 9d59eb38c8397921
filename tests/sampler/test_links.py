"""Pairs of nodes: drawn uniformly, the same on any threads, left out of blocks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gnnkit_testing.graphs import check_graph

from gnnkit.errors import UserError
from gnnkit.graph import Block, Ids
from gnnkit.sampler import NeighborSampler
from gnnkit.sampler.links import (
    HeldOutEdges,
    Links,
    NegativeRule,
    codes,
    draw_for_pairs,
    links_of,
    load_rows,
    pair_codes,
    pairs_of,
    supervised_pairs,
    without_pairs,
)

GRAPH = check_graph(48)
NONE = np.zeros((0, 2), np.int64)
TRAIN = [(0, 1), (1, 2), (2, 0), (2, 1)]


def make_links(known: Ids | None, num_nodes: int = 48) -> Links:
    return Links(
        num_nodes, HeldOutEdges(NONE), HeldOutEdges(NONE), NegativeRule(known, 2), NegativeRule(known, 2), 0.3, 0
    )


def test_both_ends_are_replaced_equally_often_and_uniformly_over_pairs_without_an_edge() -> None:
    pairs, draws = pairs_of(GRAPH.csc), 100_000
    known = np.unique(codes(pairs, 48))
    edge = pairs[np.flatnonzero(pairs[:, 0] != pairs[:, 1])[5]]
    found = make_links(known).negative_pairs(edge[None].repeat(draws, 0), np.arange(draws), 1, key=3)[:, 0]
    counts = np.bincount(codes(found, 48), minlength=48 * 48)
    nodes, square = np.arange(48), 0.0
    for end in (0, 1):
        able = edge[None].repeat(48, 0)
        able[:, end] = nodes
        able = able[(able[:, 0] != able[:, 1]) & ~np.isin(codes(able, 48), known)]
        expected = draws / 2 / len(able)
        square += ((counts[codes(able, 48)] - expected) ** 2 / expected).sum()
        counts[codes(able, 48)] = 0
    assert not counts.any()  # nothing else was drawn
    assert square < 140  # p < 0.001 at 90 degrees of freedom


@pytest.mark.parametrize("among", [None, np.arange(0, 48, 2, dtype=np.int32)], ids=["all nodes", "some nodes"])
def test_threads_change_no_pair(among: Ids | None) -> None:
    pairs = pairs_of(GRAPH.csc).repeat(100, 0)
    links = make_links(np.unique(codes(pairs, 48)))
    alone, many = (supervised_pairs(links, pairs, np.arange(len(pairs)), 7, among, threads) for threads in (1, 3))
    np.testing.assert_array_equal(alone[0], many[0])
    np.testing.assert_array_equal(alone[1], many[1])
    drawn = alone[0][len(pairs) :].reshape(-1, 2, 2) != pairs[:, None]
    if among is not None:
        assert np.isin(alone[0][len(pairs) :].reshape(-1, 2, 2)[drawn], among).all()
    np.testing.assert_array_equal(draw_for_pairs(pairs, 48, 9), draw_for_pairs(pairs[:, ::-1], 48, 9, threads=3))


def test_a_pair_is_drawn_whatever_the_width_of_ids() -> None:
    pairs, links = pairs_of(GRAPH.csc), make_links(None)
    wide = links.negative_pairs(pairs, np.arange(len(pairs)), 3, 5)
    narrow = links.negative_pairs(pairs.astype(np.int32), np.arange(len(pairs), dtype=np.int32), 3, 5)
    np.testing.assert_array_equal(wide, narrow)
    assert links.negative_pairs(pairs[:0], np.zeros(0), 3, 5).shape == (0, 3, 2)


def test_pairs_outside_of_the_graph_are_refused() -> None:
    pairs, ids = np.array([[0, 48]]), np.arange(1)
    with pytest.raises(UserError, match=r"pairs\[1\] = 48 is out of range for 48 nodes"):
        make_links(None).negative_pairs(pairs, ids, 1, 0)
    with pytest.raises(UserError, match=r"pairs\[1\] = 48 is out of range for 48 nodes"):
        draw_for_pairs(pairs, 48, 0)
    with pytest.raises(UserError, match=r"num_nodes = 4000000000 must be within 0\.\.=3037000499"):
        draw_for_pairs(pairs, 4_000_000_000, 0)


def without(block: Block, degree: Ids, excluded: Ids, num_nodes: int) -> tuple[list[int], list[float], list[int]]:
    """Leaves out edges one by one: places, weights and in-edges of each destination."""
    places, weights, counts = [], [], []
    for row in range(block.num_dst):
        begin, end = block.indptr[row], block.indptr[row + 1]
        counts.append(0)
        for edge in range(begin, end):
            pair = np.array([[block.src_nodes[block.indices[edge]], block.src_nodes[row]]])
            if int(pair_codes(pair, num_nodes)[0]) not in set(excluded.tolist()):
                places.append(edge)
                weights.append(degree[row] / (end - begin) if block.weight is None else float(block.weight[edge]))
                counts[-1] += 1
    return places, weights, counts


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("width", [np.int32, np.int64])
def test_blocks_without_pairs_are_those_of_the_loop_over_edges(weighted: bool, width: type) -> None:
    csc, rng = GRAPH.csc, np.random.default_rng(0)
    for key in range(10):
        block = NeighborSampler([4, 4], threads=1).sample(csc, rng.permutation(48)[:9], key=key).blocks[0]
        weight = rng.random(len(block.indices)) if weighted else None
        block = Block(block.indptr, block.indices.astype(width), block.src_nodes.astype(width), block.edge_ids, weight)
        excluded = np.unique(pair_codes(pairs_of(csc)[rng.random(csc.num_edges) < key / 9], 48))
        nodes = block.src_nodes[: block.num_dst].astype(np.int64)
        degree = csc.indptr[nodes + 1] - csc.indptr[nodes]
        places, weights, counts = without(block, degree, excluded, 48)
        found = without_pairs(block, degree, excluded, 48)
        assert found.edge_ids is not None
        assert block.edge_ids is not None
        np.testing.assert_array_equal(found.edge_ids, block.edge_ids[places])
        np.testing.assert_array_equal(found.indices, block.indices[places])
        np.testing.assert_array_equal(np.diff(found.indptr), counts)
        np.testing.assert_allclose(found.weight, weights)


def test_negatives_of_training_and_of_evaluation_have_a_filter_each(tmp_path: Path) -> None:
    """Of three nodes all pairs but two are edges, and (1, 0) is held out."""
    training, known = (np.sort(codes(np.array(pairs), 3)) for pairs in ([*TRAIN], [*TRAIN, (1, 0)]))
    rules = NegativeRule(training, 1), NegativeRule(known, 1)
    Links(3, HeldOutEdges(NONE), HeldOutEdges(np.array([[1, 0]])), *rules, 0.3, 0).save(tmp_path / "links")
    links, edge = links_of(load_rows(tmp_path / "links")), np.array([[1, 2]]).repeat(200, 0)

    def drawn(*, evaluates: bool) -> set[tuple[int, int]]:
        pairs = links.negative_pairs(edge, np.arange(200), 1, 0, evaluates=evaluates).reshape(-1, 2)
        return {(source, destination) for source, destination in pairs.tolist()}

    assert drawn(evaluates=False) == {(1, 0), (0, 2)}
    assert drawn(evaluates=True) == {(0, 2)}


def test_edges_to_predict_of_an_earlier_version_are_refused(tmp_path: Path) -> None:
    links = make_links(np.arange(3))
    object.__setattr__(links.training, "excluded", None)
    links.save(tmp_path / "links")
    with pytest.raises(UserError, match=r"links: written by an earlier gnnkit.*write the store again"):
        links_of(load_rows(tmp_path / "links"))


FORGED_ARRAYS = [np.arange(7.5), np.array(3), np.full((2, 3), 1), np.full((2, 2), 2**40), np.array([5, 5]), -np.ones(3)]


@pytest.mark.parametrize("name", ["val", "test", "training", "known"])
@pytest.mark.parametrize("forged", FORGED_ARRAYS)
def test_a_forged_array_is_refused(name: str, forged: npt.NDArray[Any], tmp_path: Path) -> None:
    make_links(np.arange(3)).save(tmp_path)
    np.save(tmp_path / f"{name}.npy", forged)
    with pytest.raises(UserError, match=f"{tmp_path}: {name}"):
        links_of(load_rows(tmp_path))


@pytest.mark.parametrize("name", ["num_nodes", "negatives", "eval_negatives", "supervision_share", "seed", "given"])
@pytest.mark.parametrize("value", [None, "x", -3, 2**65, [1]])
def test_a_forged_number_is_refused(name: str, value: Any, tmp_path: Path) -> None:
    make_links(np.arange(3)).save(tmp_path)
    meta = json.loads((tmp_path / "meta.json").read_text())
    for forged in ({**meta, name: value}, {key: item for key, item in meta.items() if key != name}):
        (tmp_path / "meta.json").write_text(json.dumps(forged))
        with pytest.raises(UserError, match=f"{tmp_path}.*{name}"):
            links_of(load_rows(tmp_path))
