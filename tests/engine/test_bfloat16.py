"""Full-graph training with rows of bfloat16: sums, gradients, bytes on any layout."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.graph import CSC, Graph, SparseFeatures, Split
from gnnkit.model.hgt import HGT
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.partition.base import Grid
from gnnkit.strategy.base import Worker
from gnnkit.task.node_classification import NodeClassification
from gnnkit.training.step import loss_part
from tests.cases import few
from tests.models import MODELS
from tests.sync.training import shards_on, vertex_centric
from tests.turns import turns

GRIDS = [Grid(1, 1, 1), Grid(3, 1, 1), Grid(2, 2, 1), Grid(2, 1, 2)]
ROUNDED = 2.0**-8  # share of a number that rounding to bfloat16 changes at most
WIDTH, CLASSES = 6, 3
OWN = {
    **MODELS,
    "rgcn": functools.partial(RGCN, num_relations=1),
    "hgt": functools.partial(HGT, num_relations=1, heads=2),
    "rgat": functools.partial(RGAT, num_relations=1, heads=2),
}


def make_graph(num_nodes: int = 60) -> Graph:
    rng = np.random.default_rng(0)
    src, dst = rng.integers(0, num_nodes, (2, 8 * num_nodes))
    features = rng.standard_normal((num_nodes, WIDTH)).astype(np.float32)
    labels, split = rng.integers(0, CLASSES, num_nodes), np.full(num_nodes, Split.TRAIN, np.int8)
    return Graph(CSC.from_edges(src, dst, num_nodes), features, labels, split)


def sums(engine: Engine, x: Tensor) -> list[Tensor]:
    (adjacency,) = ShardAdjacency.layers(engine, 1, 0)
    own = torch.tensor(1.5)
    return [
        adjacency.aggregate(x),
        adjacency.aggregate(x, reduce="mean"),
        adjacency.aggregate_normalized(x),
        adjacency.concat_mean(x),
        adjacency.aggregate_with_own(x, own),
        adjacency.aggregate(x, reduce="max"),
    ]


@pytest.mark.slow
@few("grid", GRIDS, GRIDS[3:])
def test_sums_and_their_gradients_are_rounded_a_few_times_on_any_layout(grid: Grid) -> None:
    shards = shards_on(grid, make_graph())

    def on_rank(comm: Communicator) -> None:
        engine = Engine(shards[comm.rank], comm, torch.float32)
        rows = torch.tensor(shards[comm.rank].features).bfloat16()
        sizes = sums(engine, rows.float().abs())
        for number, size in enumerate(sizes):
            x, exact = rows.clone().requires_grad_(), rows.float().requires_grad_()
            actual, reference = sums(engine, x)[number], sums(engine, exact)[number]
            assert actual.dtype == torch.bfloat16
            assert ((actual.float() - reference).abs() <= 4 * ROUNDED * size + 1e-30).all()
            slope = torch.linspace(-1, 1, actual.shape[1]).expand_as(actual)
            (of_x,), (of_exact,) = (
                torch.autograd.grad(z, y, slope.to(z.dtype)) for z, y in ((actual, x), (reference, exact))
            )
            assert of_x.dtype == torch.bfloat16
            assert (of_x.float() - of_exact).abs().max() <= 8 * ROUNDED * comm.all_reduce(of_exact.abs().sum(1).max())

    Threads.run(on_rank, grid.world_size)


def gradients(name: str, grid: Grid, input_dtype: torch.dtype | None, *, sparse: bool = False) -> tuple[Tensor, int]:
    """Returns the gradient of a step, and the bytes that all ranks sent."""
    graph = make_graph()
    if sparse:
        graph = replace(graph, features=SparseFeatures.of(np.where(graph.features > 0.5, graph.features, 0)))
    shards = shards_on(grid, graph)
    torch.manual_seed(3)
    first = OWN[name](WIDTH, CLASSES, hidden=8, num_layers=3, dropout=0.3)

    def on_rank(comm: Communicator) -> tuple[Tensor, int]:
        model = copy.deepcopy(first)
        worker = Worker(comm, shards[comm.rank], torch.float32, 0, input_dtype=input_dtype)
        strategy = vertex_centric()
        strategy.setup(worker, model)
        (batch,) = strategy.batches(0)
        assert batch.x.dtype == (input_dtype or torch.float32)
        with batch.precision():
            loss = loss_part(NodeClassification(), model(batch.x, batch.adjacencies), batch)
        loss.backward()
        results = [p.grad.flatten() for p in model.parameters() if p.grad is not None]
        assert {each.dtype for each in results} == {torch.float32}
        return comm.all_reduce(torch.cat(results)), strategy.tally.bytes_sent

    results = Threads.run(on_rank, grid.world_size)
    return results[0][0], sum(each for _, each in results)


@pytest.mark.slow
@turns(name=["gcn", "gat", "gin", "sage", "sage-max", "rgcn"], grid=GRIDS)
def test_the_gradient_of_a_step_is_that_of_float32_but_for_rounding(name: str, grid: Grid) -> None:
    exact, num_bytes = gradients(name, grid, None)
    rounded, fewer = gradients(name, grid, torch.bfloat16)
    assert 0 < (rounded - exact).norm() < 0.05 * exact.norm()
    assert fewer <= num_bytes
    if grid.world_size > 1:
        assert fewer < 0.75 * num_bytes


@pytest.mark.slow
def test_rows_travel_in_half_the_bytes() -> None:
    for grid in GRIDS[1:]:
        assert 2 * gradients("gcn", grid, torch.bfloat16)[1] == gradients("gcn", grid, None)[1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gcn", "sage", "gin"])
def test_products_of_sparse_rows_are_rounded_and_their_numbers_are_not(name: str) -> None:
    grid = Grid(2, 1, 1)
    exact, rounded = (gradients(name, grid, dtype, sparse=True)[0] for dtype in (None, torch.bfloat16))
    assert 0 < (rounded - exact).norm() < 0.05 * exact.norm()


def test_a_model_that_adds_up_rows_itself_gets_rows_of_32_bits() -> None:
    class Own(nn.Module):
        adds_rows_itself, num_layers = True, 1

    def on_rank(comm: Communicator) -> Iterable[torch.dtype]:
        worker = Worker(comm, shard, torch.float32, 0, input_dtype=torch.bfloat16)
        return [worker.input_rows(shard.owned, model).dtype for model in (Own(), nn.Identity())]

    (shard,) = shards_on(GRIDS[0], make_graph())
    assert Threads.run(on_rank, 1) == [[torch.float32, torch.bfloat16]]
