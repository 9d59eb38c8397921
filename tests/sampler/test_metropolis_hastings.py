"""The walks' law, exactly on paper and statistically in the code.

Tells wrong laws of others apart.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
from scipy.stats import chi2

from gnnkit.errors import UserError
from gnnkit.graph import CSC
from gnnkit.sampler import MetropolisHastingsSampler

Law = Callable[[int, int], Fraction]  # acceptance of a step between nodes of these degrees

EDGES = {
    "path": [(0, 1), (1, 2), (2, 3)],
    "star": [(0, 1), (0, 2), (0, 3), (0, 4)],
    "lollipop": [(0, 1), (1, 2), (2, 0), (2, 3), (3, 4)],
    "self-loop": [(0, 0), (0, 1), (1, 2), (0, 2), (2, 3)],
}


def undirected(name: str) -> CSC:
    src, dst = np.array(EDGES[name]).T
    return CSC.from_edges(src, dst, int(max(src.max(), dst.max())) + 1).symmetrize()[0]


def metropolis(here: int, there: int) -> Fraction:
    return min(Fraction(1), Fraction(here, there))


def inverted(here: int, there: int) -> Fraction:
    return min(Fraction(1), Fraction(there, here))


def plain(here: int, there: int) -> Fraction:
    return Fraction(1)


def transition(graph: CSC, accept: Law) -> list[list[Fraction]]:
    """Returns P[u][v] of a walk that proposes a uniform neighbour, or else stays."""
    n, degree = graph.num_nodes, np.diff(graph.indptr)
    P = [[Fraction(0)] * n for _ in range(n)]
    for u in range(n):
        for v in map(int, graph.indices[graph.indptr[u] : graph.indptr[u + 1]]):
            P[u][v] += Fraction(1, int(degree[u])) * accept(int(degree[u]), int(degree[v]))
        P[u][u] += 1 - sum(P[u])
    return P


def is_stationary(pi: list[Fraction], P: list[list[Fraction]]) -> bool:
    n = len(pi)
    return all(sum(pi[u] * P[u][v] for u in range(n)) == pi[v] for v in range(n))


def steps(sampler: MetropolisHastingsSampler, graph: CSC, keys: int) -> npt.NDArray[np.int64]:  # [n, n]
    """How often the walks went from each node to each other one."""
    counts = np.zeros((graph.num_nodes, graph.num_nodes), np.int64)
    for key in range(keys):
        paths = sampler.walk(graph, np.arange(graph.num_nodes), key=key)
        np.add.at(counts, (paths[..., :-1].ravel(), paths[..., 1:].ravel()), 1)
    return counts


def p_value(counts: npt.NDArray[np.int64], P: list[list[Fraction]]) -> float:
    """Returns the p-value of observed steps under the transition law.

    Returns 0 if a step was impossible.
    """
    law = np.array(P, np.float64)
    expected = counts.sum(axis=1, keepdims=True) * law
    if counts[law == 0].any():
        return 0.0
    cells = law > 0
    statistic = ((counts[cells] - expected[cells]) ** 2 / expected[cells]).sum()
    return float(chi2.sf(statistic, cells.sum() - len(law)))


@pytest.mark.parametrize("name", EDGES)
def test_the_law_leaves_exactly_the_uniform_distribution_unchanged(name: str) -> None:
    graph = undirected(name)
    degree = [int(d) for d in np.diff(graph.indptr)]
    uniform = [Fraction(1, graph.num_nodes)] * graph.num_nodes
    by_degree = [Fraction(d, sum(degree)) for d in degree]
    assert is_stationary(uniform, transition(graph, metropolis))
    assert not is_stationary(uniform, transition(graph, inverted))
    assert not is_stationary(uniform, transition(graph, plain))
    assert is_stationary(by_degree, transition(graph, plain))


@pytest.mark.parametrize("name", EDGES)
def test_walks_step_by_that_law_and_by_no_other(name: str) -> None:
    graph = undirected(name)
    counts = steps(MetropolisHastingsSampler([1], walk_length=20, num_walks=20), graph, 100)
    assert p_value(counts, transition(graph, metropolis)) > 1e-3
    assert p_value(counts, transition(graph, inverted)) < 1e-9
    assert p_value(counts, transition(graph, plain)) < 1e-9
    counts = steps(MetropolisHastingsSampler([1], walk_length=20, num_walks=20, alpha=0.0), graph, 100)
    assert p_value(counts, transition(graph, plain)) > 1e-3


@pytest.mark.parametrize("alpha", [1.0, 0.0, 0.5])
@pytest.mark.parametrize("target", [None, [1.0, 2.0, 0.5, 3.0, 1.5]])
def test_thinned_chains_have_the_wanted_distribution(alpha: float, target: list[float] | None) -> None:
    graph = undirected("lollipop")
    sampler = MetropolisHastingsSampler([1], walk_length=3000, num_walks=20, alpha=alpha, target=target)
    paths = sampler.walk(graph, np.arange(5), key=3)
    nodes = paths[..., 60::60].ravel()  # steps so far apart are independent to 1e-3
    law = np.diff(graph.indptr) ** (1 - alpha) * (1.0 if target is None else np.array(target))
    expected = len(nodes) * law / law.sum()
    statistic = ((np.bincount(nodes, minlength=5) - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, 4) > 1e-3


def test_walks_stay_within_their_component_and_on_isolated_nodes() -> None:
    graph = CSC.from_edges(np.array([0, 3]), np.array([1, 4]), 6).symmetrize()[0]
    paths = MetropolisHastingsSampler([1]).walk(graph, np.arange(6), key=1)
    for start, component in enumerate(({0, 1}, {0, 1}, {2}, {3, 4}, {3, 4}, {5})):
        assert set(paths[start].ravel().tolist()) <= component
    assert MetropolisHastingsSampler([3]).draw(graph, np.array([2, 5]), 0, key=1).indptr.tolist() == [0, 0, 0]


def test_neighbourhoods_are_the_most_visited_nodes(graph: CSC) -> None:
    sampler = MetropolisHastingsSampler([4], walk_length=6, num_walks=8, importance="sum")
    starts = np.arange(50)
    with warnings.catch_warnings(action="ignore"):
        paths, hop = sampler.walk(graph, starts, key=2), sampler.draw(graph, starts, 0, key=2)
    assert hop.weight is not None
    for start, path in enumerate(paths):
        nodes, counts = np.unique(path[:, 1:], return_counts=True)
        counts = counts[nodes != start]
        kept = hop.weight[hop.indptr[start] : hop.indptr[start + 1]]
        np.testing.assert_array_equal(kept, np.sort(counts)[::-1][:4])
        assert start not in hop.sources[hop.indptr[start] : hop.indptr[start + 1]]


def test_directed_graphs_are_walked_both_ways_which_is_said_once() -> None:
    graph = CSC.from_edges(np.array([0, 0, 1, 1]), np.array([1, 2, 2, 2]), 3)
    sampler = MetropolisHastingsSampler([2], num_walks=50)
    with pytest.warns(UserWarning, match="in both directions"):
        paths = sampler.walk(graph, np.arange(3), key=1)
    with warnings.catch_warnings(action="error"):
        assert set(sampler.draw(graph, np.array([0]), 0, key=1).sources.tolist()) == {1, 2}
    steps = set(zip(paths[..., :-1].ravel().tolist(), paths[..., 1:].ravel().tolist(), strict=True))
    assert steps - {(0, 0), (1, 1), (2, 2)} == {(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)}


def test_parallel_edges_count_once() -> None:
    graph = CSC.from_edges(np.array([0, 0, 0, 1, 0]), np.array([1, 1, 1, 0, 2]), 3)
    with warnings.catch_warnings(action="ignore"):
        counts = steps(MetropolisHastingsSampler([1], walk_length=20, num_walks=20), graph, 60)
    simple = CSC.from_edges(np.array([0, 1, 0, 2]), np.array([1, 0, 2, 0]), 3)
    assert p_value(counts, transition(simple, metropolis)) > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"walk_length": 0}, "walk_length=0"),
        ({"num_walks": -1}, "num_walks=-1"),
        ({"alpha": np.nan}, "alpha=nan must be finite"),
    ],
)
def test_bad_options_are_named(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MetropolisHastingsSampler([1], **options)


@pytest.mark.parametrize(
    ("value", "told"),
    [(np.nan, "nan is not finite"), (-1.0, "-1.0 must not be negative"), (np.inf, "inf is not finite")],
)
def test_bad_targets_are_named(value: float, told: str) -> None:
    graph = undirected("star")
    with pytest.raises(UserError, match=rf"sampler\.target\[1\] = {told}"):
        MetropolisHastingsSampler([1], target=[1.0, value, 2.0, 3.0, 4.0])
    with pytest.raises(ValueError, match="wanted has 4 entries, expected 5"):
        MetropolisHastingsSampler([1], target=np.ones(4)).draw(graph, np.array([0]), 0, key=1)
