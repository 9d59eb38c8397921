"""The contract of partitioners."""

from __future__ import annotations

import copy

import numpy as np

from gnnkit.graph import Graph
from gnnkit.partition import Grid, Partitioner, cut_all
from gnnkit_testing.arguments import check_instance
from gnnkit_testing.graphs import example_graphs


def check_partitioner(partitioner: Partitioner) -> None:
    """Checks a partitioner on graphs that cover all corner cases, on 1 to 8 ranks.

    One graph has no nodes, and another no edges. Every node must have one owner and
    every edge one cell, the same in every call. Raises `AssertionError` for the first
    violation. The graphs have coordinates, edge weights and edge features, which some
    partitioners use.
    """
    check_instance(partitioner, Partitioner)
    for graph in example_graphs():
        before = copy.deepcopy(graph)
        for shape in ((1, 1, 1), (3, 1, 1), (2, 2, 1), (1, 3, 1), (2, 2, 2)):
            _check_partition(partitioner, graph, Grid(*shape))
        if not partitioner.reads_grid:
            first, second = (partitioner.assign(graph, Grid(*shape)).node_rank for shape in ((4, 1, 1), (2, 1, 2)))
            assert np.array_equal(first, second), f"{graph.num_nodes} nodes: reads_grid is False, and owners differ"
        for name in ("indptr", "indices"):
            assert np.array_equal(getattr(graph.csc, name), getattr(before.csc, name)), "the graph must not change"


def _check_partition(partitioner: Partitioner, graph: Graph, grid: Grid) -> None:
    partition, again = partitioner.assign(graph, grid), partitioner.assign(graph, grid)
    case = f"{graph.num_nodes} nodes on {grid}"
    assert partition.grid == grid, f"{case}: another grid"
    assert partition.node_rank.shape == (graph.num_nodes,), f"{case}: one owner for each node"
    assert partition.node_rank.dtype == np.int32, f"{case}: owners are int32"
    assert np.array_equal(partition.node_rank, again.node_rank), f"{case}: other owners in the second call"
    cells = partition.cells_of_edges(graph)
    assert np.array_equal(cells, again.cells_of_edges(graph)), f"{case}: other cells in the second call"
    shards = list(cut_all(graph, partition))
    nodes = np.sort(np.concatenate([shard.owned for shard in shards]))
    assert np.array_equal(nodes, np.arange(graph.num_nodes)), f"{case}: every node has one owner"
    edges = np.sort(np.concatenate([shard.edge_ids for shard in shards if shard.slice == 0]))
    assert np.array_equal(edges, np.arange(graph.num_edges)), f"{case}: every edge has one cell"
