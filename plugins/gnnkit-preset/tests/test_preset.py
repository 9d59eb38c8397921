"""Preset workloads whose shares move, rotate, are clustered, or are corrected."""

from __future__ import annotations

import copy
import functools
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_formats.synthetic import Synthetic
from gnnkit_preset import Cluster, Coverage, Dynamic, Llcg
from gnnkit_preset.chunks import reassign
from gnnkit_preset.clusters import Clusters
from gnnkit_preset.coverage import partner, weigh
from gnnkit_testing.graphs import CLASSES, WIDTH, cut_signal_graph
from torch import Tensor, nn

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.engine import Adjacency
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, Split
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler import NeighborSampler
from gnnkit.strategy import ExecutionStrategy, Measured, Worker
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.strategy.workload import WorkerShare
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.testing import check_strategy
from gnnkit.training.run_site import RunSite
from tests.cases import few
from tests.strategy.test_preset_workload import (
    GRAPH,
    OWNERS,
    SPARSE_READERS,
    accuracy_of,
    check_sparse_rows,
    fill_parameters,
    make_model,
    mean_gradient,
    subgraph,
    train_ranks,
    without_cut_edges,
    worker,
)

CLUSTERS = {"clusters": 5, "clusters_per_batch": 2}
SMALL = {"correction_steps": 2, "correction_batch_size": 3}
MODES: dict[str, Callable[[], PresetWorkload]] = {
    "clusters": functools.partial(Cluster, **CLUSTERS),
    "clusters by two": functools.partial(Cluster, **CLUSTERS, sync_every=2),
    "clusters of their own": functools.partial(Cluster, **CLUSTERS, degrees="local"),
    "clusters by ldg": functools.partial(Cluster, **CLUSTERS, clusters_by="ldg"),
    "llcg": functools.partial(Llcg, **SMALL, sync_every=2),
    "llcg as published": functools.partial(Llcg, **SMALL, sync_every=2, control_variates=False),
    "dynamic": functools.partial(Dynamic, chunks=3),
    "coverage": Coverage,
}


@pytest.mark.slow
@few("name", MODES, ["llcg"])
def test_every_mode_keeps_the_promises_of_strategies(name: str) -> None:
    check_strategy(MODES[name])


@pytest.mark.slow
@few("make", [functools.partial(Cluster, 1, 1), functools.partial(Dynamic, 1, halo="none")], default=1)
def test_without_cut_edges_training_is_serial(make: Callable[[], ExecutionStrategy]) -> None:
    owner = OWNERS[3]
    graph = without_cut_edges(owner)
    alone = functools.partial(train_ranks, VertexCentric, graph=graph, owner=np.zeros_like(owner))
    ((expected, _),) = Threads.run(alone, 1)
    for found, _ in Threads.run(functools.partial(train_ranks, make, graph=graph, owner=owner), 3):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.slow
@few("name", MODES, ["clusters by ldg", "llcg", "coverage"])
def test_no_word_of_a_row_moves(name: str) -> None:
    for _, strategy in Threads.run(functools.partial(train_ranks, MODES[name], epochs=2), 3):
        assert not strategy.tally.words
        assert strategy.tally.bytes_sent == 0


@pytest.mark.slow
def test_two_chunks_are_the_whole_graph_of_two_workers() -> None:
    ((expected, _),) = Threads.run(functools.partial(train_ranks, VertexCentric), 1)
    for found, _ in Threads.run(functools.partial(train_ranks, Coverage), 2):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)
    assert Coverage().on_one_rank(2, None) is not None


def test_clusters_that_accumulate_until_the_end_of_an_epoch_are_one_serial_step_where_none_is_cut() -> None:
    """Also tests totals. Each cluster is a component, and there is no dropout."""
    src, dst = np.nonzero(np.kron(np.eye(6), 1 - np.eye(8)))
    csc = CSC.from_edges(src, dst, 48)
    graph = Graph(csc, GRAPH.features, GRAPH.labels, GRAPH.split)
    owner = (np.arange(48) // 24).astype(np.int32)

    def gradient(make: Callable[[], ExecutionStrategy], comm: Communicator, own: Ids) -> Tensor:
        strategy, model = make(), make_model(dropout=0.0)
        strategy.setup(worker(comm, strategy, graph, own), model)
        return sum(map(functools.partial(mean_gradient, model), strategy.batches(1)))  # type: ignore[return-value]

    (expected,) = Threads.run(lambda comm: gradient(VertexCentric, comm, np.zeros_like(owner)), 1)
    make = lambda: Cluster(clusters=3, clusters_per_batch=2, sync_every="epoch")  # noqa: E731
    found = sum(Threads.run(lambda comm: gradient(make, comm, owner), 2))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_batch_of_clusters_is_the_subgraph_of_the_chosen_clusters() -> None:
    """With degrees of its own, as Cluster-GCN computes on that subgraph alone."""

    def check(comm: Communicator) -> list[int]:
        strategy, model = Cluster(**CLUSTERS, degrees="local"), make_model(dropout=0.0)
        own = worker(comm, strategy)
        strategy.setup(own, model)
        assert isinstance(strategy.work, Clusters)
        nodes_of = strategy.work._share.block.src_nodes
        cluster = strategy.work._cluster[np.argsort(nodes_of)]
        assert sorted(np.unique(cluster)) == [*range(5)]
        seen: list[int] = []
        for epoch in (0, 1):
            order = strategy.work.chosen(epoch, comm.rank)
            for step, batch in enumerate(strategy.batches(epoch)):
                nodes = own.owned[np.isin(cluster, order[2 * step : 2 * step + 2])]
                assert sorted(batch.adjacencies[0].src_nodes.tolist()) == nodes.tolist()
                found = model(batch.x, batch.adjacencies)[batch.rows]
                rows = batch.adjacencies[-1].src_nodes[batch.rows].numpy()
                torch.testing.assert_close(found, alone(model, nodes)[np.searchsorted(nodes, rows)])
                seen += rows.tolist()
        return seen

    seen = np.concatenate(Threads.run(check, 3))
    assert sorted(seen.tolist()) == np.repeat(np.flatnonzero(GRAPH.split == Split.TRAIN), 2).tolist()


@pytest.mark.parametrize("name", ["buffered", "metis", "ldg", "stripes"])
def test_a_partitioner_of_any_package_cuts_the_clusters(name: str) -> None:
    """On a graph of 12 components, which a good cut leaves whole."""
    component = np.arange(48) // 4
    csc = CSC.from_edges(*np.nonzero(component[:, None] == component), 48)
    graph = Graph(csc, GRAPH.features, GRAPH.labels, GRAPH.split)
    owner = (np.arange(48) // 24).astype(np.int32)

    def check(comm: Communicator) -> list[Ids]:
        strategy = Cluster(clusters=3, clusters_per_batch=1, clusters_by=name)
        strategy.setup(worker(comm, strategy, graph, owner), make_model())
        return [batch.adjacencies[0].src_nodes.numpy() for batch in strategy.batches(0)]  # type: ignore[attr-defined]

    for rank, batches in enumerate(Threads.run(check, 2)):
        assert sorted(np.concatenate(batches).tolist()) == np.flatnonzero(owner == rank).tolist()
        for nodes in batches:
            if name in ("buffered", "metis"):  # the others place nodes one by one
                assert set(np.bincount(component[nodes], minlength=12)) <= {0, 4}


def alone(model: nn.Module, nodes: Ids) -> Tensor:  # [num_nodes, num_classes]
    """Logits on the subgraph of some nodes, as a graph of its own on one rank."""
    graph = subgraph(nodes)
    (shard,) = cut_all(graph, Partition(np.zeros(len(nodes), np.int32), None, Grid(1, 1, 1)))

    def logits(comm: Communicator) -> Tensor:
        own = Worker(comm, shard, torch.float64, 3)
        return Evaluation.of(own, model, 100.0).logits(model)

    return Threads.run(logits, 1)[0]


@pytest.mark.slow
def test_a_correcting_step_has_the_gradient_of_batches_with_the_cut_edges() -> None:
    """Here a batch has all neighbours of all training nodes, so all edges."""

    def gradients(comm: Communicator) -> Tensor:
        strategy, model = Llcg(correction_batch_size=100), make_model()
        strategy.setup(worker(comm, strategy), model)
        updates, found = [], torch.zeros(0)
        for batch in strategy.batches(0):
            updates.append(batch.update)
            found = mean_gradient(model, batch)
        assert updates == ["average", "correct", "correct"]
        return found

    def full(comm: Communicator) -> Tensor:
        strategy, model = VertexCentric(), make_model()
        strategy.setup(worker(comm, strategy), model)
        return mean_gradient(model, next(strategy.batches(1)))  # the second correction has the noise of step 1

    (expected,) = Threads.run(full, 1)
    torch.testing.assert_close(sum(Threads.run(gradients, 3)), expected, rtol=0, atol=1e-10)


class LinearSum(nn.Module):
    """One linear layer over sums, so that a linear loss has a linear gradient."""

    num_layers, self_loops = 1, True

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, CLASSES).double()
        self.neighbor = nn.Linear(WIDTH, CLASSES, bias=False).double()

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        out: Tensor = self.own(x[: adjacencies[0].num_dst]) + self.neighbor(adjacencies[0].aggregate_normalized(x))
        return out


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_over_a_full_rotation_the_mean_gradient_of_a_linear_layer_is_that_of_the_whole_graph(ranks: int) -> None:
    rotations = max(ranks - 1, 1)

    def gradient(make: Callable[[], ExecutionStrategy], epochs: int, comm: Communicator) -> Tensor:
        strategy, model = make(), fill_parameters(LinearSum())
        strategy.setup(worker(comm, strategy), model)
        for epoch in range(epochs):
            (batch,) = strategy.batches(epoch)
            nodes = batch.adjacencies[-1].src_nodes[batch.rows]
            loss = model(batch.x, batch.adjacencies)[batch.rows] * (nodes[:, None] + 1).sin()
            weights = 1.0 if batch.row_weights is None else batch.row_weights[:, None]
            (loss * weights).sum().div(batch.total * epochs).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    (expected,) = Threads.run(functools.partial(gradient, VertexCentric, 1), 1)
    make = lambda: Coverage(resplit_every=2)  # noqa: E731
    found = sum(Threads.run(functools.partial(gradient, make, 2 * rotations), ranks))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("seed", range(5))
def test_the_mean_coverage_of_every_node_is_one_and_its_edges_count_as_many_as_there_are(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_nodes, ranks = 40, int(rng.integers(2, 7))
    csc = CSC.from_edges(*rng.integers(0, num_nodes - 3, (2, 100)), num_nodes)
    graph = Graph(csc, np.zeros((num_nodes, 1)), np.zeros(num_nodes, np.int64), np.zeros(num_nodes, np.int8))
    chunk, degree = rng.integers(0, ranks, num_nodes), np.diff(csc.indptr)
    mean = np.zeros(num_nodes)
    for rank in range(ranks):
        partners = [partner(rank, ranks, rotation) for rotation in range(ranks - 1)]
        assert sorted([rank, *partners]) == list(range(ranks))
        for other in partners:
            block = WorkerShare.of(graph, np.flatnonzero(chunk == rank), np.flatnonzero(chunk == other)).block
            weighed, coverage = weigh(block, chunk[block.src_nodes], degree[block.src_nodes], ranks - 1)
            own = chunk[block.src_nodes] == rank
            mean[block.src_nodes[own]] += coverage[own] / (ranks - 1)
            assert weighed.weight is not None
            sums = np.add.reduceat(np.append(weighed.weight, 0.0), block.indptr[:-1])
            seen = np.diff(block.indptr) > 0
            np.testing.assert_allclose(sums[seen], degree[block.src_nodes][seen], atol=1e-12)
    np.testing.assert_allclose(mean, 1, atol=1e-12)


def test_chunks_move_from_slow_ranks_to_fast_ones() -> None:
    ranks, per_rank = 4, 16
    start, costs, speed = (
        np.repeat(np.arange(ranks), per_rank),
        np.full(ranks * per_rank, 5.0),
        np.array([2.0, 1, 1, 1]),
    )
    for exponent in (0.5, 1, 2):  # how seconds grow with the cost of a share
        chunk_rank, worst = start, []
        for _ in range(8):
            seconds = speed * np.bincount(chunk_rank, costs, ranks) ** exponent
            worst.append(seconds.max() / seconds.mean())
            chunk_rank = reassign(chunk_rank, costs, seconds)
        assert worst[0] == 1.6
        assert max(worst[-2:]) < 1.15, "even but for one chunk, and without swinging"
    assert (chunk_rank == start).mean() > 0.8, "chunks that need not move stay"
    again = reassign(chunk_rank, costs, seconds)
    assert np.array_equal(again, reassign(chunk_rank, costs, seconds))


def test_ranks_without_seconds_get_chunks_like_the_others() -> None:
    costs = np.full(32, 10.0)
    found = reassign(np.zeros(32, np.int64), costs, np.array([1.0, 0, 0, 0]))
    assert np.bincount(found).tolist() == [8, 8, 8, 8]
    start = np.repeat(np.arange(4), 8)
    assert np.array_equal(reassign(start, costs, np.zeros(4)), start)
    assert np.array_equal(reassign(start, np.zeros(32), np.ones(4)), start)


def test_a_dynamic_split_evens_out_a_rank_of_half_the_speed_and_each_node_stays_with_one_rank() -> None:
    csc = CSC.from_edges(*np.random.default_rng(0).integers(0, 600, (2, 6000)), 600)
    split = np.full(600, Split.TRAIN, np.int8)
    graph = Graph(csc, np.zeros((600, WIDTH)), np.zeros(600, np.int64), split, class_names=("a", "b", "c"))
    owner = (np.arange(600) // 200).astype(np.int32)

    def run(comm: Communicator) -> list[tuple[float, list[int]]]:
        strategy, model = Dynamic(halo="none", resplit_every=2), make_model()
        strategy.setup(worker(comm, strategy, graph, owner), model)
        found = []
        for epoch in range(10):
            (batch,) = strategy.batches(epoch)
            nodes = batch.adjacencies[-1].src_nodes[batch.rows].tolist()
            seconds = batch.num_edges * (2.0 if comm.rank == 0 else 1.0)
            found.append((seconds, nodes))
            strategy.end_epoch(epoch, Measured(seconds, 0.0, 0.0, batch.num_edges), model)
        return found

    by_rank = Threads.run(run, 3)
    for epochs in zip(*by_rank, strict=True):
        assert sorted(node for _, nodes in epochs for node in nodes) == list(range(600))
    seconds = np.array([[s for s, _ in epochs] for epochs in by_rank])
    assert np.array_equal(seconds[:, 0], seconds[:, 1]), "nothing moves before the second epoch has ended"
    before, after = (seconds[:, epoch].max() / seconds[:, epoch].mean() for epoch in (0, 9))
    assert before > 1.45
    assert after < 1.15


def test_a_split_goes_on_from_its_state() -> None:
    def run(comm: Communicator) -> None:
        make = functools.partial(Dynamic, chunks=4)
        strategy, again, model = make(), make(), make_model()
        strategy.setup(worker(comm, strategy), model)
        strategy.end_epoch(0, Measured(4.0 if comm.rank else 1.0, 0.0, 0.0, 100), model)
        again.setup(worker(comm, again), model)
        before = next(again.batches(1)).labels
        again.load_state_dict(copy.deepcopy(strategy.state_dict()))
        one, two = (next(each.batches(1)) for each in (strategy, again))
        assert torch.equal(one.adjacencies[0].src_nodes, two.adjacencies[0].src_nodes)
        assert len(before) != len(one.labels) or not torch.equal(before, one.labels)

    Threads.run(run, 3)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_with_a_slow_rank_comes_to_even_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Edges take seconds that no other work changes, and twice as many on rank 0."""
    add_work = RunSite._add_work

    def add_edges(site: RunSite, computing: float, exchange: float, num_edges: int) -> None:
        add_work(site, num_edges * 3e-6 * (1 if site.worker.comm.rank else 2), 0.0, num_edges)

    monkeypatch.setattr(RunSite, "_add_work", add_edges)
    graph = Synthetic(num_nodes=3000, num_edges=15_000, num_classes=3, width=4).load()
    gnnkit.train(
        graph,
        strategy={"name": "dynamic", "halo": "none"},
        model="gcn",
        workers=2,
        threads=1,
        comm="gloo",
        trainer={"max_epochs": 10, "checkpoint": False, "check_val_every_n_epoch": 10, "exact_shares": [0, 0]},
        report=False,
        logger="none",
        folder=tmp_path / "run",
    )
    lines = [json.loads(line) for line in (tmp_path / "run/workers.jsonl").read_text().splitlines()]
    edges = np.array([[line["edges"] for line in lines if line["rank"] == rank] for rank in range(2)])
    assert edges[:, 0].max() / edges[:, 0].min() < 1.2, "the partition gives equal work"
    ratio = edges[1, -1] / edges[0, -1]
    assert 1.8 < ratio < 2.2, "the slow rank comes to about half the edges of the other"


@pytest.fixture(scope="module")
def accuracies() -> dict[str, float]:
    """Test accuracies where only cut edges tell the labels, by mode."""
    graph = cut_signal_graph()
    modes: dict[str, Callable[[], ExecutionStrategy]] = {
        "full graph": VertexCentric,
        "averaging": functools.partial(PresetWorkload, halo="none", average="parameters"),
        "llcg": functools.partial(Llcg, halo="none", correction_batch_size=128),
        "coverage": Coverage,
    }
    return {name: Threads.run(functools.partial(accuracy_of, make, graph), 4)[0] for name, make in modes.items()}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llcg", "coverage"])
def test_corrections_close_the_gap_where_the_signal_sits_on_cut_edges(name: str, accuracies: dict[str, float]) -> None:
    """Plain averaging stays near chance, which is a quarter."""
    full, plain = accuracies["full graph"], accuracies["averaging"]
    assert full > 0.85
    assert plain < 0.4
    assert (accuracies[name] - plain) / (full - plain) >= 0.8


@pytest.mark.slow
@few(
    "mode,name",
    itertools.product(["clusters", "llcg", "coverage"], ["gcn", "sage", "gat"]),
    default=[("llcg", "gat"), ("coverage", "gcn")],
)
def test_sparse_features_train_what_dense_ones_do(mode: str, name: str) -> None:
    check_sparse_rows(MODES[mode], SPARSE_READERS[name])


def test_what_depends_on_workers_has_no_reference_on_one_rank() -> None:
    for make in MODES.values():
        assert make().on_one_rank(4, None) is None
        assert make().on_one_rank(1, None) is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (functools.partial(Cluster, clusters_by="lgd"), r"clusters_by=lgd is not known: did you mean ldg\?"),
        (functools.partial(Cluster, clusters_by="stored"), r"clusters_by=stored wants path: choose a partitioner"),
        (functools.partial(Cluster, clusters=3), r"clusters_per_batch=4 must be at most strategy\.clusters=3"),
        (functools.partial(Cluster, sync_every="step"), r"sync_every=step must be epoch or a whole number"),
        (functools.partial(Dynamic, halo="cluster"), r"halo=cluster was removed: use strategy=cluster"),
        (functools.partial(Dynamic, halo="two_hop"), r"halo=two_hop is not known: did you mean one_hop\?"),
        (functools.partial(Dynamic, sync_every=2), r"sync_every=2 does not go with moving chunks"),
        (functools.partial(Llcg, 0), r"correction_steps=0 must be a whole number from 1"),
        (functools.partial(Coverage, 0), r"resplit_every=0 must be a whole number from 1"),
    ],
)
def test_keys_that_make_no_sense_are_refused_with_the_reason(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=rf"^strategy\.{message}"):
        make()


def test_llcg_leaves_control_variates_out_on_request() -> None:
    assert Llcg().keys.control_variates
    assert not Llcg(control_variates=False).keys.control_variates


def test_a_sampler_is_needed_by_llcg_alone() -> None:
    with pytest.raises(UserError, match="this strategy does not sample"):
        Cluster().check(NeighborSampler([3, 3]), 2)
    with pytest.raises(UserError, match="sampler is missing"):
        Llcg().check(None, 2)
    Llcg().check(NeighborSampler([3, 3]), 2)


def test_links_are_predicted_on_shares_that_are_not_clustered_or_corrected() -> None:
    LinkPrediction().check(Dynamic(), None)
    for strategy in (Cluster(), Llcg(), Coverage()):
        with pytest.raises(UserError, match="provides rows of nodes only"):
            LinkPrediction().check(strategy, None)


@pytest.mark.parametrize("name", ["cluster", "coverage", "dynamic", "llcg"])
def test_the_yaml_of_a_strategy_has_the_defaults_of_its_class(name: str) -> None:
    configured, default = settle(compose([f"strategy={name}", "workers=4"])).create_strategy(), MODES_BY_NAME[name]()
    assert configured.keys == default.keys
    assert configured.costs() == default.costs()
    assert configured.costs().startswith(f"strategy{'.halo=one_hop' if name == 'dynamic' else f'={name}'}: ")


MODES_BY_NAME: dict[str, Callable[[], PresetWorkload]] = {
    "cluster": Cluster,
    "coverage": Coverage,
    "dynamic": Dynamic,
    "llcg": Llcg,
}
