"""Cheaper exchange: what is exact, what is stale or estimated, and what moves."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.autograd import Function

import gnnkit
from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.engine import Engine
from gnnkit.errors import UserError
from gnnkit.exchange.pipelined import Pipelined
from gnnkit.exchange.quantized import Quantized
from gnnkit.graph import CSC, Graph, Split
from gnnkit.model.gat import GAT
from gnnkit.model.gcn import GCN
from gnnkit.model.gin import GIN, GINE
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition.base import Grid, Partition
from gnnkit.partition.shard import cut_all
from gnnkit.strategy.base import Worker
from gnnkit.strategy.preset_workload import PresetWorkload
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.task.evaluation import Evaluation
from gnnkit.testing import check_strategy
from gnnkit.training import checkpoint
from tests.cases import few
from tests.comm.processes import run_gloo
from tests.jobs.test_train import small_graph
from tests.sync.training import CLASSES, WIDTH, make_graph, parameters, shards_on, train, vertex_centric
from tests.turns import turns

RANKS = 3
ROWS = Grid(RANKS, 1, 1)
HIDDEN = 4
sgd = functools.partial(torch.optim.SGD, lr=0.5)
MODELS: dict[str, Callable[..., nn.Module]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "sage-max": functools.partial(GraphSAGE, aggregator="max"),
    "gat": GAT,
    "gin": GIN,
    "gine": functools.partial(GINE, edge_width=1),
}
OPTIONS: dict[str, dict[str, Any]] = {  # of each exchange, small enough to matter on a small graph
    "exact": {},
    "quantized": {"bits": 4},
    "pipelined": {"staleness": 2, "smoothing": 0.3},
    "sampled": {"keep": 0.5},
    "adaptive": {"variation": 0.3, "max_age": 4},
    "quantized+pipelined": {"bits": 8},
    "quantized+sampled": {"bits": 16, "keep": 0.5},
    "quantized+adaptive": {"bits": 8, "variation": 0.3},
}


def model_of(name: str, dropout: float = 0.0) -> nn.Module:
    torch.manual_seed(1)
    return MODELS[name](WIDTH, CLASSES, hidden=HIDDEN, dropout=dropout).double()


@dataclass
class Ended:
    """What a rank has at the end of a run."""

    parameters: Tensor
    gradient: Tensor
    words: int
    bytes_sent: int

    def equals(self, other: Ended) -> bool:
        return torch.equal(self.parameters, other.parameters) and torch.equal(self.gradient, other.gradient)


def run(
    model: nn.Module,
    grid: Grid = ROWS,
    epochs: int = 4,
    graph: Graph | None = None,
    start: Callable[..., list[Any]] = Threads.run,
    **options: Any,
) -> list[Ended]:
    """Trains on threads or processes, and returns what each rank has at the end."""
    shards = shards_on(grid, graph)

    def on_rank(comm: Communicator) -> tuple[Any, ...]:
        replica = copy.deepcopy(model)
        _, strategy, _ = train(shards, AllReduce, replica, comm, epochs=epochs, make_optimizer=sgd, **options)
        strategy.close()
        gradient = torch.cat([p.grad.flatten() for p in replica.parameters() if p.grad is not None])
        tally = strategy.tally
        return parameters(replica), gradient, sum(tally.words.values()), tally.bytes_sent

    return [Ended(*values) for values in start(on_rank, grid.world_size)]


some_exchanges = few("exchange", OPTIONS, ["exact", "pipelined", "sampled", "quantized+adaptive"])


@functools.cache
def exact_run(name: str, dropout: float = 0.0) -> list[Ended]:
    """The run that other exchanges are compared with."""
    return run(model_of(name, dropout))


EXACT = [
    {"exchange": "pipelined", "staleness": 0},
    {"exchange": "pipelined", "staleness": 0, "smoothing": 0.0},
    {"exchange": "sampled", "keep": 1.0},
    {"exchange": "quantized", "bits": 32},
    {"exchange": "adaptive", "variation": 0.0},
    {"exchange": "adaptive", "variation": 9.0, "max_age": 1},
    {"exchange": "quantized+pipelined", "bits": 32, "staleness": 0},
]


@pytest.mark.slow
@few("options,name", [*itertools.product(EXACT, ["gcn", "sage"])], default=5)
def test_the_exact_end_of_every_option_gives_the_bits_of_the_exact_run(name: str, options: dict[str, Any]) -> None:
    model = model_of(name, dropout=0.4)
    for exact, actual in zip(exact_run(name, 0.4), run(model, **options), strict=True):
        assert actual.equals(exact)
        assert actual.words <= exact.words  # a block of zeros that stays one is not sent again


@pytest.mark.slow
@few("exchange", OPTIONS, ["pipelined", "quantized+adaptive"])
def test_two_runs_have_equal_bits_and_only_the_exact_one_is_exact(exchange: str) -> None:
    model = model_of("gcn", dropout=0.4)
    first, second = (run(model, exchange=exchange, **OPTIONS[exchange]) for _ in range(2))
    assert all(a.equals(b) and a.bytes_sent == b.bytes_sent for a, b in zip(first, second, strict=True))
    assert first[0].equals(exact_run("gcn", 0.4)[0]) == (exchange == "exact")
    assert all(torch.equal(rank.parameters, first[0].parameters) for rank in first)


# A reference of one process, without engine: a matrix, of which one part is stale.


def normalized(graph: Graph) -> Tensor:  # [n, n]
    """D_in^-1/2 A D_out^-1/2 with missing loops added, row v: in-edges of v."""
    n = graph.num_nodes
    a = torch.zeros(n, n, dtype=torch.float64)
    destinations = np.repeat(np.arange(n), np.diff(graph.csc.indptr))
    for u, v in zip(graph.csc.indices, destinations, strict=True):
        a[int(v), int(u)] += 1
    a += torch.diag((a.diagonal() == 0).double())
    return a / a.sum(1, keepdim=True).sqrt() / a.sum(0, keepdim=True).sqrt()


@dataclass
class Replay:
    """A product whose cut part reads the rows of some epochs ago, as constants."""

    own: Tensor  # [n, n] entries inside a rank
    cut: Tensor  # [n, n] entries between ranks
    staleness: int
    smoothing: float = 0.0
    rows: list[Tensor] = field(default_factory=list)  # by epoch

    def past(self, history: list[Tensor]) -> Tensor:
        """The average of the rows received up to now, which are `staleness` old."""
        average = history[0]
        for epoch in range(1, len(history) - self.staleness):
            average = self.smoothing * average + (1 - self.smoothing) * history[epoch]
        return average


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, replay: Replay) -> Tensor:
        ctx.replay = replay
        replay.rows.append(h.detach().clone())
        return replay.own @ h + replay.cut @ replay.past(replay.rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        replay = ctx.replay
        own_rows = replay.own.T @ grad
        return (own_rows if replay.staleness else own_rows + replay.cut.T @ grad), None


def replayed(model: nn.Module, epochs: int, make: Callable[[Tensor, Tensor], Replay]) -> Tensor:
    """The parameters of a GCN after some epochs in which `make` says what is stale."""
    graph, replica = make_graph(), copy.deepcopy(model)
    a, rank = normalized(graph), torch.arange(graph.num_nodes) * RANKS // graph.num_nodes
    inside = rank[:, None] == rank
    products = [make(a * inside, a * ~inside) for _ in range(2)]
    train_rows = torch.tensor(graph.split == Split.TRAIN)
    labels = torch.tensor(graph.labels)[train_rows]
    optimizer = sgd(replica.parameters())
    for _ in range(epochs):
        h = torch.tensor(graph.features)
        for layer, (conv, product) in enumerate(zip(replica.convs, products, strict=True)):
            h = _Product.apply(h @ conv.weight, product) + conv.bias
            h = h.relu() if layer == 0 else h
        optimizer.zero_grad()
        (nn.functional.cross_entropy(h[train_rows], labels, reduction="sum") / len(labels)).backward()
        optimizer.step()
    return parameters(replica)


@pytest.mark.slow
@few("staleness,smoothing", [(1, 0.0), (0, 0.0), (2, 0.0), (1, 0.6), (3, 0.25)], default=3)
def test_pipelined_rows_are_as_old_as_promised_and_constants(staleness: int, smoothing: float) -> None:
    model, epochs = model_of("gcn"), 7
    reference = replayed(model, epochs, lambda own, cut: Replay(own, cut, staleness, smoothing))
    result = run(model, epochs=epochs, exchange="pipelined", staleness=staleness, smoothing=smoothing)
    for rank in result:
        torch.testing.assert_close(rank.parameters, reference, rtol=0, atol=1e-10)


# What moves.


def boundary() -> np.ndarray:  # [holder, owner]
    """Rows that each rank reads from each other rank, by loops over edges."""
    graph = make_graph()
    rank = np.arange(graph.num_nodes) * RANKS // graph.num_nodes
    destinations = np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))
    pairs = {(rank[v], u) for u, v in zip(graph.csc.indices, destinations, strict=True) if rank[u] != rank[v]}
    counts = np.zeros((RANKS, RANKS), np.int64)
    for holder, source in pairs:
        counts[holder, rank[source]] += 1
    return counts


WIDTHS = (HIDDEN, CLASSES)  # of a GCN's rows, in both directions


def row_bytes(bits: int, width: int) -> int:
    return {64: 8 * width, 16: 2 * width}.get(bits, -(-bits * width // 8) + 8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "bits", "keep"),
    [
        ({}, 64, 1.0),
        ({"exchange": "quantized", "bits": 16}, 16, 1.0),
        ({"exchange": "quantized"}, 8, 1.0),
        ({"exchange": "quantized", "bits": 4}, 4, 1.0),
        ({"exchange": "quantized", "bits": 2}, 2, 1.0),
        ({"exchange": "pipelined"}, 64, 1.0),
        ({"exchange": "quantized+pipelined"}, 8, 1.0),
        ({"exchange": "sampled", "keep": 0.3}, 64, 0.3),
        ({"exchange": "quantized+sampled", "bits": 2, "keep": 0.3}, 2, 0.3),
    ],
    ids=str,
)
def test_words_and_bytes_are_those_of_the_formula(options: dict[str, Any], bits: int, keep: float) -> None:
    epochs, rows = 2, boundary()
    num_rows = np.vectorize(lambda n: round(keep * n))(rows)
    size, width = sum(row_bytes(bits, w) for w in WIDTHS), sum(WIDTHS)
    for rank, actual in enumerate(run(model_of("gcn"), epochs=epochs, **options)):
        row_count = int(num_rows[:, rank].sum() + num_rows[rank].sum())  # rows forward, gradients backward
        forward_only = "pipelined" in options.get("exchange", "")
        assert actual.words == epochs * (int(num_rows[rank].sum()) if forward_only else row_count) * width
        assert actual.bytes_sent == epochs * (int(num_rows[:, rank].sum()) if forward_only else row_count) * size


# Evaluation, and second looks at a step.


@pytest.mark.slow
@few("exchange", OPTIONS, ["exact", "pipelined", "sampled"])
def test_evaluation_and_a_second_look_are_exact_and_leave_no_trace(exchange: str) -> None:
    shards, model = shards_on(ROWS), model_of("gcn", dropout=0.4)

    def on_rank(comm: Communicator) -> Tensor:
        ends = []
        for looks in (False, True):
            replica = copy.deepcopy(model)
            module, strategy, _ = train(
                shards, AllReduce, replica, comm, epochs=2, exchange=exchange, **OPTIONS[exchange]
            )
            (batch,) = strategy.batches(2)
            if looks:
                words = sum(strategy.tally.words.values())
                exact = Evaluation.of(Worker(comm, shards[comm.rank], torch.float64, 7), replica, 1.0).logits(replica)
                assert torch.equal(module.evaluation.logits(replica), exact)
                with torch.no_grad(), strategy.tally.paused():
                    replica.eval()
                    assert torch.equal(replica(batch.x, batch.again().adjacencies), exact)
                    replica.train()
                assert sum(strategy.tally.words.values()) == words
            replica.zero_grad()
            module.training_step(batch, 0).backward()
            ends.append(torch.cat([p.grad.flatten() for p in replica.parameters()]))
            strategy.close()
        assert torch.equal(*ends)
        return ends[0]

    assert all(bool(end.isfinite().all()) for end in Threads.run(on_rank, RANKS))


@pytest.mark.slow
def test_a_second_look_at_a_local_iteration_moves_nothing() -> None:
    shards = shards_on(ROWS)

    def on_rank(comm: Communicator) -> bool:
        module, strategy, _ = train(shards, AllReduce, model_of("gat"), comm, epochs=1, local_iterations=3)
        (batch,) = strategy.batches(1)
        strategy.tally.reset()
        logits = [module.model(each.x, each.adjacencies) for each in (batch, batch.again())]
        return torch.equal(*logits) and not strategy.tally.words

    assert Threads.run(on_rank, RANKS) == [True] * RANKS


class Plain(L.LightningModule):
    """A GCN, with a training step like that of the house or without."""

    num_layers, self_loops = 2, True

    def __init__(self, in_features: int, num_classes: int) -> None:
        super().__init__()
        self.gcn = GCN(in_features, num_classes, hidden=HIDDEN)

    def forward(self, x: Tensor, adjacencies: Any) -> Tensor:
        logits: Tensor = self.gcn(x, adjacencies)
        return logits


class WithStep(Plain):
    def training_step(self, batch: Any, index: int) -> Tensor:
        logits = self(batch.x, batch.adjacencies)[batch.rows]
        return nn.functional.cross_entropy(logits, batch.labels, reduction="sum") / max(batch.total, 1)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_the_check_of_a_loss_leaves_stale_rows_alone(tmp_path: Path) -> None:
    results = [
        train_run(tmp_path / kind.__name__, "threads", model=kind, max_epochs=3)[1] for kind in (Plain, WithStep)
    ]
    plain, with_step = (checkpoint.load(path)["state_dict"] for path in results)
    assert all(torch.equal(with_step[name], value) for name, value in plain.items())


# Resuming.


@pytest.mark.slow
@few(
    "exchange,done",
    [*itertools.product(["pipelined", "adaptive", "quantized+adaptive", "quantized+pipelined"], [4, 1])],
    default=[("pipelined", 4), ("quantized+adaptive", 1)],
)
def test_a_resumed_run_goes_on_to_the_bit(exchange: str, done: int) -> None:
    shards, model, options = shards_on(ROWS), model_of("sage", dropout=0.4), OPTIONS[exchange]

    def gradients(strategy: VertexCentric, own: nn.Module, first: int, last: int) -> list[Tensor]:
        results = []
        for epoch in range(first, last):
            (batch,) = strategy.batches(epoch)
            own.zero_grad()
            logits = own(batch.x, batch.adjacencies)
            nn.functional.cross_entropy(logits[batch.rows], batch.labels, reduction="sum").backward()
            results.append(torch.cat([p.grad.flatten() for p in own.parameters()]))
            with torch.no_grad():
                for parameter in own.parameters():
                    parameter.mul_(0.9)
        return results

    def on_rank(comm: Communicator) -> bool:
        def make_strategy() -> VertexCentric:
            strategy = vertex_centric(exchange, **options)
            strategy.setup(Worker(comm, shards[comm.rank], torch.float64, 7), model)
            return strategy

        full_run, own = make_strategy(), copy.deepcopy(model)
        gradients(full_run, own, 0, done)
        state, kept = checkpoint.unpack(checkpoint.pack(full_run.state_dict())), copy.deepcopy(own)
        forgetful = copy.deepcopy(own)
        reference = gradients(full_run, own, done, 7)
        resumed_strategy = make_strategy()
        resumed_strategy.load_state_dict(state)
        for results, right in zip(gradients(resumed_strategy, kept, done, 7), reference, strict=True):
            assert torch.equal(results, right)
        anew = gradients(make_strategy(), forgetful, done, 7)
        return torch.equal(torch.stack(anew), torch.stack(reference))

    assert not all(Threads.run(on_rank, RANKS)), "the state matters, on ranks with training nodes"


def train_run(folder: Path, comm: str, *, model: Any = "gcn", **trainer: Any) -> tuple[dict[str, Any], Path]:
    overrides = ["exchange=pipelined", "exchange.staleness=2", "exchange.options.smoothing=0.3"]
    keys: dict[str, Any] = {"workers": 3, "threads": 1, "comm": comm, "partition": "1d", "folder": folder}
    keys |= {"report": False, "logger": "none"}
    keys["trainer"] = {"max_epochs": 6, "precision": 64, "check_val_every_n_epoch": 2, **trainer}
    result = gnnkit.train(small_graph(), strategy="vertex_centric", model=model, overrides=overrides, **keys)
    return result, folder / "checkpoints/last.json"


@pytest.mark.exhaustive
@pytest.mark.slow
def test_processes_pipeline_as_threads_do() -> None:
    model = model_of("gcn")
    of_processes, of_threads = (
        run(model, exchange="pipelined", start=start, **OPTIONS["pipelined"]) for start in (run_gloo, Threads.run)
    )
    for actual, reference in zip(of_processes, of_threads, strict=True):
        torch.testing.assert_close(actual.parameters, reference.parameters, rtol=0, atol=1e-12)
        assert (actual.words, actual.bytes_sent) == (reference.words, reference.bytes_sent)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_run_that_pipelines_resumes_to_the_bit(tmp_path: Path) -> None:
    def values(path: Path) -> Tensor:
        return torch.cat([value.flatten() for value in checkpoint.load(path)["state_dict"].values()])

    shares = {"exact_shares": [0, 0]}  # the schedule does not depend on the number of epochs
    result, full_run = train_run(tmp_path / "whole", "gloo", max_epochs=4, **shares)
    assert not result["exact"]
    _, half = train_run(tmp_path / "half", "gloo", max_epochs=2, **shares)
    _, remainder = train_run(tmp_path / "rest", "gloo", max_epochs=4, resume=str(half), **shares)
    assert torch.equal(values(remainder), values(full_run))


# Every grid, every model.


@pytest.mark.slow
@few(
    "grid,name",
    [
        *itertools.product(
            [ROWS, Grid(2, 2, 1), Grid(1, 3, 1), Grid(2, 1, 2), Grid(1, 1, 3)], ["gcn", "sage-max", "gat"]
        )
    ],
    default=3,
)
def test_quantised_rows_serve_every_grid_and_model(name: str, grid: Grid) -> None:
    model = model_of(name)
    exact = run(model, grid, epochs=1)[0]
    for bits, close in ((16, 0.05), (8, 0.1)):
        result = run(model, grid, epochs=1, exchange="quantized", bits=bits)
        assert all(torch.equal(rank.gradient, result[0].gradient) for rank in result)
        assert result[0].words == exact.words
        assert result[0].bytes_sent < exact.bytes_sent
        difference = float((result[0].gradient - exact.gradient).norm() / exact.gradient.norm())
        assert 0 < difference < close


@pytest.mark.slow
@few("exchange,name", [*itertools.product(["pipelined", "adaptive"], ["gat", "sage-max"])], default=1)
def test_stale_rows_serve_attention_and_maxima(name: str, exchange: str) -> None:
    exact = {"pipelined": {"staleness": 0}, "adaptive": {"variation": 0.0}}
    model = model_of(name, dropout=0.4)
    assert run(model, exchange=exchange, **exact[exchange])[0].equals(exact_run(name, 0.4)[0])
    assert bool(run(model, exchange=exchange)[0].parameters.isfinite().all())


def blocks(num_nodes: int = 150, classes: int = CLASSES) -> Graph:
    """A block model: features hint at the class, neighbours decide."""
    rng = np.random.default_rng(5)
    labels = rng.integers(0, classes, num_nodes)
    src, dst = rng.integers(0, num_nodes, (2, 40 * num_nodes))
    stays = (labels[src] == labels[dst]) | (rng.random(len(src)) < 0.05)
    features = rng.standard_normal((num_nodes, WIDTH)) + 1.2 * np.eye(classes, WIDTH)[labels]
    split = np.where(np.arange(num_nodes) % 2 == 0, Split.TRAIN, Split.TEST).astype(np.int8)
    return Graph(
        CSC.from_edges(src[stays][: 8 * num_nodes], dst[stays][: 8 * num_nodes], num_nodes), features, labels, split
    )


@functools.cache
def accuracy(exchange: str) -> float:
    graph, model = blocks(), model_of("sage", dropout=0.2)
    shards = shards_on(ROWS, graph)

    def on_rank(comm: Communicator) -> tuple[int, int]:
        module, strategy, _ = train(
            shards,
            AllReduce,
            copy.deepcopy(model),
            comm,
            epochs=25,
            make_optimizer=_adam,
            exchange=exchange,
            **OPTIONS[exchange],
        )
        strategy.close()
        right = module.evaluation.logits(module.model).argmax(1).numpy() == shards[comm.rank].labels
        is_test = shards[comm.rank].split == Split.TEST
        return int(right[is_test].sum()), int(is_test.sum())

    counts = np.sum(Threads.run(on_rank, RANKS), axis=0)
    return float(counts[0] / counts[1])


_adam = functools.partial(torch.optim.Adam, lr=0.05)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("exchange", [name for name in OPTIONS if name != "exact"])
def test_training_reaches_the_accuracy_of_the_exact_exchange(exchange: str) -> None:
    assert accuracy("exact") > 0.9
    assert accuracy(exchange) >= accuracy("exact") - 0.05


# Refusals.


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"exchange": "lossy"}, "exchange=lossy is not known"),
        (
            {"exchange": "pipelined+sampled"},
            r"exchange=pipelined\+sampled: expected one exchange with a schedule and one with a codec",
        ),
        ({"bits": 8}, "exchange.bits is not known"),
        ({"exchange": "quantized", "staleness": 1}, "exchange.staleness is not known"),
        ({"exchange": "adaptive", "keep": 0.5}, "exchange.keep is not known"),
        ({"exchange": "quantized", "bits": 7}, "exchange.bits=7 must be 32 or 16 or 8 or 4 or 2"),
        ({"exchange": "sampled", "keep": 1.5}, "exchange.keep=1.5 must be a number from 0 to 1"),
        (
            {"exchange": "pipelined", "smoothing": 1},
            "exchange.options.smoothing=1 must be a number of at least 0 and below 1",
        ),
        ({"exchange": "adaptive", "max_age": 0}, "exchange.options.max_age=0 must be a whole number from 1"),
        (
            {"exchange": "quantized+pipelined", "local_iterations": 2},
            r"strategy.local_iterations above 1 skips exchanges, but exchange=quantized\+pipelined needs one in every epoch",
        ),
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused_with_the_reason(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=f"^{expected}"):
        vertex_centric(**options)


@turns(exchange=["pipelined", "sampled", "quantized+adaptive"], grid=[Grid(2, 2, 1), Grid(1, 3, 1), Grid(2, 1, 2)])
def test_grids_that_spread_in_edges_are_refused(exchange: str, grid: Grid) -> None:
    with pytest.raises(UserError, match=r"^partition\.grid=.* needs them all at the node's owner"):
        run(model_of("gcn"), grid, exchange=exchange)


@pytest.mark.slow
@few("override", ["exchange=quantized", "strategy.local_iterations=2"], default=1)
def test_programs_are_exact(override: str) -> None:
    with pytest.raises(UserError, match=r"needs strategy=vertex_centric, .* exchange=exact"):
        gnnkit.train(small_graph(), strategy="vertex_centric", model="pagerank", workers=2, overrides=[override])


@pytest.mark.slow
@few("local_iterations", [2, 3], default=[3])
def test_quantised_rows_go_with_local_iterations(local_iterations: int) -> None:
    options = {"local_iterations": local_iterations, "exchange": "quantized"}
    result = run(model_of("gat"), **options)
    again = run(model_of("gat"), **options)
    assert all(a.equals(b) for a, b in zip(result, again, strict=True))
    exact = run(model_of("gat"), local_iterations=local_iterations)
    assert [rank.words for rank in result] == [rank.words for rank in exact]
    assert not result[0].equals(exact[0])


@pytest.mark.slow
@few("exchange", ["quantized", "sampled", "quantized+sampled"], ["quantized+sampled"])
def test_exchanges_without_memory_keep_the_promises_of_a_strategy(exchange: str) -> None:
    check_strategy(lambda: vertex_centric(exchange), grids=[ROWS])


@pytest.mark.slow
@few("every", [1, 2], default=[2])
def test_shares_exchange_rows_with_few_bits(every: int) -> None:
    check_strategy(lambda: PresetWorkload(exchange_every=every, exchange=Quantized(4)))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"exchange": Quantized()}, r"exchange=quantized: strategy=preset_workload exchanges .* set N"),
        (
            {"exchange": Pipelined(), "exchange_every": 2},
            r"strategy.exchange_every above 1 skips exchanges, but .*pipelined",
        ),
    ],
)
def test_shares_refuse_an_exchange_that_their_epochs_do_not_fit(keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        PresetWorkload(**keys)


def test_an_engine_closes_without_having_opened_a_thread() -> None:
    shards = shards_on(Grid(1, 1, 1))
    Threads.run(lambda comm: Engine(shards[comm.rank], comm, torch.float64).close(), 1)


@pytest.mark.slow
def test_one_rank_is_exact_under_every_exchange() -> None:
    model, alone = model_of("gcn", dropout=0.4), Grid(1, 1, 1)
    exact = run(model, alone)[0]
    for exchange in OPTIONS:
        assert run(model, alone, exchange=exchange)[0].equals(exact), exchange


@pytest.mark.slow
@some_exchanges
def test_a_rank_that_owns_nothing_joins_in(exchange: str) -> None:
    owner = (np.arange(make_graph().num_nodes) % (RANKS - 1)).astype(np.int32)
    shards, model = list(cut_all(make_graph(), Partition(owner, None, ROWS))), model_of("gcn")

    def on_rank(comm: Communicator) -> Tensor:
        replica = copy.deepcopy(model)
        train(shards, AllReduce, replica, comm, epochs=3, exchange=exchange, **OPTIONS[exchange])[1].close()
        return parameters(replica)

    results = Threads.run(on_rank, RANKS)
    assert all(torch.equal(rank, results[0]) and bool(rank.isfinite().all()) for rank in results)
