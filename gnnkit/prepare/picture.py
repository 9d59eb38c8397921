"""The file `partition.json`: a partition's statistics and a sample of the graph."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from gnnkit.graph import Graph, Ids, Split
from gnnkit.partition.base import Partition
from gnnkit.result.folder import PICTURE
from gnnkit.utils.documents import Json
from gnnkit.utils.storage import write_atomically

MAX_RANKS = 256  # of matrices by pairs of ranks
COUNTED_EDGES = 5_000_000  # in larger graphs, edges are counted on a sample of nodes
DRAWN_NODES, DRAWN_EDGES = 300, 900  # maximum size of the sample


def save(graph: Graph, partition: Partition, folder: Path) -> None:
    """Writes the statistics and the sample into the run folder."""
    write_atomically(folder / PICTURE, json.dumps(describe(graph, partition)).encode())


def describe(graph: Graph, partition: Partition) -> Json:
    """Counts nodes by owner and edges between owners, and draws a sample."""
    owner, num_ranks = partition.node_rank, partition.grid.world_size
    share = min(COUNTED_EDGES / max(graph.num_edges, 1), 1.0)
    num_counted, cut, pairs = _count_edges(graph, owner, _sample_nodes(graph.num_nodes, share), num_ranks)
    numbers: Json = {
        "num_nodes": graph.num_nodes,
        "num_edges": graph.num_edges,
        "nodes": np.bincount(owner, minlength=num_ranks).tolist(),
        "train_nodes": np.bincount(owner[graph.split == Split.TRAIN], minlength=num_ranks).tolist(),
        "counted_edges": num_counted,
        "cut": cut,
    }
    if num_ranks <= MAX_RANKS:  # [num_ranks, num_ranks] edges by owners of source and destination
        numbers["edges"] = pairs.reshape(num_ranks, num_ranks).tolist()
    if graph.schema.several:
        counts = [graph.num_edges] if graph.edge_types is None else np.bincount(graph.edge_types).tolist()
        numbers["schema"] = {**replace(graph.schema, feature_tables=None).as_plain(), "edges": counts}
    return numbers | {"sample": _draw_sample(graph, owner)}


def _count_edges(graph: Graph, owner: Ids, nodes: Ids, num_ranks: int) -> tuple[int, int, Ids]:
    """Counts the in-edges of some nodes, and the cut edges among them.

    Also returns the counts by owners of source and destination, [num_ranks *
    num_ranks], for up to `MAX_RANKS` ranks.
    """
    size = num_ranks**2 if num_ranks <= MAX_RANKS else 0
    num_counted, cut, pairs = 0, 0, np.zeros(size, np.int64)
    for part in np.array_split(nodes, max(_total_degree(graph, nodes) // (1 << 19), 1)):
        src, dst = (owner[ends] for ends in _in_edges(graph, part))
        num_counted, cut = num_counted + len(src), cut + int(np.count_nonzero(src != dst))
        if size:
            pairs += np.bincount(src.astype(np.int64) * num_ranks + dst, minlength=size)
    return num_counted, cut, pairs


def _sample_nodes(num_nodes: int, share: float) -> Ids:
    """Returns all nodes, or a random sample of about the given share."""
    if share >= 1:
        return np.arange(num_nodes)
    count = max(int(share * num_nodes), 1)
    return np.unique(np.random.default_rng(0).integers(0, num_nodes, count))


def _in_edges(graph: Graph, nodes: Ids) -> tuple[Ids, Ids]:
    """Returns sources and destinations of the nodes' in-edges."""
    positions, degrees = graph.csc.in_edges(nodes)
    return graph.csc.indices[positions], np.repeat(nodes, degrees)


def _draw_sample(graph: Graph, owner: Ids) -> Json:
    """Samples nodes and edges: all of a small graph, otherwise neighbourhoods.

    Neighbourhoods are searched breadth-first from random nodes, so the sample has
    edges. At most 6 sources of each node are followed.
    """
    rng = np.random.default_rng(0)
    nodes = np.arange(graph.num_nodes) if graph.num_nodes <= DRAWN_NODES else _sample_neighbourhoods(graph, rng)
    place = {int(node): index for index, node in enumerate(nodes)}
    src, dst = _in_edges(graph, nodes) if _total_degree(graph, nodes) <= COUNTED_EDGES else (nodes[:0], nodes[:0])
    inside = np.isin(src, nodes) & (src != dst)
    edges = [[place[int(s)], place[int(d)]] for s, d in zip(src[inside], dst[inside], strict=True)]
    if len(edges) > DRAWN_EDGES:
        edges = [edges[index] for index in rng.choice(len(edges), DRAWN_EDGES, replace=False)]
    classes = {"class": graph.labels[nodes].tolist()} if graph.labels.dtype.kind == "i" else {}
    of_nodes = {"nodes": nodes.tolist(), "rank": owner[nodes].tolist(), **classes}
    return {**of_nodes, "edges": edges, "whole": graph.num_nodes <= DRAWN_NODES}


def _total_degree(graph: Graph, nodes: Ids) -> int:
    return int((graph.csc.indptr[nodes + 1] - graph.csc.indptr[nodes]).sum())


def _sample_neighbourhoods(graph: Graph, rng: np.random.Generator) -> Ids:  # [DRAWN_NODES] at most
    """Samples nodes breadth-first, following a few sources of each."""
    nodes: dict[int, None] = {}
    waiting = rng.choice(graph.num_nodes, min(6, graph.num_nodes), replace=False).tolist()
    while len(nodes) < DRAWN_NODES:
        node = waiting.pop(0) if waiting else int(rng.integers(graph.num_nodes))
        if node in nodes:
            continue
        nodes[node] = None
        low, high = int(graph.csc.indptr[node]), int(graph.csc.indptr[node + 1])
        if high > low:
            waiting += graph.csc.indices[rng.integers(low, high, min(high - low, 6))].tolist()
    return np.array(list(nodes))
