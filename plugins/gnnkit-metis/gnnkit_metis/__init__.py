"""METIS as a partition of gnnkit."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import pymetis

from gnnkit.errors import UserError
from gnnkit.graph import CSC, Graph, Ids, Split
from gnnkit.partition import NodePartitioner, node_weights, undirected
from gnnkit.ranges import one_of
from gnnkit_metis import library

Balance = Literal["nodes", "edges", "train", "all", "classes"]
Objective = Literal["cut", "volume"]
TRIES = 2  # cuts of which METIS keeps the best, with several sizes to balance: one alone may cut a tenth more


class Metis(NodePartitioner):
    """Few edges between parts (Karypis & Kumar, SIAM J. Sci. Comput. 1998).

    Choose this partition where ids do not follow the graph's locality. METIS's
    multilevel k-way method cuts the undirected graph. An edge counts once for each
    direction and each parallel copy. The volume of an undirected graph is the number of
    rows that travel on a 1d grid.
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
        """Keeps the keys.

        Args:
            balance: Sizes that the parts share equally: "nodes", in-"edges" or "train",
                "all" three, or "classes": all, and the training nodes of each class.
            imbalance: Share from 0.001 to 1 by which a part may exceed the mean.
            contiguous: Whether every part is connected. The graph must be, too.
            seed: Seed of METIS's random choices.
            objective: What is minimised: the edges that are "cut", or the "volume" of
                rows that parts need from others.
        """
        one_of("partition.options.balance", balance, get_args(Balance))
        if not 0.001 <= imbalance <= 1:
            raise UserError(f"partition.options.imbalance={imbalance} must be from 0.001 to 1")
        if not 0 <= seed < 2**31 - 1:
            raise UserError(f"partition.options.seed={seed} must be from 0 to 2^31 - 2")
        self.balance, self.imbalance, self.contiguous, self.seed = balance, imbalance, contiguous, seed
        self.objective = one_of("partition.options.objective", objective, ("cut", "volume"))

    def assign_nodes(self, graph: Graph, num_parts: int) -> Ids:  # [num_nodes]
        if graph.num_nodes <= num_parts:  # METIS stops the process where parts outnumber nodes
            return np.arange(graph.num_nodes, dtype=np.int32)
        if num_parts == 1:
            return np.zeros(graph.num_nodes, np.int32)
        weights = self._node_weights(graph)
        options = pymetis.Options(
            seed=self.seed + 1,  # the generator of C takes 0 and 1 for the same
            ufactor=round(self.imbalance * 1000),
            contig=int(self.contiguous),
            objtype=pymetis.ObjType.VOL if self.objective == "volume" else pymetis.ObjType.CUT,
            ncuts=TRIES if weights.shape[1] > 1 else 1,
        )
        try:
            return self._parts(graph, weights, num_parts, options)
        except RuntimeError as error:
            raise UserError(f"METIS refuses this graph: {error}") from error

    def _parts(self, graph: Graph, weights: Ids, num_parts: int, options: pymetis.Options) -> Ids:  # [num_nodes]
        adjacency, between = undirected(graph.csc)
        if self.contiguous and not connected(adjacency):  # METIS refuses it once, and later cuts it all the same
            raise UserError("partition.options.contiguous=True needs a connected graph")
        if weights.shape[1] > 1:
            means = weights.sum(0) / num_parts
            bounds = np.maximum(1 + self.imbalance, np.ceil(means) / means)  # 7 of 20 nodes fit 3 parts
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
        """Returns the weights of each node, each of a sum above 0.

        Where the training nodes alone are to be balanced, these weigh as much as all
        nodes together.
        """
        if self.balance in ("nodes", "edges", "train"):
            return node_weights(graph, self.balance)[:, None]
        nodes, edges = node_weights(graph, "nodes"), node_weights(graph, "edges")
        train = graph.split == Split.TRAIN
        groups = train[:, None] if self.balance == "all" else train[:, None] & _classes(graph)
        weights: Ids = np.concatenate([nodes[:, None], edges[:, None], groups[:, groups.any(0)]], 1, dtype=np.int64)
        return weights


def _classes(graph: Graph) -> npt.NDArray[np.bool_]:  # [num_nodes, num_classes]
    """Says which class each node has.

    Raises `UserError` for labels that are no classes.
    """
    if graph.labels.ndim != 1 or graph.labels.dtype.kind not in "iu":
        raise UserError("partition.options.balance=classes needs one class of each node: choose balance=all")
    equal: npt.NDArray[np.bool_] = graph.labels[:, None] == np.unique(graph.labels[graph.labels >= 0])
    return equal


def connected(csc: CSC) -> bool:
    """Says whether paths join all nodes of an undirected graph of at least one node."""
    reached = np.zeros(csc.num_nodes, bool)
    reached[0], border = True, np.array([0])
    while len(border):
        ends = np.concatenate([csc.indices[csc.indptr[node] : csc.indptr[node + 1]] for node in border])
        border = np.unique(ends[~reached[ends]])
        reached[border] = True
    return bool(reached.all())
