"""The contract of node orders."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import ShardAdjacency
from gnnkit.graph import Graph
from gnnkit.model.gcn import GCN
from gnnkit.partition import Grid
from gnnkit.partition.order import NodeOrder, renumbered
from gnnkit.partition.shard import uncut
from gnnkit.strategy import Worker
from gnnkit_testing.arguments import check_instance
from gnnkit_testing.graphs import CLASSES, WIDTH, check_graph, example_graphs
from gnnkit_testing.ranks import GRIDS, ONE, assert_close, by_node, on_ranks


def check_order(order: NodeOrder) -> None:
    """Checks an order on graphs that cover all corner cases, on grids of 1 to 4 ranks.

    The order must be a permutation, deterministic, and must not modify its input. A
    GCN's logits and gradients must be those of one rank with nodes ordered by id.
    Raises `AssertionError` for the first violation.

    Examples:
        >>> from gnnkit.partition.order import Degree
        >>> from gnnkit.testing import check_order
        >>> check_order(Degree())
    """
    check_instance(order, NodeOrder)
    for graph in example_graphs():
        shard, before = uncut(graph), copy.deepcopy(graph)
        first, second = renumbered(shard, order), renumbered(shard, order)
        assert np.array_equal(first.owned, second.owned), f"{graph.num_nodes} nodes: another order in the second call"
        for name in ("indptr", "indices"):
            assert np.array_equal(getattr(graph.csc, name), getattr(before.csc, name)), "the graph must not change"
    graph = check_graph()
    reference = _logits_and_gradients(graph, ONE, None)
    for grid in (ONE, *GRIDS):
        for actual, right in zip(_logits_and_gradients(graph, grid, order), reference, strict=True):
            assert_close(actual, right, f"logits and gradients on {grid}")


def _logits_and_gradients(graph: Graph, grid: Grid, order: NodeOrder | None) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    model = GCN(WIDTH, CLASSES, hidden=4).double()

    def work(worker: Worker) -> tuple[Tensor, Tensor, Tensor]:
        replica = copy.deepcopy(model)
        engine = replace(worker, order=order).engine(replica)
        x = worker.features.rows(engine.shard.owned)
        logits = replica(x, ShardAdjacency.layers(engine, replica.num_layers, 0))
        weight = torch.sin(engine.topology.nodes[:, None] + torch.arange(CLASSES)).double()
        (logits * weight).sum().backward()
        gradient = torch.cat(
            [parameter.grad.flatten() for parameter in replica.parameters() if parameter.grad is not None]
        )
        return engine.topology.nodes, logits.detach(), worker.comm.all_reduce(gradient)

    rank_results = on_ranks(graph, grid, work)
    return by_node([(nodes, logits) for nodes, logits, _ in rank_results]), rank_results[0][2]
