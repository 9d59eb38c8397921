"""The draws of each sampler against theory, at degrees from 1 to 100,000.

Keys are fixed, so are results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations, permutations

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import binom, chi2, kstest

from gnnkit.graph import CSC
from gnnkit.sampler import BalancedSampler, LaborSampler, NeighborSampler, Sampler, WeightedSampler
from tests.cases import few

Array = npt.NDArray[np.float64]


MAX_EDGES = 1 << 18  # of a graph with several nodes to draw at


def stars(degree: int, copies: int, weight: Array | None = None) -> CSC:
    """Returns a graph of `copies` nodes, each with `degree` in-edges from leaves."""
    indptr = np.minimum(np.arange(copies * (degree + 1) + 1), copies) * degree
    weight = None if weight is None else np.tile(weight, copies)
    return CSC(indptr, np.arange(copies, copies * (degree + 1), dtype=np.int32), weight)


def draws(sampler: Sampler, degree: int, keys: range, weight: Array | None = None) -> npt.NDArray[np.int64]:
    """Returns the edges, 0..degree - 1, of `len(keys)` draws at a node.

    It draws at several equal nodes with fewer keys, which is quicker.
    """
    copies = max(k for k in (1, 2, 5, 10, 20) if k == 1 or k * degree <= MAX_EDGES)
    graph, nodes = stars(degree, copies, weight), np.arange(copies)
    hops = [sampler.draw(graph, nodes, 0, key=key).edge_ids for key in keys[::copies]]
    return np.concatenate(hops) % degree


def inclusions(
    sampler: Sampler, degree: int, keys: range, weight: Array | None = None
) -> npt.NDArray[np.int64]:  # [degree]
    """How often each edge into a node was drawn."""
    return np.bincount(draws(sampler, degree, keys, weight), minlength=degree)


def sets(sampler: Sampler, degree: int, keys: range, weight: Array | None = None) -> Counter[tuple[int, ...]]:
    """How often each set of `fanout` edges was drawn."""
    rows = np.sort(draws(sampler, degree, keys, weight).reshape(len(keys), -1), axis=1)
    return Counter(map(tuple, rows.tolist()))


def p_value(counts: npt.NDArray[np.int64], expected: Array) -> float:
    """Chi-square over at most 64 groups of neighbouring edges."""
    groups = np.array_split(np.arange(len(counts)), min(len(counts), 64))
    seen = np.array([counts[group].sum() for group in groups])
    wanted = np.array([expected[group].sum() for group in groups])
    return float(chi2.sf(((seen - wanted) ** 2 / wanted).sum(), len(groups) - 1))


def without_replacement(counts: npt.NDArray[np.int64], num_keys: int, fanout: int) -> float:
    """As `p_value` for draws of `fanout` distinct edges: cells then have variance N p
    (1 - p), p = fanout / degree, and covariance -N p (1 - p) / (degree - 1), so the
    statistic times (degree - 1) / (degree (1 - p)) is chi-square.
    """
    degree = len(counts)
    p = fanout / degree
    expected = np.full(degree, num_keys * p)
    groups = np.array_split(np.arange(degree), min(degree, 64))
    statistic = sum((counts[g].sum() - expected[g].sum()) ** 2 / expected[g].sum() for g in groups)
    return float(chi2.sf(statistic * (degree - 1) / (degree * (1 - p)), len(groups) - 1))


@pytest.mark.slow
@few(
    "degree",
    [2, 3, 16, 17, 33, 63, 64, 65, 127, 1_000, 2**15 + 1, 2**16 - 1, 100_000],
    default=[2, 3, 16, 17, 33, 63, 64, 65, 127, 1_000, 2**16 - 1],
)
@few("fanout", [1, 5, 15, 40], [1, 15, 40])
def test_neighbours_are_drawn_uniformly(degree: int, fanout: int) -> None:
    if fanout >= degree:
        pytest.skip("all of them are drawn")
    sampler = NeighborSampler([fanout])
    salts = range(0, 10_000_000, 1_000_000)
    values = [without_replacement(inclusions(sampler, degree, range(s, s + 400)), 400, fanout) for s in salts]
    assert min(values) > 1e-4
    assert kstest(values, "uniform").pvalue > 1e-4


@pytest.mark.slow
@few("degree,fanout", [(5, 2), (6, 3), (7, 6), (70, 2)], default=[(5, 2), (6, 3), (70, 2)])
def test_all_sets_of_neighbours_are_equally_likely(degree: int, fanout: int) -> None:
    num_keys = 30_000
    drawn = sets(NeighborSampler([fanout]), degree, range(num_keys))
    everything = list(combinations(range(degree), fanout))
    expected = num_keys / len(everything)
    statistic = sum((drawn[choice] - expected) ** 2 / expected for choice in everything)
    assert sum(drawn[choice] for choice in everything) == num_keys
    assert chi2.sf(statistic, len(everything) - 1) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("degree", [1, 2, 7, 64, 1_000, 100_000])
def test_draws_with_replacement_are_independent_and_uniform(degree: int) -> None:
    counts = inclusions(NeighborSampler([10], replace=True), degree, range(3_000))
    assert counts.sum() == 30_000
    assert degree == 1 or p_value(counts, np.full(degree, 30_000 / degree)) > 1e-3


@pytest.mark.slow
@few("degree", [1, 2, 7, 64, 1_000, 100_000], default=[1, 2, 7, 64, 1_000])
def test_weighted_draws_with_replacement_are_in_proportion(degree: int) -> None:
    weight = np.random.default_rng(0).random(degree) ** 3 + 0.01
    weight[1::5] = 0
    counts = inclusions(WeightedSampler([10], replace=True), degree, range(2_000), weight)
    assert counts[1::5].sum() == 0
    if degree > 2:
        assert p_value(counts[weight > 0], 20_000 * weight[weight > 0] / weight.sum()) > 1e-3


@pytest.mark.slow
def test_weighted_draws_without_replacement_are_in_proportion_to_what_is_left() -> None:
    weight, fanout, num_keys = np.array([0.5, 1.0, 2.0, 0.0, 4.0]), 3, 30_000
    law: Counter[tuple[int, ...]] = Counter()
    for order in permutations(np.flatnonzero(weight).tolist(), fanout):
        left = weight.sum() - np.concatenate([[0], np.cumsum(weight[list(order)])[:-1]])
        law[tuple(sorted(order))] += float(np.prod(weight[list(order)] / left))
    drawn = sets(WeightedSampler([fanout]), len(weight), range(num_keys), weight)
    assert set(drawn) <= set(law)
    statistic = sum((drawn[choice] - num_keys * p) ** 2 / (num_keys * p) for choice, p in law.items())
    assert chi2.sf(statistic, len(law) - 1) > 1e-3


@few("degree", [20, 1_000, 100_000], default=[20, 1_000])
def test_weighted_inclusion_follows_the_race_of_exponentials(degree: int) -> None:
    fanout, num_keys, heavy = 10, 2_000, degree // 4
    weight = np.ones(degree)
    weight[:heavy] = 3.0
    # An edge of weight w is drawn iff fewer than `fanout` others arrive earlier.
    # So integrate over the arrival of this edge.
    share = min(1.0, 100 * fanout / degree)  # of large degrees only the earliest arrivals count
    steps = 1 - share * (np.arange(4_000) + 0.5) / 4_000
    arrival = -np.log(steps) / 3.0
    early, late = 1 - np.exp(-3 * arrival), 1 - np.exp(-arrival)
    fewer = sum(binom.pmf(i, heavy - 1, early) * binom.cdf(fanout - 1 - i, degree - heavy, late) for i in range(fanout))
    drawn = inclusions(WeightedSampler([fanout]), degree, range(num_keys), weight)[:heavy].sum() / num_keys
    expected = heavy * share * fewer.mean()
    assert abs(drawn - expected) < 4 * np.sqrt(expected / num_keys)


@pytest.mark.slow
@pytest.mark.parametrize("degree", [1, 3, 16, 100, 1_000, 100_000])
def test_labor_keeps_each_edge_with_probability_fanout_by_degree(degree: int) -> None:
    fanout, num_keys = 5, 4_000 if degree <= 1000 else 400
    counts = inclusions(LaborSampler([fanout]), degree, range(num_keys))
    p = min(1.0, fanout / degree)
    if p == 1:
        assert (counts == num_keys).all()
        return
    groups = np.array([group.sum() for group in np.array_split(counts, min(degree, 64))])
    sizes = np.array([len(group) for group in np.array_split(counts, min(degree, 64))])
    expected = num_keys * p * sizes
    assert chi2.sf(((groups - expected) ** 2 / (expected * (1 - p))).sum(), len(groups)) > 1e-3


def test_labor_lets_nodes_of_a_hop_share_sources() -> None:
    indptr, indices = np.array([0, *[500 * (i + 1) for i in range(20)], *[10_000] * 480]), np.tile(np.arange(500), 20)
    graph, nodes = CSC(indptr, indices), np.arange(20)
    labor = LaborSampler([10]).draw(graph, nodes, 0, key=1).sources
    assert len(np.unique(labor)) == len(labor) / 20
    assert len(np.unique(NeighborSampler([10]).draw(graph, nodes, 0, key=1).sources)) > 100


@pytest.mark.slow
def test_balanced_draws_are_uniform_and_as_many_as_water_filling_says(graph: CSC) -> None:
    nodes = np.flatnonzero(np.diff(graph.indptr) < 60)
    degree = np.diff(graph.indptr)[nodes]
    hops = [BalancedSampler([6]).draw(graph, nodes, 0, key=key) for key in range(300)]
    counts = np.diff(hops[0].indptr)
    assert counts.sum() == 6 * len(nodes)
    level = counts.max()
    assert ((counts == degree) | (counts >= level - 1)).all()
    drawn = np.bincount(np.concatenate([hop.edge_ids for hop in hops]), minlength=graph.num_edges)
    row = np.repeat(np.arange(graph.num_nodes), np.diff(graph.indptr))
    p = np.zeros(graph.num_nodes)
    p[nodes] = counts / np.maximum(degree, 1)
    partial = (p[row] > 0) & (p[row] < 1)
    z = (drawn - 300 * p[row])[partial] / np.sqrt(300 * (p * (1 - p))[row][partial])
    assert (drawn[p[row] == 1] == 300).all()
    assert abs((z**2).mean() - 1) < 0.1
    assert abs(z).max() < 5.5


@pytest.mark.parametrize("degree", [2, 16, 100, 1_000, 100_000])
def test_balanced_draws_are_uniform_at_any_degree(degree: int) -> None:
    fanout = min(15, degree - 1)
    counts = inclusions(BalancedSampler([fanout]), degree, range(400))
    assert without_replacement(counts, 400, fanout) > 1e-3


SAMPLERS: dict[str, Callable[[str], Sampler]] = {
    "neighbor": lambda kind: NeighborSampler([4], importance=kind),
    "neighbor, replaced": lambda kind: NeighborSampler([4], replace=True, importance=kind),
    "weighted": lambda kind: WeightedSampler([4], importance=kind),
    "weighted, replaced": lambda kind: WeightedSampler([4], replace=True, importance=kind),
    "weighted, damped": lambda kind: WeightedSampler([4], alpha=0.7, importance=kind),
    "balanced": lambda kind: BalancedSampler([4], importance=kind),
    "labor": lambda kind: LaborSampler([4], importance=kind),
}


@pytest.mark.slow
@pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS.keys())
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_weighted_aggregates_are_unbiased(graph: CSC, make: Callable[[str], Sampler], kind: str) -> None:
    random = np.random.default_rng(0)
    weighted = CSC(graph.indptr, graph.indices, random.random(graph.num_edges) + 0.2)
    nodes = np.flatnonzero(np.diff(graph.indptr) > 0)[:200]
    value, num_keys = random.random(graph.num_nodes), 400
    exact = np.array([value[graph.indices[graph.indptr[node] : graph.indptr[node + 1]]].sum() for node in nodes])
    exact /= np.diff(graph.indptr)[nodes] if kind == "mean" else 1
    estimates = np.zeros((num_keys, len(nodes)))
    for key, row in enumerate(estimates):
        hop = make(kind).draw(weighted, nodes, 0, key=key)
        assert hop.weight is not None
        np.add.at(row, np.repeat(np.arange(len(nodes)), np.diff(hop.indptr)), hop.weight * value[hop.sources])
    spread = estimates.std(axis=0) / np.sqrt(num_keys) + 1e-6 * exact
    assert abs((estimates.mean(axis=0) - exact) / spread).max() < 4.5
