"""The partitioner Mt-KaHyPar."""

from __future__ import annotations

import functools
from typing import Any, get_args

import mtkahypar
import numpy as np

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids
from gnnkit.partition import Balance, NodePartitioner, node_weights
from gnnkit.utils.ranges import MAX_THREADS, one_of, real, whole


class MtKaHyPar(NodePartitioner):
    """Minimises the words on a 1d grid (Gottesbueren et al., ALENEX 2021).

    Suited to runs with many epochs, as partitioning may take minutes. Each node is a
    net with the nodes that read its row, so the connectivity of the nets equals the
    number of exchanged rows. The deterministic preset yields the same parts on any
    number of threads and for any seed.
    """

    def __init__(self, balance: Balance = "edges", imbalance: float = 0.03, threads: int = 1) -> None:
        """Checks the keys.

        Args:
            balance: Size that the parts share equally: "nodes", in-"edges" or "train".
            imbalance: Maximum excess of a part over the mean, 0.001 to 1.
            threads: Number of threads. The process's first call fixes it.
        """
        self.balance = one_of("partition.options.balance", balance, get_args(Balance))
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)
        self.threads = whole("partition.options.threads", threads, 1, MAX_THREADS)

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        if num_parts == 1 or graph.num_nodes <= num_parts:
            return np.arange(graph.num_nodes, dtype=np.int32) % num_parts
        library, graph_nets = _library(self.threads), nets(graph.csc)
        context = library.context_from_preset(mtkahypar.PresetType.DETERMINISTIC)
        context.set_partitioning_parameters(num_parts, self.imbalance, mtkahypar.Objective.KM1)
        context.logging = False
        weights, ones = node_weights(graph, self.balance).tolist(), [1] * len(graph_nets)
        try:
            whole_graph = library.create_hypergraph(
                context, graph.num_nodes, len(graph_nets), graph_nets, weights, ones
            )
            parts = whole_graph.partition(context).get_partition()
        except (mtkahypar.InvalidInputError, mtkahypar.InvalidParameterError) as error:
            raise UserError(f"Mt-KaHyPar rejects this graph: {error}") from error
        return np.asarray(parts, np.int32)


def nets(csc: CSC) -> list[list[int]]:
    """Lists each node that others read, followed by the nodes that read it."""
    turned = csc.transpose()[0]
    graph_nets = []
    for node in range(csc.num_nodes):
        readers = np.unique(turned.indices[turned.indptr[node] : turned.indptr[node + 1]])
        readers = readers[readers != node]
        if len(readers):
            graph_nets.append([node, *readers.tolist()])
    return graph_nets


@functools.cache
def _library(threads: int) -> Any:
    return mtkahypar.initialize(threads, print_warnings=False)
