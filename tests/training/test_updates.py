"""Steps that accumulate, average and correct, carried out by the trainer."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parameters_to_vector
from torch.optim.lr_scheduler import LambdaLR

from gnnkit.comm import Communicator
from gnnkit.comm.threads import Threads
from gnnkit.config.settings import OPTIMIZERS
from gnnkit.engine import Adjacency, ShardAdjacency, Tally
from gnnkit.errors import UserError
from gnnkit.leader.meter import SyncMeter
from gnnkit.leader.watch import Watch
from gnnkit.partition import Grid, Partition, cut_all
from gnnkit.strategy import Batch, ExecutionStrategy, Steps, Update, Worker
from gnnkit.sync import GradientSync
from gnnkit.sync.all_reduce import AllReduce
from gnnkit.sync.leader import LeaderSync
from gnnkit.sync.neighbour import Neighbour
from gnnkit.task.evaluation import Evaluation
from gnnkit.training.finite import Guard
from gnnkit.training.module import TrainingModule
from gnnkit.training.step import Updates
from gnnkit.training.trainer import make_trainer
from tests.leader.test_leader import STATE

RANKS, WIDTH, CLASSES = 3, 4, 3
LR = 0.1


class Linear(L.LightningModule):
    """A linear classifier whose optimiser the test chooses."""

    num_layers = 1

    def __init__(self, optimizer: str = "sgd", decay: float = 1.0) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, CLASSES).double()
        nn.init.uniform_(self.linear.weight, -0.5, 0.5, generator=torch.Generator().manual_seed(1))
        nn.init.zeros_(self.linear.bias)
        self.kind, self.decay = getattr(torch.optim, OPTIMIZERS[optimizer].torch_name), decay

    def forward(self, x: Tensor, adjacencies: Sequence[Adjacency]) -> Tensor:
        logits: Tensor = self.linear(x)
        return logits

    def configure_optimizers(self) -> Any:
        optimizer = self.kind(self.parameters(), lr=LR)
        schedule = LambdaLR(optimizer, lambda step: self.decay**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Scripted(ExecutionStrategy):
    """Rows and updates of each step as the test says: (update, rows of each rank)."""

    steps = Steps(only_synchronise=False, drift=True, keep_state=True)

    def __init__(
        self,
        script: Sequence[tuple[Update, Sequence[int]]],
        bad: tuple[int, int] | None = None,
        leading: Sequence[int] = (),
    ) -> None:
        self.script, self.bad = script, bad  # step and rank whose input is not finite
        self.leading = leading  # steps that lead own steps

    def setup(self, worker: Worker, model: nn.Module) -> None:
        self.worker, self.tally, self.engine = worker, Tally(), worker.engine(model)

    def num_batches(self, epoch: int) -> int:
        return len(self.script)

    def batches(self, epoch: int, first: int = 0) -> Iterator[Batch]:
        rank = self.worker.comm.rank
        for step, (update, counts) in enumerate(self.script):
            if step < first:
                continue
            x, labels = rows(step, rank, counts[rank])
            if self.bad == (step, rank):
                x = x * torch.inf
            own = update in ("own", "average")
            total = counts[rank] if own else sum(sum(self.script[s][1]) for s in group(self.script, step))
            adjacencies = ShardAdjacency.layers(self.engine, 1, step)
            weight, leads = float(counts[rank]), step in self.leading
            yield Batch(x, adjacencies, torch.arange(len(x)), labels, total, update, weight, leads=leads)


def group(script: Sequence[tuple[Update, Sequence[int]]], step: int) -> range:
    """Steps whose gradients make one step of the optimiser, with `step`."""
    first = last = step
    while first > 0 and script[first - 1][0] == "accumulate":
        first -= 1
    while script[last][0] == "accumulate" and last + 1 < len(script):
        last += 1
    return range(first, last + 1)


def rows(step: int, rank: int, count: int) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng([step, rank])
    return torch.tensor(rng.normal(size=(count, WIDTH))), torch.tensor(rng.integers(0, CLASSES, count))


def shards() -> Any:
    from gnnkit_testing.graphs import check_graph

    graph = check_graph()
    owner = (np.arange(graph.num_nodes) % RANKS).astype(np.int32)
    return list(cut_all(graph, Partition(owner, None, Grid(RANKS, 1, 1))))


SHARDS = shards()


def trained(
    strategy: Scripted,
    comm: Communicator,
    *,
    model: nn.Module | None = None,
    sync: type[GradientSync] | functools.partial[Any] = AllReduce,
    guard: Guard | None = None,
) -> tuple[Tensor, Any]:
    """Parameters of this rank after one epoch, and the trainer."""
    worker = Worker(comm, SHARDS[comm.rank], torch.float64, 7)
    strategy, model = copy.copy(strategy), copy.deepcopy(model or Linear())
    strategy.setup(worker, model)
    module = TrainingModule(
        model, strategy, worker, Evaluation.of(worker, model, 100.0), optimizer="sgd", lr=LR, weight_decay=0.0
    )
    options: dict[str, Any] = {"max_epochs": 1, "limit_val_batches": 0, "logger": False}
    meter = SyncMeter()
    reset = LambdaCallback(on_train_batch_end=lambda *_: meter.reset())  # as the observer does
    trainer = make_trainer(module, sync(), meter, guard=guard, callbacks=[reset], **options)
    trainer.fit(module)
    return parameters_to_vector(module.parameters()).detach(), trainer


def on_ranks(strategy: Scripted, **keys: Any) -> list[tuple[Tensor, Any]]:
    return Threads.run(functools.partial(trained, strategy, **keys), RANKS)


def by_hand(parts: Sequence[tuple[int, int, int]], model: nn.Module, optimizer: Any, total: int | None = None) -> None:
    """One step with the mean loss over parts (step, rank, number of rows)."""
    optimizer.zero_grad()
    for step, rank, count in parts:
        x, labels = rows(step, rank, count)
        loss = F.cross_entropy(model(x, ()), labels, reduction="sum") / (total or sum(c for *_, c in parts))
        loss.backward()
    optimizer.step()


@pytest.mark.slow
def test_steps_that_accumulate_are_one_step_over_all_their_rows() -> None:
    counts = [(2, 5, 0), (1, 3, 4), (0, 0, 6)]
    script: list[tuple[Update, Any]] = [
        ("accumulate", counts[0]),
        ("accumulate", counts[1]),
        ("synchronise", counts[2]),
    ]
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    by_hand([(s, r, c) for s, each in enumerate(counts) for r, c in enumerate(each)], model, optimizer)
    for actual, trainer in on_ranks(Scripted(script)):
        torch.testing.assert_close(actual, parameters_to_vector(model.parameters()).detach(), rtol=0, atol=1e-12)
        assert trainer.strategy.updates.kept == []


@pytest.mark.slow
def test_the_weight_of_a_rank_in_a_mean_counts_the_rows_of_steps_that_accumulate() -> None:
    """Without kept shares, a rank's mean gradient would be too large by far."""
    script: list[tuple[Update, Any]] = [("accumulate", (6, 2, 4)), ("synchronise", (2, 6, 4))]
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    by_hand([(s, r, c) for s, (_, each) in enumerate(script) for r, c in enumerate(each)], model, optimizer)
    # Every rank has 8 rows, so the mean of the ranks' means is the mean over all rows.
    for actual, _ in on_ranks(Scripted(script), sync=functools.partial(LeaderSync, average="mean")):
        torch.testing.assert_close(actual, parameters_to_vector(model.parameters()).detach(), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_an_average_follows_own_steps_with_the_weights_of_the_batch() -> None:
    counts = [(4, 2, 3), (1, 5, 0)]
    reference, weights = [], []
    for rank in range(RANKS):
        model = Linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=LR)
        for step, each in enumerate(counts):
            by_hand([(step, rank, each[rank])], model, optimizer, max(each[rank], 1))
        reference.append(parameters_to_vector(model.parameters()).detach())
        weights.append(counts[1][rank])
    mean = sum(w * p for w, p in zip(weights, reference, strict=True)) / sum(weights)
    results = [each for each, _ in on_ranks(Scripted([("own", counts[0]), ("average", counts[1])]))]
    torch.testing.assert_close(results[0], mean, rtol=0, atol=1e-12)
    assert all(torch.equal(each, results[0]) for each in results)


def gradient(step: int, rank: int, count: int, at: Tensor) -> Tensor:
    """The mean gradient of a rank's rows at some parameters."""
    model = Linear()
    nn.utils.vector_to_parameters(at, model.parameters())
    x, labels = rows(step, rank, count)
    (F.cross_entropy(model(x, ()), labels, reduction="sum") / max(count, 1)).backward()
    return parameters_to_vector([parameter.grad for parameter in model.parameters()])


@pytest.mark.slow
def test_own_steps_follow_the_gradient_of_all_ranks_since_the_step_that_leads() -> None:
    """Control variates: g(w) - g(w0) + c(w0). g is 0 on a rank without rows."""
    counts = [(4, 2, 3), (4, 2, 3), (1, 5, 0), (2, 2, 1), (3, 1, 2)]
    updates: list[Update] = ["own", "own", "average", "own", "average"]
    leading = (0, 3)
    start = parameters_to_vector(Linear().parameters()).detach()
    own, lacking = [start] * RANKS, [torch.zeros_like(start)] * RANKS
    for step, (update, each) in enumerate(zip(updates, counts, strict=True)):
        results = [gradient(step, rank, each[rank], own[rank]) for rank in range(RANKS)]
        if step in leading:
            mean = sum(n * g for n, g in zip(each, results, strict=True)) / sum(each)
            lacking = [mean - g for g in results]
        own = [w - LR * (g + lacked) for w, g, lacked in zip(own, results, lacking, strict=True)]
        if update == "average":
            own = [sum(n * w for n, w in zip(each, own, strict=True)) / sum(each)] * RANKS
    script = list(zip(updates, counts, strict=True))
    for values, _ in on_ranks(Scripted(script, leading=leading)):
        torch.testing.assert_close(values, own[0], rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("sync", [AllReduce, functools.partial(Neighbour, "gradients")], ids=["all", "neighbours"])
def test_a_leading_step_that_is_left_out_hangs_no_rank_and_leaves_nothing_behind(sync: Any) -> None:
    """Ranks that decide alone still meet. The later own steps are plain ones there."""
    counts = (2, 2, 2)
    script: list[tuple[Update, Any]] = [("own", counts), ("own", counts), ("average", counts)]
    results = on_ranks(Scripted(script, bad=(0, 1), leading=(0,)), sync=sync, guard=Guard("skip"))
    assert all(bool(torch.isfinite(values).all()) for values, _ in results)
    assert results[1][1].strategy.updates.lacking == []
    assert all(torch.equal(values, results[0][0]) for values, _ in results)


@pytest.mark.slow
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_that_correct_have_an_optimiser_state_of_their_own_and_the_same_learning_rate(name: str) -> None:
    """Ranks own Adam's moments of own steps. Correcting steps must not read these."""
    script: list[tuple[Update, Any]] = [
        ("average", (3, 2, 4)),
        ("correct", (2, 2, 2)),
        ("average", (1, 4, 2)),
        ("correct", (5, 1, 3)),
    ]
    decay = 0.5
    ours = [Linear(name, decay) for _ in range(RANKS)]
    own = [model.kind(model.parameters(), lr=LR) for model in ours]
    shared = Linear(name, decay)
    corrects = shared.kind(shared.parameters(), lr=LR)
    for step, (update, counts) in enumerate(script):
        for optimizer in (*own, corrects):
            optimizer.param_groups[0]["lr"] = LR * decay**step
        if update == "average":
            for rank, model in enumerate(ours):
                by_hand([(step, rank, counts[rank])], model, own[rank])
            values = [parameters_to_vector(model.parameters()).detach() for model in ours]
            mean = sum(n * v for n, v in zip(counts, values, strict=True)) / sum(counts)
            nn.utils.vector_to_parameters(mean, shared.parameters())
        else:
            by_hand([(step, rank, count) for rank, count in enumerate(counts)], shared, corrects)
        for model in ours:
            model.load_state_dict(shared.state_dict())
    results = on_ranks(Scripted(script), model=Linear(name, decay))
    for values, _ in results:
        torch.testing.assert_close(values, parameters_to_vector(shared.parameters()).detach(), rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [0, 1])
def test_a_group_of_steps_that_is_left_out_leaves_no_gradient_behind(bad: int) -> None:
    """A part that is not finite is left out alone, and the last step with its group."""
    script: list[tuple[Update, Any]] = [
        ("accumulate", (2, 2, 2)),
        ("synchronise", (2, 2, 2)),
        ("synchronise", (1, 1, 1)),
    ]
    parts = [(s, r, c) for s, (_, counts) in enumerate(script[:2]) for r, c in enumerate(counts)]
    model = Linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    if bad == 0:
        by_hand([part for part in parts if part[:2] != (0, 1)], model, optimizer, 12)
    by_hand([(2, rank, 1) for rank in range(RANKS)], model, optimizer)
    for actual, _ in on_ranks(Scripted(script, bad=(bad, 1)), guard=Guard("skip")):
        torch.testing.assert_close(actual, parameters_to_vector(model.parameters()).detach(), rtol=0, atol=1e-12)


@pytest.mark.slow
def test_a_bad_step_before_the_end_of_training_stops_the_run_although_no_rank_meets_another() -> None:
    with pytest.raises(UserError, match=r"step 1 \(epoch 0\) is not finite on rank 1"):
        on_ranks(Scripted([("accumulate", (2, 2, 2)), ("accumulate", (2, 2, 2))], bad=(0, 1)))


def test_updates_go_on_from_their_state() -> None:
    parameter = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([parameter], lr=0.1)
    updates, again = Updates(), Updates()
    parameter.grad = torch.full((3,), 2.0)
    optimizer.step()
    own = copy.deepcopy(optimizer.state_dict())
    with updates.correcting(optimizer):
        optimizer.step()
        optimizer.step()
    updates.keep([torch.ones(3)], 0.25)
    updates.lacking = [torch.full((3,), 0.5)]
    optimizer.param_groups[0]["lr"] = 0.3
    again.load_state_dict(updates.state_dict(optimizer), optimizer)
    assert again.kept_share == 0.25
    assert torch.equal(again.kept[0], torch.ones(3))
    assert torch.equal(again.lacking[0], torch.full((3,), 0.5))
    assert float(again.corrections[parameter]["step"]) == 2
    assert float(optimizer.state_dict()["state"][0]["step"]) == float(own["state"][0]["step"]) == 1
    assert optimizer.param_groups[0]["lr"] == 0.3
    again.load_state_dict(Updates().state_dict(optimizer), optimizer)
    assert (again.kept, again.kept_share, dict(again.corrections)) == ([], 0.0, {})


def test_the_loss_of_steps_that_accumulate_is_the_mean_over_their_rows(tmp_path: Any) -> None:
    """Takes two steps of two ranks, with losses of 4, 6, 8 and 2 over 3 rows each."""
    watch = Watch(2, tmp_path, 1, quiet=True, every=1000, log=lambda *_: None)
    for step, sums in ((1, (4.0, 6.0)), (2, (8.0, 2.0))):
        for rank, value in enumerate(sums):
            watch.take(replace(STATE, rank=rank, step=step, loss=value / 12, total=12, rows=3, synchronised=step == 2))
    watch.finish()
    assert watch.train_loss == pytest.approx(20 / 12)


def weighted_batch(module: Any) -> Batch:
    x, labels = rows(0, 0, 4)
    return Batch(x, (), torch.arange(4), labels, 8, row_weights=torch.tensor([1.0, 0.0, 2.0, 0.5]).double())


class Weighs(Linear):
    reads_row_weights = True

    def training_step(self, batch: Batch, index: int) -> Tensor:
        losses = F.cross_entropy(self(batch.x, ()), batch.labels, reduction="none")
        assert batch.row_weights is not None
        return (losses * batch.row_weights).sum() / batch.total


class Forgets(Linear):
    def training_step(self, batch: Batch, index: int) -> Tensor:
        return F.cross_entropy(self(batch.x, ()), batch.labels, reduction="sum") / batch.total


def test_row_weights_multiply_the_loss_of_each_row_and_own_steps_must_read_them() -> None:
    def step(model: nn.Module) -> Tensor:
        worker = Worker(Threads.connect(0, 1, device=torch.device("cpu"), timeout=1), SHARDS[0], torch.float64, 7)
        module = TrainingModule(
            model, Scripted([]), worker, Evaluation.of(worker, model, 1.0), optimizer="sgd", lr=LR, weight_decay=0.0
        )
        return module.training_step(weighted_batch(module), 0)

    batch = weighted_batch(None)
    losses = F.cross_entropy(Linear()(batch.x, ()), batch.labels, reduction="none")
    reference = (losses * torch.tensor([1.0, 0.0, 2.0, 0.5])).sum() / 8
    torch.testing.assert_close(step(Linear()), reference)
    torch.testing.assert_close(step(Weighs()), reference)
    with pytest.raises(UserError, match="model=Forgets: this strategy weighs the rows of a batch"):
        step(Forgets())
