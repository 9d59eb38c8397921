"""The comparison of the ranks with plain torch on dense matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gnnkit.graph import Graph, Split
from gnnkit.partition import Grid, Partition
from gnnkit.testing.arguments import check_maker
from gnnkit.testing.graphs import check_graph
from gnnkit.testing.ranks import GRIDS
from gnnkit_witness import ranks, serial
from gnnkit_witness.plan import Epoch, Plan

_TOLERANCE = {"sgd": 1e-10, "adam": 1e-5, "adamw": 1e-5}  # Adam divides by gradients that are nearly 0


def check_witness(
    make: Callable[[int, int], nn.Module], grids: Sequence[Grid] = GRIDS, graph: Graph | None = None, **keys: Any
) -> None:
    """Trains a model on several ranks, and in plain torch on dense matrices.

    The second run shares no code with the engine, so a fault of the engine cannot agree
    with itself. Losses, parameters, buffers and logits must be equal after each epoch.
    Raises `AssertionError` for the first difference.

    Args:
        make: Makes the model from (in_features, num_classes).
        grids: Process grids. The last of several ranks owns nothing. Default: one of
            each kind.
        graph: Some dozens of nodes with classes. Default: a directed, weighted graph
            with edge features of width 2, isolated nodes, loops and parallel edges.
        **keys: Further fields of `Plan`, such as `strategy`, `sync` and `sampler`. What
            they say must have the exact result of one process.
    """
    check_maker(make, nn.Module)
    graph = check_graph() if graph is None else graph
    torch.manual_seed(0)
    model = make(keys.get("embedding") or graph.features.shape[1], graph.num_classes).double()
    for grid in grids:
        owners = np.random.default_rng(1).integers(0, max(grid.world_size - 1, 1), graph.num_nodes)
        check_plan(Plan(graph, Partition(owners.astype(np.int32), None, grid), model, **keys))


def check_plan(plan: Plan) -> None:
    """Trains a plan on both sides, and compares after each epoch.

    Raises `AssertionError` for the first difference.
    """
    found = ranks.train(plan)
    _check_seeds(plan, found.seeds)
    expected = serial.train(plan, found.seeds, found.first_rows)
    for rank, epochs in enumerate(found.ranks):
        assert len(epochs) == len(expected) == plan.epochs, f"rank {rank} trained {len(epochs)} epochs"
        for number, (mine, right) in enumerate(zip(epochs, expected, strict=True)):
            _compare(mine, right, f"epoch {number}, rank {rank} of {plan.partition.grid}", _TOLERANCE[plan.optimizer])


def _check_seeds(plan: Plan, seeds: list[list[Tensor]]) -> None:
    """Checks that each epoch reads every training node once."""
    train = np.flatnonzero(np.asarray(plan.graph.split) == Split.TRAIN)
    for number, epoch in enumerate(seeds):
        read = torch.cat(epoch).sort().values.numpy()
        assert np.array_equal(read, train), f"epoch {number} reads the nodes {read}, training nodes are {train}"


def _compare(found: Epoch, expected: Epoch, where: str, tolerance: float) -> None:
    for step, (a, b) in enumerate(zip(found.losses, expected.losses, strict=True)):
        one, other = torch.tensor([a, b], dtype=torch.float64)
        _close(one, other, f"{where}: loss of step {step}", tolerance)
    assert found.state.keys() == expected.state.keys(), f"{where}: other parameters"
    for name, value in expected.state.items():
        _close(found.state[name], value, f"{where}: {name}", tolerance)
    _close(found.logits, expected.logits, f"{where}: logits", tolerance)
    if expected.rows is not None:
        assert found.rows is not None, f"{where}: no learned rows"
        _close(found.rows, expected.rows, f"{where}: learned rows", tolerance)


def _close(found: Tensor, expected: Tensor, what: str, tolerance: float) -> None:
    assert found.shape == expected.shape, f"{what}: shape {tuple(found.shape)}, expected {tuple(expected.shape)}"
    found, expected = found.double(), expected.double()
    difference, largest = (float(each.abs().max()) if each.numel() else 0.0 for each in (found - expected, expected))
    assert difference <= tolerance * max(1.0, largest), f"{what}: {difference:.3g} away from plain torch"
