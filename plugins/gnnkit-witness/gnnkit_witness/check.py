"""Compares the ranks with plain torch in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gnnkit_testing.arguments import check_maker
from gnnkit_testing.graphs import check_graph
from gnnkit_testing.ranks import GRIDS
from torch import Tensor, nn

from gnnkit import plugins
from gnnkit.errors import UserError
from gnnkit.graph import Graph, Split
from gnnkit.partition import Grid, Partition
from gnnkit_witness import ranks, serial
from gnnkit_witness.plan import EpochResult, Plan

_TOLERANCE = {"sgd": 1e-10, "adam": 1e-5, "adamw": 1e-5}  # Adam divides by gradients close to 0


def check_witness(
    make: Callable[[int, int], nn.Module], grids: Sequence[Grid] = GRIDS, graph: Graph | None = None, **keys: Any
) -> None:
    """Trains a model on several ranks and in plain torch, and compares the results.

    The plain torch run uses no kernel or exchange of the engine. Losses, parameters,
    buffers and logits must agree after each epoch. Raises `AssertionError` for the
    first difference.

    Args:
        make: Creates the model from (in_features, num_classes).
        grids: Process grids. The last of several ranks owns no node. Default: one grid
            of each kind.
        graph: A small graph with classes. Default: a directed, weighted graph with edge
            features of width 2, isolated nodes, loops and parallel edges.
        **keys: Further fields of `Plan`, such as `strategy`, `sync` and `sampler`. The
            result must be exactly that of one process: a strategy reads each training
            node once per epoch, and a sampler draws all in-edges, without relations.
    """
    check_maker(make, nn.Module)
    graph = check_graph() if graph is None else graph
    torch.manual_seed(0)
    model = make(keys.get("embedding") or graph.features.shape[1], graph.num_classes).double()
    for grid in grids:
        owners = np.random.default_rng(1).integers(0, max(grid.world_size - 1, 1), graph.num_nodes)
        check_plan(Plan(graph, Partition(owners.astype(np.int32), None, grid), model, **keys))


def check_plan(plan: Plan) -> None:
    """Trains a plan with both implementations, and compares them after each epoch.

    Raises `AssertionError` for the first difference, and `UserError` for a plan that
    differs by design.
    """
    _check_exact(plan)
    result = ranks.train(plan)
    _check_seeds(plan, result.seeds)
    reference = serial.train(plan, result.seeds, result.first_rows)
    for rank, epochs in enumerate(result.ranks):
        assert len(epochs) == len(reference) == plan.epochs, f"rank {rank} trained {len(epochs)} epochs"
        for number, (mine, right) in enumerate(zip(epochs, reference, strict=True)):
            _compare(mine, right, f"epoch {number}, rank {rank} of {plan.partition.grid}", _TOLERANCE[plan.optimizer])


def _check_exact(plan: Plan) -> None:
    """Raises `UserError` for a plan whose result differs from plain torch's."""
    sampler, csc = plan.sampler, plan.graph.csc
    if sampler is None:
        return
    if getattr(plan.model, "reads_relations", False):
        raise UserError(
            f"model={type(plan.model).__name__} reads relations, and check_witness compares these without a sampler only: "
            "use strategy=VertexCentric"
        )
    for hop in range(sampler.num_hops):
        drawn = sampler.draw(csc, np.arange(csc.num_nodes), hop, key=plan.seed)
        if not np.array_equal(np.diff(drawn.indptr), np.diff(csc.indptr)):
            raise UserError(
                f"sampler={plugins.name_of('sampler', sampler)} does not draw all in-edges in hop {hop}, and check_witness "
                "reads them all: use FullSampler or fanouts of -1"
            )


def _check_seeds(plan: Plan, seeds: list[list[Tensor]]) -> None:
    """Checks that each epoch reads each training node once."""
    train = np.flatnonzero(np.asarray(plan.graph.split) == Split.TRAIN)
    for number, epoch in enumerate(seeds):
        read = torch.cat(epoch).sort().values.numpy()
        assert np.array_equal(read, train), (
            f"epoch {number} reads {len(read)} nodes, {len(np.intersect1d(read, train))} of the {len(train)} training nodes: "
            "check_witness compares strategies that read each of these once per epoch"
        )


def _compare(actual: EpochResult, reference: EpochResult, place: str, tolerance: float) -> None:
    for step, (a, b) in enumerate(zip(actual.losses, reference.losses, strict=True)):
        loss, reference_loss = torch.tensor([a, b], dtype=torch.float64)
        _close(loss, reference_loss, f"{place}: loss of step {step}", tolerance)
    assert actual.state.keys() == reference.state.keys(), f"{place}: other parameters"
    for name, value in reference.state.items():
        _close(actual.state[name], value, f"{place}: {name}", tolerance)
    _close(actual.logits, reference.logits, f"{place}: logits", tolerance)
    if reference.rows is not None:
        assert actual.rows is not None, f"{place}: no learned rows"
        _close(actual.rows, reference.rows, f"{place}: learned rows", tolerance)


def _close(actual: Tensor, reference: Tensor, subject: str, tolerance: float) -> None:
    assert actual.shape == reference.shape, f"{subject}: shape {tuple(actual.shape)}, expected {tuple(reference.shape)}"
    actual, reference = actual.double(), reference.double()
    difference, largest = (
        float(values.abs().max()) if values.numel() else 0.0 for values in (actual - reference, reference)
    )
    assert difference <= tolerance * max(1.0, largest), f"{subject}: {difference:.3g} difference from plain torch"
