"""The contract of strategies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.graph import Split
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid
from gnnkit.sampler import NeighborSampler, Sampler
from gnnkit.strategy import Batch, ExecutionStrategy, LearnedInputs, MovableSeeds, Reads, Worker
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from gnnkit_testing.ranks import GRIDS, ONE, assert_close, on_ranks

EPOCHS = 2


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One rank's batch, and a model's gradient."""

    nodes: Tensor  # [k] nodes whose loss is read
    labels: Tensor  # [k]
    total: int
    update: str
    weight: float  # this rank's weight in an average
    gradient: Tensor  # [num_parameters] this rank's gradient of the sum of losses


_Run = list[_Step]  # one rank's batches


def check_strategy(
    make: Callable[[], ExecutionStrategy],
    grids: Sequence[Grid] | None = None,
    sampler: Sampler | None = None,
) -> None:
    """Trains a GCN for two epochs on each of `grids`, with one rank that owns nothing.

    All ranks must get equally many batches with equal `update`s. `total` must count
    this rank's rows if it steps alone, all ranks' rows if ranks meet, and all ranks'
    and steps' rows if steps accumulate. Updates must match `steps`, and averages need
    weights. Rows must be training nodes with the correct labels. A second run must get
    the same batches, and so must a run that starts within an epoch. If `on_one_rank`
    returns a strategy, its gradients must be the sum of the ranks' gradients. `nodes`
    must be the input rows' nodes, and is required with `LearnedInputs`. The method that
    an ability requires must be implemented.

    Args:
        grids: Rank grids. If None, one grid of each kind, or grids of one column for a
            strategy that reads data along nodes.
        sampler: A two-hop sampler, for strategies that use one. If None, five
            neighbours per hop.
    """
    check_maker(make, ExecutionStrategy)
    torch.manual_seed(0)
    model = GCN(WIDTH, CLASSES, hidden=4).double()
    reads = make().reads
    draws = (sampler or NeighborSampler([5, 5], threads=1)) if reads.sampler else None
    check = _Check(model, draws, reads)
    _check_supports(make())
    for grid in grids or ((GRIDS[0], ONE) if reads.along_nodes else GRIDS[:2]):
        runs, again = check.runs(make, grid), check.runs(make, grid)
        _check_agreement(runs, str(grid))
        _check_updates(make(), runs[0], str(grid))
        _check_weights(runs, str(grid))
        _check_repeats(runs, again, str(grid))
        alone = make().on_one_rank(grid.world_size, draws)
        if alone is not None:
            (single,) = check.runs(lambda alone=alone: alone, ONE)  # type: ignore[misc]
            _check_gradients(runs, single, str(grid))


def _check_gradients(runs: list[_Run], single: _Run, layout: str) -> None:
    """Compares the sum of the ranks' gradients with one rank's gradient."""
    for place, steps in enumerate(zip(*runs, strict=True)):
        gradient = torch.stack([step.gradient for step in steps]).sum(0)
        assert_close(gradient, single[place].gradient, f"gradient in batch {place} on {layout} against one rank")


@dataclass(frozen=True, slots=True, eq=False)
class _Check:
    """What all runs of a check share."""

    model: GCN
    sampler: Sampler | None
    reads: Reads  # what the strategy reads

    def runs(self, make: Callable[[], ExecutionStrategy], grid: Grid) -> list[_Run]:
        """Returns every rank's batches."""

        def work(worker: Worker) -> _Run:
            strategy, replica = make(), copy.deepcopy(self.model)
            strategy.check(worker.sampler, replica.num_layers)
            strategy.setup(worker, replica)
            batches = [batch for epoch in range(EPOCHS) for batch in strategy.batches(epoch)]
            has_nodes = all(batch.nodes is not None for batch in batches)
            assert has_nodes or strategy.lacks(LearnedInputs), (
                "input rows may be learned, but batches do not name their nodes"
            )
            steps = [_step(batch, replica) for batch in batches]
            counts = [strategy.num_batches(epoch) for epoch in range(EPOCHS)]
            assert sum(counts) == len(steps), f"num_batches promises {counts}, batches gives {len(steps)} in all"
            for first in range(counts[0] + 1):
                tail = [_step(batch, replica) for batch in strategy.batches(0, first)]
                _check_same(tail, steps[first : counts[0]], f"batches(0, first={first})")
            return steps

        edges = not self.reads.graph or self.reads.from_owners  # as a run prepares shards
        return on_ranks(check_graph(), grid, work, whole=self.reads.graph, edges=edges, sampler=self.sampler)


def _check_supports(strategy: ExecutionStrategy) -> None:
    kinds = [type(ability) for ability in strategy.supports]
    assert len({*kinds}) == len(kinds), f"supports has an ability twice: {[kind.__name__ for kind in kinds]}"
    assert hasattr(strategy, "deal") or strategy.lacks(MovableSeeds), (
        "supports has MovableSeeds, but deal is not written"
    )


def _step(batch: Batch, model: GCN) -> _Step:
    layers = len(batch.adjacencies)
    assert layers == model.num_layers, f"{layers} adjacencies for {model.num_layers} layers"
    nodes, last = _loss_nodes(batch), batch.adjacencies[-1]
    model.zero_grad()
    with batch.precision():
        logits = model(batch.x, batch.adjacencies)
    assert len(logits) == last.num_dst, f"{len(logits)} rows of output for {last.num_dst} destinations"
    loss = logits[batch.rows] * (nodes[:, None] + 1).sin()
    if batch.row_weights is not None:
        assert len(batch.row_weights) == len(batch.rows), "row_weights must have a factor for each row"
        loss = loss * batch.row_weights[:, None]
    loss.sum().backward()
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
    gradient = torch.cat([g.flatten() for g in gradients])
    return _Step(nodes, batch.labels, batch.total, batch.update, batch.weight, gradient)


def _loss_nodes(batch: Batch) -> Tensor:
    """Returns the nodes that the loss reads, after checking the batch's arrays."""
    last = batch.adjacencies[-1]
    assert batch.num_edges >= 0, "the leader counts a rank's work in edges"
    assert len(batch.rows) == len(batch.labels), f"{len(batch.labels)} labels for {len(batch.rows)} rows"
    assert len(batch.rows) == 0 or int(batch.rows.max()) < last.num_dst, "rows must be rows of the output"
    nodes = last.src_nodes[: last.num_dst][batch.rows]
    graph = check_graph()
    assert np.array_equal(graph.labels[nodes.numpy()], batch.labels.numpy()), "labels are not those of their nodes"
    assert (graph.split[nodes.numpy()] == Split.TRAIN).all(), "the loss reads nodes outside of the training split"
    if batch.nodes is not None:
        inputs = batch.adjacencies[0].src_nodes[: len(batch.x)].numpy()
        assert np.array_equal(batch.nodes, inputs), "`nodes` are not the nodes of the rows of x"
    return nodes


def _check_agreement(runs: list[_Run], layout: str) -> None:
    counts = [len(run) for run in runs]
    assert len(set(counts)) == 1, f"on {layout} ranks get {counts} batches, not equally many"
    assert counts[0] > 0, f"on {layout} an epoch has no batches"
    batches = list(zip(*runs, strict=True))
    for place, steps in enumerate(batches):
        assert len({step.update for step in steps}) == 1, f"on {layout} ranks disagree on update in batch {place}"
    _check_row_counts(batches, layout)


def _check_row_counts(batches: Sequence[tuple[_Step, ...]], layout: str) -> None:
    """Checks `total` of all steps. `batches` holds the ranks' steps, batch by batch."""
    rows, group = 0, list[tuple[int, _Step]]()  # of accumulating steps, up to the one that ends them
    for place, steps in enumerate(batches):
        if steps[0].update in ("own", "average"):
            _check_totals([(place, step, len(step.nodes)) for step in steps], layout)
            continue
        rows += sum(len(step.nodes) for step in steps)
        group.extend((place, step) for step in steps)
        if steps[0].update != "accumulate":
            _check_totals([(*step, rows) for step in group], layout)
            rows, group = 0, []
    assert len({step.total for _, step in group}) < 2, f"on {layout} total differs among steps that accumulate"


def _check_totals(counts: Sequence[tuple[int, _Step, int]], layout: str) -> None:
    for place, step, rows in counts:
        assert step.total == rows, f"on {layout} total={step.total} in batch {place}, its rows are {rows}"


def _check_updates(strategy: ExecutionStrategy, steps: Sequence[_Step], layout: str) -> None:
    updates = {step.update for step in steps}
    if strategy.steps.only_synchronise:
        assert updates == {"synchronise"}, f"on {layout} only_synchronise is true, but there are updates {updates}"
    if updates & {"own", "average"}:
        assert strategy.steps.drift, f"on {layout} ranks step alone, but drift is false"
    if "accumulate" in updates:
        assert strategy.steps.keep_state, f"on {layout} steps accumulate, but keep_state is false"


def _check_weights(runs: list[_Run], layout: str) -> None:
    for place, steps in enumerate(zip(*runs, strict=True)):
        if steps[0].update == "average":
            weights = [step.weight for step in steps]
            assert min(weights) >= 0 < sum(weights), f"on {layout} the weights of batch {place} are {weights}"


def _check_repeats(runs: list[_Run], again: list[_Run], layout: str) -> None:
    for run, repeat in zip(runs, again, strict=True):
        _check_same(run, repeat, f"on {layout} a second run with the same seed")


def _check_same(steps: list[_Step], references: list[_Step], subject: str) -> None:
    assert len(steps) == len(references), f"{subject} gives {len(steps)} batches, expected {len(references)}"
    for step, reference in zip(steps, references, strict=True):
        for name in ("nodes", "labels", "gradient"):
            is_same = torch.equal(getattr(step, name), getattr(reference, name))
            assert is_same, f"{subject} gets other batches: {name}"
