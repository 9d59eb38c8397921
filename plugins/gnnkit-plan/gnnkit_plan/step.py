"""Counts the words, messages and memory of one step, from a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit.engine.relations import num_pairs
from gnnkit.exchange.tally import Exchange
from gnnkit.graph import Graph, Ids, SparseFeatures, Split
from gnnkit.model.program import Nodes, Program, is_iterated
from gnnkit.partition.base import Partition
from gnnkit.partition.loops import looped
from gnnkit.partition.quality import Quality
from gnnkit.partition.shard import cut_all
from gnnkit.partition.traffic import Traffic
from gnnkit_plan.trial import ModelTrial, Sizes, TrialInputs, activations, exchanges, small_grid
from gnnkit_plan.volume import Volume, volume


def step_volume(
    graph: Graph,
    model: nn.Module | Program,
    quality: Quality,
    *,
    keeps_sums: bool = False,
    inputs: torch.dtype | None = None,
) -> tuple[Volume, list[Sizes]]:
    """Counts a step's exchanges, and the sizes of each rank's share.

    Sizes include added self-loops. The run's first step may exchange more.

    Args:
        graph: The full graph.
        model: A trainable model, or a program.
        keeps_sums: Whether sums over constant input rows are cached. Default: False.
        inputs: dtype of input rows. Default: the parameters' dtype, or float64 for a
            program.

    Returns:
        The exchanges of all ranks, and the sizes by rank.
    """
    sizes, traffic = _sizes(graph, model, quality), quality.traffic
    rows = TrialInputs(*graph_widths(graph), inputs, keeps_sums)

    def of_slice(slice_: int) -> list[Exchange]:
        if is_iterated(model):
            return program_step(model, graph, traffic, slice_, inputs or torch.float64)[0]
        return exchanges(model, rows, small_grid(traffic), slice_)

    by_slice = _map_slices(traffic.grid.slices, of_slice)
    return volume(traffic, [size.edges for size in sizes], by_slice), sizes


def step_activations(
    graph: Graph, model: nn.Module, traffic: Traffic, sizes: Sequence[Sizes], inputs: torch.dtype | None = None
) -> Ids:
    """Counts the bytes that each rank saves for a step's backward pass.

    Excludes the values of sparse input rows.

    Args:
        graph: The full graph.
        model: The model, in training precision.
        traffic: Rows exchanged between the shards.
        sizes: The sizes by rank, from `step_volume`.
        inputs: dtype of input rows. Default: the parameters' dtype.

    Returns:
        [world_size] bytes.
    """
    rows, slices = TrialInputs(*graph_widths(graph), inputs), traffic.grid.slices
    sparse = reads_sparse_rows(graph, model)
    by_slice = _map_slices(slices, lambda s: activations(model, rows, small_grid(traffic), s, sparse=sparse).tolist())
    return np.array([np.dot(by_slice[rank % slices], [*astuple(size), 1]) for rank, size in enumerate(sizes)], np.int64)


def _map_slices(slices: int, evaluate: Callable[[int], list[Any]]) -> list[list[Any]]:
    """Evaluates a function for every slice, with few calls if there are many slices.

    Slices have decreasing numbers of columns. If two slices have equal counts, so have
    all slices between them.
    """
    results = {last: evaluate(last) for last in {0, slices - 1}}
    between = [(0, slices - 1)]
    while between:
        first, last = between.pop()
        if results[first] == results[last]:
            results |= dict.fromkeys(range(first, last), results[first])
        elif last - first > 1:
            middle = (first + last) // 2
            results[middle] = evaluate(middle)
            between += [(first, middle), (middle, last)]
    return [results[place] for place in range(slices)]


@torch.no_grad()
def program_step(
    program: Program, graph: Graph, traffic: Traffic, slice_: int, dtype: torch.dtype = torch.float64
) -> tuple[list[Exchange], int]:
    """Runs one step of a program on a single node.

    Args:
        graph: The full graph, for widths and counts.
        traffic: Rows exchanged between the shards.
        slice_: The rank's slice.
        dtype: dtype of the values. Default: float64.

    Returns:
        The exchanges of a rank in this slice, in order, and the width of the values.
    """
    rows = TrialInputs(*graph_widths(graph))
    trial = ModelTrial(program, small_grid(traffic), slice_, rows, dtype)
    num_owned = len(trial.engine.shard.owned)
    nodes = Nodes(
        trial.adjacencies(1)[0],
        trial.comm,
        graph.num_nodes,
        graph.num_classes,
        features=torch.zeros(num_owned, rows.width, dtype=dtype),
        labels=torch.zeros(num_owned, dtype=torch.int64),
        split=torch.full((num_owned,), Split.TRAIN, dtype=torch.int8),
    )
    x = program.start(nodes)
    trial.take_exchanges()  # the exchanges of `start` are not counted in a run either
    values = program.step(x, nodes)
    return trial.take_exchanges(), values.shape[1]


def _sizes(graph: Graph, model: nn.Module | Program, quality: Quality) -> list[Sizes]:
    """Counts the rows and edges of each rank."""
    traffic, grid = quality.traffic, quality.partition.grid
    cell = np.arange(grid.world_size) // grid.slices
    cell_nodes = traffic.num_owned.reshape(grid.num_cells, grid.slices).sum(axis=1)
    edges = quality.num_held
    if getattr(model, "self_loops", False):
        without = quality.partition.node_rank[~looped(graph.csc)] // grid.slices
        edges = edges + np.bincount(without, minlength=grid.num_cells)[cell]
    pairs = _pairs(graph, model, quality.partition)
    by_kind = (
        *(traffic.num_owned, cell_nodes[cell], traffic.reduce_rows.sum(axis=0)[cell]),
        *(edges, traffic.gather_rows.sum(axis=1)[cell], pairs),
    )
    return [Sizes(*numbers) for numbers in np.array(by_kind).T.tolist()]


def _pairs(graph: Graph, model: nn.Module | Program, partition: Partition) -> Ids:  # [world_size]
    """Counts the distinct (row, relation) pairs, 0 if the model reads no relations."""
    if not getattr(model, "reads_relations", False):
        return np.zeros(partition.grid.world_size, np.int64)
    inverse: bool = getattr(model, "inverse", False)
    plain = graph.evolve(features=np.empty((graph.num_nodes, 0), np.float32), edge_features=None)
    loops = getattr(model, "self_loops", False)
    shards = (shard.with_self_loops() if loops else shard for shard in cut_all(plain, partition))
    return np.array([num_pairs(shard, inverse=inverse) for shard in shards])


def reads_sparse_rows(graph: Graph, model: nn.Module | Program) -> bool:
    """Returns whether the model reads sparse input rows."""
    return isinstance(graph.features, SparseFeatures) and getattr(model, "reads_sparse", False)


def graph_widths(graph: Graph) -> tuple[int, int]:
    """Returns the widths of node and edge features."""
    return graph.features.shape[1], 0 if graph.edge_features is None else graph.edge_features.shape[1]
