"""Learned input rows: one table over all ranks, of which a step moves the rows read."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gnnkit_testing.graphs import CLASSES, check_graph
from gnnkit_testing.ranks import ONE, assert_close, by_node, on_ranks, owned
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop, SparseAdam

import gnnkit
from gnnkit.config import compose
from gnnkit.config.settings import settle
from gnnkit.engine import Tally
from gnnkit.engine.remote import LearnedRows
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Ids
from gnnkit.jobs import Order, check, start
from gnnkit.model.gcn import GCN
from gnnkit.model.sage import GraphSAGE
from gnnkit.partition import Grid
from gnnkit.prepare.inputs import with_inputs
from gnnkit.sampler import NeighborSampler
from gnnkit.strategy import ExecutionStrategy, Worker
from gnnkit.strategy.individual_sample import IndividualSample
from gnnkit.strategy.joint_sample import JointSample
from gnnkit.strategy.vertex_centric import VertexCentric
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.task.evaluation import Evaluation
from gnnkit.training import checkpoint
from gnnkit.training.embedding import Embedding, RowAdam
from gnnkit.training.module import TrainingModule
from tests.cases import exhaustive, few, in_turn
from tests.runs import BARE

WIDTH, STEPS = 5, 6
GRAPH = replace(check_graph(40), features=np.empty((40, 0), np.float32))
adam = functools.partial(Adam, lr=0.1)


@dataclass(frozen=True, eq=False)
class Trained:
    """What one rank has after some steps."""

    nodes: Tensor  # [num_owned]
    first: Tensor  # [num_owned, WIDTH] rows before
    rows: Tensor  # [num_owned, WIDTH] rows after
    logits: Tensor  # [num_owned, CLASSES]
    numbers: Tensor  # losses of all ranks, then parameters
    read: list[Ids]  # nodes of each batch
    moments: list[Tensor]


def train(
    worker: Worker,
    strategy: Callable[[], ExecutionStrategy],
    model: type[nn.Module] = GraphSAGE,
    make: Callable[..., Optimizer] = adam,
    scratch: Path | None = None,
) -> Trained:
    """Takes steps as the trainer does, without Lightning. Collective."""
    replica, new_strategy = copy.deepcopy(MODELS[model]), strategy()
    new_strategy.check(worker.sampler, 2)
    new_strategy.setup(worker, replica)
    rows = LearnedRows(worker.shard, WIDTH, worker.comm, worker.dtype, worker.seed)
    embedding, first = Embedding(rows, new_strategy.tally), rows.owned.detach().clone()
    evaluation = Evaluation.of(worker, replica, 1e-3, scratch, rows)
    module = TrainingModule(
        replica, new_strategy, worker, evaluation, embedding=embedding, optimizer="sgd", lr=1, weight_decay=0
    )
    optimizer, sync = make(replica.parameters()), AllReduce()
    sync.setup(module, worker.comm)
    losses, read, epoch = [], [], 0
    while len(losses) < STEPS:
        for batch in new_strategy.batches(epoch):
            optimizer.zero_grad()
            module.training_step(batch, 0).backward()
            sync.step(module, optimizer, batch.share)
            embedding.step(module.batch, optimizer)
            losses.append(module.local_loss)
            assert batch.nodes is not None
            read.append(np.array(batch.nodes))
        epoch += 1
    new_strategy.close()
    logits = evaluation.logits(replica)
    numbers = torch.cat(
        [worker.comm.all_reduce(torch.stack(losses)), parameters_to_vector(replica.parameters()).detach()]
    )
    state = embedding.state_dict()["optimizer"]["state"]
    moments = [value for kept in state.values() for value in kept.values() if isinstance(value, Tensor)]
    return Trained(owned(worker), first, rows.owned.detach(), logits, numbers, read, moments)


torch.manual_seed(0)
MODELS: dict[type[nn.Module], nn.Module] = {
    GCN: GCN(WIDTH, CLASSES, hidden=4, dropout=0.3).double(),
    GraphSAGE: GraphSAGE(WIDTH, CLASSES, hidden=4, dropout=0.3).double(),
}
STRATEGIES: dict[str, tuple[Callable[..., ExecutionStrategy], bool]] = {  # and whether ranks read the whole graph
    "vertex_centric": (lambda size: VertexCentric(), False),
    "shared": (lambda size: IndividualSample(batch_size=size), True),
    "features": (lambda size: IndividualSample(batch_size=size, features="partitioned"), True),
    "partitioned": (lambda size: IndividualSample(batch_size=size, topology="partitioned"), False),
    "joint": (lambda size: JointSample(batch_size=size), False),
}


def runs(name: str, grid: Grid, **options: Any) -> list[Trained]:
    """Trains on all ranks of a grid, the last of which owns nothing."""
    make, whole = STRATEGIES[name]
    strategy = functools.partial(make, 12 // grid.world_size)
    sampler = None if name == "vertex_centric" else NeighborSampler([3, 3], threads=1)
    return on_ranks(GRAPH, grid, lambda worker: train(worker, strategy, **options), whole=whole, sampler=sampler)


def check_same(found: list[Trained], expected: list[Trained]) -> None:
    for name in ("first", "rows", "logits"):
        ones, others = (by_node([(each.nodes, getattr(each, name)) for each in run]) for run in (found, expected))
        assert_close(ones, others, name)
    for each in found:
        assert_close(each.numbers, expected[0].numbers, "losses and parameters")


sgd = functools.partial(SGD, lr=0.3)
LAYOUTS = [*((name, Grid(3, 1, 1)) for name in STRATEGIES)] + [
    ("vertex_centric", grid) for grid in (Grid(2, 2, 1), Grid(1, 3, 1), Grid(2, 1, 2))
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "grid", "make"),
    [
        pytest.param(name, grid, make, id=f"{name}-{grid}-{rule}", marks=[pytest.mark.exhaustive] if rare else [])
        for number, (name, grid) in enumerate(LAYOUTS)
        for make, rule, odd in ((adam, "adam", number % 2), (sgd, "sgd", 1 - number % 2))
        for rare in [odd or name == "shared" or grid == Grid(1, 3, 1)]
    ],
)
def test_rows_losses_parameters_and_logits_are_those_of_one_rank(
    name: str, grid: Grid, make: Callable[..., Optimizer]
) -> None:
    model = GCN if make is adam else GraphSAGE
    actual, reference = runs(name, grid, make=make, model=model), runs(name, ONE, make=make, model=model)
    check_same(actual, reference)
    assert float((reference[0].rows - reference[0].first).abs().max()) > 1e-3


@pytest.mark.slow
def test_rows_of_a_shared_graph_are_also_evaluated_layer_by_layer(tmp_path: Path) -> None:
    check_same(runs("shared", Grid(3, 1, 1), scratch=tmp_path), runs("shared", ONE))
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@few("name", ["shared", "partitioned", "joint"], default=["joint"])
def test_rows_that_no_batch_reads_keep_their_bits_and_moments(name: str) -> None:
    actual = runs(name, Grid(3, 1, 1))
    read = np.unique(np.concatenate([nodes for result in actual for nodes in result.read]))
    for result in actual:
        idle = torch.from_numpy(~np.isin(result.nodes.numpy(), read))
        assert torch.equal(result.rows[idle], result.first[idle])
        assert all(not moment[idle].any() for moment in result.moments)
        has_moved = (result.rows != result.first).any(1)
        assert bool(has_moved[~idle].all()) or not len(has_moved)
    assert 0 < sum(int((~np.isin(result.nodes.numpy(), read)).sum()) for result in actual) < GRAPH.num_nodes


@pytest.mark.slow
def test_one_step_is_that_of_torch_s_sparse_adam() -> None:
    """Every step reads all rows, those without a gradient too."""
    (one,) = runs("vertex_centric", ONE)
    table = nn.Parameter(one.first.clone())
    model = copy.deepcopy(MODELS[GraphSAGE])
    optimizers = [adam(model.parameters()), torch.optim.SparseAdam([table], lr=0.1)]

    def reference(worker: Worker) -> None:
        strategy = VertexCentric()
        strategy.setup(worker, model)
        for epoch in range(STEPS):
            (batch,) = strategy.batches(epoch)
            x = table.detach().clone().requires_grad_()
            model.zero_grad()
            logits = model(x, batch.adjacencies)[batch.rows]
            (nn.functional.cross_entropy(logits, batch.labels, reduction="sum") / batch.total).backward()
            assert x.grad is not None
            table.grad = torch.sparse_coo_tensor(torch.arange(len(x))[None], x.grad, x.shape, check_invariants=False)
            for optimizer in optimizers:
                optimizer.step()

    on_ranks(GRAPH, ONE, reference)
    assert_close(one.rows, table.detach(), "rows")


def test_the_first_rows_are_of_variance_1_over_width_and_follow_from_seed_and_node() -> None:
    def first(worker: Worker, seed: int) -> tuple[Tensor, Tensor]:
        return owned(worker), LearnedRows(worker.shard, 64, worker.comm, torch.float32, seed).owned.detach()

    graph = replace(check_graph(500), features=np.empty((500, 0)))
    one, three = (by_node(on_ranks(graph, grid, functools.partial(first, seed=1))) for grid in (ONE, Grid(3, 1, 1)))
    assert torch.equal(one, three)
    assert float(one.mean()) == pytest.approx(0, abs=0.002)
    assert float(one.var()) == pytest.approx(1 / 64, rel=0.02)
    second = by_node(on_ranks(graph, ONE, functools.partial(first, seed=2)))
    assert not torch.equal(one, second)


def test_a_scale_is_the_deviation_of_the_first_rows_and_changes_nothing_else() -> None:
    def first(worker: Worker, scale: float | None) -> Tensor:
        return LearnedRows(worker.shard, 4, worker.comm, torch.float64, 0, scale).owned.detach()

    usual, small = (on_ranks(GRAPH, ONE, functools.partial(first, scale=scale))[0] for scale in (None, 0.01))
    torch.testing.assert_close(small * 50, usual)  # 1 / sqrt(4) is 50 * 0.01


@pytest.mark.slow
def test_batches_made_ahead_read_the_rows_of_their_own_step() -> None:
    def strategy(prefetch: int) -> ExecutionStrategy:
        return IndividualSample(batch_size=4, topology="partitioned", prefetch=prefetch)

    sampler = NeighborSampler([3, 3], threads=1)
    ahead, late = (
        on_ranks(GRAPH, Grid(3, 1, 1), lambda worker, n=n: train(worker, lambda: strategy(n)), sampler=sampler)
        for n in (4, 1)
    )
    for first, second in zip(ahead, late, strict=True):
        assert torch.equal(first.rows, second.rows)


@pytest.mark.slow
def test_the_rule_of_the_rows_is_that_of_the_model_s_optimiser_or_refused() -> None:
    decoupled = runs("shared", Grid(2, 1, 1), make=functools.partial(AdamW, lr=0.1, weight_decay=0.0))
    check_same(decoupled, runs("shared", Grid(2, 1, 1)))
    for make in (functools.partial(SGD, lr=0.1, momentum=0.9), functools.partial(RMSprop, lr=0.1)):
        with pytest.raises(UserError, match=r"^inputs=learned: rows that no batch reads stay, and"):
            runs("shared", ONE, make=make)


@pytest.mark.slow
def test_rows_go_on_from_a_state_to_the_bit() -> None:
    """As after a checkpoint, and after a rollback."""

    def work(worker: Worker) -> tuple[Tensor, Tensor]:
        rows = LearnedRows(worker.shard, WIDTH, worker.comm, worker.dtype, worker.seed)
        embedding, model = Embedding(rows, Tally()), copy.deepcopy(MODELS[GraphSAGE])
        strategy, optimizer = IndividualSample(batch_size=4), adam(model.parameters())
        strategy.setup(worker, model)

        def step(epoch: int) -> Tensor:
            for given in strategy.batches(epoch):
                batch = embedding.fill(given)
                model(batch.x, batch.adjacencies).square().sum().backward()
                embedding.step(batch, optimizer)
            return rows.owned.detach().clone()

        step(0)
        state = checkpoint.unpack(checkpoint.pack(embedding.state_dict()))
        first = step(1)
        embedding.load_state_dict(state, optimizer)
        return first, step(1)

    sampler = NeighborSampler([3, 3], threads=1)
    for first, again in on_ranks(GRAPH, Grid(3, 1, 1), work, whole=True, sampler=sampler):
        assert torch.equal(first, again)


TINY = {"comm": "threads", "threads": 1, "types": "ignore", "model": {"name": "sage", "hidden": 4}}


def job(folder: Path, *, strategy: Any, trainer: dict[str, Any] | None = None, **keys: Any) -> Any:
    options = {"max_epochs": 2, "precision": 64, "check_val_every_n_epoch": 2, **(trainer or {})}
    run_keys = {"sampler": {"name": "neighbor", "fanouts": [3, 2]}} if strategy != "vertex_centric" else {}
    return gnnkit.train(
        GRAPH, strategy=strategy, folder=folder, trainer=options, **{**BARE, **TINY, **run_keys, **keys}
    )


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "strategy",
    [{"name": "individual_sample", "batch_size": 3}, exhaustive({"name": "joint_sample", "batch_size": 3})],
)
def test_a_resumed_run_ends_with_the_bits_of_an_unbroken_one(tmp_path: Path, strategy: dict[str, Any]) -> None:
    keys: dict[str, Any] = {"strategy": strategy, "workers": 2, "inputs": "learned", "embedding": 3}
    job(tmp_path / "whole", **keys)

    half = job(tmp_path / "half", trainer={"max_epochs": 1}, **keys)
    parameters = gnnkit.load(tmp_path / "half").parameters()
    assert half["num_parameters"] == sum(p.numel() for p in parameters) + 3 * GRAPH.num_nodes
    job(tmp_path / "rest", trainer={"resume": str(tmp_path / "half")}, **keys)
    full_run, remainder = (np.load(tmp_path / name / "embedding.npy") for name in ("whole", "rest"))
    assert full_run.shape == (GRAPH.num_nodes, 3)
    np.testing.assert_array_equal(full_run, remainder)
    with pytest.raises(UserError, match=r"^inputs=degree differs from learned in the checkpoint"):
        job(
            tmp_path / "other",
            trainer={"resume": str(tmp_path / "half")},
            **keys | {"inputs": "degree", "embedding": None},
        )


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "comm"), in_turn(["vertex_centric", "individual_sample", "joint_sample"], ["threads", "gloo"])
)
def test_verify_compares_learned_rows_of_ranks_with_one_rank(tmp_path: Path, name: str, comm: str) -> None:
    sampling_keys = [] if name == "vertex_centric" else ["strategy.batch_size=20", "sampler.fanouts=[3,2]"]
    overrides = [f"strategy={name}", *sampling_keys, "dataset=synthetic", "dataset.num_nodes=120", "job=verify"]
    config = compose([*overrides, "inputs=learned", "embedding=6", "workers=2", f"comm={comm}", "threads=1"])
    result = start(Order(settle(config), folder=tmp_path / "run"))
    assert result["verified"] is True
    assert result["largest_difference"]["embedding"] < 1e-10


@pytest.mark.slow
@pytest.mark.exhaustive
def test_link_prediction_learns_rows(tmp_path: Path) -> None:
    task = {"name": "link_prediction", "val_share": 0.2, "test_share": 0.2}
    strategy = {"name": "individual_sample", "batch_size": 20}
    losses = []
    for workers, size in ((1, 40), (2, 20)):
        alike = {"name": "neighbor", "fanouts": [3, 3]}  # a node draws the same wherever it is found
        keys = {"strategy": strategy | {"batch_size": size}, "workers": workers, "task": task, "sampler": alike}
        losses.append(job(tmp_path / str(workers), inputs="learned", embedding=4, **keys)["train_loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.slow
def test_a_graph_without_features_is_refused_with_what_to_do(tmp_path: Path) -> None:
    message = r"^inputs=features: the graph has no features of nodes.*inputs=degree, inputs=learned"
    with pytest.raises(UserError, match=message):
        job(tmp_path / "run", strategy="vertex_centric")


def test_degrees_are_features_when_asked_for() -> None:
    made: Graph = with_inputs(GRAPH, "degree")
    reference = np.stack([np.log1p(np.bincount(_destinations(GRAPH), minlength=40)), np.ones(40)], axis=1)
    np.testing.assert_allclose(made.features, reference, rtol=1e-6)


def _destinations(graph: Graph) -> Ids:
    return np.repeat(np.arange(graph.num_nodes), np.diff(graph.csc.indptr))


SAMPLED = "strategy=individual_sample"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["strategy=preset_workload"],
            "inputs=learned: strategy=preset_workload builds the input rows of a share once",
        ),
        (["strategy=vertex_centric", "strategy.local_iterations=2"], "inputs=learned: strategy=vertex_centric with"),
        (
            [SAMPLED, "strategy.features=partitioned", "strategy.cache=lru"],
            "inputs=learned: strategy=individual_sample with strategy.cache=lru caches rows of other workers",
        ),
        ([SAMPLED, "sync=parameter_server", "sync.mode=async"], "inputs=learned: sync=parameter_server with these"),
        ([SAMPLED, "sync=neighbour"], "inputs=learned: sync=neighbour with these options does not make one step"),
        ([SAMPLED, "sync=leader", "sync.average=median"], "inputs=learned: sync=leader with these options"),
        ([SAMPLED, "sync=leader", "sync.on_lost=continue"], "inputs=learned: the rows of a lost worker would be lost"),
        (
            ["strategy=vertex_centric", "model=pagerank"],
            "inputs=learned: model=pagerank is iterated, not trained",
        ),
        (["strategy=vertex_centric", "job=plan"], "inputs=learned: job=plan counts no gradients of input rows"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_runs_that_cannot_learn_rows_are_refused_with_the_reason(overrides: list[str], message: str) -> None:
    with pytest.raises(UserError) as refused:
        check(Order(settle(compose([*overrides, "inputs=learned", "dataset=synthetic", "comm=gloo"]))))
    assert str(refused.value).startswith(message)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("learned.scale=0", r"learned\.scale=0 must be a number above 0"),
        ("learned.weight_decay=-1", r"learned\.weight_decay=-1 must be a number from 0 to 1e\+06"),
        ("learned.decay=1", r"learned\.decay is not known: did you mean learned\.weight_decay"),
        ("learned=0.1", r"learned=0\.1 is a section: set learned\.scale"),
        ("inputs=degree", r"learned\.scale=0\.5 is read by inputs=learned only: leave the key out"),
    ],
)
def test_values_that_learned_rows_cannot_have_are_refused(override: str, message: str) -> None:
    usual = [] if override.startswith("learned=") else ["learned.scale=0.5"]
    with pytest.raises(UserError, match=f"^{message}"):
        settle(compose(["strategy=vertex_centric", "inputs=learned", *usual, override]))


@pytest.mark.slow
def test_a_width_that_nothing_reads_is_refused() -> None:
    with pytest.raises(UserError, match=r"^embedding=8 is read by inputs=learned only: leave the key out"):
        settle(compose(["strategy=vertex_centric", "embedding=8"]))


def test_dense_gradients_move_rows_like_sparse_ones() -> None:
    start = torch.rand(4, 3, dtype=torch.float64)
    rows, reference = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    optimizer, expected = RowAdam([rows], lr=0.1), SparseAdam([reference], lr=0.1)
    for read in ([0, 1, 2, 3], [0, 1, 2, 3], [1], [0, 1, 2, 3]):
        gradient = torch.zeros_like(start)
        gradient[read] = torch.rand(len(read), 3, dtype=torch.float64)
        sparse = torch.sparse_coo_tensor(torch.tensor([read]), gradient[read], start.shape, check_invariants=True)
        rows.grad, reference.grad = gradient if len(read) == len(start) else sparse, sparse
        optimizer.step()
        expected.step()
    torch.testing.assert_close(rows, reference, rtol=1e-12, atol=1e-12)
    assert (rows - start).abs().min() > 0.1


@pytest.mark.parametrize(("keys", "width"), [([], 16), (["embedding=8"], 8)], ids=["task", "embedding"])
def test_learned_rows_are_as_wide_as_the_vectors_of_link_prediction(keys: list[str], width: int) -> None:
    overrides = ["strategy=vertex_centric", "inputs=learned", "task=link_prediction", "task.width=16"]
    assert settle(compose([*overrides, *keys])).embedding == width
