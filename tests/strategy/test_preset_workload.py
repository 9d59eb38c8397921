"""Shares that are cut before training: what they see, what moves, when ranks meet."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from gnnkit_formats.synthetic import Synthetic
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Adjacency, BlockLayers, SparseRows
from gnnkit.engine.block_edges import BlockEdges, inverse_sqrt
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, SparseFeatures
from gnnkit.leader.meter import SyncMeter
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.sampler import NeighborSampler
from gnnkit.strategy import Batch, ExecutionStrategy, Worker
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.strategy.workload import OneShare, WorkerShare, Workload, in_neighbours
from gnnkit.sync import average_parameters
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.task.evaluation import Evaluation
from gnnkit.task.link_prediction import LinkPrediction
from gnnkit.task.node_classification import NodeClassification
from gnnkit.testing import check_strategy
from gnnkit.training.module import TrainingModule
from gnnkit.training.step import loss_part
from gnnkit.training.trainer import make_trainer
from tests.cases import few
from tests.models import MODELS

GRAPH = check_graph(48)
OWNERS = {ranks: np.random.default_rng(ranks).integers(0, ranks, 48).astype(np.int32) for ranks in (1, 2, 3, 4)}
KEYS: dict[str, dict[str, Any]] = {
    "one_hop": {},
    "none": {"halo": "none"},
    "local": {"halo": "none", "degrees": "local"},
    "accumulated": {"sync_every": 3},
    "parameters": {"average": "parameters", "sync_every": 2},
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
    return fill_parameters(kind(WIDTH, CLASSES, **{"hidden": 4, "dropout": 0.3, **keys}).double())


def fill_parameters(model: nn.Module) -> nn.Module:
    for number, parameter in enumerate(model.parameters()):
        nn.init.uniform_(parameter, -0.7, 0.7, generator=torch.Generator().manual_seed(number))
    return model


def train_ranks(
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
    rank_worker = worker(comm, strategy, graph, owner)
    strategy.setup(rank_worker, model)
    module = TrainingModule(
        model,
        strategy,
        rank_worker,
        Evaluation.of(rank_worker, model, 100.0),
        optimizer="sgd",
        lr=0.3,
        weight_decay=0.0,
    )
    options: dict[str, Any] = {"max_epochs": epochs, "limit_val_batches": 0, "logger": False}
    make_trainer(module, AllReduce(), SyncMeter(), **options).fit(module)
    return parameters_to_vector(module.parameters()).detach(), strategy


def without_cut_edges(owner: Ids) -> Graph:
    csc = GRAPH.csc
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    is_kept = owner[csc.indices] == owner[dst]
    weight = None if csc.weight is None else csc.weight[is_kept]
    return Graph(
        CSC.from_edges(csc.indices[is_kept], dst[is_kept], csc.num_nodes, weight),
        GRAPH.features,
        GRAPH.labels,
        GRAPH.split,
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
        return [train_ranks(make, comm, make_net=net)[0] for make in makers]

    for actual, exact, averaged in Threads.run(work, 3):
        torch.testing.assert_close(actual, exact, rtol=0, atol=1e-12)  # two layers read all edges
        assert not torch.equal(averaged, actual)
    with pytest.raises(UserError, match="provides rows of nodes only"):
        LinkPrediction().check(TwoHops(), None)
    for keys in ({"halo": "none"}, {"exchange_every": 1}):
        with pytest.raises(UserError, match=r"^strategy\.\w+=\w+: this strategy builds a share of its own"):
            TwoHops(**keys)


@pytest.mark.slow
@few("name", [*KEYS, *EXCHANGES], ["parameters"])
def test_every_mode_keeps_the_promises_of_strategies(name: str) -> None:
    check_strategy(lambda: PresetWorkload(**{**KEYS, **EXCHANGES}[name]))


@pytest.mark.slow
@few(
    "keys",
    [
        {},
        {"halo": "none"},
        {"halo": "none", "degrees": "local"},
        {"halo": "none", "average": "parameters", "sync_every": 1},
        {"halo": "none", "average": "parameters"},
    ],
    default=4,
)
def test_without_cut_edges_and_a_synchronisation_in_each_step_training_is_serial(keys: dict[str, Any]) -> None:
    owner = OWNERS[3]
    graph = without_cut_edges(owner)
    ((reference, _),) = Threads.run(
        functools.partial(train_ranks, VertexCentric, graph=graph, owner=np.zeros_like(owner)), 1
    )
    for actual, _ in Threads.run(
        functools.partial(train_ranks, lambda: PresetWorkload(**keys), graph=graph, owner=owner), 3
    ):
        torch.testing.assert_close(actual, reference, rtol=0, atol=1e-10)


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

    (reference,) = Threads.run(functools.partial(gradients, VertexCentric), 1)
    results = sum(Threads.run(functools.partial(gradients, PresetWorkload), 4))
    torch.testing.assert_close(results, reference, rtol=0, atol=1e-10)


def test_a_share_is_built_once_and_its_features_are_copied_once() -> None:
    def check(comm: Communicator) -> None:
        strategy, model = PresetWorkload(), make_model()
        strategy.setup(worker(comm, strategy), model)
        first, second = (next(strategy.batches(epoch)) for epoch in (0, 1))
        assert first.x is second.x
        assert first.adjacencies[0].edges is second.adjacencies[0].edges  # type: ignore[attr-defined]
        assert first.adjacencies[0].key != second.adjacencies[0].key

    Threads.run(check, 3)


def subgraph(nodes: Ids) -> Graph:
    csc = GRAPH.csc
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    is_kept = np.isin(csc.indices, nodes) & np.isin(dst, nodes)
    src, dst = (np.searchsorted(nodes, each[is_kept]) for each in (csc.indices, dst))
    assert csc.weight is not None
    inner = CSC.from_edges(src, dst, len(nodes), csc.weight[is_kept])
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
        actual = adjacency.aggregate(batch.x)
        for row, node in enumerate(adjacency.src_nodes[: adjacency.num_dst].tolist()):
            edges = np.arange(csc.indptr[node], csc.indptr[node + 1])
            remaining = edges[owner[csc.indices[edges]] == comm.rank]
            counts = len(edges) / max(len(remaining), 1) if degrees == "global" else 1
            reference = counts * (csc.weight[remaining, None] * GRAPH.features[csc.indices[remaining]]).sum(0)
            degree = csc.weight[edges if degrees == "global" else remaining].sum()
            np.testing.assert_allclose(actual[row].numpy(), reference, atol=1e-12)
            np.testing.assert_allclose(float(adjacency.in_degree[row]), degree, atol=1e-12)

    Threads.run(check, 3)


@pytest.mark.slow
@few("name", KEYS, ["one_hop", "parameters"])
def test_no_word_of_a_row_moves(name: str) -> None:
    for _, strategy in Threads.run(functools.partial(train_ranks, lambda: PresetWorkload(**KEYS[name]), epochs=2), 3):
        assert not strategy.tally.words
        assert strategy.tally.bytes_sent == 0


@pytest.mark.slow
def test_words_move_in_the_epochs_of_an_exchange_alone() -> None:
    def words(epochs: int) -> list[int]:
        make = lambda: PresetWorkload(exchange_every=3)  # noqa: E731
        return [
            sum(s.tally.words.values()) for _, s in Threads.run(functools.partial(train_ranks, make, epochs=epochs), 3)
        ]

    words_of_one, three, four = (np.array(words(epochs)) for epochs in (1, 3, 4))
    assert words_of_one.min() > 0
    assert np.array_equal(three, words_of_one)
    assert np.array_equal(four, 2 * words_of_one)


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
    reference = Threads.run(functools.partial(train_ranks, make), 3)
    results = Threads.run(functools.partial(train_ranks, make, make_net=Steps), 3)
    assert all(torch.equal(first, two) for (first, _), (two, _) in zip(results, reference, strict=True))


@pytest.mark.slow
def test_shares_that_exchange_rows_in_each_epoch_are_serial() -> None:
    ((reference, _),) = Threads.run(functools.partial(train_ranks, VertexCentric), 1)
    for actual, _ in Threads.run(functools.partial(train_ranks, lambda: PresetWorkload(exchange_every=1)), 3):
        torch.testing.assert_close(actual, reference, rtol=0, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(("control_variates", "drift"), [(None, [False, True, False]), (False, [True, True, False])])
def test_ranks_drift_between_averages_only(control_variates: bool | None, drift: list[bool]) -> None:
    """With control variates, the first step after an average has the mean gradient."""
    keys = {"average": "parameters", "sync_every": 3, "control_variates": control_variates}
    for epochs, drifts in enumerate(drift, 1):
        run = functools.partial(train_ranks, lambda: PresetWorkload(**keys), epochs=epochs)
        parameters = torch.stack([values for values, _ in Threads.run(run, 3)])
        assert bool((parameters != parameters[0]).any()) == drifts
    strategy = PresetWorkload(**KEYS["parameters"])
    assert (strategy.steps.drift, strategy.steps.only_synchronise) == (True, False)
    assert not PresetWorkload().steps.drift
    assert PresetWorkload().steps.only_synchronise
    assert PresetWorkload(sync_every=2).steps.keep_state


def accuracy_of(
    make: Callable[[], ExecutionStrategy], graph: Graph, comm: Communicator, owner: Ids | None = None
) -> float:
    owner = np.arange(graph.num_nodes) * 4 // graph.num_nodes if owner is None else owner
    strategy, model = make(), fill_parameters(GraphSAGE(4, 4, hidden=8, dropout=0.0).double())
    rank_worker = worker(comm, strategy, graph, owner)
    strategy.setup(rank_worker, model)
    module = TrainingModule(
        model,
        strategy,
        rank_worker,
        Evaluation.of(rank_worker, model, 100.0),
        optimizer="adam",
        lr=0.03,
        weight_decay=0.0,
    )
    options: dict[str, Any] = {"max_epochs": 40, "limit_val_batches": 0, "logger": False}
    make_trainer(module, AllReduce(), SyncMeter(), **options).fit(module)
    average_parameters(model, comm, 1.0)
    return module.task.measure(module.evaluation.logits(model), rank_worker)["test_accuracy"]


@pytest.mark.exhaustive
@pytest.mark.slow
def test_workers_with_other_classes_train_one_model_by_control_variates() -> None:
    """Each of four workers knows one class, and steps alone three times of four."""
    graph = Synthetic(num_nodes=400, num_edges=2000, num_classes=4, width=4).load()
    owner = graph.labels.astype(np.int32)

    make = functools.partial(PresetWorkload, average="parameters", sync_every=4)
    exact, found, alone = (
        Threads.run(functools.partial(accuracy_of, strategy, graph, owner=owner), 4)[0]
        for strategy in (VertexCentric, make, functools.partial(make, control_variates=False))
    )
    assert found > exact - 0.02
    assert alone < exact - 0.2


@pytest.mark.slow
@few(
    "mode,name",
    itertools.product(["one_hop", "each second"], ["gcn", "sage", "gat"]),
    default=[("one_hop", "gcn"), ("each second", "sage")],
)
def test_sparse_features_train_what_dense_ones_do(mode: str, name: str) -> None:
    check_sparse_rows(functools.partial(PresetWorkload, **{**KEYS, **EXCHANGES}[mode]), SPARSE_READERS[name])


def check_sparse_rows(make: Callable[[], PresetWorkload], kind: type[Any]) -> None:
    """Trains on dense and on sparse features, and compares parameters and logits."""
    dense = wide_graph()
    sparse = replace(dense, features=SparseFeatures.of(dense.features))

    def found(graph: Graph, comm: Communicator) -> tuple[Tensor, Tensor, bool]:
        model = fill_parameters(kind(40, CLASSES, hidden=4, dropout=0.3).double())
        values, strategy = train_ranks(make, comm, graph=graph, make_net=lambda: model, epochs=1)
        x = next(iter(strategy.batches(0))).x
        evaluation = Evaluation.of(strategy.worker, model, 100.0)  # type: ignore[attr-defined]
        return values, evaluation.logits(model), isinstance(x, SparseRows)

    reference = Threads.run(functools.partial(found, dense), 3)
    for first, two in zip(reference, Threads.run(functools.partial(found, sparse), 3), strict=True):
        assert (first[2], two[2]) == (False, True)
        torch.testing.assert_close(two[0], first[0], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(two[1], first[1], rtol=1e-10, atol=1e-10)


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
            r"^strategy\.halo=two_hop is not known: did you mean one_hop\? there are: none, one_hop",
        ),
        ({"sync_every": "step"}, r"^strategy\.sync_every=step must be epoch or a whole number"),
        ({"sync_every": 0}, r"^strategy\.sync_every=0 must be epoch or a whole number from 1"),
        (
            {"halo": "cluster"},
            r"^strategy\.halo=cluster was removed: use strategy=cluster \(pip install gnnkit-preset\)",
        ),
        (
            {"control_variates": 1, "average": "parameters"},
            r"^strategy\.options\.control_variates=1 must be true, false or null",
        ),
        (
            {"control_variates": False},
            r"^strategy\.options\.control_variates=false is read with strategy\.average=parameters only: leave the key out",
        ),
        ({"exchange_every": 2, "halo": "none"}, r"^strategy\.halo=none does not go with strategy\.exchange_every"),
        ({"exchange_every": 2, "degrees": "local"}, r"^strategy\.options\.degrees=local does not go with"),
    ],
)
def test_keys_that_make_no_sense_are_refused_with_the_reason(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PresetWorkload(**keys)


def test_a_part_has_its_own_factors_after_the_whole_graphs_were_read() -> None:
    share = WorkerShare.of(GRAPH, np.flatnonzero(OWNERS[3] == 1))
    layers = BlockLayers(GRAPH, make_model(), torch.float64, torch.device("cpu"))
    nodes = np.arange(GRAPH.num_nodes)
    of_whole, of_part = (BlockEdges(each, share.block) for each in (layers, layers.of_part(share.block)))
    graph_factor, factor = (edges.factor("normal", torch.float64) for edges in (of_whole, of_part))
    part = layers.of_part(share.block)
    into, out_of = inverse_sqrt(part.in_degree[nodes]), inverse_sqrt(part.out_degree[nodes])
    source = share.block.src_nodes[of_part.edges.csc.indices]
    normal = into[share.block.src_nodes[of_part.targets]] * out_of[source]
    np.testing.assert_array_equal(factor[:, 0], normal * of_part.factor("sum", torch.float64).numpy()[:, 0])
    assert not torch.equal(factor, graph_factor)


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
    reference = GRAPH.edge_features[share.block.edge_ids[edges]].mean(0) if len(edges) else np.zeros(2)
    np.testing.assert_allclose(part.mean_edge_features[share.block.src_nodes[0]], reference)
