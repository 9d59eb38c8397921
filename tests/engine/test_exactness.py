"""Distributed equals one process: every layout, model and number of ranks."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnkit.comm.threads import Threads
from gnnkit.graph import CSC, Graph
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.hgt import HGT
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.model.simple_hgn import SimpleHGN
from gnnkit.partition.base import Grid, Partition
from tests.cases import few
from tests.comm.processes import run_gloo
from tests.engine.reference import Answer, Runner, on_ranks, one_process

WIDTH, EDGE_WIDTH, CLASSES = 5, 2, 3
RELATIONS = ("some", "none", "few", "most")  # of which "none" has no edges
GRIDS = [(r, c, s) for r in range(1, 9) for c in range(1, 9) for s in range(1, 9) if r * c * s <= 8]
MODELS = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": functools.partial(GAT, heads=3, edge_width=EDGE_WIDTH),
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=EDGE_WIDTH),
    "rgcn": functools.partial(RGCN, num_relations=len(RELATIONS)),
    "rgcn-bases": functools.partial(RGCN, num_relations=len(RELATIONS), bases=2, inverse=False),
    "rgcn-sums": functools.partial(RGCN, num_relations=len(RELATIONS), bases=1),
    "rgat": functools.partial(RGAT, num_relations=len(RELATIONS), heads=2),
    "simple_hgn": functools.partial(SimpleHGN, num_relations=len(RELATIONS), heads=2, relation_width=4),
    "hgt": functools.partial(HGT, num_relations=len(RELATIONS), num_node_types=3, heads=2),
    "hgt-given": functools.partial(
        HGT, num_relations=len(RELATIONS), num_node_types=3, heads=2, inverse=False, self_loop=True, norm="batch"
    ),
    "rgat-given": functools.partial(
        RGAT, num_relations=len(RELATIONS), heads=2, inverse=False, self_loop=False, project=False
    ),
}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Small graphs with every nuisance.

    No edges, isolated nodes, self-loops, parallel edges, directions, weights.
    """
    n = draw(st.integers(1, 12))
    pairs = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=40))
    if draw(st.booleans()):
        pairs += [(v, u) for u, v in pairs]
    weighted = draw(st.booleans())
    return make_graph(n, np.array(pairs, np.int64).reshape(-1, 2), weighted)


def make_graph(n: int, pairs: np.ndarray, weighted: bool) -> Graph:
    rng = np.random.default_rng(len(pairs))
    weight = rng.uniform(0.1, 2.0, len(pairs)) if weighted else None
    csc = CSC.from_edges(pairs[:, 0], pairs[:, 1], n, weight=weight)
    return Graph(
        csc,
        rng.standard_normal((n, WIDTH)),
        np.zeros(n, np.int64),
        np.ones(n, np.int8),
        rng.standard_normal((len(pairs), EDGE_WIDTH)),
        edge_types=rng.choice([0, 2, 3, 3, 3], len(pairs)),
        edge_type_names=RELATIONS,
        node_types=(("some", n // 3), ("none", 0), ("most", n - n // 3)),
    )


def make_model(name: str) -> torch.nn.Module:
    # Layers that narrow and that widen: both orders of projection and aggregation.
    # Without a bend, because a sum near zero may fall on either side.
    torch.manual_seed(3)
    return MODELS[name](WIDTH, CLASSES, hidden=7, num_layers=2, dropout=0.4).double()


def answers(graph: Graph, names: Iterable[str] = MODELS) -> dict[str, Answer]:
    return {name: one_process(graph, make_model(name)) for name in names}


some_models = st.sets(st.sampled_from(list(MODELS)), min_size=1, max_size=4)


def assert_ranks_give(
    expected: dict[str, Answer], graph: Graph, partition: Partition, run: Runner = Threads.run
) -> None:
    results = on_ranks(graph, partition, [make_model(name) for name in expected], run)
    for (name, answer), ranks in zip(expected.items(), results, strict=True):
        ranks.assert_equals(answer, f"{name} on {partition.grid}")


@pytest.mark.slow
@settings(max_examples=5)
@given(graph=graphs(), grid=st.sampled_from(GRIDS), seed=st.integers(0, 99), names=some_models)
def test_any_assignment_on_any_grid_gives_one_process_result(
    graph: Graph, grid: tuple[int, int, int], seed: int, names: set[str]
) -> None:
    chosen = Grid(*grid)
    node_rank = np.random.default_rng(seed).integers(0, chosen.world_size, graph.num_nodes).astype(np.int32)
    assert_ranks_give(answers(graph, sorted(names)), graph, Partition(node_rank, None, chosen))


@pytest.mark.slow
@settings(max_examples=5)
@given(graph=graphs(), cells=st.integers(1, 5), slices=st.integers(1, 2), seed=st.integers(0, 99), names=some_models)
def test_any_vertex_cut_gives_one_process_result(
    graph: Graph, cells: int, slices: int, seed: int, names: set[str]
) -> None:
    rng = np.random.default_rng(seed)
    grid = Grid(cells, 1, slices)
    partition = Partition(
        rng.integers(0, grid.world_size, graph.num_nodes).astype(np.int32),
        rng.integers(0, cells, graph.num_edges).astype(np.int32),
        grid,
    )
    assert_ranks_give(answers(graph, sorted(names)), graph, partition)


@pytest.mark.slow
def test_a_loop_that_another_cell_holds_is_not_added_again() -> None:
    graph = make_graph(2, np.array([[0, 0], [0, 1]]), weighted=False)
    cut = Partition(np.array([0, 1], np.int32), np.array([1, 0], np.int32), Grid(2, 1, 1))
    assert_ranks_give({"gcn": one_process(graph, make_model("gcn"))}, graph, cut)


@functools.cache
def fixed_case(directed: bool) -> tuple[Graph, dict[str, Answer]]:
    pairs = np.random.default_rng(1).integers(0, 30, (100, 2))
    graph = make_graph(30, pairs if directed else np.concatenate([pairs, pairs[:, ::-1]]), weighted=False)
    return graph, answers(graph)


@pytest.mark.slow
@few("turn,large", [*itertools.product(range(0, 9, 2), [False, True])], default=1)
def test_every_grid_of_up_to_eight_ranks(turn: int, large: bool) -> None:
    """Each turn gives a grid one model. A model meets directed and undirected edges."""
    for number, grid in enumerate(grid for grid in GRIDS if (math.prod(grid) > 6) == large):
        graph, reference = fixed_case((number // 9 + turn) % 2 == 0)
        name = list(MODELS)[(number + turn) % 9]
        node_rank = np.sort(np.random.default_rng(2).integers(0, math.prod(grid), graph.num_nodes)).astype(np.int32)
        assert_ranks_give({name: reference[name]}, graph, Partition(node_rank, None, Grid(*grid)))


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("grid", [Grid(2, 2, 1), Grid(2, 1, 2), Grid(1, 3, 1)], ids=str)
def test_gloo_processes_give_one_process_result(grid: Grid) -> None:
    graph, reference = fixed_case(directed=True)
    node_rank = np.random.default_rng(3).integers(0, grid.world_size, graph.num_nodes).astype(np.int32)
    run_keys = {name: reference[name] for name in ("gcn", "sage-max", "gat", "rgcn", "rgat")}
    assert_ranks_give(run_keys, graph, Partition(node_rank, None, grid), run_gloo)
