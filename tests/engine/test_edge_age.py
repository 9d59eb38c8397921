"""Layers read the time from each sampled edge to the prediction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gnnkit.engine import Adjacency
from gnnkit.engine.block import BlockLayers
from gnnkit.engine.visible import TimedEdges, TimedLayers
from gnnkit.graph import CSC, Graph, RelationGroups
from gnnkit.graph.edge_order import in_time_order
from gnnkit.graph.times import ALWAYS, NEVER
from gnnkit.model.unchanged import adapted
from gnnkit.sampler import NeighborSampler

LOW, HIGH = ALWAYS + 1, NEVER - 1


def no_relations() -> RelationGroups:
    raise AssertionError


def batch_of(graph: Graph, seeds: list[int], times: list[int], model: object = None, **options: Any) -> Any:
    """Returns a batch and its adjacencies."""
    csc = CSC(graph.csc.indptr, graph.csc.indices, time=graph.edge_time)
    sampler = NeighborSampler([-1, -1], **options)
    batch = sampler.sample(csc, np.array(seeds), key=0, times=np.array(times))
    layers = BlockLayers(graph, model, torch.float64, torch.device("cpu"))
    return batch, TimedLayers.of(layers, TimedEdges(csc, no_relations), batch, sampler).layers(batch.blocks, key=0)


@pytest.mark.parametrize("rule", ["strict", "inclusive"])
def test_ages_are_the_times_from_edges_to_seeds(rule: str) -> None:
    src, dst = [1, 2, 3, 4, 0, 2, 3], [0, 0, 0, 0, 1, 1, 2]
    graph = in_time_order(Graph.from_edges(src, dst, 5, edge_time=[3, LOW, ALWAYS, NEVER, HIGH, 7, 6]))
    batch, adjacencies = batch_of(graph, [0, 0, 1, 1], [9, NEVER, HIGH, 5], time=rule)
    since_of = np.asarray(graph.edge_time)
    for block, adjacency in zip(batch.blocks, adjacencies, strict=True):
        rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
        assert len(rows) > 0
        for age, row, edge in zip(adjacency.edge_age.tolist(), rows, block.edge_ids, strict=True):
            since, time = int(since_of[edge]), int(batch.times[row])
            reference = (HIGH if time == NEVER else time) - since  # exact, and up to 2^64
            assert np.isnan(age) if since == ALWAYS else age == float(reference)


def test_added_loops_have_age_0_and_batches_without_times_have_none() -> None:
    graph = in_time_order(Graph.from_edges([1, 2], [0, 0], 3, edge_time=[3, 5]))
    model = nn.Module()
    model.self_loops = True  # type: ignore[assignment]
    _, (_, last) = batch_of(graph, [0], [9], model, time="strict")
    assert last.edge_age.tolist() == [6, 4, 0]
    layers = BlockLayers(graph, None, torch.float64, torch.device("cpu"))
    untimed = NeighborSampler([-1]).sample(graph.csc, np.array([0]), key=0)
    assert layers.layers(untimed.blocks, key=0)[0].edge_age is None


class Ages(nn.Module):
    """Sums the ages of each row's edges, as a module of (x, edge_index) would."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_age: Tensor | None = None) -> Tensor:
        if edge_age is None:
            return x[:, :1]
        return torch.zeros(len(x), dtype=x.dtype).index_add(0, edge_index[1], edge_age)[:, None]


def test_a_module_of_edge_index_takes_ages_by_name() -> None:
    graph = in_time_order(Graph.from_edges([1, 2, 2], [0, 0, 1], 3, edge_time=[3, 5, 4]))
    model: Any = adapted(Ages())
    model.num_layers = 2
    _, adjacencies = batch_of(graph, [0, 1], [9, 9], model, time="strict")
    inputs = torch.ones(len(adjacencies[0].src_nodes), 1, dtype=torch.float64)
    assert model(inputs, adjacencies)[:, 0].tolist() == [10, 5]
    assert Adjacency.edge_age is None
