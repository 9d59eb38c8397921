"""The promises of every sampler, and `Sampler` for a class that only draws."""

from __future__ import annotations

from copy import copy

import numpy as np
import pytest

from gnnkit import _core
from gnnkit.graph import CSC, Floats, Ids, MiniBatch
from gnnkit.sampler import (
    BalancedSampler,
    ClusterSampler,
    FullSampler,
    Hop,
    LaborSampler,
    Loader,
    MetropolisHastingsSampler,
    NeighborSampler,
    Sampler,
    WeightedSampler,
)
from gnnkit.sampler.base import NativeSampler
from gnnkit.testing import check_sampler
from tests.cases import few


class FirstNeighbors(Sampler):
    """A third party's: the first two in-edges of every node, in Python."""

    num_hops = 3

    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        begin, end = graph.indptr[nodes], graph.indptr[nodes + 1]
        count = np.minimum(end - begin, 2)
        indptr = np.concatenate([[0], np.cumsum(count)])
        edges = np.arange(indptr[-1]) + np.repeat(begin - indptr[:-1], count)
        return Hop(indptr, graph.indices[edges], edges)


SAMPLERS: dict[str, Sampler] = {
    "neighbor": NeighborSampler([15, 10, 5]),
    "neighbor, redrawn": NeighborSampler([4, 3, 2], redraw=True),
    "neighbor, replaced": NeighborSampler([4, 3], replace=True, importance="sum"),
    "neighbor, filled": NeighborSampler([9, 3], fill=True, importance="sum"),
    "neighbor, all": NeighborSampler([-1, 2], importance="mean"),
    "neighbor, none": NeighborSampler([3, 0, 3]),
    "weighted": WeightedSampler([5, 4], importance="sum"),
    "weighted, replaced": WeightedSampler([5, 4], replace=True, alpha=0.5, importance="mean"),
    "balanced": BalancedSampler([6, 4, 3], importance="sum"),
    "balanced, redrawn": BalancedSampler([4, 3], redraw=True),
    "labor": LaborSampler([6, 5, 4], importance="mean"),
    "labor, redrawn": LaborSampler([6, -1], redraw=True),
    "metropolis_hastings": MetropolisHastingsSampler([5, 4], walk_length=5, importance="sum"),
    "metropolis_hastings, plain": MetropolisHastingsSampler([5, 4], alpha=0.0, redraw=True),
    "metropolis_hastings, similar": MetropolisHastingsSampler([5, 4], walk_length=5, target="similarity"),
    "cluster": ClusterSampler(np.arange(2_000) // 100),
    "full": FullSampler(2),
    "third party": FirstNeighbors(),
}


def features(graph: CSC) -> Floats:  # [num_nodes, 9]
    return np.random.default_rng(6).standard_normal((graph.num_nodes, 9)).astype(np.float32)


FIXED = (ClusterSampler, FirstNeighbors)  # draw the same with each key
each_sampler = pytest.mark.parametrize("sampler", SAMPLERS.values(), ids=SAMPLERS.keys())


@each_sampler
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_batches_follow_the_contract(sampler: Sampler, graph: CSC) -> None:
    sampler = sampler.with_features(features(graph))
    seeds = np.random.default_rng(1).permutation(graph.num_nodes)[:300]
    check_sampler(sampler, graph, seeds, deterministic=isinstance(sampler, FIXED))


@each_sampler
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
@pytest.mark.parametrize(
    "corner",
    [
        CSC(np.zeros(1, np.int64), np.empty(0, np.int32)),
        CSC(np.zeros(4, np.int64), np.empty(0, np.int64)),
        CSC(np.array([0, 1]), np.array([0])),
        CSC(np.array([0, 3, 3]), np.array([1, 1, 1], np.int32)),
    ],
    ids=["no nodes", "no edges", "self-loop", "parallel edges"],
)
def test_corner_cases_follow_the_contract(sampler: Sampler, corner: CSC) -> None:
    if isinstance(sampler, ClusterSampler):
        sampler = ClusterSampler(np.zeros(corner.num_nodes, np.int64))
    sampler = sampler.with_features(features(corner))
    check_sampler(sampler, corner, np.arange(corner.num_nodes), deterministic=isinstance(sampler, FIXED))
    empty = check_sampler(sampler, corner, np.empty(0, np.int64))
    assert len(empty.input_nodes) == 0


@each_sampler
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_loaders_make_the_same_batches_on_any_number_of_threads(sampler: Sampler, graph: CSC) -> None:
    weighted = CSC(graph.indptr, graph.indices, np.arange(graph.num_edges, dtype=np.float32))
    size = 1 if isinstance(sampler, ClusterSampler) else 100  # whole clusters are of 100 nodes
    sampler = sampler.with_features(features(graph))
    one, three = (
        [batch.arrays() for batch in Loader(weighted, sampler, np.arange(500), size, threads=threads, prefetch=threads)]
        for threads in (1, 3)
    )
    assert len(one) == 5
    for a, b in zip(one, three, strict=True):
        for x, y in zip(a["blocks"], b["blocks"], strict=True):
            assert x.keys() == y.keys()
            for name in x:
                np.testing.assert_array_equal(x[name], y[name])


@pytest.fixture(scope="module")
def rmat() -> CSC:
    """Makes a weighted graph with both directions of each edge, for walks."""
    indptr, indices, _ = _core.generate_rmat(4_000, 50_000, 1)
    graph, _ = CSC(indptr, indices).symmetrize()
    return CSC(graph.indptr, graph.indices, np.arange(graph.num_edges, dtype=np.float32) % 7)


@pytest.mark.slow
@each_sampler
@few("num_seeds", [20, 400, 4_000], default=[20, 400])  # the hops of the first are too small for more than one thread
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_threads_within_a_batch_do_not_change_it(sampler: Sampler, num_seeds: int, rmat: CSC) -> None:
    if not isinstance(sampler, NativeSampler):
        pytest.skip("written in Python")
    sampler = copy(sampler.with_features(features(rmat)))
    if isinstance(sampler, ClusterSampler):
        sampler.clusters = np.arange(rmat.num_nodes) % 3
    seeds = np.random.default_rng(2).permutation(rmat.num_nodes)[:num_seeds]
    wide = CSC(rmat.indptr, rmat.indices.astype(np.int64), rmat.weight)
    sampler.threads = 1
    batch, hop = sampler.sample(rmat, seeds, key=5), sampler.draw(rmat, seeds, 1, key=5)
    for graph, threads in ((rmat, 2), (wide, 3), (rmat, 8), (wide, 16)):
        sampler.threads = threads
        for a, b in zip(batch.blocks, sampler.sample(graph, seeds, key=5).blocks, strict=True):
            for name in ("indptr", "indices", "src_nodes", "edge_ids", "weight"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name), err_msg=f"{threads} threads")
        again = sampler.draw(graph, seeds, 1, key=5)
        for name in ("indptr", "sources", "edge_ids", "weight"):
            np.testing.assert_array_equal(getattr(hop, name), getattr(again, name), err_msg=f"{threads} threads")


def test_fewer_threads_than_one_are_refused() -> None:
    with pytest.raises(ValueError, match=r"sampler\.threads=0 must be a whole number"):
        NeighborSampler([2], threads=0)


@each_sampler
def test_keys_are_any_integers(sampler: Sampler, graph: CSC) -> None:
    sampler = sampler.with_features(features(graph))
    for key in (-1, 2**64 + 5, np.int32(3)):
        assert len(sampler.sample(graph, np.arange(5), key=key).blocks) == sampler.num_hops


def test_a_sampler_that_only_draws_numbers_nodes_like_the_native_ones(graph: CSC) -> None:
    class Wrapped(Sampler):
        def __init__(self, inner: NeighborSampler) -> None:
            self.inner, self.num_hops, self.redraw = inner, inner.num_hops, inner.redraw

        def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
            return self.inner.draw(graph, nodes, hop, key=key)

    seeds = np.arange(100)[::-1]
    for redraw in (False, True):
        native = NeighborSampler([5, 4, 3], redraw=redraw, importance="sum")
        pairs = zip(
            native.sample(graph, seeds, key=3).blocks, Wrapped(native).sample(graph, seeds, key=3).blocks, strict=True
        )
        for a, b in pairs:
            for name in ("indptr", "indices", "src_nodes", "edge_ids", "weight"):
                np.testing.assert_array_equal(getattr(a, name), getattr(b, name))
                assert getattr(a, name).dtype == getattr(b, name).dtype


class LastNeighbors(FirstNeighbors):
    """In-edges that depend on the hop, drawn anew at each."""

    redraw = True

    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        drawn = super().draw(graph, nodes, hop, key=key)
        kept = (drawn.indptr[1:] if hop else drawn.indptr[:-1] + 1)[np.diff(drawn.indptr) > 0] - 1
        counts = (np.diff(drawn.indptr) > 0).astype(np.int64)
        return Hop(np.r_[0, np.cumsum(counts)], drawn.sources[kept], None)


INVARIANT: dict[str, tuple[Sampler, bool]] = {
    "neighbor, equal fanouts": (NeighborSampler([3, 3, 3]), True),
    "neighbor, unequal fanouts": (NeighborSampler([5, 3, 2]), False),
    "neighbor, one hop": (NeighborSampler([5]), True),
    "neighbor, unequal fanouts, redrawn": (NeighborSampler([5, 3, 2], redraw=True), True),
    "neighbor, unequal fanouts, replaced": (NeighborSampler([5, 3], replace=True), False),
    "weighted, equal fanouts": (WeightedSampler([3, 3], alpha=0.5), True),
    "weighted, unequal fanouts": (WeightedSampler([5, 2]), False),
    "weighted, unequal fanouts, redrawn": (WeightedSampler([5, 2], redraw=True), True),
    "balanced, equal fanouts": (BalancedSampler([3, 3]), False),
    "balanced, redrawn": (BalancedSampler([4, 3], redraw=True), False),
    "labor, equal fanouts": (LaborSampler([4, 4]), False),
    "labor, one hop": (LaborSampler([4]), True),
    "labor, unequal fanouts": (LaborSampler([6, 3]), False),
    "labor, unequal fanouts, redrawn": (LaborSampler([6, 3], redraw=True), True),
    "metropolis_hastings, equal fanouts": (MetropolisHastingsSampler([3, 3]), True),
    "metropolis_hastings, unequal fanouts": (MetropolisHastingsSampler([5, 3]), False),
    "metropolis_hastings, redrawn": (MetropolisHastingsSampler([5, 3], redraw=True), True),
    "cluster": (ClusterSampler(np.arange(2_000) % 200), False),
    "full": (FullSampler(2), True),
    "third party, redrawn": (LastNeighbors(), True),
}


def draws(batch: MiniBatch) -> dict[tuple[int, int], list[int]]:
    """The sources that each node draws in each block: (hop from the seeds, node) ->
    global ids.
    """
    drawn = {}
    for hop, block in enumerate(reversed(batch.blocks)):
        sources = np.split(block.src_nodes[block.indices], block.indptr[1:-1])
        for node, ids in zip(block.src_nodes[: block.num_dst].tolist(), sources, strict=True):
            drawn[hop, node] = ids.tolist()
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "invariant"), INVARIANT.values(), ids=INVARIANT.keys())
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_ranks_draw_what_one_rank_draws_exactly_where_the_sampler_says_so(
    sampler: Sampler, invariant: bool, graph: CSC
) -> None:
    seeds = np.random.default_rng(3).permutation(graph.num_nodes)[:240]
    together = draws(sampler.sample(graph, seeds, key=5))
    ranks = [draws(sampler.sample(graph, part, key=5)) for part in np.split(seeds, 4)]
    agree = all(together.get(place) == sources for rank in ranks for place, sources in rank.items())
    assert sampler.rank_invariant is agree is invariant
    if invariant:
        assert together.keys() == {place for rank in ranks for place in rank}
