"""Counts the words, messages and memory of one step, from a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from gnnkit.engine.relations import num_pairs
from gnnkit.exchange.tally import Exchange, Step
from gnnkit.graph import Graph, Ids, SparseFeatures
from gnnkit.partition.base import Partition
from gnnkit.partition.degrees import looped
from gnnkit.partition.quality import Quality
from gnnkit.partition.shard import cut_all
from gnnkit.partition.traffic import Traffic, column_shares
from gnnkit_plan.trial import Sizes, TrialInputs, activations, exchanges, small_grid


@dataclass(frozen=True, slots=True, eq=False)
class Volume:
    """The words and messages of one training step."""

    words: dict[tuple[int, Step], Ids]  # (layer, step) -> [world_size] received
    messages: Ids  # [world_size] sent
    bytes_sent: Ids  # [world_size]

    @property
    def received(self) -> Ids:  # [world_size]
        """Words received in all exchanges."""
        return sum(self.words.values(), np.zeros_like(self.messages))


def volume(traffic: Traffic, held_edges: Sequence[int], by_slice: Sequence[Sequence[Exchange]]) -> Volume:
    """Counts the words and messages of each rank in one step.

    Args:
        traffic: Rows exchanged between the shards, including added self-loops.
        held_edges: [world_size] number of edges per shard, including added self-loops.
        by_slice: [slices] the step's exchanges, in order, for a rank of each slice.
    """
    size = traffic.grid.world_size
    words: dict[tuple[int, Step], Ids] = {}
    messages, bytes_sent = np.zeros((2, size), np.int64)
    for rank in range(size):
        for exchange in by_slice[rank % traffic.grid.slices]:
            send, recv = _words(exchange, traffic, held_edges[rank], rank)
            totals = words.setdefault((exchange.layer, exchange.step), np.zeros(size, np.int64))
            totals[rank] += recv.sum()
            messages[rank] += np.count_nonzero(send)
            bytes_sent[rank] += exchange.itemsize * send.sum()
    return Volume(words, messages, bytes_sent)


def _words(exchange: Exchange, traffic: Traffic, held_edges: int, rank: int) -> tuple[Ids, Ids]:
    """Counts the words sent to and received from each rank of the plane or cell."""
    cell, place = divmod(rank, traffic.grid.slices)
    if exchange.kind in ("gather", "gather_back", "reduce", "reduce_back"):
        rows = traffic.gather_rows if exchange.kind.startswith("gather") else traffic.reduce_rows
        words = exchange.heads * exchange.width
        send, recv = rows[:, cell] * words, rows[cell] * words
        return (recv, send) if exchange.kind.endswith("back") else (send, recv)
    peers = np.delete(np.arange(traffic.grid.slices), place)
    if exchange.kind in ("add_up", "hand_out"):
        counts = column_shares(held_edges * exchange.width, traffic.grid.slices)
        mine = np.full(len(peers), counts[place])
        return (counts[peers], mine) if exchange.kind == "add_up" else (mine, counts[peers])
    num_owned = traffic.num_owned.reshape(-1, traffic.grid.slices)[cell]
    if exchange.kind in ("replicate", "add_rows"):
        outward, back = np.full(len(peers), num_owned[place]) * exchange.width, num_owned[peers] * exchange.width
        return (outward, back) if exchange.kind == "replicate" else (back, outward)
    shares = exchange.heads * column_shares(exchange.width, traffic.grid.slices)
    outward, back = num_owned[place] * shares[peers], num_owned[peers] * shares[place]
    return (outward, back) if exchange.kind == "cut" else (back, outward)


def step_volume(
    graph: Graph,
    model: nn.Module,
    quality: Quality,
    *,
    keeps_sums: bool = False,
    inputs: torch.dtype | None = None,
) -> tuple[Volume, list[Sizes]]:
    """Counts a step's exchanges, and the sizes of each rank's share.

    Sizes include added self-loops. The run's first step may exchange more.

    Args:
        graph: The full graph.
        model: The model.
        keeps_sums: Whether sums over constant input rows are cached. Default: False.
        inputs: dtype of input rows. Default: the parameters' dtype.

    Returns:
        The exchanges of all ranks, and the sizes by rank.
    """
    sizes, traffic = _sizes(graph, model, quality), quality.traffic
    rows = TrialInputs(*graph_widths(graph), inputs, keeps_sums)

    def of_slice(slice_: int) -> list[Exchange]:
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


def _sizes(graph: Graph, model: nn.Module, quality: Quality) -> list[Sizes]:
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


def _pairs(graph: Graph, model: nn.Module, partition: Partition) -> Ids:  # [world_size]
    """Counts the distinct (row, relation) pairs, 0 if the model reads no relations."""
    if not getattr(model, "reads_relations", False):
        return np.zeros(partition.grid.world_size, np.int64)
    inverse: bool = getattr(model, "inverse", False)
    plain = graph.evolve(features=np.empty((graph.num_nodes, 0), np.float32), edge_features=None)
    loops = getattr(model, "self_loops", False)
    shards = (shard.with_self_loops() if loops else shard for shard in cut_all(plain, partition))
    return np.array([num_pairs(shard, inverse=inverse) for shard in shards])


def reads_sparse_rows(graph: Graph, model: nn.Module) -> bool:
    """Returns whether the model reads sparse input rows."""
    return isinstance(graph.features, SparseFeatures) and getattr(model, "reads_sparse", False)


def graph_widths(graph: Graph) -> tuple[int, int]:
    """Returns the widths of node and edge features."""
    return graph.features.shape[1], 0 if graph.edge_features is None else graph.edge_features.shape[1]
