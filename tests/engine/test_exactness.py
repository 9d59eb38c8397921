"""Distributed equals one process: every layout, model and number of ranks."""

from __future__ import annotations

import functools
import math

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
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition.base import Grid, Partition
from tests.comm.processes import run_gloo
from tests.engine.reference import Answer, on_ranks, one_process

WIDTH, EDGE_WIDTH, CLASSES = 5, 2, 3
GRIDS = [(r, c, s) for r in range(1, 9) for c in range(1, 9) for s in range(1, 9) if r * c * s <= 8]
MODELS = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": functools.partial(GAT, heads=3, edge_width=EDGE_WIDTH),
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=EDGE_WIDTH),
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
    )


def make_model(name: str) -> torch.nn.Module:
    # Layers that narrow and that widen: both orders of projection and aggregation.
    # Without a bend, because a sum near zero may fall on either side.
    torch.manual_seed(3)
    return MODELS[name](WIDTH, CLASSES, hidden=7, num_layers=3, dropout=0.4).double()


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(graph=graphs(), grid=st.sampled_from(GRIDS), seed=st.integers(0, 99))
def test_any_assignment_on_any_grid_gives_one_process_result(
    model: str, graph: Graph, grid: tuple[int, int, int], seed: int
) -> None:
    chosen = Grid(*grid)
    node_rank = np.random.default_rng(seed).integers(0, chosen.world_size, graph.num_nodes).astype(np.int32)
    module = make_model(model)
    many = on_ranks(graph, Partition(node_rank, None, chosen), module, Threads.run)
    many.assert_equals(one_process(graph, module))


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(graph=graphs(), cells=st.integers(1, 5), slices=st.integers(1, 2), seed=st.integers(0, 99))
def test_any_vertex_cut_gives_one_process_result(model: str, graph: Graph, cells: int, slices: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grid = Grid(cells, 1, slices)
    partition = Partition(
        rng.integers(0, grid.world_size, graph.num_nodes).astype(np.int32),
        rng.integers(0, cells, graph.num_edges).astype(np.int32),
        grid,
    )
    module = make_model(model)
    on_ranks(graph, partition, module, Threads.run).assert_equals(one_process(graph, module))


def test_a_loop_that_another_cell_holds_is_not_added_again() -> None:
    graph, module = make_graph(2, np.array([[0, 0], [0, 1]]), weighted=False), make_model("gcn")
    cut = Partition(np.array([0, 1], np.int32), np.array([1, 0], np.int32), Grid(2, 1, 1))
    on_ranks(graph, cut, module, Threads.run).assert_equals(one_process(graph, module))


@functools.cache
def fixed_case(model: str, directed: bool) -> tuple[Graph, torch.nn.Module, Answer]:
    pairs = np.random.default_rng(1).integers(0, 30, (100, 2))
    graph = make_graph(30, pairs if directed else np.concatenate([pairs, pairs[:, ::-1]]), weighted=False)
    module = make_model(model)
    return graph, module, one_process(graph, module)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("directed", [True, False], ids=["directed", "undirected"])
@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_grid_of_up_to_eight_ranks(model: str, directed: bool, ranks: int) -> None:
    graph, module, expected = fixed_case(model, directed)
    node_rank = np.sort(np.random.default_rng(2).integers(0, ranks, graph.num_nodes)).astype(np.int32)
    for grid in GRIDS:
        if math.prod(grid) == ranks:
            on_ranks(graph, Partition(node_rank, None, Grid(*grid)), module, Threads.run).assert_equals(expected)


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("grid", [(1, 1, 2), (4, 1, 1), (2, 2, 1), (2, 1, 2), (1, 3, 1)], ids=str)
def test_gloo_processes_give_one_process_result(model: str, grid: tuple[int, int, int]) -> None:
    graph, module, expected = fixed_case(model, directed=True)
    ranks = math.prod(grid)
    node_rank = np.random.default_rng(3).integers(0, ranks, graph.num_nodes).astype(np.int32)
    on_ranks(graph, Partition(node_rank, None, Grid(*grid)), module, run_gloo).assert_equals(expected)
