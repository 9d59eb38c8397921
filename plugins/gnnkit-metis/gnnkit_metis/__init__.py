"""The partitioner METIS."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pymetis

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, Split
from gnnkit.partition import NodePartitioner, node_weights, undirected
from gnnkit.utils.ranges import one_of
from gnnkit_metis import library

Balance = Literal["nodes", "edges", "train", "all", "classes"]
Objective = Literal["cut", "volume"]
TRIES = 2  # METIS selects the best of these attempts if it balances several sizes. A single attempt may cut 10 % more


class Metis(NodePartitioner):
    """Minimises the edges between parts (Karypis & Kumar, SIAM J. Sci. Comput. 1998).

    Suited to graphs whose ids do not follow their locality. METIS's multilevel k-way
    method cuts the undirected graph. An edge counts once per direction and parallel
    copy. For undirected graphs, the volume is the number of rows exchanged on a 1d
    grid.
    """

    auto_seconds = 0.5

    def __init__(
        self,
        balance: Balance = "nodes",
        imbalance: float = 0.03,
        contiguous: bool = False,
        seed: int = 0,
        objective: Objective = "cut",
    ) -> None:
        """Stores the keys.

        Args:
            balance: Size that the parts share equally: "nodes", in-"edges", "train",
                "all" three, or "classes": all, and each class's training nodes.
            imbalance: Maximum excess of a part over the mean, 0.001 to 1.
            contiguous: Whether all parts must be connected. Requires a connected graph.
            seed: Seed of METIS's random choices.
            objective: Quantity to minimise: the "cut" edges, or the "volume" of rows
                that parts need from others.
        """
        one_of("partition.options.balance", balance, get_args(Balance))
        if not 0.001 <= imbalance <= 1:
            raise UserError(f"partition.options.imbalance={imbalance} must be from 0.001 to 1")
        if not 0 <= seed < 2**31 - 1:
            raise UserError(f"partition.options.seed={seed} must be from 0 to 2^31 - 2")
        self.balance, self.imbalance, self.contiguous, self.seed = balance, imbalance, contiguous, seed
        self.objective = one_of("partition.options.objective", objective, ("cut", "volume"))

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        if graph.num_nodes <= num_parts:  # METIS terminates the process if parts outnumber nodes
            return np.arange(graph.num_nodes, dtype=np.int32)
        if num_parts == 1:
            return np.zeros(graph.num_nodes, np.int32)
        weights = self._node_weights(graph)
        options = pymetis.Options(
            seed=self.seed + 1,  # the C generator treats 0 and 1 as equal
            ufactor=round(self.imbalance * 1000),
            contig=int(self.contiguous),
            objtype=pymetis.ObjType.VOL if self.objective == "volume" else pymetis.ObjType.CUT,
            ncuts=TRIES if weights.shape[1] > 1 else 1,
        )
        try:
            return self._parts(graph, weights, num_parts, options)
        except RuntimeError as error:
            raise UserError(f"METIS rejects this graph: {error}") from error

    def _parts(self, graph: Graph, weights: Ids, num_parts: int, options: pymetis.Options) -> Ids:  # [num_nodes]
        adjacency, between = undirected(graph.csc)
        if self.contiguous and not connected(adjacency):  # METIS rejects this in the first call only
            raise UserError("partition.options.contiguous=True needs a connected graph")
        if weights.shape[1] > 1:
            means = weights.sum(0) / num_parts
            bounds = np.maximum(1 + self.imbalance, np.ceil(means) / means)  # e.g., 7 of 20 nodes in one of 3 parts
            return library.part_graph(adjacency, between, weights, bounds, num_parts, options)
        width = pymetis.zero_copy_dtype()
        parts = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(adjacency.indptr.astype(width), adjacency.indices.astype(width)),
            vweights=weights[:, 0].astype(width),
            eweights=between.astype(width),
            options=options,
            recursive=False,
        )
        return np.asarray(parts.vertex_part, np.int32)

    def _node_weights(self, graph: Graph) -> Ids:  # [num_nodes, num_weights]
        """Returns each node's weights, whose sums are positive.

        If only training nodes are balanced, they weigh as much as all nodes together.
        """
        if self.balance in ("nodes", "edges", "train"):
            return node_weights(graph, self.balance)[:, None]
        nodes, edges = node_weights(graph, "nodes"), node_weights(graph, "edges")
        train = graph.split == Split.TRAIN
        groups = train[:, None] if self.balance == "all" else train[:, None] & _classes(graph)
        weights: Ids = np.concatenate([nodes[:, None], edges[:, None], groups[:, groups.any(0)]], 1, dtype=np.int64)
        return weights


def _classes(graph: Graph) -> npt.NDArray[np.bool_]:  # [num_nodes, num_classes]
    """Returns whether each node has each class.

    Raises `UserError` if the labels are not classes.
    """
    if graph.labels.ndim != 1 or graph.labels.dtype.kind not in "iu":
        raise UserError("partition.options.balance=classes needs one class per node: use balance=all")
    equal: npt.NDArray[np.bool_] = graph.labels[:, None] == np.unique(graph.labels[graph.labels >= 0])
    return equal


def connected(csc: CSC) -> bool:
    """Returns whether an undirected, non-empty graph is connected."""
    reached = np.zeros(csc.num_nodes, bool)
    reached[0], border = True, np.array([0])
    while len(border):
        ends = csc.indices[csc.in_edges(border)[0]]
        border = np.unique(ends[~reached[ends]])
        reached[border] = True
    return bool(reached.all())
