"""What strategies promise."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import Engine, ShardAdjacency
from gnnkit.graph import Split
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid
from gnnkit.strategy.base import Batch, ExecutionStrategy, Worker
from gnnkit.testing.graphs import CLASSES, WIDTH, check_graph
from gnnkit.testing.ranks import ONE, assert_close, by_node, on_ranks, owned

EPOCHS = 2
LAYOUTS = (Grid(3, 1, 1), Grid(2, 2, 1))


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One batch of one rank, and what a model made of it."""

    nodes: Tensor  # [k] whose loss is read
    labels: Tensor  # [k]
    total: int
    synchronise: bool
    gradient: Tensor  # [num_parameters] of the loss's sum, this rank's


@dataclass(frozen=True, slots=True, eq=False)
class _Run:
    """What one rank got."""

    steps: list[_Step]
    logits: tuple[Tensor, Tensor]  # nodes, and their logits in evaluation


def check_strategy(make: Callable[[], ExecutionStrategy], grids: Sequence[Grid] = LAYOUTS) -> None:
    """Two epochs with a GCN on each of `grids`, one rank of which owns nothing: all ranks get equally many batches, which agree on
    `synchronise` and `total`; their rows are training nodes with their labels; a second run gets the same; evaluation gives the
    logits of one rank; and so do the gradients, if the strategy says that it equals one process."""
    torch.manual_seed(0)
    model = GCN(WIDTH, CLASSES, hidden=4).double()
    one, expected = _runs(make, model, ONE), _exact_logits(model)
    for grid in grids:
        runs, again = _runs(make, model, grid), _runs(make, model, grid)
        _check_agreement(runs, str(grid))
        _check_repeats(runs, again, str(grid))
        assert_close(
            by_node([run.logits for run in runs]), expected, f"logits in evaluation on {grid} against one rank"
        )
        if make().equals_one_process:
            for place, steps in enumerate(zip(*(run.steps for run in runs), strict=True)):
                found = torch.stack([step.gradient for step in steps]).sum(0)
                assert_close(
                    found, one[0].steps[place].gradient, f"gradient in batch {place} on {grid} against one rank"
                )


def _runs(make: Callable[[], ExecutionStrategy], model: GCN, grid: Grid) -> list[_Run]:
    def work(worker: Worker) -> _Run:
        strategy, own = make(), copy.deepcopy(model)
        strategy.setup(worker, own)
        steps = [_step(batch, own) for epoch in range(EPOCHS) for batch in strategy.batches(epoch)]
        batch = strategy.evaluation()
        with torch.no_grad():
            logits = own.eval()(batch.x, batch.adjacencies)
        assert len(logits) == len(worker.shard.owned), (
            f"evaluation gives {len(logits)} rows for {len(worker.shard.owned)} owned nodes"
        )
        return _Run(steps, (owned(worker), logits))

    return on_ranks(check_graph(), grid, work)


def _exact_logits(model: GCN) -> Tensor:  # [num_nodes, num_classes]
    """Of one rank over all edges."""

    def work(worker: Worker) -> tuple[Tensor, Tensor]:
        engine = Engine(worker.shard.with_self_loops(), worker.comm, worker.dtype)
        x = torch.tensor(worker.shard.features, dtype=worker.dtype)
        logits = copy.deepcopy(model).eval()(x, ShardAdjacency.layers(engine, model.num_layers, 0))
        return owned(worker), logits.detach()

    return by_node(on_ranks(check_graph(), ONE, work))


def _step(batch: Batch, model: GCN) -> _Step:
    layers = len(batch.adjacencies)
    assert layers == model.num_layers, f"{layers} adjacencies for {model.num_layers} layers"
    last = batch.adjacencies[-1]
    assert len(batch.rows) == len(batch.labels), f"{len(batch.labels)} labels for {len(batch.rows)} rows"
    assert len(batch.rows) == 0 or int(batch.rows.max()) < last.num_dst, "rows must be rows of the output"
    nodes = last.src_nodes[: last.num_dst][batch.rows]
    graph = check_graph()
    assert np.array_equal(graph.labels[nodes.numpy()], batch.labels.numpy()), "labels are not those of their nodes"
    assert (graph.split[nodes.numpy()] == Split.TRAIN).all(), "the loss reads nodes outside of the training split"
    model.zero_grad()
    logits = model(batch.x, batch.adjacencies)
    assert len(logits) == last.num_dst, f"{len(logits)} rows of output for {last.num_dst} destinations"
    (logits[batch.rows] * (nodes[:, None] + 1).sin()).sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    return _Step(nodes, batch.labels, batch.total, batch.synchronise, torch.cat([g.flatten() for g in gradients]))


def _check_agreement(runs: list[_Run], where: str) -> None:
    counts = [len(run.steps) for run in runs]
    assert len(set(counts)) == 1, f"on {where} ranks get {counts} batches, not equally many"
    assert counts[0] > 0, f"on {where} an epoch has no batches"
    for place, steps in enumerate(zip(*(run.steps for run in runs), strict=True)):
        assert len({step.synchronise for step in steps}) == 1, (
            f"on {where} ranks disagree on synchronise in batch {place}"
        )
        rows = sum(len(step.nodes) for step in steps)
        for step in steps:
            expected = rows if step.synchronise else len(step.nodes)
            assert step.total == expected, f"on {where} total={step.total} in batch {place}, its rows are {expected}"


def _check_repeats(runs: list[_Run], again: list[_Run], where: str) -> None:
    for run, other in zip(runs, again, strict=True):
        for one, two in zip(run.steps, other.steps, strict=True):
            for name in ("nodes", "labels", "gradient"):
                same = torch.equal(getattr(one, name), getattr(two, name))
                assert same, f"on {where} a second run with the same seed gets other batches: {name}"
