from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from gnnkit.errors import UserError
from gnnkit.graph import CSC, MiniBatch
from gnnkit.sampler import NeighborSampler


def draws(batch: MiniBatch, layer: int) -> dict[int, list[int]]:
    """The edges that each destination of a block drew."""
    block = batch.blocks[layer]
    assert block.edge_ids is not None
    parts = np.split(block.edge_ids, block.indptr[1:-1])
    return {int(node): part.tolist() for node, part in zip(block.src_nodes, parts, strict=False)}


def test_nodes_draw_as_many_distinct_edges_as_fanout_and_degree_allow(graph: CSC) -> None:
    fanouts = [70, 15, 3]
    batch = NeighborSampler(fanouts).sample(graph, np.arange(0, 2000, 10), key=1)
    degree = np.diff(graph.indptr)
    first = [0, *(block.num_dst for block in batch.blocks[::-1])]
    for layer, fanout in zip((2, 1, 0), fanouts, strict=True):
        new = list(draws(batch, layer).items())[first[2 - layer] :]
        for node, edges in new:
            assert len(edges) == len(set(edges)) == min(degree[node], fanout)


def test_nodes_draw_once_unless_redrawn(graph: CSC) -> None:
    seeds = np.arange(50)
    once = NeighborSampler([4, 4]).sample(graph, seeds, key=1)
    assert {node: draws(once, 0)[node] for node in range(50)} == draws(once, 1)
    assert np.shares_memory(once.blocks[0].indices, once.blocks[1].indices)
    anew = NeighborSampler([4, 4], redraw=True).sample(graph, seeds, key=1)
    assert {node: draws(anew, 0)[node] for node in range(50)} != draws(anew, 1)


def test_nodes_are_numbered_by_first_occurrence(graph: CSC) -> None:
    batch = NeighborSampler([6, 5]).sample(graph, np.arange(30)[::-1], key=1)
    sources = batch.blocks[0].src_nodes[batch.blocks[0].indices]
    order = np.concatenate([batch.seeds, sources])
    _, first = np.unique(order, return_index=True)
    np.testing.assert_array_equal(batch.input_nodes, order[np.sort(first)])


@pytest.mark.slow
def test_memory_is_used_again_once_no_view_of_it_is_left() -> None:
    graph = CSC(np.arange(30_001) * 4, np.arange(120_000) % 30_000)  # a batch is larger than the rest
    sampler = NeighborSampler([3, 2], threads=2)

    def edge_ids(key: int) -> np.ndarray:
        ids = sampler.sample(graph, np.arange(20_000), key=key).blocks[0].edge_ids
        assert ids is not None
        return ids

    first = edge_ids(0)
    places = {edge_ids(key).ctypes.data for key in range(10)}
    assert len(places) < 5
    assert first.ctypes.data not in places
    held = [edge_ids(key)[key:].view(np.uint8) if key % 2 else edge_ids(key) for key in range(10)]
    before = [array.copy() for array in held]
    again = [edge_ids(key) for key in range(20)]
    for array, copy in zip(held, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert not any(np.shares_memory(array, other) for other in again)


def test_what_a_node_draws_does_not_depend_on_the_batch(graph: CSC) -> None:
    sampler = NeighborSampler([5, 4])
    alone = {node: draws(sampler.sample(graph, np.array([node]), key=9), 1)[node] for node in range(40)}
    assert draws(sampler.sample(graph, np.arange(40), key=9), 1) == alone
    hop = sampler.draw(graph, np.arange(40), 0, key=9)
    assert hop.edge_ids is not None
    assert [part.tolist() for part in np.split(hop.edge_ids, hop.indptr[1:-1])] == list(alone.values())


def test_keys_and_hops_draw_differently(graph: CSC) -> None:
    sampler = NeighborSampler([5, 5], redraw=True)
    nodes = np.flatnonzero(np.diff(graph.indptr) > 50)
    hops = [sampler.draw(graph, nodes, hop, key=key).sources.tolist() for hop in (0, 1) for key in (1, 2)]
    assert len({tuple(sources) for sources in hops}) == 4


def test_replacement_fills_the_fanout_of_every_node_with_edges(graph: CSC) -> None:
    hop = NeighborSampler([9], replace=True).draw(graph, np.arange(2000), 0, key=1)
    np.testing.assert_array_equal(np.diff(hop.indptr), np.where(np.diff(graph.indptr) > 0, 9, 0))


def test_filled_nodes_draw_equally_many_and_repeat_edges_only_where_there_are_fewer(graph: CSC) -> None:
    nodes, degree = np.arange(graph.num_nodes), np.diff(graph.indptr)
    hop = NeighborSampler([9], fill=True).draw(graph, nodes, 0, key=1)
    np.testing.assert_array_equal(np.diff(hop.indptr), np.where(degree > 0, 9, 0))
    edges, times = np.unique(hop.edge_ids, return_counts=True)
    of_node = degree[np.searchsorted(graph.indptr, edges, side="right") - 1]
    assert ((times == 9 // of_node) | (times == -(-9 // of_node))).all()
    all_of_few = np.flatnonzero(np.repeat(degree, degree) <= 9)
    assert np.isin(all_of_few, edges).all()


def test_filled_batches_hold_equal_counts_in_every_hop_and_on_any_number_of_threads(graph: CSC) -> None:
    seeds = np.arange(0, 2000, 10)
    one, two = (NeighborSampler([7, 3], fill=True, threads=threads).sample(graph, seeds, key=1) for threads in (1, 2))
    degree = np.diff(graph.indptr)
    first, second = one.blocks[::-1]
    np.testing.assert_array_equal(np.diff(first.indptr), np.where(degree[seeds] > 0, 7, 0))
    found = second.src_nodes[first.num_dst : second.num_dst]
    np.testing.assert_array_equal(np.diff(second.indptr)[first.num_dst :], np.where(degree[found] > 0, 3, 0))
    np.testing.assert_array_equal(one.blocks[0].edge_ids, two.blocks[0].edge_ids)


def test_filled_sums_vary_less_than_sums_with_replacement(graph: CSC) -> None:
    nodes = np.flatnonzero(np.diff(graph.indptr) > 0)[:300]
    value = np.random.default_rng(0).random(graph.num_nodes)

    def spread(**options: bool) -> float:
        sampler = NeighborSampler([6], importance="sum", **options)
        hops = [sampler.draw(graph, nodes, 0, key=key) for key in range(60)]
        row = np.repeat(np.arange(len(nodes)), 6)
        sums = [np.bincount(row, hop.weight * value[hop.sources]) for hop in hops if hop.weight is not None]
        return float(np.var(sums, axis=0).mean())

    assert spread(fill=True) < 0.9 * spread(replace=True)


def test_costs_of_filled_nodes_are_what_they_draw(graph: CSC) -> None:
    sampler, nodes = NeighborSampler([9], fill=True), np.arange(graph.num_nodes)
    drawn = np.diff(sampler.draw(graph, nodes, 0, key=1).indptr)
    np.testing.assert_array_equal(sampler.costs(graph, nodes), drawn)


def test_filling_twice_and_words_are_refused() -> None:
    with pytest.raises(UserError, match=r"^sampler\.options\.fill=no must be true or false"):
        NeighborSampler([2], fill="no")  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"^sampler\.options\.fill=true cannot be combined with sampler\.replace=true"):
        NeighborSampler([2], fill=True, replace=True)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"replace": True}, {"fill": True}], ids=["once", "replaced", "filled"])
def test_importance_weights_keep_sums_and_means_unbiased(graph: CSC, options: dict[str, bool]) -> None:
    nodes = np.flatnonzero(np.diff(graph.indptr) > 0)[:200]
    value = np.random.default_rng(0).random(graph.num_nodes)
    exact = np.array([value[graph.indices[graph.indptr[node] : graph.indptr[node + 1]]].sum() for node in nodes])
    degree = np.diff(graph.indptr)[nodes]
    for importance, truth in (("sum", exact), ("mean", exact / degree)):
        sampler = NeighborSampler([4], importance=importance, **options)
        estimates = np.zeros((400, len(nodes)))
        for key, row in enumerate(estimates):
            hop = sampler.draw(graph, nodes, 0, key=key)
            np.add.at(row, np.repeat(np.arange(len(nodes)), np.diff(hop.indptr)), hop.weight * value[hop.sources])
        error = (estimates.mean(axis=0) - truth) / (estimates.std(axis=0) / np.sqrt(len(estimates)) + 1e-6 * truth)
        assert abs(error).max() < 4.5


def test_memory_mapped_graphs_give_the_same_batch(graph: CSC, tmp_path: Path) -> None:
    np.save(tmp_path / "indptr.npy", graph.indptr)
    np.save(tmp_path / "indices.npy", graph.indices)
    arrays = [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("indptr", "indices")]
    mapped = CSC(*arrays)
    assert np.shares_memory(mapped.indices, arrays[1])
    seeds, sampler = np.arange(100), NeighborSampler([15, 10, 5])
    for a, b in zip(
        sampler.sample(graph, seeds, key=1).blocks, sampler.sample(mapped, seeds, key=1).blocks, strict=True
    ):
        np.testing.assert_array_equal(a.edge_ids, b.edge_ids)


def test_samplers_can_be_pickled(graph: CSC) -> None:
    sampler = NeighborSampler([5, 4])
    copy = pickle.loads(pickle.dumps(sampler))
    a, b = (s.sample(graph, np.arange(10), key=1).input_nodes for s in (sampler, copy))
    np.testing.assert_array_equal(a, b)


def test_edge_ids_are_left_out_on_request(graph: CSC) -> None:
    batch = NeighborSampler([3], edge_ids=False).sample(graph, np.arange(10), key=1)
    assert batch.blocks[0].edge_ids is None
