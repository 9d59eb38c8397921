"""A smaller graph that looks like a given one to each rank."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gnnkit.graph import CSC, Graph, Ids
from gnnkit.partition.base import Partition, hash_ids

_DRAW = 11  # key of the draw of nodes


def sampled(graph: Graph, partition: Partition, share: float) -> tuple[Graph, Partition]:
    """Returns a graph with a share of each rank's nodes, and all in-edges of these.

    The nodes of a rank are cut into runs, in order of id, and one node of each run is
    drawn. An edge from a node that is not drawn comes from the drawn node of the same
    run. So degrees and shares of edges between ranks are about those of the graph, and
    edges that lead far lead far here.

    Args:
        graph: The graph.
        partition: The partition of the graph.
        share: Share of the nodes in (0, 1]. 1: returns both as they are.
    """
    if share == 1:
        return graph, partition
    nodes, run = _draw(partition.node_rank, partition.grid.world_size, share)
    degree = np.diff(graph.csc.indptr)[nodes]
    indptr = np.concatenate([[0], np.cumsum(degree)])
    edges = np.repeat(graph.csc.indptr[nodes] - indptr[:-1], degree) + np.arange(indptr[-1])
    columns = graph.edge_columns.without("position").take(edges)
    smaller = replace(
        graph,
        csc=CSC(indptr, run[graph.csc.indices[edges]], columns.get("weight")),
        features=graph.features[nodes],
        labels=graph.labels[nodes],
        split=graph.split[nodes],
        coordinates=None,
        node_types=None,
        feature_tables=None,
        relations=None,
        val_edges=None,
        test_edges=None,
        **columns.fields_of(Graph),
    )
    cells = None if partition.edge_cell is None else partition.edge_cell[edges]
    return smaller, Partition(partition.node_rank[nodes], cells, partition.grid)


def _draw(owner: Ids, num_ranks: int, share: float) -> tuple[Ids, Ids]:
    """Draws one node of each run.

    Args:
        owner: [num_nodes] rank of each node.
        num_ranks: Number of ranks.
        share: Nodes drawn of all.

    Returns:
        [num_drawn] ids of the drawn nodes, and [num_nodes] the run of each node, which
        is the position of its drawn node.
    """
    counts = np.bincount(owner, minlength=num_ranks)
    runs = np.ceil(counts * share).astype(np.int64)  # of each rank
    order = np.argsort(owner, kind="stable")
    place = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
    of_rank = np.repeat(np.arange(num_ranks), counts)
    first_run = np.cumsum(runs) - runs
    group = first_run[of_rank] + place * runs[of_rank] // np.maximum(counts[of_rank], 1)  # ascending along `order`
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    lengths = np.diff(starts, append=len(group))
    draws = hash_ids(len(starts), key=_DRAW) % np.maximum(lengths, 1).astype(np.uint64)
    drawn = order[starts + draws.astype(np.int64)]
    # The ids of the smaller graph keep the order of the larger one's.
    by_id = np.argsort(drawn)
    position = np.empty(len(drawn), np.int64)
    position[by_id] = np.arange(len(drawn))
    run = np.empty(len(owner), np.int64)
    run[order] = position[group]
    return drawn[by_id], run
