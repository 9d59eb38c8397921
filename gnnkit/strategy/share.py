"""A worker's share: some nodes with the edges between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gnnkit.engine import Adjacency, BlockAdjacency, BlockLayers, Rows
from gnnkit.graph import CSC, Block, Graph, Ids, Split
from gnnkit.kernels.dropout import derive


@dataclass(frozen=True, slots=True, eq=False)
class WorkerShare:
    """Nodes and edges that a worker processes, training nodes first."""

    block: Block  # all nodes are computed: num_dst = num_src
    num_seeds: int  # nodes whose loss is read, the block's first nodes

    @classmethod
    def of(cls, graph: Graph, nodes: Ids, halo: Ids | None = None) -> WorkerShare:
        """Selects some nodes with all edges between them.

        Args:
            graph: The complete graph.
            nodes: [num_nodes] ascending global ids. Their training nodes are seeds.
            halo: [num_halo] further nodes, without seeds, or None.
        """
        trains = graph.split[nodes] == Split.TRAIN
        non_seeds = [nodes[~trains]] if halo is None else [nodes[~trains], halo]
        return cls(induced_block(graph.csc, np.concatenate([nodes[trains], *non_seeds])), int(trains.sum()))

    @property
    def seeds(self) -> Block:
        """The seeds' rows only, as computed by the last layer."""
        indptr = self.block.indptr[: self.num_seeds + 1]
        return self.block.with_edges(indptr, slice(0, int(indptr[-1])))


def induced_block(csc: CSC, nodes: Ids) -> Block:
    """Selects some nodes with all edges between them, in the order of `csc`.

    Args:
        csc: The edges of the graph.
        nodes: [num_nodes] distinct nodes.
    """
    place = np.full(csc.num_nodes, -1)
    place[nodes] = np.arange(len(nodes))
    edges, degree = csc.in_edges(nodes)
    source = place[csc.indices[edges]]
    is_inside = source >= 0
    row = np.repeat(np.arange(len(nodes)), degree)[is_inside]
    indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row, minlength=len(nodes)))])
    return Block(indptr, source[is_inside], nodes, edges[is_inside])


def in_neighbours(csc: CSC, nodes: Ids) -> Ids:  # [num_halo] ascending
    """Returns the sources of edges into some nodes, except these nodes."""
    is_halo = np.zeros(csc.num_nodes, bool)
    is_halo[csc.indices[csc.in_edges(nodes)[0]]] = True
    is_halo[nodes] = False
    return np.flatnonzero(is_halo)


@dataclass(frozen=True, slots=True, eq=False)
class StepInputs:
    """The rows and edges of one step, without the strategy's update."""

    x: Rows  # [num_src, width]
    adjacencies: Sequence[Adjacency]  # one per layer
    rows: Tensor  # [k] int64
    labels: Tensor  # [k, ...]
    row_weights: Tensor | None = None  # [k] factor of each row's loss. None: 1 each
    pair_features: Tensor | None = None  # as in `Batch`


class HeldShare:
    """A share with its input rows and adjacencies, reusable for many steps."""

    def __init__(self, share: WorkerShare, x: Rows, layers: BlockLayers, num_layers: int) -> None:
        """Creates the adjacencies.

        Args:
            share: Nodes and edges.
            x: [num_nodes, width] features of the nodes.
            layers: Node and edge values of the blocks.
            num_layers: Number of model layers.
        """
        seeds = share.block.src_nodes[: share.num_seeds]
        self.x, self.rows = x, torch.arange(share.num_seeds, device=x.device)
        self.labels = torch.from_numpy(layers.graph.labels[seeds]).to(x.device)
        hidden = [BlockAdjacency(layers, share.block, 0)] * (num_layers - 1) if num_layers > 1 else []
        self._layers = [*hidden, BlockAdjacency(layers, share.seeds, 0)]

    def inputs(self, key: int) -> StepInputs:
        """Returns the inputs of the step with a random key."""
        self._layers = [adjacency.with_key(derive(key, layer)) for layer, adjacency in enumerate(self._layers)]
        return StepInputs(self.x, tuple(self._layers), self.rows, self.labels)
