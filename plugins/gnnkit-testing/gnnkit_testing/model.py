"""The contract of models and programs."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gnnkit.engine import Engine, ShardAdjacency, SparseRows
from gnnkit.graph import SparseFeatures
from gnnkit.model.base import Program
from gnnkit.partition import Grid
from gnnkit.strategy import Worker
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph
from gnnkit_testing.ranks import GRIDS, ONE, assert_close, by_node, on_ranks, owned
from gnnkit_testing.witness import check_witness, is_installed

KEY = 11  # random key of the step


def check_model(make: Callable[[int, int], nn.Module], grids: Sequence[Grid] = GRIDS) -> None:
    """Checks a model on a directed, weighted graph with edge features of width 2.

    Its edges have 3 types.

    The model must have an integer `num_layers` and return logits [num_dst,
    num_classes]. Logits and gradients must equal one rank's on every grid, in training,
    including dropout, and in evaluation. A model that `reads_sparse` must compute the
    same from sparse rows. On the first grid, training must equal plain torch on dense
    matrices, as described in `check_witness`. Without the package gnnkit-witness, a
    warning reports that this was not checked.

    Args:
        make: Creates the model from (in_features, num_classes).
        grids: Rank grids. Default: one of each kind. Pass the supported ones for a
            model that does not support all layouts.

    Examples:
        >>> from gnnkit.model.sage import GraphSAGE
        >>> from gnnkit.partition import Grid
        >>> from gnnkit.testing import check_model
        >>> check_model(lambda *widths: GraphSAGE(*widths, hidden=4), [Grid(2, 2, 1)])
    """
    check_maker(make, nn.Module)
    torch.manual_seed(0)
    model = make(WIDTH, CLASSES).double()
    layers = getattr(model, "num_layers", None)
    assert isinstance(layers, int), f"num_layers={layers} must say how many adjacencies the model reads"
    for training in (False, True):
        model.train(training)
        reference = _answer(model, ONE)
        assert reference.logits.shape[1] == CLASSES, f"{reference.logits.shape[1]} logits a node for {CLASSES} classes"
        cases = [(grid, False, f"on {grid} against one rank") for grid in grids]
        if getattr(model, "reads_sparse", False):
            cases.append((ONE, True, "from sparse rows against dense ones"))
        for grid, sparse, layout in cases:
            mode = "in training" if training else "in evaluation"
            _check_answer(model, _answer(model, grid, sparse=sparse), reference, f"{layout}, {mode}")
    if is_installed():
        check_witness(make, grids[:1], epochs=2)
    else:
        warnings.warn("check_model does not compare with plain torch: pip install gnnkit-witness", stacklevel=2)


def _check_answer(model: nn.Module, answer: _Answer, reference: _Answer, layout: str) -> None:
    assert_close(answer.logits, reference.logits, f"logits {layout}")
    for (name, _), gradient, target in zip(
        model.named_parameters(), answer.gradients, reference.gradients, strict=True
    ):
        assert_close(gradient, target, f"gradient of {name} {layout}")


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    logits: Tensor  # [num_nodes, num_classes]
    gradients: list[Tensor]  # sum over the ranks


def _answer(model: nn.Module, grid: Grid, *, sparse: bool = False) -> _Answer:
    graph = check_graph()

    def work(worker: Worker) -> tuple[Tensor, Tensor, list[Tensor]]:
        replica, nodes = copy.deepcopy(model), owned(worker)
        shard = worker.shard.with_self_loops() if getattr(replica, "self_loops", False) else worker.shard
        layers = ShardAdjacency.layers(Engine(shard, worker.comm, worker.dtype), replica.num_layers, KEY)  # type: ignore[arg-type]
        x = torch.tensor(shard.features, dtype=worker.dtype)
        logits = replica(SparseRows.of(SparseFeatures.of(x.numpy()), x.dtype) if sparse else x, layers)
        assert logits.shape[0] == len(nodes), f"{logits.shape[0]} rows of logits for {len(nodes)} owned nodes"
        (logits * (nodes[:, None] + 1).sin()).sum().backward()
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in replica.parameters()]
        return nodes, logits.detach(), [worker.comm.all_reduce(gradient) for gradient in gradients]

    parts = on_ranks(graph, grid, work)
    return _Answer(by_node([part[:2] for part in parts]), parts[0][2])


def check_program(make: Callable[[], Program], grids: Sequence[Grid] = GRIDS) -> None:
    """Checks a program on the same graph as models.

    The program must take equally many steps and reach one rank's values on every grid.

    Args:
        grids: Rank grids. Default: one of each kind.

    Examples:
        >>> from gnnkit.model.pagerank import PageRank
        >>> from gnnkit.testing import check_program
        >>> check_program(PageRank)
    """
    check_maker(make, Program)
    reference, iterations = _run(make(), ONE)
    for grid in grids:
        values, steps = _run(make(), grid)
        assert_close(values, reference, f"values on {grid} against one rank")
        assert steps == iterations, f"{steps} steps on {grid}, {iterations} on one rank"


def _run(program: Program, grid: Grid) -> tuple[Tensor, int]:
    from gnnkit.jobs.iterate import iterate

    def work(worker: Worker) -> tuple[Tensor, Tensor, int]:
        outcome = iterate(copy.deepcopy(program), worker, lambda *_: None)
        return owned(worker), outcome.values, outcome.iterations

    parts = on_ranks(check_graph(), grid, work)
    return by_node([part[:2] for part in parts]), parts[0][2]
