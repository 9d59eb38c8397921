"""METIS as a partition of gnnkit."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pymetis

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, Split
from gnnkit.partition import NodePartitioner
from gnnkit.ranges import one_of

Balance = Literal["nodes", "edges", "train"]
Objective = Literal["cut", "volume"]


class Metis(NodePartitioner):
    """Few edges between parts (Karypis & Kumar, SIAM J. Sci. Comput. 1998).

    Choose this partition where ids do not follow the graph's locality. METIS's
    multilevel k-way method cuts the undirected graph. An edge counts once for each
    direction and each parallel copy. The volume of an undirected graph is the number of
    rows that travel on a 1d grid.
    """

    def __init__(
        self,
        balance: Balance = "nodes",
        imbalance: float = 0.03,
        contiguous: bool = False,
        seed: int = 0,
        objective: Objective = "cut",
    ) -> None:
        """Keeps the keys.

        Args:
            balance: Sizes that the parts share equally: "nodes", in-"edges" or "train".
            imbalance: Share from 0.001 to 1 by which a part may exceed the mean.
            contiguous: Whether every part is connected. The graph must be, too.
            seed: Seed of METIS's random choices.
            objective: What is minimised: the edges that are "cut", or the "volume" of
                rows that parts need from others.
        """
        if not 0.001 <= imbalance <= 1:
            raise UserError(f"partition.options.imbalance={imbalance} must be from 0.001 to 1")
        if not 0 <= seed < 2**31 - 1:
            raise UserError(f"partition.options.seed={seed} must be from 0 to 2^31 - 2")
        self.balance, self.imbalance, self.contiguous, self.seed = balance, imbalance, contiguous, seed
        self.objective = one_of("partition.options.objective", objective, ("cut", "volume"))

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        if graph.num_nodes <= num_parts:  # METIS stops the process where parts outnumber nodes
            return np.arange(graph.num_nodes, dtype=np.int32)
        adjacency, weight = undirected(graph.csc)
        width = pymetis.zero_copy_dtype()
        seed = self.seed + 1  # the generator of C takes 0 and 1 for the same
        try:
            parts = pymetis.part_graph(
                num_parts,
                pymetis.CSRAdjacency(adjacency.indptr.astype(width), adjacency.indices.astype(width)),
                vweights=self._node_weights(graph).astype(width),
                eweights=weight.astype(width),
                options=pymetis.Options(
                    seed=seed,
                    ufactor=round(self.imbalance * 1000),
                    contig=int(self.contiguous),
                    objtype=(pymetis.ObjType.VOL if self.objective == "volume" else pymetis.ObjType.CUT),
                ),
                recursive=False,
            )
        except RuntimeError as error:
            reason = "partition.options.contiguous=True needs a connected graph" if self.contiguous else str(error)
            raise UserError(f"METIS refuses this graph: {reason}") from error
        return np.asarray(parts.vertex_part, np.int32)

    def _node_weights(self, graph: Graph) -> Ids:  # [num_nodes] at least 1
        """Returns the weight of each node.

        The training nodes weigh as much as all nodes together.
        """
        if self.balance == "nodes":
            return np.ones(graph.num_nodes, np.int64)
        if self.balance == "edges":
            return 1 + np.diff(graph.csc.indptr)
        train = graph.split == Split.TRAIN
        weight: Ids = 1 + train * (graph.num_nodes // max(int(np.count_nonzero(train)), 1))
        return weight


def undirected(csc: CSC) -> tuple[CSC, Ids]:
    """Makes the simple undirected graph that METIS needs, and the weights of its edges.

    Each edge stands in both directions. METIS reads outside of its arrays where an id
    is out of range or a direction is missing. `CSC.from_edges` checks every id. The
    result is symmetric, without loops and parallel edges.
    """
    dst = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
    apart = csc.indices != dst
    src, dst = csc.indices[apart], dst[apart]
    both = CSC.from_edges(np.concatenate([src, dst]), np.concatenate([dst, src]), csc.num_nodes)
    rows = np.repeat(np.arange(both.num_nodes), np.diff(both.indptr))
    first = np.ones(both.num_edges, bool)  # from_edges sorts each row, so copies of an edge stand together
    first[1:] = (np.diff(rows) != 0) | (np.diff(both.indices) != 0)
    starts = np.flatnonzero(first)
    weight: Ids = np.diff(starts, append=both.num_edges)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(rows[starts], minlength=both.num_nodes))])
    return CSC(indptr, both.indices[starts]), weight
