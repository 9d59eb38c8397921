"""Corners of graphs and batches: every strategy takes the steps of one rank."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import ONE, assert_close, by_node, on_ranks, owned
from torch import Tensor, nn

import gnnkit
from gnnkit import plugins
from gnnkit.graph import CSC, Graph, Split
from gnnkit.partition import Grid
from gnnkit.sampler import FullSampler, LaborSampler, NeighborSampler, Sampler, WeightedSampler
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.node_classification import NodeClassification
from gnnkit.training.step import loss_part
from tests.cases import exhaustive
from tests.strategy.test_individual_sample import make_model
from tests.turns import turns

THREE = Grid(3, 1, 1)  # the last rank owns nothing
GRAPH = check_graph(30)


def with_train(nodes: range) -> Graph:
    """The graph, with other training nodes."""
    split = np.where(np.isin(np.arange(GRAPH.num_nodes), nodes), Split.TRAIN, Split.TEST).astype(np.int8)
    split[GRAPH.labels < 0] = Split.NONE
    return replace(GRAPH, split=split)


def without_edges() -> Graph:
    csc = CSC(np.zeros(GRAPH.num_nodes + 1, np.int64), np.zeros(0, np.int32), weight=GRAPH.csc.weight[:0])
    return replace(
        GRAPH, csc=csc, edge_features=GRAPH.edge_features[:0], edge_positions=None, edge_types=GRAPH.edge_types[:0]
    )


def isolated(graph: Graph, alone: range) -> Graph:
    """The same graph without the edges that touch some nodes."""
    csc = graph.csc
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    is_kept = ~(np.isin(csc.indices, alone) | np.isin(dst, alone))
    return Graph.from_edges(
        csc.indices[is_kept],
        dst[is_kept],
        csc.num_nodes,
        features=graph.features,
        labels=graph.labels,
        split=graph.split,
        weight=csc.weight[is_kept],
        edge_features=graph.edge_features[is_kept],
    )


GRAPHS: dict[str, Graph] = {
    "all": GRAPH,
    "two seeds": with_train(range(4, 6)),
    "no edges": without_edges(),
    "isolated seeds": isolated(with_train(range(5, 15)), range(8, 12)),
    "all seeds isolated": isolated(with_train(range(5, 15)), range(5, 15)),
}
SAMPLERS: dict[str, Callable[[], Sampler]] = {
    "neighbor": lambda: NeighborSampler([2, 2], threads=1),
    "weighted": lambda: WeightedSampler([2, 2], threads=1),
    "labor": lambda: LaborSampler([2, 2], redraw=True, threads=1),
    "full": lambda: FullSampler(num_hops=2, threads=1),
    "no neighbours": lambda: NeighborSampler([0, 0], threads=1),
    "neighbours of seeds only": lambda: NeighborSampler([2, 0], redraw=True, threads=1),
    "no neighbours of seeds": lambda: NeighborSampler([0, 2], redraw=True, threads=1),
}
STRATEGIES: dict[str, Callable[[int], ExecutionStrategy]] = {
    "shared": lambda size: IndividualSample(batch_size=size),
    "features": lambda size: IndividualSample(batch_size=size, features="partitioned"),
    "partitioned": lambda size: IndividualSample(batch_size=size, topology="partitioned"),
    "cooperative": lambda size: JointSample(batch_size=size),
}
MODELS = {name: make_model(name) for name in ("gcn", "sage", "gat", "gine")}


def steps(worker: Worker, make: Callable[[], ExecutionStrategy], model: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """Returns loss and gradient of each batch of two epochs, nodes, and logits."""
    replica, strategy, parts = copy.deepcopy(model), make(), []
    strategy.check(worker.sampler, 2)
    strategy.setup(worker, replica)
    for epoch in range(2):
        for batch in strategy.batches(epoch):
            replica.zero_grad()
            loss = loss_part(NodeClassification(), replica(batch.x, batch.adjacencies), batch)
            loss.backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in replica.parameters()]
            parts.append(torch.cat([loss.detach()[None], *(gradient.flatten() for gradient in gradients)]))
    strategy.close()
    return torch.stack(parts), owned(worker), Evaluation.of(worker, replica, 1.0).logits(replica)


def check(graph: Graph, make: Callable[[int], ExecutionStrategy], sampler: Any, model: str, size: int = 1) -> None:
    """Checks that three ranks with batches of `size` compute what one rank does."""
    results = []
    for grid in (THREE, ONE):
        make_strategy = functools.partial(make, size * THREE.world_size // grid.world_size)
        work = functools.partial(steps, make=make_strategy, model=MODELS[model])
        sample = None if sampler is None else sampler()
        results.append(on_ranks(graph, grid, work, whole=make_strategy().reads.graph, sampler=sample))
    several, (single,) = results
    assert len(single[0]) > 0
    assert bool(torch.isfinite(single[0]).all())
    assert_close(torch.stack([parts for parts, _, _ in several]).sum(0), single[0], "losses and gradients")
    assert_close(by_node([(nodes, logits) for _, nodes, logits in several]), single[2], "logits")


def in_turn(*names: Sequence[str]) -> list[Any]:
    """Returns all combinations of names, each with the next model in turn.

    By default each name has one case or more.
    """
    sizes, cases = [len(axis) for axis in names], zip(product(*names), cycle(MODELS), strict=False)
    kept = {tuple(axis[i % size] for axis, size in zip(names, sizes, strict=True)) for i in range(max(sizes))}
    return [(*axis, model) if axis in kept else exhaustive((*axis, model)) for axis, model in cases]


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "graph", "model"), in_turn([*STRATEGIES], [*GRAPHS]))
def test_batches_of_one_seed_on_three_ranks_are_those_of_one_rank(strategy: str, graph: str, model: str) -> None:
    check(GRAPHS[graph], STRATEGIES[strategy], SAMPLERS["neighbor"], model)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "sampler", "model"), in_turn([*STRATEGIES], [*SAMPLERS]))
def test_hops_without_neighbours_are_those_of_one_rank(strategy: str, sampler: str, model: str) -> None:
    check(GRAPH, STRATEGIES[strategy], SAMPLERS[sampler], model, size=2)


@pytest.mark.slow
def test_without_neighbours_a_model_reads_its_own_rows_only() -> None:
    """A fanout of 0 is the graph without edges, but for degrees."""
    for name in ("shared", "partitioned", "cooperative"):
        work = functools.partial(steps, make=functools.partial(STRATEGIES[name], 3), model=MODELS["sage"])
        none, bare = (
            on_ranks(graph, Grid(3, 1, 1), work, whole=name == "shared", sampler=SAMPLERS[sampler]())
            for graph, sampler in ((GRAPH, "no neighbours"), (GRAPHS["no edges"], "neighbor"))
        )
        assert_close(sum(part[0] for part in none), sum(part[0] for part in bare), name)


PRESET: dict[str, dict[str, Any]] = {
    "none": {"halo": "none"},
    "one_hop": {"halo": "one_hop"},
    "local": {"halo": "one_hop", "degrees": "local"},
    "exchange": {"exchange_every": 1},
    "two steps": {"halo": "none", "sync_every": 1},
}
# Shares see all in-edges of their training nodes here: there are none.
WHOLE_IN_A_SHARE = ("no edges", "all seeds isolated")


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "graph", "model"), in_turn([*PRESET], [*GRAPHS]))
def test_shares_without_cut_edges_are_those_of_one_rank(keys: str, graph: str, model: str) -> None:
    if graph in WHOLE_IN_A_SHARE or keys == "exchange":
        check(GRAPHS[graph], lambda size: PresetWorkload(**PRESET[keys]), None, model)
    else:
        work = functools.partial(steps, make=lambda: PresetWorkload(**PRESET[keys]), model=MODELS[model])
        for parts, _, _ in on_ranks(GRAPHS[graph], THREE, work, whole=True):
            assert bool(torch.isfinite(parts).all())


OTHERS: dict[str, dict[str, Any]] = {
    "cluster": {"clusters": 2, "clusters_per_batch": 1},
    "coverage": {},
    "llcg": {"halo": "none", "correction_batch_size": 1},
    "dynamic": {"halo": "none", "chunks": 2},
}


@pytest.mark.slow
@turns(name=[*OTHERS], graph=[*GRAPHS])
def test_shares_of_every_kind_give_finite_steps_on_every_graph(name: str, graph: str) -> None:
    strategy = functools.partial(plugins.load("strategy", name), **OTHERS[name])
    sampler = SAMPLERS["neighbor"]() if strategy().reads.sampler else None
    work = functools.partial(steps, make=strategy, model=MODELS["gcn"])
    results = on_ranks(GRAPHS[graph], THREE, work, whole=True, sampler=sampler)
    assert len({len(parts) for parts, _, _ in results}) == 1
    assert all(bool(torch.isfinite(parts).all()) for parts, _, _ in results)


RUNS: list[Any] = [
    "vertex_centric",
    *({"name": "individual_sample", "batch_size": 1, **keys} for keys in ({}, {"topology": "partitioned"})),
    {"name": "joint_sample", "batch_size": 1},
    {"name": "preset_workload", "halo": "none"},
]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("strategy", RUNS, ids=str)
def test_whole_runs_without_edges_predict_what_one_worker_predicts(tmp_path: Path, strategy: Any) -> None:
    figures = []
    for workers in (1, 4):
        keys = strategy if isinstance(strategy, str) else dict(strategy)
        if isinstance(keys, dict) and "batch_size" in keys:
            keys["batch_size"] = 4 // workers
        sampling_keys = {"sampler": {"name": "neighbor", "fanouts": [2, 2]}} if "batch_size" in keys else {}
        trainer = {"max_epochs": 1, "precision": 64, "check_val_every_n_epoch": 1, "checkpoint": False}
        options = {"comm": "threads", "threads": 1, "trainer": trainer, "workers": workers, **sampling_keys}
        options |= {"report": False, "logger": "none", "types": "ignore"}
        folder = tmp_path / str(workers)
        result = gnnkit.train(GRAPHS["no edges"], strategy=keys, model="sage", folder=folder, **options)
        figures.append((result["train_loss"], np.load(folder / "predictions.npy").tolist()))
    assert figures[0][0] == pytest.approx(figures[1][0], rel=1e-10)
    assert figures[0][1] == figures[1][1]
