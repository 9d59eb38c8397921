"""Vertex-centric programs equal networkx and dense linear algebra on every layout."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from gnnkit_testing.ranks import by_node
from hypothesis import given, settings
from hypothesis import strategies as st
from networkx.algorithms.node_classification import local_and_global_consistency

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.graph import CSC, Graph, Split
from gnnkit.jobs.iterate import Outcome, iterate
from gnnkit.model.base import Nodes, Program
from gnnkit.model.label_propagation import LabelPropagation
from gnnkit.model.pagerank import PageRank
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.shard import cut_all
from gnnkit.strategy.base import Worker
from tests.cases import few
from tests.comm.processes import run_gloo

CLASSES = 3
GRIDS = [(r, c, s) for r in range(1, 9) for c in range(1, 9) for s in range(1, 9) if r * c * s <= 8]
SHARE = 0.1  # of the in-neighbours; a small one converges fast
pagerank = functools.partial(PageRank, SHARE, tolerance=1e-12)
propagation = functools.partial(LabelPropagation, SHARE, tolerance=1e-12)


def make_graph(n: int, pairs: np.ndarray, *, weighted: bool = False) -> Graph:
    rng = np.random.default_rng(len(pairs) + n)
    csc = CSC.from_edges(pairs[:, 0], pairs[:, 1], n, weight=rng.uniform(0.1, 2.0, len(pairs)) if weighted else None)
    split = rng.choice(np.array([Split.NONE, Split.TRAIN, Split.TEST], np.int8), n)
    split[:1] = Split.TRAIN
    labels = np.where(split == Split.NONE, -1, np.arange(n) % CLASSES)
    return Graph(csc, np.zeros((n, 0)), labels, split)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs with every nuisance.

    No edges, dangling and isolated nodes, loops, parallel edges, directions, weights.
    """
    n = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
    if draw(st.booleans()):
        pairs += [(v, u) for u, v in pairs]
    return make_graph(n, np.array(pairs, np.int64).reshape(-1, 2), weighted=draw(st.booleans()))


@functools.cache
def fixed_graph() -> Graph:
    """Directed and weighted, with dangling and isolated nodes."""
    return make_graph(30, np.random.default_rng(1).integers(0, 25, (50, 2)), weighted=True)


def dense(graph: Graph) -> np.ndarray:  # [n, n]
    """Weight of the edges u -> v at [v, u]."""
    matrix = np.zeros((graph.num_nodes, graph.num_nodes))
    for v in range(graph.num_nodes):
        for e in range(graph.csc.indptr[v], graph.csc.indptr[v + 1]):
            matrix[v, graph.csc.indices[e]] += 1 if graph.csc.weight is None else graph.csc.weight[e]
    return matrix


def by_networkx(graph: Graph) -> np.ndarray:
    actual = nx.pagerank(to_networkx(graph), SHARE, tol=1e-15)
    return np.array([actual[v] for v in range(graph.num_nodes)])[:, None]


def to_networkx(graph: Graph) -> Any:
    full_graph = nx.MultiDiGraph()
    full_graph.add_nodes_from(range(graph.num_nodes))
    for v in range(graph.num_nodes):
        for e in range(graph.csc.indptr[v], graph.csc.indptr[v + 1]):
            weight = 1.0 if graph.csc.weight is None else float(graph.csc.weight[e])
            full_graph.add_edge(int(graph.csc.indices[e]), v, weight=weight)
    return full_graph


def solved_pagerank(graph: Graph) -> np.ndarray:
    """The fixed point of the dense Google matrix."""
    n, matrix = graph.num_nodes, dense(graph)
    out = matrix.sum(0)
    walk = np.where(out > 0, matrix / np.where(out > 0, out, 1), 1 / n)
    return np.linalg.solve(np.eye(n) - SHARE * walk, np.full((n, 1), (1 - SHARE) / n))


def solved_propagation(graph: Graph) -> np.ndarray:
    """(1 - alpha) (I - alpha S)^-1 Y."""
    matrix = dense(graph)
    roots = [np.array([1 / math.sqrt(d) if d > 0 else 0.0 for d in matrix.sum(axis)]) for axis in (1, 0)]
    known_labels = np.zeros((graph.num_nodes, graph.num_classes))
    train_nodes = np.flatnonzero((graph.split == Split.TRAIN) & (graph.labels >= 0))
    known_labels[train_nodes, graph.labels[train_nodes]] = 1
    s = roots[0][:, None] * matrix * roots[1]
    return (1 - SHARE) * np.linalg.solve(np.eye(len(s)) - SHARE * s, known_labels)


def close(found: np.ndarray, expected: np.ndarray) -> bool:
    return bool(np.abs(found - expected).max() <= 1e-10 * max(1.0, np.abs(expected).max()))


def ran(
    program: Program, graph: Graph, partition: Partition, run: Callable[..., list[Any]] = Threads.run
) -> tuple[np.ndarray, list[Outcome]]:
    """The values of all nodes, and what each rank says."""
    shards = list(cut_all(graph, partition))

    def on_rank(comm: Communicator) -> tuple[torch.Tensor, int, float]:
        worker = Worker(comm, shards[comm.rank], torch.float64, 0)
        outcome = iterate(copy.deepcopy(program), worker, lambda *_: None)
        return outcome.values, outcome.iterations, outcome.residual

    parts = run(on_rank, partition.grid.world_size)
    assert len({part[1:] for part in parts}) == 1, "ranks disagree on when it ended"
    rows = [(torch.tensor(shard.owned), part[0]) for shard, part in zip(shards, parts, strict=True)]
    return by_node(rows).numpy(), [part[1:] for part in parts]


def spread(graph: Graph, grid: Grid, seed: int) -> Partition:
    owners = np.random.default_rng(seed).integers(0, grid.world_size, graph.num_nodes).astype(np.int32)
    return Partition(owners, None, grid)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(graph=graphs(), grid=st.sampled_from(GRIDS), seed=st.integers(0, 99))
def test_pagerank_equals_networkx_and_the_dense_solution(graph: Graph, grid: tuple[int, int, int], seed: int) -> None:
    values, _ = ran(pagerank(), graph, spread(graph, Grid(*grid), seed))
    assert close(values, by_networkx(graph))
    assert close(values, solved_pagerank(graph))
    assert values.sum() == pytest.approx(1)


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(graph=graphs(), grid=st.sampled_from(GRIDS), seed=st.integers(0, 99))
def test_label_propagation_equals_the_dense_solution(graph: Graph, grid: tuple[int, int, int], seed: int) -> None:
    values, _ = ran(propagation(), graph, spread(graph, Grid(*grid), seed))
    assert close(values, solved_propagation(graph))


@pytest.mark.exhaustive
@pytest.mark.slow
@few("part", range(3), default=1)
def test_every_grid_of_up_to_eight_ranks_gives_the_dense_solution(part: int) -> None:
    """The programs take turns, from the smallest grids to the largest."""
    graph = fixed_graph()
    turns = itertools.cycle([(pagerank, solved_pagerank), (propagation, solved_propagation)])
    cases = list(zip(sorted(GRIDS, key=math.prod), turns, strict=False))
    for grid, (program, solved) in cases[part::3]:
        values, _ = ran(program(), graph, spread(graph, Grid(*grid), 2))
        assert close(values, solved(graph)), grid


@pytest.mark.slow
@pytest.mark.parametrize(("program", "solved"), [(pagerank, solved_pagerank), (propagation, solved_propagation)])
def test_a_vertex_cut_gives_the_dense_solution(
    program: Callable[[], Program], solved: Callable[[Graph], np.ndarray]
) -> None:
    graph, grid = fixed_graph(), Grid(5, 1, 1)
    cells = np.random.default_rng(0).integers(0, 5, graph.num_edges).astype(np.int32)
    values, _ = ran(program(), graph, Partition(spread(graph, grid, 3).node_rank, cells, grid))
    assert close(values, solved(graph))


@pytest.mark.exhaustive
@pytest.mark.slow
@few("program,solved", [(propagation, solved_propagation), (pagerank, solved_pagerank)], default=1)
def test_processes_give_the_dense_solution(
    program: Callable[[], Program], solved: Callable[[Graph], np.ndarray]
) -> None:
    graph = fixed_graph()
    values, _ = ran(program(), graph, spread(graph, Grid(2, 1, 2), 1), run_gloo)
    assert close(values, solved(graph))


@pytest.mark.slow
def test_predictions_are_those_of_networkx() -> None:
    """Its classifier is of the same paper, for undirected graphs."""
    pairs = np.random.default_rng(4).integers(0, 30, (60, 2))
    pairs = np.unique(np.sort(pairs[pairs[:, 0] != pairs[:, 1]]), axis=0)
    graph = make_graph(30, np.concatenate([pairs, pairs[:, ::-1]]))
    neighbours = nx.Graph(pairs.tolist())
    for v in np.flatnonzero(graph.split == Split.TRAIN):
        neighbours.add_node(int(v), label=int(graph.labels[v]))
    reference = dict(zip(neighbours, local_and_global_consistency(neighbours, alpha=SHARE, max_iter=100), strict=True))
    values, _ = ran(propagation(), graph, spread(graph, Grid(2, 1, 1), 0))
    nodes = [v for v in neighbours if values[v].any()]
    assert len(nodes) > 20
    assert [int(values[v].argmax()) for v in nodes] == [reference[v] for v in nodes]


@pytest.mark.slow
def test_the_residual_is_the_relative_change_and_ends_the_run() -> None:
    graph = fixed_graph()
    grid = Grid(2, 2, 1)
    steps = [ran(PageRank(tolerance=0, max_iterations=k), graph, spread(graph, grid, 1)) for k in range(1, 9)]
    for (before, _), (after, residual) in itertools.pairwise(steps):
        assert residual[0][1] == pytest.approx(np.abs(after - before).sum() / np.abs(after).sum(), rel=1e-9)
    residuals = [residual[0][1] for _, residual in steps]
    _, exits = ran(PageRank(tolerance=residuals[5]), graph, spread(graph, grid, 1))
    assert exits[0] == (6, residuals[5])


class Doubling(Program):
    def start(self, nodes: Nodes) -> torch.Tensor:
        return nodes.adjacency.out_degree[:, None] + 1

    def step(self, x: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        return x * x * 1e30


def test_values_that_are_not_finite_end_the_run_on_all_ranks() -> None:
    graph = fixed_graph()
    with pytest.raises(ValueError, match=r"model=Doubling diverges: residual=nan in iteration \d+"):
        ran(Doubling(), graph, spread(graph, Grid(2, 1, 1), 0))


class InPlace(Doubling):
    def step(self, x: torch.Tensor, nodes: Nodes) -> torch.Tensor:
        return x.mul_(0.5)


def test_a_step_that_writes_into_the_values_before_is_refused() -> None:
    """The residual would be 0, and the run would end as if it had converged."""
    graph = fixed_graph()
    with pytest.raises(ValueError, match=r"model=InPlace: x was changed in place"):
        ran(InPlace(), graph, spread(graph, Grid(2, 1, 1), 0))


def test_label_propagation_needs_a_labelled_training_node() -> None:
    graph = make_graph(4, np.array([[0, 1]]))
    graph.split[:] = Split.TEST
    with pytest.raises(ValueError, match="dataset: no labelled node is in the training split"):
        ran(propagation(), graph, spread(graph, Grid(2, 1, 1), 0))


@pytest.mark.parametrize(
    ("program", "key", "value"),
    [
        (PageRank, "damping", 1.0),
        (PageRank, "damping", -0.1),
        (PageRank, "tolerance", -1e-9),
        (LabelPropagation, "alpha", 1.0),
        (LabelPropagation, "max_iterations", 0),
    ],
)
def test_bad_arguments_are_refused(program: type[Program], key: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{key}={value} must be"):
        program(**{key: value})
