"""Owners that each draw for their own nodes draw the same as one process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gnnkit import _core
from gnnkit.graph import CSC, Graph, Ids, RelationGroups
from gnnkit.partition.base import Partition
from gnnkit.partition.grid import Grid
from gnnkit.partition.shard import Shard, cut_all
from gnnkit.sampler import (
    BalancedSampler,
    FullSampler,
    Hop,
    LaborSampler,
    MetropolisHastingsSampler,
    NeighborSampler,
    WeightedSampler,
)
from gnnkit.sampler.base import NativeSampler, Reading, ReadRelations, Visibility

NUM_RANKS = 4
KEY = 11
SAMPLERS: dict[str, NativeSampler] = {
    "neighbor": NeighborSampler([40, 4], importance="mean"),
    "neighbor, redrawn": NeighborSampler([4, 3], redraw=True),
    "neighbor, replaced": NeighborSampler([4, 3], replace=True, importance="sum"),
    "neighbor, filled": NeighborSampler([9, 3], fill=True, importance="sum"),
    "weighted": WeightedSampler([5, 4], importance="sum"),
    "weighted, replaced": WeightedSampler([5, 4], replace=True),
    "weighted, hubs less": WeightedSampler([5, 4], alpha=0.5),
    "labor": LaborSampler([6, 5], importance="mean"),
    "labor, redrawn": LaborSampler([6, 5], redraw=True),
    "balanced": BalancedSampler([6, 4], importance="sum"),
    "full": FullSampler(2),
}
WALKERS = {
    **SAMPLERS,
    "metropolis_hastings": MetropolisHastingsSampler([5, 4], walk_length=5),
    "metropolis_hastings, similar": MetropolisHastingsSampler(
        [5, 4], walk_length=5, target="similarity", embeddings=np.random.default_rng(6).standard_normal((2_000, 9))
    ),
}

each_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


@pytest.fixture(scope="module", params=[np.int32, np.int64])
def csc(graph: CSC, request: pytest.FixtureRequest) -> CSC:
    weight = np.random.default_rng(1).random(graph.num_edges, np.float32)
    return CSC(graph.indptr, graph.indices.astype(request.param), weight)


def shards(csc: CSC) -> Iterator[Shard]:
    """Owners of nodes at random: a rank's numbers have nothing to do with the ids."""
    ranks = np.random.default_rng(2).integers(0, NUM_RANKS, csc.num_nodes).astype(np.int32)
    nothing = np.zeros(csc.num_nodes, np.int64)
    graph = Graph(csc, np.empty((csc.num_nodes, 0), np.float32), nothing, nothing.astype(np.int8))
    return cut_all(graph, Partition(ranks, None, Grid(NUM_RANKS, 1, 1)))


def counts(sampler: NativeSampler, csc: CSC, nodes: Ids, hop: int) -> Ids | None:  # [num_nodes of the graph]
    """Returns the draws of each of `nodes` by a balanced sampler, else None."""
    if not isinstance(sampler, BalancedSampler):
        return None
    given = np.zeros(csc.num_nodes, np.int64)
    budget = sampler.fanouts[hop] * len(nodes)
    given[nodes] = _core.water_fill(np.diff(csc.indptr)[nodes], budget)
    return given


def part(sampler: NativeSampler, csc: CSC, shard: Shard, given: Ids | None) -> Reading:
    wanted = sampler.reading(csc).wanted
    return Reading(
        shard.csc,
        wanted=None if wanted is None else wanted[shard.sources],
        rows=shard.targets,
        sources=shard.sources,
        counts=None if given is None else given[shard.targets],
    )


def rows(hop: Hop, sources: Ids, edges: Ids) -> list[tuple[list[float], ...]]:
    """Returns global sources, global edges and weights of each row.

    `sources` and `edges` are global ids of the draws.
    """
    weight = np.zeros(len(sources)) if hop.weight is None else hop.weight
    spans = [slice(begin, end) for begin, end in zip(hop.indptr, hop.indptr[1:], strict=False)]
    return [(sources[span].tolist(), edges[span].tolist(), weight[span].tolist()) for span in spans]


@pytest.mark.slow
@each_sampler
@pytest.mark.parametrize("hop", [0, 1])
def test_owners_together_draw_what_one_process_draws(sampler: NativeSampler, hop: int, csc: CSC) -> None:
    nodes = np.random.default_rng(3).permutation(csc.num_nodes)[:700]
    one = sampler.draw(csc, nodes, hop, key=KEY)
    assert one.edge_ids is not None
    expected = dict(zip(nodes.tolist(), rows(one, one.sources.astype(np.int64), one.edge_ids), strict=True))
    given = counts(sampler, csc, nodes, hop)
    num_drawn = 0
    for shard in shards(csc):
        own = np.flatnonzero(np.isin(shard.targets, nodes))
        drawn = sampler.draw(part(sampler, csc, shard, given), own, hop, key=KEY)
        assert drawn.edge_ids is not None
        found = rows(drawn, shard.sources[drawn.sources], shard.edge_ids[drawn.edge_ids])
        for node, row in zip(shard.targets[own].tolist(), found, strict=True):
            assert row == expected[node]
        num_drawn += len(drawn.sources)
    assert num_drawn == len(one.sources) > 0


@pytest.mark.parametrize("sampler", WALKERS.values(), ids=WALKERS.keys())
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_numbers_of_nodes_do_not_matter_where_ids_are_given(sampler: NativeSampler, csc: CSC) -> None:
    whole = sampler.reading(csc)
    graph, weight = whole.csc, whole.csc.weight
    order = np.random.default_rng(4).permutation(graph.num_nodes)  # [num_nodes] global id of each number
    number = np.argsort(order)
    degree = np.diff(graph.indptr)[order]
    indptr = np.concatenate([[0], np.cumsum(degree)])
    edges = np.repeat(graph.indptr[order] - indptr[:-1], degree) + np.arange(graph.num_edges)
    indices = number[graph.indices[edges]].astype(graph.indices.dtype)
    turned = CSC(indptr, indices, None if weight is None else weight[edges])
    wanted = None if whole.wanted is None else whole.wanted[order]
    seeds = np.random.default_rng(5).permutation(graph.num_nodes)[:200]
    features = None if whole.features is None else whole.features[order]
    reading = replace(whole, csc=turned, wanted=wanted, features=features, rows=order, sources=order)
    nodes, _, ends, sources, drawn, *_ = sampler.native().sample(reading, number[seeds], KEY, 1)
    expected = sampler.native().sample(whole, seeds, KEY, 1)
    np.testing.assert_array_equal(order[nodes], expected[0])
    np.testing.assert_array_equal(ends, expected[2])
    np.testing.assert_array_equal(sources, expected[3])
    if sampler.draws_edges:
        np.testing.assert_array_equal(edges[drawn], expected[4])


def test_ids_of_a_wrong_length_are_named(csc: CSC) -> None:
    for name in ("rows", "sources", "counts"):
        wrong: dict[str, Any] = {name: np.arange(5)}
        reading = replace(Reading(csc), **wrong)
        with pytest.raises(ValueError, match=f"{name} has 5 entries, expected {csc.num_nodes}"):
            NeighborSampler([2]).draw(reading, np.arange(3), 0, key=1)


def test_sources_that_do_not_exist_are_named_where_ids_are_given() -> None:
    csc = CSC(np.array([0, 3]), np.array([0, 1, 1]), num_sources=2)
    reading = Reading(csc, sources=np.array([7, 9]))
    csc.indices[1] = 2
    with pytest.raises(ValueError, match=r"indices\[1\] = 2 is out of range for 2 nodes"):
        LaborSampler([1]).draw(reading, np.array([0]), 0, key=1)


@pytest.mark.parametrize("threads", [1, 3])
def test_nodes_that_repeat_draw_independently_under_keys(csc: CSC, threads: int) -> None:
    degree = np.diff(csc.indptr)
    node = int(np.flatnonzero((degree > 5) & (degree < 30))[0])
    nodes, sampler = np.full(300, node), NeighborSampler([1], threads=threads)
    alike = sampler.draw(Reading(csc), nodes, 0, key=1)
    keyed = sampler.draw(Reading(csc, keys=np.arange(300) + node), nodes, 0, key=1)
    assert alike.edge_ids is not None
    assert keyed.edge_ids is not None
    assert len(set(alike.edge_ids.tolist())) == 1
    assert len(set(keyed.edge_ids.tolist())) == degree[node]
    assert keyed.edge_ids[0] == alike.edge_ids[0]  # equal keys draw alike


@pytest.mark.parametrize("sampler", [NeighborSampler([3]), WeightedSampler([3], replace=True), NeighborSampler([-1])])
def test_draws_are_no_later_than_the_bounds_of_their_rows(csc: CSC, sampler: NativeSampler) -> None:
    nodes = np.argsort(-np.diff(csc.indptr))[:50]
    times = np.arange(csc.num_edges) - csc.indptr[np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))]
    times[csc.indptr[nodes[0]]] = np.iinfo(np.int64).min
    bounds = np.arange(50) % 7 - 1
    for latest in (False, True):
        reading = Reading(csc, visibility=Visibility(times, bounds, latest=latest))
        hop = sampler.draw(reading, nodes, 0, key=1)
        rows = np.repeat(np.arange(50), np.diff(hop.indptr))
        assert hop.edge_ids is not None
        assert np.all(times[hop.edge_ids] <= bounds[rows])
        assert hop.indptr[1] > 0  # the lowest time is visible before all others
        if latest and sampler.fanouts[0] == 3:
            assert np.all((times[hop.edge_ids] > bounds[rows] - 3) | (rows == 0))


@pytest.mark.parametrize("latest", [False, True])
def test_each_relation_draws_the_edges_that_its_row_sees(csc: CSC, *, latest: bool) -> None:
    random = np.random.default_rng(6)
    groups = RelationGroups.of(csc, random.integers(0, 3, csc.num_edges).astype(np.int16), ["a", "b", "c"])
    group = np.repeat(np.arange(len(groups.codes)), np.diff(groups.starts))
    times = random.integers(0, 9, csc.num_edges)
    times = times[np.lexsort((times, group))]  # ascending within each node and relation
    sampler = NeighborSampler({"default": [-1], "c": [2]}, threads=1)
    nodes = np.tile(np.argsort(-np.diff(csc.indptr))[:20], 2)  # each at two times
    bounds = np.repeat([3, 7], 20)
    relations = replace(ReadRelations.of(groups, sampler.fanouts), order=None)
    visibility = Visibility(times, bounds, latest=latest)
    reading = Reading(groups.csc, keys=np.arange(40), visibility=visibility, relations=relations)
    hop = sampler.draw(reading, nodes, 0, key=1)
    assert hop.edge_ids is not None
    for row, (node, bound) in enumerate(zip(nodes, bounds, strict=True)):
        drawn = hop.edge_ids[hop.indptr[row] : hop.indptr[row + 1]]
        for at in range(groups.indptr[node], groups.indptr[node + 1]):
            edges = np.arange(groups.starts[at], groups.starts[at + 1])
            visible = edges[times[edges] <= bound]
            of_group = np.intersect1d(drawn, edges)
            if groups.codes[at] % 3 < 2 or (latest and len(visible) <= 2):
                assert of_group.tolist() == visible.tolist()
            elif latest:
                assert of_group.tolist() == visible[-2:].tolist()
            else:
                assert len(of_group) == min(2, len(visible))
                assert set(of_group) <= set(visible)


def test_wrong_times_and_bounds_are_named(csc: CSC) -> None:
    node = np.array([3])
    sampler = NeighborSampler([2])
    wrong, times = np.arange(5), np.zeros(csc.num_edges, np.int64)
    readings = {"keys": Reading(csc, keys=wrong), "bounds": Reading(csc, visibility=Visibility(times, wrong))}
    for name, reading in readings.items():
        with pytest.raises(ValueError, match=f"{name} has 5 entries, expected 1"):
            sampler.draw(reading, node, 0, key=1)
        with pytest.raises(ValueError, match=f"{name} has 5 entries, expected 0"):
            NeighborSampler([2]).native().sample(reading, node, 0, 1)
    with pytest.raises(ValueError, match=f"times has 5 entries, expected {csc.num_edges}"):
        sampler.draw(Reading(csc, visibility=Visibility(wrong)), node, 0, key=1)


def test_empty_arrays_of_a_hop_do_not_change_a_batch(csc: CSC) -> None:
    empty, times = np.array([], np.int64), np.zeros(csc.num_edges, np.int64)
    sampler, node = NeighborSampler([2, 2]).native(), np.array([3])
    batch = sampler.sample(Reading(csc, keys=empty, visibility=Visibility(times, empty)), node, 0, 1)
    assert np.array_equal(batch[0], sampler.sample(Reading(csc), node, 0, 1)[0])
