"""Nodes are evaluated as in a graph that ends at their own times."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import CLASSES, EDGE_WIDTH, WIDTH
from gnnkit_testing.ranks import by_node, on_ranks, owned
from torch import Tensor, nn

from gnnkit.errors import UserError
from gnnkit.graph import Graph
from gnnkit.graph.edge_order import in_time_order
from gnnkit.graph.times import latest_visible
from gnnkit.model.rgat import RGAT
from gnnkit.model.rgcn import RGCN
from gnnkit.partition import Grid
from gnnkit.sampler import FullSampler, NeighborSampler, Sampler, WeightedSampler
from gnnkit.strategy import Worker
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.link_split import with_edges_before
from tests.models import MODELS

N, ONE, TWO = 24, Grid(1, 1, 1), Grid(3, 1, 1)
TYPED = {"rgcn": RGCN, "rgat": RGAT}


def draw_dated_graph(*, weighted: bool = False, seed: int = 0) -> Graph:
    """Returns nodes and edges at seven times, with loops, parallel edges and types."""
    rng = np.random.default_rng(seed)
    src, dst = rng.integers(0, N, (2, 6 * N))
    src, dst = np.append(src, [1, 2, 3, 3]), np.append(dst, [1, 2, 4, 4])
    fields: dict[str, Any] = {
        "features": rng.normal(size=(N, WIDTH)),
        "labels": rng.integers(0, CLASSES, N),
        "edge_types": rng.integers(0, 2, len(src)),
        "edge_features": rng.normal(size=(len(src), EDGE_WIDTH)),
        "edge_time": rng.integers(0, 7, len(src)),
        "node_time": rng.integers(0, 7, N),
        "split": np.ones(N, np.int8),
    }
    if weighted:
        fields["weight"] = rng.uniform(0.5, 2, len(src))
    return in_time_order(Graph.from_edges(src, dst, N, **fields))


def make_model(name: str) -> nn.Module:
    torch.manual_seed(1)
    if name in TYPED:
        model: nn.Module = TYPED[name](WIDTH, CLASSES, hidden=4, num_relations=2, inverse=False)
    else:
        model = MODELS[name](WIDTH, CLASSES, hidden=4)
    return model.double()


def outputs(
    graph: Graph, name: str, sampler: Sampler, grid: Grid = ONE, memory: float = 100.0, *, whole: bool = True
) -> Tensor:
    made = make_model(name)

    def work(worker: Worker) -> tuple[Tensor, Tensor]:
        model = copy.deepcopy(made)  # ranks are threads
        return owned(worker), Evaluation.of(worker, model, memory).logits(model)

    return by_node(on_ranks(graph, grid, work, whole=whole, sampler=sampler))


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["strict", "inclusive"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["gcn", "sage", "gat", "gine", "rgcn", "rgat"])
def test_outputs_are_those_of_the_graph_at_the_nodes_own_time(name: str, weighted: bool, rule: str) -> None:
    graph = draw_dated_graph(weighted=weighted)
    assert graph.node_time is not None
    computed = outputs(graph, name, FullSampler(2, time=rule))
    for time in np.unique(graph.node_time):
        bound = int(latest_visible(np.array([time]), rule)[0])
        snapshot = with_edges_before(graph, bound + 1)
        nodes = torch.from_numpy(np.flatnonzero(graph.node_time == time))
        torch.testing.assert_close(computed[nodes], outputs(snapshot, name, FullSampler(2))[nodes], rtol=0, atol=1e-10)


SAMPLERS = [
    NeighborSampler([3, 2], time="strict"),
    NeighborSampler([2, 2], time="inclusive", pick="last"),
    WeightedSampler([3, 2], time="strict"),
]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=["neighbor", "last", "weighted"])
@pytest.mark.parametrize("name", ["gcn", "rgcn"])
def test_outputs_do_not_depend_on_ranks_or_chunks(name: str, sampler: Sampler) -> None:
    graph = draw_dated_graph(weighted=True)
    expected = outputs(graph, name, sampler)
    for grid, memory in ((ONE, 1e-6), (ONE, 0.02), (TWO, 100.0), (TWO, 1e-6)):
        computed = outputs(graph, name, sampler, grid, memory)
        torch.testing.assert_close(computed, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["gcn", "gine", "rgcn"])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=["neighbor", "last", "weighted"])
def test_owners_compute_what_one_process_computes(name: str, sampler: Sampler) -> None:
    graph = draw_dated_graph(weighted=True)
    expected = outputs(graph, name, sampler)
    assert torch.equal(outputs(graph, name, sampler, whole=False), expected)
    for memory in (100.0, 1e-6):
        computed = outputs(graph, name, sampler, TWO, memory, whole=False)
        torch.testing.assert_close(computed, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("whole", [True, False])
def test_outputs_of_some_splits_are_those_of_all(whole: bool) -> None:
    graph = draw_dated_graph()
    graph = replace(graph, split=np.random.default_rng(1).integers(0, 4, N).astype(np.int8))
    expected, made = outputs(graph, "gcn", SAMPLERS[0]), make_model("gcn")

    def work(worker: Worker) -> list[tuple[Tensor, Tensor]]:
        model = copy.deepcopy(made)
        evaluation = Evaluation.of(worker, model, 100.0, splits=("train", "val", "test"))
        read = lambda outputs, worker: (owned(worker), outputs)  # noqa: E731
        return [evaluation.read(model, read, splits) for splits in (("val",), None)]

    for parts, splits in zip(
        zip(*on_ranks(graph, TWO, work, whole=whole, sampler=SAMPLERS[0]), strict=True), ((2,), (1, 2, 3)), strict=True
    ):
        nodes, values = (torch.cat(columns) for columns in zip(*parts, strict=True))
        assert sorted(nodes.tolist()) == np.flatnonzero(np.isin(graph.split, splits)).tolist()
        torch.testing.assert_close(values, expected[nodes], rtol=0, atol=1e-12)


@pytest.mark.parametrize("pick", ["uniform", "last"])
@pytest.mark.parametrize("name", ["gcn", "gin", "rgcn"])
def test_the_future_of_a_cut_changes_no_bit_before_it(name: str, pick: str) -> None:
    graph, rng = draw_dated_graph(), np.random.default_rng(5)
    assert graph.edge_time is not None
    assert graph.node_time is not None
    later, appears_later = graph.edge_time >= 3, graph.node_time >= 3
    dst = np.repeat(np.arange(N), np.diff(graph.csc.indptr))
    src = np.where(later, rng.integers(0, N, len(dst)), graph.csc.indices)
    features = np.where(appears_later[:, None], rng.normal(size=(N, WIDTH)), np.asarray(graph.features))
    fields: dict[str, Any] = {name: getattr(graph, name) for name in ("edge_time", "edge_types", "edge_features")}
    scrambled = Graph.from_edges(src, dst, N, features=features, labels=graph.labels, split=graph.split, **fields)
    scrambled = in_time_order(replace(scrambled, node_time=graph.node_time))
    sampler = NeighborSampler([2, 2], time="inclusive", pick=pick)
    before, after = outputs(graph, name, sampler), outputs(scrambled, name, sampler)
    nodes = torch.from_numpy(np.flatnonzero(graph.node_time < 3))
    assert torch.equal(before[nodes], after[nodes])
    assert not torch.equal(before, after)


class MeanNorm(nn.Module):
    """Subtracts the mean over the rows of a batch, as PyG's GraphNorm does."""

    num_layers = 1

    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        mean, _ = adjacencies[0].pool(len(x)).mean(x)
        return adjacencies[0].aggregate(x - mean)


def test_models_that_mix_the_rows_of_a_batch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.make_model", lambda name: MeanNorm())
    with pytest.raises(UserError, match=r"sampler\.time: the model takes means over all rows of a batch"):
        outputs(draw_dated_graph(), "mean", NeighborSampler([3], time="strict"))
