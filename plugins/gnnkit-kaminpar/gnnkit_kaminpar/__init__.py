"""The partitioner KaMinPar."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from gnnkit.graph import CSC, Graph, Ids
from gnnkit.partition import Balance, NodePartitioner, node_weights, undirected
from gnnkit.utils.ranges import one_of, real, whole
from gnnkit.utils.storage import open_file

try:
    import kaminpar
except ModuleNotFoundError as error:
    raise ImportError("KaMinPar is not installed: pip install kaminpar") from error

Preset = Literal["fast", "default", "eco", "strong"]


class KaMinPar(NodePartitioner):
    """Minimises the edges between parts (Gottesbueren et al., ESA 2021).

    An alternative if METIS needs too much memory or cuts more edges. Deep multilevel
    partitioning cuts the undirected graph. An edge counts once per direction and
    parallel copy. KaMinPar runs on one thread, since its parts differ between calls on
    several.
    """

    auto_seconds = 1.3

    def __init__(
        self, balance: Balance = "nodes", imbalance: float = 0.03, preset: Preset = "eco", seed: int = 0
    ) -> None:
        """Checks the keys.

        Args:
            balance: Size that the parts share equally: "nodes", in-"edges" or "train".
            imbalance: Maximum excess of a part over the mean, 0.001 to 1.
            preset: "fast", "default", "eco" or "strong". Later ones refine longer.
            seed: Seed of KaMinPar's random choices, 0 to 2^31 - 1.
        """
        self.balance = one_of("partition.options.balance", balance, get_args(Balance))
        self.imbalance = real("partition.options.imbalance", imbalance, 0.001, 1)
        self.preset = one_of("partition.options.preset", preset, get_args(Preset))
        self.seed = whole("partition.options.seed", seed, 0, 2**31 - 1)

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        if num_parts == 1 or graph.num_nodes <= num_parts:
            return np.arange(graph.num_nodes, dtype=np.int32) % num_parts
        # This also limits the threads of the reader, which would otherwise take part in
        # the partitioning for a while.
        library = kaminpar.KaMinPar(1, kaminpar.context_by_name(self.preset))
        with tempfile.TemporaryDirectory(prefix="gnnkit-kaminpar-") as folder:
            path = Path(folder) / "graph"
            write_parhip(path, *undirected(graph.csc), node_weights(graph, self.balance))
            # Compression would need less memory, but give several results per seed.
            read = kaminpar.load_graph(str(path), kaminpar.GraphFileFormat.PARHIP)
        kaminpar.reseed(self.seed)
        return np.array(library.compute_partition(read, k=num_parts, eps=self.imbalance), np.int32)


def write_parhip(path: Path, adjacency: CSC, edge_weights: Ids, weights: Ids) -> None:
    """Writes a graph in ParHIP's binary format, the only one that is read fast.

    Raises `OSError` that names the file.

    Args:
        path: New file, with 16 bytes per edge and node.
        adjacency: Simple and symmetric.
        edge_weights: [num_edges] at least 1.
        weights: [num_nodes] at least 1.
    """
    begin = 8 * (3 + len(adjacency.indptr))  # offset of the first neighbour
    head = [0, adjacency.num_nodes, adjacency.num_edges]  # 0: 64-bit numbers, with both kinds of weights
    with open_file(path) as file:
        for array in (head, begin + 8 * adjacency.indptr, adjacency.indices, weights, edge_weights):
            file.write(np.ascontiguousarray(array, np.int64).data)
