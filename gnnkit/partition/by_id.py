"""Partitioners that read node ids and degrees, but no neighbours."""

from __future__ import annotations

import numpy as np

from gnnkit.graph import Graph, Ids
from gnnkit.partition.base import NodePartitioner, hash_ids


class Contiguous(NodePartitioner):
    """Ranges of consecutive node ids. The first n mod P parts get one more.

    Choose this partition if ids follow the graph's locality. Each node type is divided
    separately, so that all parts hold nodes of all types, and training nodes.
    """

    auto_seconds = 0.0
    reads_edges = False

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        parts, sizes = np.arange(num_parts, dtype=np.int32), graph.type_sizes or (graph.num_nodes,)
        ranges = [np.repeat(parts, count // num_parts + (parts < count % num_parts)) for count in sizes]
        return np.concatenate(ranges)


class Balanced(NodePartitioner):
    """Ranges of consecutive node ids with equal cost, 1 + in-degree per node.

    Choose this partition for skewed degrees. A node belongs to the part that contains
    the midpoint of its cost, so a part's deviation from the mean is below its largest
    node's cost. Numbers of held edges are equal on P x 1 grids only, because columns
    divide sources.
    """

    auto_seconds = 0.005

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        end = graph.csc.indptr[1:] + np.arange(1, graph.num_nodes + 1)
        twice_middle = end + np.concatenate([[0], end[:-1]])[: graph.num_nodes]
        total = graph.num_edges + graph.num_nodes
        return (twice_middle * num_parts // (2 * total)).astype(np.int32) if total else np.empty(0, np.int32)


class Hash(NodePartitioner):
    """A hash of the node id, modulo the number of parts.

    Parts are balanced in expectation, for any order of ids. Owners follow from ids
    alone, so no table is read and any process can compute them. Choose it if ids have
    no locality.
    """

    reads_edges = False

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        return (hash_ids(graph.num_nodes, key=0) % np.uint64(num_parts)).astype(np.int32)


class Random(NodePartitioner):
    """A random permutation cut into equal parts. The first n mod P parts get one more.

    Its nodes are balanced best. Use it as a baseline.
    """

    reads_edges = False

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        size, remainder = divmod(graph.num_nodes, num_parts)
        ranks = np.empty(graph.num_nodes, np.int32)
        order = np.argsort(hash_ids(graph.num_nodes, key=self.seed + 1), kind="stable")
        ranks[order] = np.repeat(np.arange(num_parts, dtype=np.int32), size + (np.arange(num_parts) < remainder))
        return ranks
