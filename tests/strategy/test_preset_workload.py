"""Shares that are cut before training: what they see, what moves, when ranks meet."""

from __future__ import annotations

import copy
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.dataset.synthetic import Synthetic
from gnnkit.engine import Adjacency, BlockLayers, SparseRows
from gnnkit.engine.block_edges import BlockEdges, inverse_sqrt
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, SparseFeatures, Split
from gnnkit.leader.meter import SyncMeter
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler import NeighborSampler
from gnnkit.strategy import Batch, ExecutionStrategy, Measured, Worker
from gnnkit.strategy.coverage import partner, weigh
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.resplit import reassign
from gnnkit.strategy.share import WorkerShare, in_neighbours
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.strategy.workload import Clusters, OneShare, Workload
from gnnkit.sync import average_parameters
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.node_classification import NodeClassification
from gnnkit.testing import check_strategy
from gnnkit.testing.graphs import CLASSES, WIDTH, check_graph, cut_signal_graph
from gnnkit.training.module import TrainingModule
from gnnkit.training.step import loss_part
from gnnkit.training.trainer import make_trainer
from tests.cases import few
from tests.models import MODELS

GRAPH = check_graph(48)
OWNERS = {ranks: np.random.default_rng(ranks).integers(0, ranks, 48).astype(np.int32) for ranks in (1, 2, 3, 4)}
COVERAGE = {"halo": "none", "split": "dynamic", "correction": "coverage"}
CLUSTERS = {"halo": "cluster", "clusters": 5, "clusters_per_batch": 2}
LLCG = {"average": "parameters", "correction": "llcg", "correction_steps": 2, "correction_batch_size": 3}
KEYS: dict[str, dict[str, Any]] = {
    "one_hop": {},
    "none": {"halo": "none"},
    "local": {"halo": "none", "degrees": "local"},
    "clusters": CLUSTERS,
    "clusters by two": {**CLUSTERS, "sync_every": 2},
    "clusters of their own": {**CLUSTERS, "degrees": "local"},
    "clusters by ldg": {**CLUSTERS, "clusters_by": "ldg"},
    "accumulated": {"sync_every": 3},
    "parameters": {"average": "parameters", "sync_every": 2},
    "llcg": {**LLCG, "sync_every": 2},
    "llcg of clusters": {**LLCG, **CLUSTERS, "clusters": 3},
    "dynamic": {"split": "dynamic", "chunks": 3},
    "coverage": COVERAGE,
}
SPARSE_READERS: dict[str, Any] = {"gcn": GCN, "sage": GraphSAGE, "gat": GAT}
EXCHANGES: dict[str, dict[str, Any]] = {
    "each epoch": {"exchange_every": 1},
    "each second": {"exchange_every": 2},
    "drifting": {"exchange_every": 3, "average": "parameters", "sync_every": 2},
}


@functools.cache
def shards(graph: Graph, owner: tuple[int, ...]) -> Any:
    return list(cut_all(graph, Partition(np.array(owner, np.int32), None, Grid(max(owner) + 1, 1, 1))))


def worker(comm: Communicator, strategy: ExecutionStrategy, graph: Graph = GRAPH, owner: Ids | None = None) -> Worker:
    owner = OWNERS[comm.world_size] if owner is None else owner
    shard = shards(graph, tuple(owner.tolist()))[comm.rank]
    sampler = NeighborSampler([-1, -1]) if strategy.reads.sampler else None
    return Worker(comm, shard, torch.float64, 3, graph if strategy.reads.graph else None, sampler)


def make_model(kind: type[Any] = GCN, **keys: Any) -> Any:
    """Makes equal models in threads, which share torch's generator."""
    return filled(kind(WIDTH, CLASSES, **{"hidden": 4, "dropout": 0.3, **keys}).double())


def filled(model: nn.Module) -> nn.Module:
    for number, parameter in enumerate(model.parameters()):
        nn.init.uniform_(parameter, -0.7, 0.7, generator=torch.Generator().manual_seed(number))
    return model


def trained(
    make: Callable[[], ExecutionStrategy],
    comm: Communicator,
    *,
    graph: Graph = GRAPH,
    owner: Ids | None = None,
    epochs: int = 3,
    make_net: Callable[[], Any] = make_model,
) -> tuple[Tensor, ExecutionStrategy]:
    """Parameters of this rank after some epochs of SGD, and the strategy."""
    strategy, model = make(), make_net()
    own = worker(comm, strategy, graph, owner)
    strategy.setup(own, model)
    module = TrainingModule(
        model, strategy, own, Evaluation.of(own, model, 100.0), optimizer="sgd", lr=0.3, weight_decay=0.0
    )
    options: dict[str, Any] = {"max_epochs": epochs, "limit_val_batches": 0, "logger": False}
    make_trainer(module, AllReduce(), SyncMeter(), **options).fit(module)
    return parameters_to_vector(module.parameters()).detach(), strategy


def without_cut_edges(owner: Ids) -> Graph:
    csc = GRAPH.csc
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    kept = owner[csc.indices] == owner[dst]
    weight = None if csc.weight is None else csc.weight[kept]
    return Graph(
        CSC.from_edges(csc.indices[kept], dst[kept], csc.num_nodes, weight), GRAPH.features, GRAPH.labels, GRAPH.split
    )


class TwoHops(PresetWorkload):
    """A workload of another package."""

    def workload(self, nodes: Ids) -> Workload:
        near = in_neighbours(GRAPH.csc, nodes)
        return OneShare(
            self.reader, nodes, np.concatenate([near, in_neighbours(GRAPH.csc, np.concatenate([nodes, near]))])
        )


@pytest.mark.slow
def test_a_workload_of_your_own_goes_with_our_keys() -> None:
    net = functools.partial(make_model, dropout=0.0)

    def work(comm: Communicator) -> list[Tensor]:
        makers = (TwoHops, VertexCentric, functools.partial(TwoHops, average="parameters", sync_every=1))
        return [trained(make, comm, make_net=net)[0] for make in makers]

    for found, exact, averaged in Threads.run(work, 3):
        torch.testing.assert_close(found, exact, rtol=0, atol=1e-12)  # two layers read all edges
        assert not torch.equal(averaged, found)
    with pytest.raises(UserError, match="provides rows of nodes only"):
        LinkPrediction().check(TwoHops(), None)
    for keys in ({"halo": "none"}, {"exchange_every": 1}, COVERAGE, CLUSTERS):
        with pytest.raises(UserError, match=r"^strategy\.\w+=\w+: this strategy builds a share of its own"):
            TwoHops(**keys)


@pytest.mark.slow
@few("name", [*KEYS, *EXCHANGES], ["llcg"])
def test_every_mode_keeps_the_promises_of_strategies(name: str) -> None:
    check_strategy(lambda: PresetWorkload(**{**KEYS, **EXCHANGES}[name]))


@pytest.mark.slow
@few(
    "keys",
    [
        {},
        {"halo": "none"},
        {"halo": "none", "degrees": "local"},
        {"halo": "cluster", "clusters": 1, "clusters_per_batch": 1},
        {"halo": "none", "average": "parameters", "sync_every": 1},
        {"halo": "none", "average": "parameters"},
        {"split": "dynamic", "chunks": 1},
    ],
    default=4,
)
def test_without_cut_edges_and_a_synchronisation_in_each_step_training_is_serial(keys: dict[str, Any]) -> None:
    owner = OWNERS[3]
    graph = without_cut_edges(owner)
    ((expected, _),) = Threads.run(
        functools.partial(trained, VertexCentric, graph=graph, owner=np.zeros_like(owner)), 1
    )
    for found, _ in Threads.run(
        functools.partial(trained, lambda: PresetWorkload(**keys), graph=graph, owner=owner), 3
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


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
    make = lambda: PresetWorkload(halo="cluster", clusters=3, clusters_per_batch=2, sync_every="epoch")  # noqa: E731
    found = sum(Threads.run(lambda comm: gradient(make, comm, owner), 2))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def mean_gradient(model: nn.Module, batch: Batch) -> Tensor:  # [num_parameters]
    """This rank's part of the gradient of the mean cross-entropy."""
    model.zero_grad()
    logits = model(batch.x, batch.adjacencies)
    nn.functional.cross_entropy(logits[batch.rows], batch.labels, reduction="sum").div(batch.total).backward()
    return torch.cat(
        [torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten() for p in model.parameters()]
    )


@pytest.mark.parametrize("name", MODELS)
def test_with_one_hop_a_model_of_one_layer_has_the_gradient_of_the_whole_graph(name: str) -> None:
    def gradients(make: Callable[[], ExecutionStrategy], comm: Communicator) -> Tensor:
        strategy, model = make(), make_model(MODELS[name], num_layers=1)
        strategy.setup(worker(comm, strategy), model)
        return torch.stack([mean_gradient(model, batch) for epoch in range(2) for batch in strategy.batches(epoch)])

    (expected,) = Threads.run(functools.partial(gradients, VertexCentric), 1)
    found = sum(Threads.run(functools.partial(gradients, PresetWorkload), 4))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_share_is_built_once_and_its_features_are_copied_once() -> None:
    def check(comm: Communicator) -> None:
        strategy, model = PresetWorkload(), make_model()
        strategy.setup(worker(comm, strategy), model)
        first, second = (next(strategy.batches(epoch)) for epoch in (0, 1))
        assert first.x is second.x
        assert first.adjacencies[0].edges is second.adjacencies[0].edges  # type: ignore[attr-defined]
        assert first.adjacencies[0].key != second.adjacencies[0].key

    Threads.run(check, 3)


@pytest.mark.slow
def test_a_batch_of_clusters_is_the_subgraph_of_the_chosen_clusters() -> None:
    """With degrees of its own, as Cluster-GCN computes on that subgraph alone."""

    def check(comm: Communicator) -> list[int]:
        strategy, model = PresetWorkload(**CLUSTERS, degrees="local"), make_model(dropout=0.0)
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


OWN_CUT = """
from gnnkit.partition import NodePartitioner


class ByLabel(NodePartitioner):
    def assign_nodes(self, graph, num_parts):
        return graph.labels % num_parts
"""


@pytest.mark.parametrize("name", [None, "metis", "ldg", "by_label"])
def test_a_partitioner_of_any_package_cuts_the_clusters(name: str | None, install: Callable[..., Path]) -> None:
    """On a graph of 12 components, which a good cut leaves whole."""
    install("own-cut", {"gnnkit.partition": {"by_label": "own_cut:ByLabel"}}, {"own_cut.py": OWN_CUT})
    component = np.arange(48) // 4
    csc = CSC.from_edges(*np.nonzero(component[:, None] == component), 48)
    graph = Graph(csc, GRAPH.features, GRAPH.labels, GRAPH.split)
    owner = (np.arange(48) // 24).astype(np.int32)

    def check(comm: Communicator) -> list[Ids]:
        keys = {"halo": "cluster", "clusters": 3, "clusters_per_batch": 1, "clusters_by": name}
        strategy = PresetWorkload(**keys)
        strategy.setup(worker(comm, strategy, graph, owner), make_model())
        return [batch.adjacencies[0].src_nodes.numpy() for batch in strategy.batches(0)]  # type: ignore[attr-defined]

    for rank, batches in enumerate(Threads.run(check, 2)):
        assert sorted(np.concatenate(batches).tolist()) == np.flatnonzero(owner == rank).tolist()
        for nodes in batches:
            if name == "by_label":
                assert len(np.unique(graph.labels[nodes] % 3)) <= 1
            elif name != "ldg":  # places nodes one by one
                assert set(np.bincount(component[nodes], minlength=12)) <= {0, 4}


def alone(model: nn.Module, nodes: Ids) -> Tensor:  # [num_nodes, num_classes]
    """Logits on the subgraph of some nodes, as a graph of its own on one rank."""
    graph = subgraph(nodes)
    (shard,) = cut_all(graph, Partition(np.zeros(len(nodes), np.int32), None, Grid(1, 1, 1)))

    def logits(comm: Communicator) -> Tensor:
        own = Worker(comm, shard, torch.float64, 3)
        return Evaluation.of(own, model, 100.0).logits(model)

    return Threads.run(logits, 1)[0]


def subgraph(nodes: Ids) -> Graph:
    csc = GRAPH.csc
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    kept = np.isin(csc.indices, nodes) & np.isin(dst, nodes)
    src, dst = (np.searchsorted(nodes, each[kept]) for each in (csc.indices, dst))
    assert csc.weight is not None
    inner = CSC.from_edges(src, dst, len(nodes), csc.weight[kept])
    return Graph(inner, GRAPH.features[nodes], GRAPH.labels[nodes], np.zeros(len(nodes), np.int8))


@pytest.mark.parametrize("degrees", ["global", "local"])
def test_degrees_say_how_often_the_edges_that_are_left_count(degrees: str) -> None:
    """A row that sees s of d in-edges counts each d/s times, or once."""
    csc, owner = GRAPH.csc, OWNERS[3]
    assert csc.weight is not None

    def check(comm: Communicator) -> None:
        strategy, model = PresetWorkload(halo="none", degrees=degrees), make_model(GraphSAGE)
        strategy.setup(worker(comm, strategy), model)
        batch = next(strategy.batches(0))
        adjacency = batch.adjacencies[0]
        found = adjacency.aggregate(batch.x)
        for row, node in enumerate(adjacency.src_nodes[: adjacency.num_dst].tolist()):
            edges = np.arange(csc.indptr[node], csc.indptr[node + 1])
            left = edges[owner[csc.indices[edges]] == comm.rank]
            counts = len(edges) / max(len(left), 1) if degrees == "global" else 1
            expected = counts * (csc.weight[left, None] * GRAPH.features[csc.indices[left]]).sum(0)
            degree = csc.weight[edges if degrees == "global" else left].sum()
            np.testing.assert_allclose(found[row].numpy(), expected, atol=1e-12)
            np.testing.assert_allclose(float(adjacency.in_degree[row]), degree, atol=1e-12)

    Threads.run(check, 3)


@pytest.mark.slow
@few("name", KEYS, ["one_hop", "clusters by ldg", "llcg", "coverage"])
def test_no_word_of_a_row_moves(name: str) -> None:
    for _, strategy in Threads.run(functools.partial(trained, lambda: PresetWorkload(**KEYS[name]), epochs=2), 3):
        assert not strategy.tally.words
        assert strategy.tally.bytes_sent == 0


@pytest.mark.slow
def test_words_move_in_the_epochs_of_an_exchange_alone() -> None:
    def words(epochs: int) -> list[int]:
        make = lambda: PresetWorkload(exchange_every=3)  # noqa: E731
        return [sum(s.tally.words.values()) for _, s in Threads.run(functools.partial(trained, make, epochs=epochs), 3)]

    one, three, four = (np.array(words(epochs)) for epochs in (1, 3, 4))
    assert one.min() > 0
    assert np.array_equal(three, one)
    assert np.array_equal(four, 2 * one)


class Steps(L.LightningModule):
    """The same network with a loss of its own, which the house checks first."""

    num_layers, self_loops = 2, True

    def __init__(self) -> None:
        super().__init__()
        self.gcn = make_model()

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        logits: Tensor = self.gcn(x, adjacencies)
        return logits

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return loss_part(NodeClassification(), self(batch.x, batch.adjacencies), batch)


@pytest.mark.slow
def test_the_check_of_a_loss_leaves_the_rows_last_received_alone() -> None:
    """The check runs passes without dropout, whose rows no later epoch may read."""
    make = lambda: PresetWorkload(exchange_every=3)  # noqa: E731
    expected = Threads.run(functools.partial(trained, make), 3)
    found = Threads.run(functools.partial(trained, make, make_net=Steps), 3)
    assert all(torch.equal(one, two) for (one, _), (two, _) in zip(found, expected, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("keys", [{"exchange_every": 1}, {**COVERAGE, "ranks": 2}], ids=str)
def test_modes_that_see_all_edges_are_serial(keys: dict[str, Any]) -> None:
    keys = dict(keys)
    ranks = keys.pop("ranks", 3)
    ((expected, _),) = Threads.run(functools.partial(trained, VertexCentric), 1)
    for found, _ in Threads.run(functools.partial(trained, lambda: PresetWorkload(**keys)), ranks):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


@pytest.mark.slow
def test_ranks_drift_between_averages_only() -> None:
    keys = {**KEYS["parameters"], "control_variates": False}
    for epochs, drifts in ((1, True), (2, False), (3, True)):
        run = functools.partial(trained, lambda: PresetWorkload(**keys), epochs=epochs)
        parameters = torch.stack([values for values, _ in Threads.run(run, 3)])
        assert bool((parameters != parameters[0]).any()) == drifts
    strategy = PresetWorkload(**KEYS["parameters"])
    assert (strategy.steps.drift, strategy.steps.only_synchronise) == (True, False)
    assert not PresetWorkload().steps.drift
    assert PresetWorkload().steps.only_synchronise
    assert PresetWorkload(sync_every=2).steps.keep_state


@pytest.mark.slow
def test_a_correcting_step_has_the_gradient_of_batches_with_the_cut_edges() -> None:
    """Here a batch has all neighbours of all training nodes, so all edges."""

    def gradients(comm: Communicator) -> Tensor:
        strategy, model = PresetWorkload(**{**LLCG, "correction_batch_size": 100}), make_model()
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
        strategy, model = make(), filled(LinearSum())
        strategy.setup(worker(comm, strategy), model)
        for epoch in range(epochs):
            (batch,) = strategy.batches(epoch)
            nodes = batch.adjacencies[-1].src_nodes[batch.rows]
            loss = model(batch.x, batch.adjacencies)[batch.rows] * (nodes[:, None] + 1).sin()
            weights = 1.0 if batch.row_weights is None else batch.row_weights[:, None]
            (loss * weights).sum().div(batch.total * epochs).backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    (expected,) = Threads.run(functools.partial(gradient, VertexCentric, 1), 1)
    make = lambda: PresetWorkload(**COVERAGE, resplit_every=2)  # noqa: E731
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
        strategy, model = PresetWorkload(halo="none", split="dynamic", resplit_every=2), make_model()
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
        make = functools.partial(PresetWorkload, split="dynamic", chunks=4)
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


class Burns(GCN):
    """Needs time for each edge, and rank 0 twice as much."""

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        if self.training:
            edges = sum(adjacency.num_edges for adjacency in adjacencies)
            time.sleep(edges * 3e-6 * (2 if os.environ["RANK"] == "0" else 1))
        return super().forward(x, adjacencies)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.alone  # workers divide the graph by the seconds that they measure
def test_a_run_with_a_slow_rank_comes_to_even_seconds(tmp_path: Path) -> None:
    graph = Synthetic(num_nodes=3000, num_edges=15_000, num_classes=3, width=4).load()
    gnnkit.train(
        graph,
        strategy={"name": "preset_workload", "halo": "none", "split": "dynamic"},
        model=Burns,
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
    ratio = float(np.median(edges[1, -3:] / edges[0, -3:]))  # other programs may slow single epochs
    assert 1.5 < ratio < 2.6, "the slow rank comes to about half the edges of the other"


@pytest.fixture(scope="module")
def accuracies() -> dict[str, float]:
    """Test accuracies where only cut edges tell the labels, by mode."""
    graph = cut_signal_graph()
    averaging = {"halo": "none", "average": "parameters"}
    llcg = {**averaging, **LLCG, "correction_batch_size": 128}
    modes: dict[str, Callable[[], ExecutionStrategy]] = {
        "full graph": VertexCentric,
        "averaging": lambda: PresetWorkload(**averaging),
        "llcg": lambda: PresetWorkload(**llcg),
        "coverage": lambda: PresetWorkload(**COVERAGE),
    }
    return {name: Threads.run(functools.partial(_accuracy, make, graph), 4)[0] for name, make in modes.items()}


def _accuracy(
    make: Callable[[], ExecutionStrategy], graph: Graph, comm: Communicator, owner: Ids | None = None
) -> float:
    owner = np.arange(graph.num_nodes) * 4 // graph.num_nodes if owner is None else owner
    strategy, model = make(), filled(GraphSAGE(4, 4, hidden=8, dropout=0.0).double())
    own = worker(comm, strategy, graph, owner)
    strategy.setup(own, model)
    module = TrainingModule(
        model, strategy, own, Evaluation.of(own, model, 100.0), optimizer="adam", lr=0.03, weight_decay=0.0
    )
    options: dict[str, Any] = {"max_epochs": 40, "limit_val_batches": 0, "logger": False}
    make_trainer(module, AllReduce(), SyncMeter(), **options).fit(module)
    average_parameters(model, comm, 1.0)
    return module.task.measure(module.evaluation.logits(model), own)["test_accuracy"]


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("name", ["llcg", "coverage"])
def test_corrections_close_the_gap_where_the_signal_sits_on_cut_edges(name: str, accuracies: dict[str, float]) -> None:
    """Plain averaging stays near chance, which is a quarter."""
    full, plain = accuracies["full graph"], accuracies["averaging"]
    assert full > 0.85
    assert plain < 0.4
    assert (accuracies[name] - plain) / (full - plain) >= 0.8


@pytest.mark.exhaustive
@pytest.mark.slow
def test_workers_with_other_classes_train_one_model_by_control_variates() -> None:
    """Each of four workers knows one class, and steps alone three times of four."""
    graph = Synthetic(num_nodes=400, num_edges=2000, num_classes=4, width=4).load()
    owner = graph.labels.astype(np.int32)

    def found(**keys: Any) -> float:
        make = functools.partial(PresetWorkload, average="parameters", sync_every=4, **keys)
        return Threads.run(functools.partial(_accuracy, make, graph, owner=owner), 4)[0]

    exact = Threads.run(functools.partial(_accuracy, VertexCentric, graph, owner=owner), 4)[0]
    assert found() > exact - 0.02
    assert found(control_variates=False) < exact - 0.2


@pytest.mark.slow
@few(
    "mode,name",
    itertools.product(["one_hop", "clusters", "llcg", "coverage", "each second"], ["gcn", "sage", "gat"]),
    default=[("one_hop", "gcn"), ("llcg", "gat"), ("coverage", "gcn"), ("each second", "sage")],
)
def test_sparse_features_train_what_dense_ones_do(mode: str, name: str) -> None:
    keys = {**KEYS, **EXCHANGES}[mode]
    dense = wide_graph()
    sparse = replace(dense, features=SparseFeatures.of(dense.features))

    def found(graph: Graph, comm: Communicator) -> tuple[Tensor, Tensor, bool]:
        model = filled(SPARSE_READERS[name](40, CLASSES, hidden=4, dropout=0.3).double())
        values, strategy = trained(lambda: PresetWorkload(**keys), comm, graph=graph, make_net=lambda: model, epochs=1)
        x = next(iter(strategy.batches(0))).x
        evaluation = Evaluation.of(strategy.worker, model, 100.0)  # type: ignore[attr-defined]
        return values, evaluation.logits(model), isinstance(x, SparseRows)

    expected = Threads.run(functools.partial(found, dense), 3)
    for one, two in zip(expected, Threads.run(functools.partial(found, sparse), 3), strict=True):
        assert (one[2], two[2]) == (False, True)
        torch.testing.assert_close(two[0], one[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(two[1], one[1], rtol=1e-10, atol=1e-10)


def wide_graph() -> Graph:
    """Few numbers of wide rows."""
    rng = np.random.default_rng(5)
    features = np.where(rng.random((GRAPH.num_nodes, 40)) < 0.1, rng.standard_normal((GRAPH.num_nodes, 40)), 0)
    return replace(GRAPH, features=features, feature_names=None)


def test_what_depends_on_workers_has_no_reference_on_one_rank() -> None:
    for keys in KEYS.values():
        assert PresetWorkload(**keys).on_one_rank(4, None) is None
        assert PresetWorkload(**keys).on_one_rank(1, None) is not None
    assert PresetWorkload(exchange_every=1).on_one_rank(4, None) is not None
    assert PresetWorkload(exchange_every=2).on_one_rank(4, None) is None


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {"halo": "two_hop"},
            r"^strategy\.halo=two_hop is not known: did you mean one_hop\? there are: cluster, none, one_hop",
        ),
        ({"sync_every": "step"}, r"^strategy\.sync_every=step must be epoch or a whole number"),
        ({"sync_every": 0}, r"^strategy\.sync_every=0 must be epoch or a whole number from 1"),
        ({"clusters": 4}, r"^strategy\.clusters=4 is read with strategy\.halo=cluster only: leave the key out"),
        ({"clusters_by": "ldg"}, r"^strategy\.clusters_by=ldg is read with strategy\.halo=cluster only: leave the key"),
        ({"halo": "cluster", "clusters_by": "lgd"}, r"^strategy\.clusters_by=lgd is not known: did you mean ldg\?"),
        (
            {"halo": "cluster", "clusters_by": "stored"},
            r"^strategy\.clusters_by=stored wants path: choose a partitioner",
        ),
        ({"chunks": 4}, r"^strategy\.chunks=4 is read with strategy\.split=dynamic only"),
        ({"chunks": 4, **COVERAGE}, r"^strategy\.chunks=4: with strategy\.correction=coverage a worker has one chunk"),
        ({"correction_steps": 4}, r"^strategy\.correction_steps=4 is read with strategy\.correction=llcg only"),
        (
            {"halo": "cluster", "clusters": 3},
            r"^strategy\.clusters_per_batch=4 must be at most strategy\.clusters=3",
        ),
        (
            {"correction": "llcg", "average": "gradients"},
            r"^strategy\.average=gradients does not go with strategy\.correction=llcg: correcting steps follow an "
            r"average of parameters, choose strategy\.average=parameters",
        ),
        ({**COVERAGE, "split": "fixed"}, r"^strategy\.split=fixed does not go with strategy\.correction=coverage"),
        (
            {"control_variates": 1, "average": "parameters"},
            r"^strategy\.control_variates=1 must be true, false or null",
        ),
        (
            {"control_variates": False},
            r"^strategy\.control_variates=false is read with strategy\.average=parameters only: leave the key out",
        ),
        ({**COVERAGE, "halo": "one_hop"}, r"^strategy\.halo=one_hop does not go with strategy\.correction=coverage"),
        ({**COVERAGE, "average": "parameters"}, r"^strategy\.average=parameters does not go with"),
        ({**COVERAGE, "degrees": "local"}, r"^strategy\.degrees=local does not go with"),
        ({"split": "dynamic", "sync_every": 2}, r"^strategy\.sync_every=2 does not go with strategy\.split=dynamic"),
        ({"exchange_every": 2, "halo": "none"}, r"^strategy\.halo=none does not go with strategy\.exchange_every"),
        ({"exchange_every": 2, "split": "dynamic"}, r"^strategy\.split=dynamic does not go with"),
        ({"exchange_every": 2, "degrees": "local"}, r"^strategy\.degrees=local does not go with"),
        ({"exchange_every": 2, **LLCG}, r"^strategy\.correction=llcg does not go with strategy\.exchange_every"),
    ],
)
def test_keys_that_make_no_sense_are_refused_with_the_reason(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PresetWorkload(**keys)


@pytest.mark.parametrize(
    ("correction", "chosen"),
    [
        ("none", ("one_hop", "gradients", "fixed", False)),
        ("llcg", ("one_hop", "parameters", "fixed", True)),
        ("coverage", ("none", "gradients", "dynamic", False)),
    ],
)
def test_a_correction_alone_chooses_what_it_needs(correction: str, chosen: tuple[Any, ...]) -> None:
    keys = PresetWorkload(correction=correction).keys
    assert (keys.halo, keys.average, keys.split, keys.control_variates) == chosen


def test_a_sampler_is_needed_by_llcg_alone() -> None:
    with pytest.raises(UserError, match="this strategy does not sample"):
        PresetWorkload().check(NeighborSampler([3, 3]), 2)
    with pytest.raises(UserError, match="sampler is missing"):
        PresetWorkload(**LLCG).check(None, 2)
    PresetWorkload(**LLCG).check(NeighborSampler([3, 3]), 2)


def test_a_part_has_its_own_factors_after_the_whole_graphs_were_read() -> None:
    share = WorkerShare.of(GRAPH, np.flatnonzero(OWNERS[3] == 1))
    layers = BlockLayers(GRAPH, make_model(), torch.float64, torch.device("cpu"))
    nodes = np.arange(GRAPH.num_nodes)
    of_whole, of_part = (BlockEdges(each, share.block) for each in (layers, layers.of_part(share.block)))
    whole, factor = (edges.factor("normal", torch.float64) for edges in (of_whole, of_part))
    part = layers.of_part(share.block)
    into, out_of = inverse_sqrt(part.in_degree[nodes]), inverse_sqrt(part.out_degree[nodes])
    source = share.block.src_nodes[of_part.edges.csc.indices]
    normal = into[share.block.src_nodes[of_part.targets]] * out_of[source]
    np.testing.assert_array_equal(factor[:, 0], normal * of_part.factor("sum", torch.float64).numpy()[:, 0])
    assert not torch.equal(factor, whole)


def test_a_part_of_the_graph_has_degrees_of_its_own() -> None:
    share = WorkerShare.of(GRAPH, np.flatnonzero(OWNERS[3] == 1))
    layers = BlockLayers(GRAPH, make_model(), torch.float64, torch.device("cpu"))
    part, inner = layers.of_part(share.block), subgraph(np.sort(share.block.src_nodes))
    nodes = np.sort(share.block.src_nodes)
    np.testing.assert_allclose(part.graph_in_degree[nodes], inner.csc.in_degree())
    loops = layers.gets_loop[nodes]
    np.testing.assert_allclose(part.out_degree[nodes], inner.csc.out_degree() + loops)
    np.testing.assert_allclose(part.in_degree[nodes], inner.csc.in_degree() + loops)
    assert part.in_degree.sum() == pytest.approx(inner.csc.in_degree().sum() + loops.sum())
    assert part.mean_edge_features is not None
    edges = np.flatnonzero(np.repeat(np.arange(share.block.num_dst), np.diff(share.block.indptr)) == 0)
    assert share.block.edge_ids is not None
    assert GRAPH.edge_features is not None
    expected = GRAPH.edge_features[share.block.edge_ids[edges]].mean(0) if len(edges) else np.zeros(2)
    np.testing.assert_allclose(part.mean_edge_features[share.block.src_nodes[0]], expected)
