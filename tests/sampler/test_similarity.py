"""Walks that prefer nodes like their start: on paper, and by chance in the code."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from gnnkit_testing.graphs import check_graph
from scipy.stats import chi2

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph
from gnnkit.sampler import Loader, MetropolisHastingsSampler, NeighborSampler, Sampler
from gnnkit.testing import check_sampler
from tests.cases import few
from tests.sampler.test_metropolis_hastings import EDGES, is_stationary, p_value, undirected
from tests.turns import turns

# Rows of whole lengths, so that cosines are fractions: alike, opposite, orthogonal, of
# other lengths, and zeros.
ROWS = [(3, 4), (4, 3), (0, 0), (-30, -40), (5, 12)]
FLOOR, SHARPNESS = Fraction(1, 4), 2
APART = 800  # steps after which a chain on the lollipop has forgotten where it was
Matrix = list[list[Fraction]]
# Acceptance by the wanted weights of the two nodes, by the degrees, and by alpha.
Law = Callable[[Fraction, Fraction, int, int, int], Fraction]


def right(here: Fraction, there: Fraction, d: int, e: int, alpha: int) -> Fraction:
    return there / here * Fraction(d, e) ** alpha


WRONG: dict[str, Law] = {
    "degrees inverted": lambda here, there, d, e, alpha: there / here * Fraction(e, d) ** alpha,
    "no degrees": lambda here, there, d, e, alpha: there / here,
    "weights inverted": lambda here, there, d, e, alpha: here / there * Fraction(d, e) ** alpha,
    "no weights": lambda here, there, d, e, alpha: Fraction(d, e) ** alpha,
    "weight of the other node only": lambda here, there, d, e, alpha: there * Fraction(d, e) ** alpha,
    "plain": lambda here, there, d, e, alpha: Fraction(1),
}


def cosine(x: Sequence[int], y: Sequence[int]) -> Fraction:
    lengths = math.isqrt(sum(a * a for a in x)) * math.isqrt(sum(a * a for a in y))
    return Fraction(sum(a * b for a, b in zip(x, y, strict=True)), lengths) if lengths else Fraction(0)


def weights(graph: CSC, start: int) -> list[Fraction]:
    """By how much walks from `start` want each node. The start is as its neighbours."""
    likeness = [FLOOR + max(Fraction(0), cosine(row, ROWS[start])) for row in ROWS[: graph.num_nodes]]
    wanted = [sum_**SHARPNESS for sum_ in likeness]
    near = [wanted[v] for v in graph.indices[graph.indptr[start] : graph.indptr[start + 1]] if v != start]
    wanted[start] = sum(near, Fraction(0)) / len(near)
    return wanted


def transition(graph: CSC, wanted: list[Fraction], law: Law, alpha: int) -> Matrix:
    """Returns P[u][v] of walks that want each node so much."""
    n, degree = graph.num_nodes, [int(d) for d in np.diff(graph.indptr)]
    P = [[Fraction(0)] * n for _ in range(n)]
    for u in range(n):
        for v in map(int, graph.indices[graph.indptr[u] : graph.indptr[u + 1]]):
            accepted = min(Fraction(1), law(wanted[u], wanted[v], degree[u], degree[v], alpha))
            P[u][v] += Fraction(1, degree[u]) * accepted
        P[u][u] += 1 - sum(P[u])
    return P


def wanted_law(graph: CSC, wanted: list[Fraction], alpha: int) -> list[Fraction]:
    """Returns pi(v), in proportion to w(v) d(v)^(1 - alpha)."""
    pi = [w * Fraction(int(d)) ** (1 - alpha) for w, d in zip(wanted, np.diff(graph.indptr), strict=True)]
    return [p / sum(pi) for p in pi]


def walks(alpha: float = 1, **options: Any) -> MetropolisHastingsSampler:
    given = {"floor": float(FLOOR), "sharpness": SHARPNESS, "embeddings": np.array(ROWS, np.float32), **options}
    return MetropolisHastingsSampler([3], target="similarity", alpha=alpha, **given)


def rows_of(graph: CSC) -> npt.NDArray[np.float32]:
    return np.array(ROWS[: graph.num_nodes], np.float32)


def steps(alpha: int, graph: CSC, start: int, keys: int) -> npt.NDArray[np.int64]:  # [n, n]
    """How often walks from `start` went from each node to each other one."""
    n, counts = graph.num_nodes, np.zeros(graph.num_nodes**2, np.int64)
    sampler = walks(alpha, embeddings=rows_of(graph), walk_length=50, num_walks=80)
    for key in range(keys):
        paths = sampler.walk(graph, np.array([start]), key=key).astype(np.int64)
        counts += np.bincount((paths[..., :-1] * n + paths[..., 1:]).ravel(), minlength=n * n)
    return counts.reshape(n, n)


@pytest.mark.parametrize("alpha", [0, 1, 2])
@pytest.mark.parametrize("name", EDGES)
def test_the_law_of_every_start_leaves_exactly_the_wanted_distribution_unchanged(name: str, alpha: int) -> None:
    graph = undirected(name)
    for start in range(graph.num_nodes):
        wanted = weights(graph, start)
        pi, P = wanted_law(graph, wanted, alpha), transition(graph, wanted, right, alpha)
        assert is_stationary(pi, P)
        for u in range(graph.num_nodes):
            assert all(pi[u] * P[u][v] == pi[v] * P[v][u] for v in range(graph.num_nodes)), "detailed balance"
        for law in WRONG.values() if len(set(wanted)) > 1 else []:
            other = transition(graph, wanted, law, alpha)
            assert other == P or not is_stationary(pi, other)


@turns(name=list(EDGES), alpha=[0, 1, 2])
def test_walks_step_by_the_law_of_their_start_and_by_no_other(name: str, alpha: int) -> None:
    graph = undirected(name)
    for start in (0, 1):  # all weights are alike from a start unlike every node
        counts = steps(alpha, graph, start, 100)
        P = transition(graph, weights(graph, start), right, alpha)
        assert p_value(counts, P) > 1e-3
        others = [transition(graph, weights(graph, start), law, alpha) for law in WRONG.values()]
        others += [transition(graph, weights(graph, s), right, alpha) for s in range(graph.num_nodes)]
        told_apart = [other for other in others if other != P]
        assert len(told_apart) >= 4
        assert max(p_value(counts, other) for other in told_apart) < 1e-9


@pytest.mark.parametrize("alpha", [0, 1])
@few("start", range(5), [0, 2, 3])
def test_thinned_chains_have_the_distribution_of_their_start(alpha: int, start: int) -> None:
    graph = undirected("lollipop")
    wanted = weights(graph, start)
    pi = np.array(wanted_law(graph, wanted, alpha), np.float64)
    P = np.array(transition(graph, wanted, right, alpha), np.float64)
    assert abs(np.linalg.matrix_power(P, APART) - pi).max() < 1e-3, "steps so far apart are independent"
    paths = walks(alpha, walk_length=10 * APART, num_walks=100).walk(graph, np.array([start]), key=3)
    nodes = paths[..., APART::APART].ravel()
    expected = len(nodes) * pi
    statistic = ((np.bincount(nodes, minlength=5) - expected) ** 2 / expected).sum()
    assert chi2.sf(statistic, 4) > 1e-3


def test_the_floor_keeps_nodes_of_similarity_0_reachable() -> None:
    graph = undirected("path")
    rows = np.array([(1, 0), (0, 1), (0, 1), (1, 0)], np.float32)
    visits = {}
    for floor in (0.01, 0.5):
        sampler = walks(embeddings=rows, floor=floor, sharpness=1, walk_length=2000)
        visits[floor] = np.bincount(sampler.walk(graph, np.array([0]), key=1).ravel(), minlength=4)
    assert (visits[0.01] > 0).all(), "the only way to node 3 leads through nodes unlike the start"
    assert visits[0.01][1:3].sum() < visits[0.5][1:3].sum()


def test_a_start_without_features_is_like_no_node_so_its_walks_are_uniform() -> None:
    graph, start = undirected("star"), 2
    assert ROWS[start] == (0, 0)
    uniform = transition(graph, [Fraction(1)] * graph.num_nodes, right, 1)
    assert p_value(steps(1, graph, start, 100), uniform) > 1e-3


GRAPH = check_graph(60)
BOTH_WAYS = GRAPH.csc.symmetrize()[0]


def similar(threads: int = 1, **options: Any) -> MetropolisHastingsSampler:
    return MetropolisHastingsSampler([4, 4], target="similarity", importance="sum", threads=threads, **options)


def test_nodes_like_the_start_are_found_more_often_than_by_uniform_walks() -> None:
    rows = np.random.default_rng(1).standard_normal((GRAPH.num_nodes, 8))
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def likeness(sampler: MetropolisHastingsSampler) -> float:
        paths = sampler.walk(BOTH_WAYS, np.arange(GRAPH.num_nodes), key=1)
        return float((unit[paths[:, 0, :1], None] * unit[paths]).sum(-1).mean())

    assert likeness(similar(embeddings=rows)) > likeness(MetropolisHastingsSampler([4, 4])) + 0.05


def block_model() -> tuple[CSC, npt.NDArray[np.float64]]:
    """Makes 400 nodes in 8 blocks, with 70 % of the edges inside, and rows by block."""
    random = np.random.default_rng(0)
    block = np.arange(400) % 8
    src, near, far = random.integers(0, 400, 1200), random.integers(0, 50, 1200) * 8, random.integers(0, 400, 1200)
    dst = np.where(random.random(1200) < 0.7, near + block[src], far)
    rows = abs(random.standard_normal((8, 16)))[block] + random.standard_normal((400, 16)) / 2
    return CSC.from_edges(src, dst, 400).symmetrize()[0], rows


def likeness(sampler: Sampler, graph: CSC, features: npt.NDArray[Any]) -> float:
    """Returns the mean cosine of a node and its draws, over 5 keys and 1000 nodes."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-30)
    nodes, means = np.flatnonzero(np.diff(graph.indptr)), []
    nodes = nodes[:: -(-len(nodes) // 1000)]
    for key in range(5):
        hop = sampler.draw(graph, nodes, 0, key=key)
        counts = np.diff(hop.indptr)
        row = np.repeat(np.arange(len(nodes)), counts)
        cosines = (unit[nodes[row]] * unit[hop.sources]).sum(axis=1)
        means.append((np.bincount(row, cosines, len(nodes)) / np.maximum(counts, 1))[counts > 0].mean())
    return float(np.mean(means))


def test_by_default_the_nodes_drawn_are_more_like_the_start_than_its_neighbours() -> None:
    graph, rows = block_model()
    walks = MetropolisHastingsSampler([10], target="similarity", embeddings=rows)
    assert likeness(walks, graph, rows) > likeness(NeighborSampler([10]), graph, rows) + 0.05


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["cora", "pubmed", "amazon_photo"])
def test_on_real_graphs_too_they_are_more_like_the_start(name: str, planetoid: Callable[[str], Graph]) -> None:
    graph = planetoid(name)
    rows = np.asarray(graph.features)
    walks = MetropolisHastingsSampler([10], target="similarity").with_features(rows)
    assert likeness(walks, graph.csc, rows) > 1.1 * likeness(NeighborSampler([10]), graph.csc, rows)


def test_nodes_as_like_the_start_as_others_do_not_hold_the_walks() -> None:
    graph = undirected("star")
    rows = np.array([(1, 0), *[(0.3, 1)] * 4])
    paths = walks(embeddings=rows, sharpness=32, walk_length=40).walk(graph, np.array([0]), key=1)
    assert set(paths.ravel().tolist()) == {0, 1, 2, 3, 4}


def test_batches_have_the_same_bits_on_any_number_of_threads_and_from_any_type_of_rows() -> None:
    rows = np.random.default_rng(2).integers(-3, 4, (GRAPH.num_nodes, 37)).astype(np.float64)
    expected = similar(embeddings=rows).sample(BOTH_WAYS, np.arange(GRAPH.num_nodes), key=5)
    others = [similar(threads, embeddings=rows) for threads in (2, 3)]
    others += [similar(embeddings=rows.astype(dtype)) for dtype in (np.float32, np.float16, np.int8, ">f8")]
    others += [similar(embeddings=np.asfortranarray(rows)), similar().with_features(rows)]
    for sampler in others:
        batch = sampler.sample(BOTH_WAYS, np.arange(GRAPH.num_nodes), key=5)
        for block, other in zip(expected.blocks, batch.blocks, strict=True):
            for name in ("indptr", "indices", "src_nodes", "weight"):
                np.testing.assert_array_equal(getattr(block, name), getattr(other, name))


@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_a_loader_gives_the_sampler_the_features_it_gathers() -> None:
    def batches(graph: Graph | CSC, sampler: MetropolisHastingsSampler, **options: Any) -> list[Any]:
        return [loaded.blocks for loaded in Loader(graph, sampler, batch_size=20, **options)]

    rows = np.random.default_rng(3).standard_normal(GRAPH.features.shape).astype(np.float32)
    expected = batches(GRAPH.csc, similar(embeddings=GRAPH.features), threads=1)
    for threads in (1, 2, 3):
        found = batches(GRAPH, similar(), threads=threads)
        assert [b.src_nodes.tolist() for blocks in found for b in blocks] == [
            b.src_nodes.tolist() for blocks in expected for b in blocks
        ]
    by_rows = batches(GRAPH, similar(), features=rows)
    expected = batches(GRAPH.csc, similar(embeddings=rows))
    assert [b.src_nodes.tolist() for blocks in by_rows for b in blocks] == [
        b.src_nodes.tolist() for blocks in expected for b in blocks
    ]


@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_the_sampler_keeps_the_contract_of_samplers() -> None:
    check_sampler(similar(embeddings=GRAPH.features), GRAPH.csc, np.arange(30))
    assert similar().rank_invariant
    assert similar().reads_features
    assert not similar().with_features(GRAPH.features).reads_features
    neighbor = NeighborSampler([2])
    assert not neighbor.reads_features
    assert neighbor.with_features(None) is neighbor


def test_embeddings_may_be_a_file(tmp_path: Path) -> None:
    path, nodes = tmp_path / "rows.npy", np.arange(10)
    np.save(path, GRAPH.features)
    expected = similar(embeddings=GRAPH.features).draw(BOTH_WAYS, nodes, 0, key=1)
    found = similar(embeddings=str(path)).draw(BOTH_WAYS, nodes, 0, key=1)
    np.testing.assert_array_equal(found.sources, expected.sources)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "similar"}, r"^sampler\.target=similar is not known: did you mean similarity\?"),
        ({"target": None, "floor": 0.5}, r"^sampler\.options\.floor=0\.5 requires sampler\.target=similarity"),
        (
            {"target": np.ones(60), "embeddings": np.ones((60, 2))},
            r"^sampler\.options\.embeddings requires sampler\.target=sim",
        ),
        ({"target": None, "sharpness": 2}, r"^sampler\.options\.sharpness=2 requires sampler\.target=similarity"),
        ({"sharpness": 0}, r"^sampler\.options\.sharpness=0 must be a whole number from 1 to 32"),
        ({"sharpness": 33}, r"^sampler\.options\.sharpness=33 must be a whole number from 1 to 32"),
        ({"sharpness": 1.5}, r"^sampler\.options\.sharpness=1\.5 must be a whole number"),
        ({"floor": 0}, r"^sampler\.options\.floor=0 must be a number of at least 1e-09"),
        ({"floor": -1.0}, r"^sampler\.options\.floor=-1\.0 must be a number of at least 1e-09"),
        ({"floor": math.nan}, r"^sampler\.options\.floor=nan must be a number"),
        ({"floor": math.inf}, r"^sampler\.options\.floor=inf must be a number"),
        ({"floor": "much"}, r"^sampler\.options\.floor=much must be a number"),
        ({"embeddings": np.ones(60)}, r"^sampler\.options\.embeddings has shape \[60\], expected \[any, any\]"),
        (
            {"embeddings": np.ones((60, 0))},
            r"^sampler\.options\.embeddings has shape \[60, 0\], expected at least one column",
        ),
        ({"embeddings": [[1.0, math.nan]]}, r"^sampler\.options\.embeddings\[0, 1\] = nan is not finite"),
        ({"embeddings": [[1.0, math.inf]]}, r"^sampler\.options\.embeddings\[0, 1\] = inf is not finite"),
        ({"embeddings": [[1e39]]}, r"^sampler\.options\.embeddings\[0, 0\] = 1e\+39 is too large for float32"),
        ({"embeddings": [["a"]]}, r"^sampler\.options\.embeddings has dtype"),
        ({"embeddings": "/none.npy"}, r"^sampler\.options\.embeddings=/none\.npy cannot be read: "),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_key(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MetropolisHastingsSampler([4, 4], **{"target": "similarity", **options})


def test_rows_that_do_not_fit_the_graph_are_refused() -> None:
    nodes = np.arange(3)
    with pytest.raises(UserError, match=r"sampler\.target=similarity compares node features: pass them to"):
        similar().draw(BOTH_WAYS, nodes, 0, key=1)
    for features in (None, np.empty((GRAPH.num_nodes, 0), np.float32)):
        with pytest.raises(
            UserError, match=r"^sampler\.target=similarity compares .* graph has none: set sampler\.options\.emb"
        ):
            similar().with_features(features)
    with pytest.raises(UserError, match=r"graph has none: set sampler\.options\.embeddings"):
        Loader(GRAPH.csc, similar())
    with pytest.raises(
        UserError, match=rf"sampler\.options\.embeddings has 5 rows, but the graph has {GRAPH.num_nodes} nodes"
    ):
        similar(embeddings=np.ones((5, 2))).draw(BOTH_WAYS, nodes, 0, key=1)
    with pytest.raises(UserError, match=r"^features has shape \[60, 2, 2\], expected \[any, any\]"):
        similar().with_features(np.ones((60, 2, 2)))
    rows = np.ones((GRAPH.num_nodes, 2))
    sampler = similar().with_features(rows)
    rows[:] = np.nan
    with pytest.raises(UserError, match=r"^similarity\[0\] = NaN is not finite"):
        sampler.draw(BOTH_WAYS, nodes, 0, key=1)
