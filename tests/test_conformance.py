"""Every installed plugin keeps the promises of the interface.

The checks find a plugin that breaks a promise.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing import exchange
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import GRIDS
from torch import Tensor, nn

from gnnkit import plugins, testing
from gnnkit.comm import Pending
from gnnkit.comm.threads import Threads
from gnnkit.config import as_overrides, compose
from gnnkit.config.settings import Choice
from gnnkit.dataset.base import Dataset
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, MiniBatch
from gnnkit.launch.launcher import JOBS, Jobs, Launcher, Ranks
from gnnkit.launch.launcher.builtin import Outside, Processes
from gnnkit.model.base import Nodes, Program
from gnnkit.model.label_propagation import LabelPropagation
from gnnkit.model.pagerank import PageRank
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid, NodePartitioner
from gnnkit.sampler import Hop, Sampler, WeightedSampler
from gnnkit.strategy import Batch, LearnedInputs, MovableSeeds
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.base import GradientSync
from gnnkit.task import Task
from gnnkit.task.node_classification import NodeClassification
from tests import shops
from tests.cases import exhaustive, few, in_turn
from tests.comm.processes import run_gloo
from tests.folders import graphbolt_folder, ogb, saint, store
from tests.forked import Forked
from tests.launch.outside import by_hand
from tests.waiting import wait_until

PARTITIONERS = sorted({*plugins.names("partition")} - {"stored"})  # stored is of one graph only
GRAPH = next(graph.csc for graph in testing.example_graphs() if graph.num_nodes == 24)


def read_plugin(kind: str, name: str, **given: Any) -> Callable[..., Any]:
    """Makes the plugin with the keys of the YAML file."""
    config = compose(as_overrides({"strategy": "vertex_centric", kind: {"name": name, **given}}))
    section = config[kind][name] if kind in plugins.SEVERAL else config[kind]
    return Choice(kind, name, plugins.arguments_of(kind, section)).create


def both(kind: str) -> list[tuple[str, str]]:
    """Names the plugins of a kind with the grids of a check: the first, or all."""
    return [(name, grids) for name in plugins.names(kind) for grids in ("one", "all")]


def some(grids: str) -> Sequence[Grid]:
    return GRIDS[:1] if grids == "one" else GRIDS


@pytest.fixture
def arguments(tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Returns the arguments that the YAML of a plugin leaves to the user."""
    np.save(tmp_path / "clusters.npy", np.arange(GRAPH.num_nodes) // 6)
    np.savez(
        tmp_path / "graph.npz",
        indptr=GRAPH.indptr,
        indices=GRAPH.indices,
        x=np.ones((GRAPH.num_nodes, 2)),
        y=np.zeros(GRAPH.num_nodes, np.int64),
        **{f"{split}_mask": np.arange(GRAPH.num_nodes) % 3 == i for i, split in enumerate(("train", "val", "test"))},
    )
    (tmp_path / "edges.csv").write_text("src,dst\n0,1\n1,2\n")
    graphbolt_folder(tmp_path / "graphbolt", np.random.default_rng(0))
    check_graph().save(tmp_path / "saved")
    return {
        "cluster": {"clusters": str(tmp_path / "clusters.npy")},
        "npz": {"root": str(tmp_path / "graph.npz")},
        "edges": {"root": str(tmp_path)},
        "saved": {"root": str(tmp_path / "saved")},
        "graphbolt": {"root": str(tmp_path / "graphbolt")},
        "tables": {"root": str(shops.write(tmp_path / "tables"))},
        "graphsaint": {"root": str(saint(tmp_path / "saint"))},
        "ogb": {"root": str(ogb(tmp_path / "ogbn_arxiv"))},
    }


@pytest.mark.slow
@few(
    "name,graphs",
    [(name, graphs) for name in PARTITIONERS for graphs in ("some", "all")],
    default=[(name, "some") for name in PARTITIONERS],
)
def test_partitioners(name: str, graphs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if graphs == "some":
        monkeypatch.setattr("gnnkit_testing.partition.example_graphs", lambda: testing.example_graphs()[2::3])
    testing.check_partitioner(read_plugin("partition", name)())


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("sampler"))
@pytest.mark.filterwarnings("ignore:metropolis_hastings walks")
def test_samplers(name: str, arguments: dict[str, dict[str, Any]]) -> None:
    if name == "top_k":
        pytest.importorskip("gnnkit_top_k._law", reason="plugins/gnnkit-top-k is not built")
    given = arguments.get(name, {})
    seeds, fixed = np.arange(GRAPH.num_nodes)[::-2].copy(), name in ("cluster", "full", "top_k")
    testing.check_sampler(read_plugin("sampler", name, **given)(), GRAPH, seeds, deterministic=fixed)


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("dataset"))
def test_datasets(name: str, arguments: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    run_keys = {"root": str(store(tmp_path / "store"))} if name == "store" else arguments.get(name, {})
    testing.check_dataset(read_plugin("dataset", name, **run_keys)())


LABELS = {  # that a task reads, of 30 nodes
    "multilabel": np.random.default_rng(0).random((30, 4)) < 0.3,
    "ranking": np.stack([np.arange(30) % 3 % 2, np.arange(30) // 5, np.full(30, 2)], 1).astype(float),
    "regression": np.where(np.arange(30) % 7 == 6, np.nan, np.random.default_rng(0).normal(size=30)),
}


@pytest.mark.slow
@few("name,grids", both("order"), default=[(name, "one") for name in plugins.names("order")])
def test_orders(name: str, grids: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnkit_testing.order.GRIDS", some(grids))
    testing.check_order(read_plugin("order", name)())


@pytest.mark.parametrize("name", plugins.names("job"))
def test_jobs(name: str) -> None:
    testing.check_job(plugins.load("job", name))


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("task"))
def test_tasks(name: str) -> None:
    graph = check_graph()
    labels = LABELS.get(name, graph.labels)
    split = np.where(np.arange(30) % 7 == 6, 0, graph.split).astype(np.int8)
    testing.check_task(read_plugin("task", name), dataclasses.replace(graph, labels=labels, split=split))


@pytest.mark.slow
@few("name,grids", both("strategy"), default=[(name, "one") for name in plugins.names("strategy")])
def test_strategies(name: str, grids: str) -> None:
    steps = {"clusters": 8} if name == "cluster" else {}  # two per epoch
    testing.check_strategy(read_plugin("strategy", name, **steps), GRIDS[:1] if grids == "one" else None)


# The plugin's own tests check error_feedback by default.
@pytest.mark.slow
@few(
    "name,first_grid",
    [
        *((name, 0) for name in [*plugins.names("exchange"), "quantized+adaptive"]),
        *in_turn([*plugins.names("exchange"), "quantized+adaptive"], (1, 2)),
    ],
    default=[(name, 0) for name in plugins.names("exchange") if name != "error_feedback"],
)
def test_exchanges(name: str, first_grid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "GRIDS", exchange.GRIDS[first_grid : first_grid + 1])
    testing.check_exchange(read_plugin("exchange", name))


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("sync"))
def test_synchronisations(name: str) -> None:
    testing.check_sync(read_plugin("sync", name))


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("logger"))
@pytest.mark.long("imports the loggers of other packages")
def test_loggers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    if (module := plugins.load("logger", name).module) is not None:
        pytest.importorskip(module)
    testing.check_logger(read_plugin("logger", name))


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("callback"))
def test_callbacks(name: str) -> None:
    testing.check_callback(read_plugin("callback", name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in plugins.names("launcher") if name != "ray"])  # needs a cluster
def test_launchers(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if name == "submitit":
        pytest.importorskip("submitit")
        monkeypatch.delenv("PATH")  # so that no srun is found
    if name != "outside":
        testing.check_launcher(read_plugin("launcher", name))
        return
    folders = [tmp_path / str(rank) for rank in range(2)]
    for folder in folders:
        folder.mkdir()
    ranks = [
        Forked(functools.partial(_check_outside, place), folder)
        for place, folder in zip(by_hand(2), folders, strict=True)
    ]
    assert [rank.ended() for rank in ranks] == [(0, ""), (0, "")]


def _check_outside(place: dict[str, str]) -> None:
    os.environ.update(place)
    testing.check_launcher(Outside)


@pytest.mark.slow
@few("name,grids", both("model"), default=[(name, "one") for name in plugins.names("model")])
def test_models_and_programs(name: str, grids: str) -> None:
    make, check = read_plugin("model", name), functools.partial(testing.check_model, grids=some(grids))
    if issubclass(plugins.load("model", name), Program):
        testing.check_program(read_plugin("model", name, max_iterations=20), some(grids))
    elif getattr(plugins.load("model", name), "reads_edge_age", False):
        assert name == "tgat"  # reads batches sampled by time, and is compared with loops in its package
    elif name in ("gat", "gine"):
        check(lambda width, classes: make(in_features=width, num_classes=classes, edge_width=2))
    elif name == "rgat":
        check(lambda width, classes: make(in_features=width, num_classes=classes, num_relations=3))
        plain = read_plugin("model", name, inverse=False, self_loop=False, project=False, hidden=2, heads=3, bases=2)
        check(lambda width, classes: plain(in_features=width, num_classes=classes, num_relations=3))
    elif name == "blend":
        check(lambda width, classes: make(in_features=width, num_classes=classes, num_relations=3))
    elif name == "simple_hgn":
        small = read_plugin("model", name, hidden=3, heads=2, relation_width=4)
        check(lambda width, classes: small(in_features=width, num_classes=classes, num_relations=3))
    elif name == "hgt":
        small = read_plugin("model", name, hidden=3, heads=2)
        check(lambda width, classes: small(in_features=width, num_classes=classes, num_relations=3))
    elif name == "rgcn":
        check(lambda width, classes: make(in_features=width, num_classes=classes, num_relations=3))
        projects = read_plugin("model", name, project=True, hidden=4)
        check(lambda width, classes: projects(in_features=width, num_classes=classes, num_relations=3))
    else:
        check(lambda width, classes: make(in_features=width, num_classes=classes))


@pytest.mark.slow
@pytest.mark.parametrize("name", plugins.names("comm"))
def test_communicators(name: str) -> None:
    kind = plugins.load("comm", name)
    if name == "nccl" and torch.cuda.device_count() < 3:
        pytest.skip("nccl needs a GPU for each of three ranks")
    run = Threads.run if issubclass(kind, Threads) else functools.partial(run_gloo, kind=kind)
    run(testing.check_communicator, 3)


# Plugins that break one promise each.


class LosesNodes(NodePartitioner):
    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:
        return np.zeros(max(graph.num_nodes - 1, 0), np.int32)


class Moody(NodePartitioner):
    calls = 0

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:
        self.calls += 1
        return np.full(graph.num_nodes, self.calls % num_parts, np.int32)


@pytest.mark.parametrize(("wrong", "told"), [(LosesNodes, "one owner for each node"), (Moody, "in the second call")])
def test_wrong_partitioners_are_found(wrong: type[NodePartitioner], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        testing.check_partitioner(wrong())


class First(Sampler):
    """The first in-edge of every node. The variants break one promise."""

    num_hops = 1

    def __init__(self, broken: str) -> None:
        self.broken, self.calls = broken, 0

    def draw(self, graph: CSC, nodes: Ids, hop: int, *, key: int) -> Hop:
        self.calls += 1
        begin, end = graph.indptr[nodes], graph.indptr[nodes + 1]
        count = np.minimum(end - begin, self.calls % 2 if self.broken == "repeat" else 1)
        if self.broken == "others":
            count = np.minimum(count, np.arange(len(nodes)) % 3)
        edges = begin[count > 0]
        named = edges + 1 if self.broken == "edges" else edges
        return Hop(np.r_[0, np.cumsum(count)], graph.indices[edges], np.minimum(named, graph.num_edges - 1))


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("edges", "edge_ids and sources do not match"),
        ("repeat", "the same arguments gave another batch"),
        ("others", "depend on the other nodes of the hop"),
    ],
)
def test_wrong_samplers_are_found(broken: str, told: str) -> None:
    nodes = np.arange(GRAPH.num_nodes)
    testing.check_sampler(First("nothing"), GRAPH, nodes, deterministic=True)
    with pytest.raises(AssertionError, match=told):
        testing.check_sampler(First(broken), GRAPH, nodes, deterministic=True)


class ChangedSampler(WeightedSampler):
    """A sampler in Python by weights, whose variants break one promise."""

    rank_invariant = True

    def __init__(self, change: str, importance: str | None = "sum") -> None:
        super().__init__([1, 1], importance=importance, threads=1)
        self.change = change

    def draw(self, graph: Any, nodes: Ids, hop: int, *, key: int) -> Hop:
        draws = super().draw(graph, nodes, 0, key={"hop": key + hop, "key": 3}.get(self.change, key))
        if draws.weight is None:
            return draws
        even = np.repeat(np.diff(graph.indptr)[nodes], np.diff(draws.indptr)).astype(np.float64)
        weight = {"sign": -draws.weight, "scale": 7 * draws.weight, "even": even}.get(self.change, draws.weight)
        return dataclasses.replace(draws, weight=weight)

    def sample(self, graph: Any, seeds: Ids, *, key: int, **_: Any) -> MiniBatch:
        return Sampler.sample(self, graph, seeds, key=key)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("hop", "rank_invariant is True, and draws depend on the hop"),
        ("key", "200 keys gave the same draws; read `key`, or pass deterministic=True"),
        ("sign", r"weight\[0\] = -\S+ is negative"),
        ("scale", "weights of .* add up to .* on average over 200 keys, expected 1"),
        ("even", "weights of .* expected 1; weight is 1 / the expected number of draws"),
    ],
)
def test_draws_and_weights_of_wrong_samplers_are_found(change: str, told: str) -> None:
    hub, random = (testing.example_graphs()[number].csc for number in (4, 5))
    for csc in (random,) if change == "even" else (hub, random):  # a hub's edges are drawn too seldom for this one
        nodes = np.arange(csc.num_nodes)
        testing.check_sampler(ChangedSampler("nothing"), csc, nodes)
        with pytest.raises(AssertionError, match=told):
            testing.check_sampler(ChangedSampler(change), csc, nodes)


@pytest.mark.parametrize(
    ("change", "told"), [("hop", "rank_invariant is True"), ("key", "200 keys gave the same draws")]
)
def test_wrong_samplers_without_weights_are_found(change: str, told: str) -> None:
    csc = testing.example_graphs()[5].csc
    testing.check_sampler(ChangedSampler("nothing", None), csc, np.arange(24))
    with pytest.raises(AssertionError, match=told):
        testing.check_sampler(ChangedSampler(change, None), csc, np.arange(24))


def test_a_sampler_that_is_said_to_ignore_the_key_must_do_so() -> None:
    with pytest.raises(AssertionError, match="deterministic=True, and draws depend on the key"):
        testing.check_sampler(ChangedSampler("nothing"), GRAPH, np.arange(GRAPH.num_nodes), deterministic=True)


def test_a_sampler_may_declare_that_its_draws_depend_on_other_nodes() -> None:
    sampler = First("others")
    sampler.by_node = False
    testing.check_sampler(sampler, GRAPH, np.arange(GRAPH.num_nodes), deterministic=True)


class Growing(Dataset):
    def __init__(self) -> None:
        self.loads = 1

    def load(self) -> Graph:
        self.loads += 1
        return Graph.from_edges([0], [1], features=np.full((2, 1), self.loads, np.float32))


class Empty(Dataset):
    def load(self) -> Graph:
        return Graph.from_edges([], [], 0)


@pytest.mark.parametrize(("wrong", "told"), [(Growing, "the second load gives other features"), (Empty, "no nodes")])
def test_wrong_data_sets_are_found(wrong: type[Dataset], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        testing.check_dataset(wrong())


class Changed(VertexCentric):
    """A strategy with one wrong field in each batch."""

    def __init__(self, change: Callable[[Batch, int], dict[str, Any]]) -> None:
        super().__init__()
        self.change = change

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        for batch in super().batches(epoch, first):
            yield dataclasses.replace(batch, **self.change(batch, self.engine.shard.rank))


class Short(VertexCentric):
    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if epoch == 0 or self.engine.shard.rank == 0:
            yield dataclasses.replace(next(super().batches(epoch, first)), adjacencies=())


class Drawn(VertexCentric):
    """A strategy with noise that does not follow from the seed."""

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        if first == 0:
            yield from super().batches(int(np.random.default_rng().integers(1000)) + 2)


class Miscounts(VertexCentric):
    def num_batches(self, epoch: int) -> int:
        return 2


class StartsAnew(VertexCentric):
    """Begins at the first step, whichever was asked for."""

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        return super().batches(epoch)


class Undealt(VertexCentric):
    """Says that seeds move, and cannot move them."""

    def __init__(self) -> None:
        super().__init__()
        self.supports = (MovableSeeds(),)


class Unnamed(Changed):
    """Says that input rows may be learned, and does not name these."""

    def __init__(self) -> None:
        super().__init__(lambda batch, rank: {"nodes": None})
        self.supports = (LearnedInputs(),)


def everyone(batch: Batch, rank: int) -> dict[str, Any]:
    rows = torch.arange(batch.adjacencies[-1].num_dst)
    return {"rows": rows, "labels": torch.zeros(len(rows), dtype=torch.int64), "total": 30}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Changed(lambda batch, rank: {"total": batch.total + 1}), r"total=\d+ in batch 0, its rows are"),
        (lambda: Changed(lambda batch, rank: {"labels": batch.labels + 1}), "labels are not those of their nodes"),
        (lambda: Changed(lambda batch, rank: {"update": "synchronise" if rank else "own"}), "ranks disagree on update"),
        (lambda: Changed(lambda batch, rank: {"x": batch.x * (1 + rank)}), "gradient in batch 0 .* against one rank"),
        (lambda: Changed(lambda batch, rank: {"adjacencies": batch.adjacencies[:1]}), "1 adjacencies for 2 layers"),
        (lambda: Changed(everyone), "labels are not those|outside of the training split"),
        (Drawn, "gets other batches"),
        (Miscounts, r"num_batches promises \[2, 2\], batches gives 2"),
        (Undealt, "supports has MovableSeeds, but deal is not written"),
        (Unnamed, "input rows may be learned, but batches do not name their nodes"),
        (StartsAnew, r"batches\(0, first=1\) gives 1 batches, expected 0"),
    ],
)
def test_wrong_strategies_are_found(make: Callable[[], VertexCentric], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        testing.check_strategy(make)


class Alone(GradientSync):
    """A synchronisation that leaves every rank's gradient alone."""

    def step(self, module: nn.Module, optimizer: torch.optim.Optimizer, share: float) -> None:
        optimizer.step()


class Unweighted(GradientSync):
    """The mean of the ranks' gradients, whatever their shares."""

    def step(self, module: nn.Module, optimizer: torch.optim.Optimizer, share: float) -> None:
        for parameter in module.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.comm.all_reduce(gradient / (share or 1)) / self.comm.world_size
        optimizer.step()


class OnlyWithRows(AllReduce):
    """Ranks without rows do not come."""

    def step(self, module: nn.Module, optimizer: torch.optim.Optimizer, share: float) -> None:
        if share:
            super().step(module, optimizer, share)


class Signs(GradientSync):
    """The sign that most ranks' gradients have: signSGD."""

    exact, sign = False, 1

    def step(self, module: nn.Module, optimizer: torch.optim.Optimizer, share: float) -> None:
        for parameter in module.parameters():
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.sign * self.comm.all_reduce(gradient.sign()).sign()
        optimizer.step()


class Uphill(Signs):
    sign = -1


class AloneUnsaid(Alone):
    exact = False


@pytest.mark.slow
def test_a_synchronisation_may_change_the_gradient_where_it_says_so() -> None:
    testing.check_sync(Signs)


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (Uphill, AssertionError, "rank 0 goes uphill after equal gradients"),
        (AloneUnsaid, AssertionError, "parameters of rank 1 after equal gradients, against rank 0"),
        (Alone, AssertionError, "parameters of rank 0 after equal gradients"),
        (Unweighted, AssertionError, "parameters of rank 0 after equal gradients"),
        (OnlyWithRows, RuntimeError, "lost its peer rank 3, which has ended"),
    ],
)
def test_wrong_synchronisations_are_found(
    wrong: type[GradientSync], error: type[Exception], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gnnkit_testing.sync.TIMEOUT", 1.0)
    with pytest.raises(error, match=told):
        testing.check_sync(wrong)


class TorchDropout(GraphSAGE):
    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        return super().forward(nn.functional.dropout(x, 0.5, self.training), adjacencies)


class LocalNorm(GraphSAGE):
    """Means over a rank's own rows."""

    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        return super().forward(x - x.sum(0) / max(len(x), 1), adjacencies)


class OneLess(GraphSAGE):
    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        return super().forward(x, adjacencies)[:, 1:]


class Unsaid(nn.Module):
    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (TorchDropout, "against one rank, in training"),
        (LocalNorm, "against one rank, in evaluation"),
        (OneLess, "2 logits a node for 3 classes"),
        (Unsaid, "num_layers=None must say"),
    ],
)
def test_wrong_models_are_found(wrong: type[nn.Module], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        testing.check_model(wrong)


class LocalSum(PageRank):
    """Forgets the other ranks' dangling nodes."""

    def step(self, x: Tensor, nodes: Nodes) -> Tensor:
        return super().step(
            x, dataclasses.replace(nodes, comm=Threads.connect(0, 1, device=nodes.comm.device, timeout=1))
        )


class Unnormalised(LabelPropagation):
    def start(self, nodes: Nodes) -> Tensor:
        return super().start(nodes) / max(len(nodes.labels), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "told"), [(LocalSum, "against one rank"), (Unnormalised, "against one rank")])
def test_wrong_programs_are_found(wrong: type[Program], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        testing.check_program(wrong)


class InOnePlace(Pending):
    """Writes all rows that arrive at one rank to the same place."""

    def __init__(self, rows: Tensor, place: Tensor) -> None:
        self.rows, self.place = rows, place[: len(rows)]

    def wait(self) -> Tensor:
        return self.place.copy_(self.rows)


class Twisted(Threads):
    """A communicator with one wrong method."""

    broken = ""

    def all_to_all(self, rows: Tensor, send_counts: Any, recv_counts: Any) -> Tensor:
        rows_received = super().all_to_all(rows, send_counts, recv_counts)
        return rows_received.flip(0) if self.broken == "all_to_all" else rows_received

    def start(self, rows: Tensor, send_counts: Any, recv_counts: Any, *, index: Tensor | None = None) -> Pending:
        places = index * 0 if self.broken == "index" and index is not None else index
        pending = super().start(rows, send_counts, recv_counts, index=places)
        if self.broken != "wait":
            return pending
        self.place = getattr(self, "place", torch.empty(9000, *rows.shape[1:]))
        return InOnePlace(pending.wait(), self.place)

    def all_reduce(self, x: Tensor) -> Tensor:
        total = super().all_reduce(x)
        if self.broken == "bits" and x.dtype == torch.float32:
            return total.mul_(1 + 1e-6 * self.rank)
        return total.clone() if self.broken == "all_reduce" else total

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        return super().broadcast(x, src=0 if self.broken == "broadcast" else src)

    def split(self, ranks: Any) -> Threads:
        return super().split(sorted(ranks, key=lambda rank: rank != self.rank) if self.broken == "split" else ranks)


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("all_to_all", "all_to_all delivers the parts in the order of their senders"),
        ("index", "wait delivers the rows of its own exchange by sender"),
        ("wait", "rows that wait has returned stay as they are"),
        ("all_reduce", "all_reduce works in place"),
        ("bits", "the same bits on all ranks"),
        ("broadcast", "broadcast sends the source's values"),
        ("split", "split numbers ranks in the order given"),
    ],
)
def test_wrong_communicators_are_found(broken: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Twisted, "broken", broken)
    with pytest.raises(AssertionError, match=told):
        Twisted.run(testing.check_communicator, 3)


class MeanOverRows(NodeClassification):
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().losses(outputs, labels) / max(len(labels), 1)


class OneLoss(NodeClassification):
    def losses(self, outputs: Tensor, labels: Tensor) -> Tensor:
        return super().losses(outputs, labels).sum()[None]


class MeanOfRanks(NodeClassification):
    """Measures each rank's own nodes."""

    def counts(self, outputs: Tensor, labels: Tensor) -> Tensor:
        counts = super().counts(outputs, labels)
        return counts / counts.sum().clamp(min=1)


class Shorter(NodeClassification):
    def columns(self, rows: Any, ids: Any, classes: Any) -> dict[str, Any]:
        return {"class": rows[1:]}


class OtherName(NodeClassification):
    def figures(self, counts: Tensor) -> dict[str, float]:
        return {"precision": 1.0}


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (MeanOverRows, "losses of rows together, against each row alone"),
        (OneLoss, "losses gives shape"),
        (MeanOfRanks, "figures on rank 0 of 3 x 1 x 1, against one rank"),
        (Shorter, "columns gives .* predictions"),
        (OtherName, "which are not in names"),
    ],
)
def test_wrong_tasks_are_found(wrong: type[Task], told: str) -> None:
    with pytest.raises(AssertionError, match=told):
        testing.check_task(wrong)


class OneResult(Processes):
    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Any:
        return {0: super().ranks(ranks, meanwhile)[0]}


class Leaves(Processes):
    """Leaves a rank behind that has reported."""

    def ranks(self, ranks: Ranks, meanwhile: Callable[[], None] = lambda: None) -> Any:
        return super().ranks(dataclasses.replace(ranks, work=functools.partial(_left_behind, ranks.work)), meanwhile)


def _left_behind(work: Callable[[Any], Any], comm: Any) -> Any:
    folder = Path(work.args[0])  # type: ignore[attr-defined]
    if (child := os.fork()) == 0:
        (folder / f"child.{os.getpid()}").touch()
        while folder.exists():  # until the check has ended
            time.sleep(0.02)
        os._exit(0)
    wait_until((folder / f"child.{child}").exists)
    return work(comm)


class AllWell(Processes):
    starts = (JOBS,)

    def jobs(self, jobs: Jobs) -> Any:
        yield from ((number, 0) for number, _ in super().jobs(jobs))


class Nothing(Launcher):
    starts = ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (OneResult, r"results are of ranks \[0\]"),
        exhaustive((Leaves, "of ranks are left")),
        exhaustive((AllWell, "a job that fails has exit code 0")),
        (Nothing, "starts ranks or jobs"),
    ],
)
def test_wrong_launchers_are_found(wrong: type[Launcher], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if wrong is Leaves:
        monkeypatch.setattr("gnnkit_testing.launcher.ENDING", 0.5)
    with pytest.raises(AssertionError, match=told):
        testing.check_launcher(wrong)


MAKERS = ["callback", "exchange", "launcher", "logger", "model", "program", "strategy", "sync", "task", "witness"]


@pytest.mark.parametrize("name", sorted(name for name in dir(testing) if name.startswith("check_")))
def test_a_check_refuses_what_is_no_plugin(name: str) -> None:
    """A check of a maker gets no made one, and a check of a plugin no class."""
    check = getattr(testing, name)
    remainder = (GRAPH, np.arange(3)) if name == "check_sampler" else ()
    wrong = 3 if name.removeprefix("check_") in MAKERS else int
    with pytest.raises(UserError, match="expected "):
        check(wrong, *remainder)


@pytest.mark.parametrize("check", [testing.check_model, testing.check_witness])
def test_a_module_instead_of_a_function_that_makes_one_is_refused(check: Callable[..., None]) -> None:
    with pytest.raises(
        UserError, match="make is an instance of Linear: expected the class, or a function that makes a Module"
    ):
        check(nn.Linear(5, 2))
