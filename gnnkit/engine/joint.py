"""Blocks that ranks sample together: each rank holds the in-edges of its own nodes."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.engine.adjacency import Reduce
from gnnkit.engine.block import BlockAdjacency, Layers
from gnnkit.engine.dropout import derive
from gnnkit.engine.engine import Message
from gnnkit.engine.exchange import Route
from gnnkit.graph import CSC, Block, Floats, Ids
from gnnkit.partition.shard import Shard


class ShardLayers(Layers):
    """Values of one rank's shard, which holds all in-edges of the owned nodes.

    Nodes are numbered anew: the owned ones in ascending order of ids, then the halo by
    (owner, id). Edges have their positions in the shard.
    """

    def __init__(self, shard: Shard, model: object, dtype: torch.dtype, device: torch.device) -> None:
        """Renumbers the edges of a shard of a grid with one column and one slice.

        Args:
            shard: This rank's shard.
            model: Its `self_loops` says whether nodes without a loop get one.
            dtype: Type of degrees, weights and features of edges.
            device: Device of the adjacencies.
        """
        super().__init__(model, dtype, device)
        self.shard, self.num_nodes, self.num_edges = shard, shard.num_nodes, shard.num_edges
        self.num_owned, away = len(shard.owned), shard.source_cell != shard.cell
        self.halo, self.halo_owner = shard.sources[away], shard.source_cell[away]  # [num_halo] global id and rank
        number = (self.num_owned + np.cumsum(away) - 1).astype(shard.csc.indices.dtype)
        number[~away] = np.searchsorted(shard.owned, shard.sources[~away])
        degree = np.zeros(self.num_owned, np.int64)
        degree[np.searchsorted(shard.owned, shard.targets)] = np.diff(shard.csc.indptr)
        indptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(degree)])
        self.csc = CSC(indptr, number[shard.csc.indices], shard.csc.weight, self.num_owned + len(self.halo))
        self.edge_features = shard.edge_features

    @cached_property
    def nodes(self) -> Ids:  # [num_owned + num_halo] int64 global ids
        """The global ids of all nodes of the shard."""
        return np.concatenate([self.shard.owned, self.halo]).astype(np.int64)

    @property
    def graph_in_degree(self) -> Floats:
        return self.shard.in_degree

    @property
    def graph_out_degree(self) -> Floats:
        return self.shard.out_degree

    @property
    def gets_loop(self) -> npt.NDArray[np.bool_]:
        return ~self.shard.looped

    @property
    def mean_edge_features(self) -> Floats | None:
        return self.shard.mean_edge_features

    def node_ids(self, nodes: Ids) -> Ids:
        return self.nodes[nodes]

    def edge_ids(self, edges: Ids) -> Ids:
        return self.shard.edge_ids[edges].astype(np.int64)


class JointAdjacency(BlockAdjacency):
    """One rank's part of a block that all ranks have sampled together.

    A layer reads and computes rows of owned nodes. The rows of other ranks that edges
    leave come from their owners, and their gradients go back. Every method that reads
    rows is collective.
    """

    def __init__(self, layers: ShardLayers, block: Block, route: Route, layer: int, key: int) -> None:
        """Adds loops where the model asks for these.

        Args:
            layers: Values of the shard.
            block: In-edges of owned nodes. Its sources are owned nodes, which the layer
                reads, and behind these the rows that come through `route`.
            route: From the owners to the ranks that hold edges.
            layer: Layer of the model.
            key: Key of the step.
        """
        super().__init__(layers, block, derive(key, layer))
        self._route, self._layer = route, layer
        self._own = block.src_nodes[: len(block.src_nodes) - len(route.held_ids)]  # [num_src]

    @cached_property
    def src_nodes(self) -> Tensor:  # type: ignore[override]
        return self._ids(self._layers.node_ids(self._own))

    @cached_property
    def out_degree(self) -> Tensor:  # type: ignore[override]
        return self._tensor(self._layers.out_degree[self._own])

    def aggregate(self, x: Tensor, *, reduce: Reduce = "sum", weight: Tensor | None = None) -> Tensor:
        return super().aggregate(self.with_halo(x), reduce=reduce, weight=weight)

    def aggregate_messages(self, x: Tensor, message: Message) -> Tensor:
        return super().aggregate_messages(self.with_halo(x), message)

    def scores(self, src: Tensor, dst: Tensor, edge: Tensor | None = None) -> Tensor:
        return super().scores(self.with_halo(src), dst, edge)

    def with_halo(self, x: Tensor) -> Tensor:  # [num_src, ...] -> [num_src + num_halo, ...]
        """Returns the given rows, and behind these the rows of other ranks."""
        return torch.cat([x, self._route.spread(x, self._layer)])

    def degree_with_halo(self, loop: float) -> Tensor:
        degree = self._layers.in_degree[self._own]
        if not self._layers.self_loops:
            degree = degree + loop * self._layers.gets_loop[self._own]
        return self.with_halo(self._tensor(degree)[:, None])[:, 0]
