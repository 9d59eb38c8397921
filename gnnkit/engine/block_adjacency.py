"""Sampled blocks as adjacencies."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.engine.adjacency import HeldAdjacency
from gnnkit.engine.block_edges import BlockEdges
from gnnkit.engine.block_relations import BlockRelations
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.rank_graph import RankGraph
from gnnkit.engine.topology import Kind, inverse_sqrt
from gnnkit.graph import Block, Ids
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.dropout import derive, dropout_bits
from gnnkit.kernels.sums import Factors

if TYPE_CHECKING:
    from gnnkit.engine.block import LayerValues


class BlockValues(HeldAdjacency):
    """The rows and edges of one sampled block, which are looked up on access."""

    def __init__(
        self, layers: LayerValues, block: Block, key: int, routes: LayerRoutes | None = None, *, reweight: bool = True
    ) -> None:
        """Adds self-loops if the model requires them.

        Args:
            layers: Node and edge values of the block.
            block: The sampled block. Its first sources are this rank's rows, followed
                by the rows that `routes` bring.
            key: Key of the layer and step.
            routes: Brings other ranks' rows. If None, the rank has all rows.
            reweight: Whether sampled edges are weighted by the in-edges they represent.
        """
        self.key, self.num_dst, self._layers, self._block = key, block.num_dst, layers, block
        self._block_edges = BlockEdges(layers, block, reweight=reweight)
        self.by_type = BlockRelations(layers, block, self._block_edges, reweight=reweight)
        self.edges, self.num_edges = self._block_edges.edges, self._block_edges.edges.num_edges
        pool = layers.pool if layers.pool.comm is None else replace(layers.pool, has_copies=True)
        self.routes = LayerRoutes.local(len(block.src_nodes), pool) if routes is None else routes
        self.local_edges = self.edges if routes is None else None
        self._read = block.src_nodes[self.routes.slicing.rows]  # [num_src]

    @cached_property
    def src_nodes(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.ids(self._block_edges.source_ids[: len(self._read)])

    @cached_property
    def row_ids(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.ids(self._layers.row_ids(self._read))

    @cached_property
    def in_degree(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.tensor(self._layers.in_degree[self._block_edges.dst])

    @cached_property
    def out_degree(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.tensor(self._layers.out_degree[self._read])

    @cached_property
    def edge_ids(self) -> Tensor:  # type: ignore[override]
        return self._block_edges.ids(self._block_edges.edge_ids)

    @cached_property
    def edge_features(self) -> Tensor | None:  # type: ignore[override]
        features = self._block_edges.features
        return None if features is None else self._block_edges.tensor(features)

    @cached_property
    def edge_age(self) -> Tensor | None:  # type: ignore[override]
        ages = self._layers.edge_ages(self._block)
        return None if ages is None else self._block_edges.tensor(self._block_edges.with_loops(ages, 0))

    @property
    def edge_counts(self) -> Tensor | None:  # type: ignore[override]
        counts = self._block_edges.counts
        return None if counts is None else self._block_edges.tensor(self._block_edges.with_loops(counts, 1))[:, None]

    @cached_property
    def rank_graph(self) -> RankGraph:
        block_edges = self._block_edges
        edge_index = torch.stack([self.edges.source_of_edge, block_edges.ids(block_edges.targets)])
        weight = block_edges.factor("sum", self._layers.dtype)
        nodes = block_edges.ids(block_edges.source_ids)
        return RankGraph(edge_index, None if weight is None else weight[:, 0], nodes, edges=self.edges)


class BlockAdjacency(BlockValues):
    """The edges of one sampled block, with the model's self-loops.

    This is what models read in mini-batches. Usually the rank has all rows, so ranks do
    not communicate here. If ranks sample a block together, each one has the in-edges of
    the nodes that it owns. Source rows of other ranks are then received from their
    owners, and their gradients are sent back. Every method that reads rows is
    collective.
    """

    def with_key(self, key: int) -> BlockAdjacency:
        """Returns the same edges for another layer or step, with cached values."""
        adjacency = copy.copy(self)
        adjacency.key = key
        return adjacency

    def _sum(self, x: Tensor, kind: Kind, scale: Tensor | None = None) -> Tensor:
        if kind == "normal" and self.routes.sources is not None:  # owners have the sources' degrees
            z = self._sum(x * inverse_sqrt(self.out_degree)[:, None], "sum")
            return z * inverse_sqrt(self.in_degree)[:, None]
        z = self.edges.constant_sum(self.routes.with_halo(x), Factors(self._block_edges.factor(kind, x.dtype)))
        return z if scale is None else scale * x[: self.num_dst] + z

    def concat_mean(self, x: Tensor, p: float = 0) -> Tensor:
        factors = Factors(self._block_edges.factor("mean", x.dtype))
        if p == 0 or x.device.type != "cpu" or self.routes.sources is not None:
            return self.edges.sum_beside(self.routes.with_halo(self.dropout(x, p, training=True)), factors)
        # A mask bit per number takes less memory traffic than the number.
        return self.edges.sum_beside(x, factors, (dropout_bits(self.src_nodes, x.shape[1], p, self.key), p))

    def _max(self, x: Tensor) -> Tensor:
        x = self.routes.with_halo(x)
        result: Tensor = _BlockMax.apply(x.flatten(1), self._block_edges.by_source_id)
        return result.view(len(result), *x.shape[1:])


def as_one_graph(layers: Sequence[BlockAdjacency]) -> tuple[BlockAdjacency, Tensor | None]:
    """Joins a batch's layers, for modules of (x, edge_index).

    The graph is like the output of PyG's NeighborLoader: each node has the in-edges
    drawn when it entered the batch, and nodes of the last hop have none. Every row is a
    destination, so layers may keep all rows. As in PyG, each drawn edge counts once: a
    sum is over the drawn edges, and degrees refer to the batch.

    Returns the graph, and its rows [num_dst] int64 within the rows of `layers[0]`, or
    None for all rows.

    Args:
        layers: Adjacencies by layer. Each one's sources begin with its destinations,
            which are the sources of the next.
    """
    first = layers[0]
    values, block, routes = first._layers, first._block, first.routes
    if routes.sources is None:
        block, rows = _join_blocks([layer._block for layer in layers])
        graph = BlockAdjacency(values, block, first.key, reweight=False)
        graph.routes = replace(graph.routes, pool=routes.pool)  # in a pass of `again`, only this rank's
        return graph, torch.from_numpy(rows).to(values.device)
    # Each node of a joint batch has drawn once, so the first layer contains all edges.
    unread = np.full(len(first._read) - block.num_dst, block.indptr[-1], block.indptr.dtype)  # rows of the last hop
    block = Block(np.concatenate([block.indptr, unread]), block.indices, block.src_nodes, block.edge_ids)
    return BlockAdjacency(values, block, derive(first.key, routes.layer), routes, reweight=False), None


def _join_blocks(blocks: Sequence[Block]) -> tuple[Block, Ids]:
    """Returns all edges as one block, and its nodes as positions in `blocks[0]`."""
    nodes, num_reached = blocks[0].src_nodes, 0
    degrees, indices, edge_ids = [], [], []
    for block in reversed(blocks):
        begin = block.indptr[num_reached]
        degrees.append(np.diff(block.indptr[num_reached:]))
        indices.append(block.indices[begin:])
        edge_ids.append(None if block.edge_ids is None else block.edge_ids[begin:])
        num_reached = block.num_dst
    sources = np.concatenate(indices)
    is_used = np.zeros(len(nodes), np.bool_)
    is_used[:num_reached] = is_used[sources] = True
    rows = np.flatnonzero(is_used)
    indptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum(np.concatenate([*degrees, np.zeros(len(rows) - num_reached, np.int64)]), out=indptr[1:])
    places = np.cumsum(is_used) - 1
    ids = [part for part in edge_ids if part is not None]
    all_ids = np.concatenate(ids) if len(ids) == len(blocks) else None
    return Block(indptr, places[sources], nodes[rows], all_ids), rows


class _BlockMax(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, edges: HeldEdges) -> Tensor:  # [num_src, f] -> [num_dst, f]
        best, edge = edges.kernels.max(x)
        ctx.edges = edges
        ctx.save_for_backward(edge)
        return torch.where(edge >= 0, best, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (edge,) = ctx.saved_tensors
        return ctx.edges.kernels.max_backward(grad, edge), None
