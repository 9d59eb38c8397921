"""A layer that writes in place changes no later step, or is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency, BlockLayers, Engine, ShardAdjacency
from gnnkit.engine.in_place import forbid_writes
from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.partition.base import Grid
from gnnkit.sampler import FullSampler
from tests.sync.training import shards_on

RNG = np.random.default_rng(0)
GRAPH = Graph.from_edges(
    *RNG.integers(0, 20, (2, 80)), 20, features=RNG.normal(size=(20, 3)), edge_features=RNG.normal(size=(80, 2))
)
WRITES: dict[str, Callable[[Tensor], Any]] = {
    "iadd": lambda h: h.add_(1),
    "relu": lambda h: h.relu_(),
    "a part": lambda h: h[:2].mul_(3),
    "dropout": lambda h: F.dropout(h, 0.9, True, inplace=True),
    "array": lambda h: h.numpy().fill(7),
}
READS: dict[str, Callable[[Adjacency, Tensor], Tensor]] = {
    "sum": lambda a, x: a.aggregate(x),
    "mean": lambda a, x: a.aggregate(x, reduce="mean"),
    "normal": lambda a, x: a.aggregate_normalized(x),
    "beside": lambda a, x: a.concat_mean(x),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_a_layer_may_write_into_a_sum(write: Callable[[Tensor], Any]) -> None:
    """The first pass and later ones read the same sums."""
    shards = shards_on(Grid(2, 1, 1))

    def on_rank(comm: Communicator) -> None:
        engine = Engine(shards[comm.rank], comm, torch.float64)
        x = torch.tensor(shards[comm.rank].features)
        (adjacency,) = ShardAdjacency.layers(engine, 1, 0)
        reference = [read(adjacency, x) for read in READS.values()]
        engine.fix(x)
        for _ in range(3):
            for read, wanted in zip(READS.values(), reference, strict=True):
                actual = read(adjacency, x)
                torch.testing.assert_close(actual, wanted, rtol=0, atol=0)
                write(actual)

    Threads.run(on_rank, 2)


def test_a_kept_sum_is_copied_only_where_a_layer_writes() -> None:
    shard = shards_on(Grid(1, 1, 1))[0]

    def on_rank(comm: Communicator) -> None:
        engine = Engine(shard, comm, torch.float64)
        x = torch.tensor(shard.features)
        engine.fix(x)
        (adjacency,) = ShardAdjacency.layers(engine, 1, 0)
        actual, weight = adjacency.aggregate(x), torch.ones(x.shape[1], 2, dtype=x.dtype, requires_grad=True)
        (actual @ weight).sum().backward()
        assert torch._C._is_cow_tensor(actual)
        actual += 1
        assert not torch._C._is_cow_tensor(actual)

    Threads.run(on_rank, 1)


def test_rows_with_those_of_other_ranks_are_a_copy_on_one_rank_too() -> None:
    def on_rank(comm: Communicator) -> None:
        adjacency, x = adjacencies("shard", comm)
        for own in (x, torch.from_numpy(x.numpy())):
            read, before = own.requires_grad_(), own.detach().clone()
            rows = adjacency.with_halo(read)
            rows *= 2
            assert torch.equal(read, before)
            assert torch.equal(torch.autograd.grad(rows.sum(), read)[0], torch.full_like(x, 2))

    Threads.run(on_rank, 1)


def adjacencies(kind: str, comm: Communicator) -> tuple[Adjacency, Tensor]:
    if kind == "shard":
        shard = shards_on(Grid(1, 1, 1), GRAPH)[0]
        return ShardAdjacency.layers(Engine(shard, comm, torch.float64), 1, 0)[0], torch.tensor(shard.features)
    batch = FullSampler(num_hops=1).sample(GRAPH.csc, np.arange(5), key=0)
    layers = BlockLayers(GRAPH, None, torch.float64, torch.device("cpu"))
    return layers.layers(batch.blocks, 0)[0], torch.tensor(np.asarray(GRAPH.features)[batch.input_nodes])


@pytest.mark.parametrize("name", ["in_degree", "out_degree", "edge_ids", "src_nodes", "edge_features", "x", "edges"])
@pytest.mark.parametrize("kind", ["shard", "block"])
def test_a_write_into_what_outlasts_a_step_is_refused(kind: str, name: str) -> None:
    """Also of tensors that are made when a layer asks for the first time."""

    def on_rank(comm: Communicator) -> None:
        adjacency, x = adjacencies(kind, comm)
        read = {
            "x": ("x", lambda: x),
            "edges": ("adjacency.rank_graph.edge_index", lambda: adjacency.rank_graph.edge_index),
        }.get(name, (f"adjacency.{name}", lambda: getattr(adjacency, name)))
        with forbid_writes(object(), [adjacency], x=x):
            read[1]().clone().add_(1)
        message = rf"{read[0]} was changed in place, .* as in {read[0]}.clone\(\)"
        for _ in range(2):
            with pytest.raises(UserError, match=message), forbid_writes(object(), [adjacency], x=x):
                read[1]().add_(1)

    Threads.run(on_rank, 1)


@pytest.mark.parametrize("grid", [Grid(2, 2, 1), Grid(1, 1, 2), Grid(2, 1, 2)], ids=str)
def test_maxima_of_rows_with_heads_are_those_of_columns_on_any_grid(grid: Grid) -> None:
    shards = shards_on(grid, GRAPH)

    def on_rank(comm: Communicator) -> None:
        (adjacency,) = ShardAdjacency.layers(Engine(shards[comm.rank], comm, torch.float64), 1, 0)
        x = torch.tensor(shards[comm.rank].features)
        heads = torch.stack([x, -x], 1).requires_grad_()
        actual = adjacency.aggregate(heads, reduce="max")
        reference = [adjacency.aggregate(heads[:, head], reduce="max") for head in range(2)]
        torch.testing.assert_close(actual, torch.stack(reference, 1), rtol=0, atol=0)
        slopes = [
            torch.autograd.grad(each, heads)[0]
            for each in (actual.square().sum(), sum(z.square().sum() for z in reference))
        ]
        torch.testing.assert_close(*slopes, rtol=0, atol=0)

    Threads.run(on_rank, grid.world_size)


@pytest.mark.parametrize("kind", ["shard", "block"])
@pytest.mark.parametrize("reduce", ["max", "sum", "mean"])
def test_rows_may_have_heads(kind: str, reduce: Any) -> None:
    def on_rank(comm: Communicator) -> None:
        adjacency, x = adjacencies(kind, comm)
        wide = torch.cat([x, x * 2 - 1, -x], 1).requires_grad_()
        heads = wide.view(len(x), 3, -1)
        flat, actual = adjacency.aggregate(wide, reduce=reduce), adjacency.aggregate(heads, reduce=reduce)
        torch.testing.assert_close(actual, flat.view_as(actual), rtol=0, atol=0)
        slopes = [torch.autograd.grad(each.square().sum(), wide, retain_graph=True)[0] for each in (flat, actual)]
        torch.testing.assert_close(*slopes, rtol=0, atol=0)

    Threads.run(on_rank, 1)
