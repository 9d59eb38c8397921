"""The relations of a sampled block's edges."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from gnnkit.engine.adjacency import EdgesByType, Weigh
from gnnkit.engine.layer_routes import LayerRoutes
from gnnkit.engine.relations import Combine, Pairs, shares
from gnnkit.engine.typed_attention import RelationAttention, attend_locally
from gnnkit.engine.typed_edges import AddedRelations, EdgeList, RowTypes, TypedEdges
from gnnkit.engine.typed_graph import TypedEnds, TypedGraph, TypedRows
from gnnkit.errors import UserError
from gnnkit.graph import Block, Floats, Ids
from gnnkit.graph.schema import Schema
from gnnkit.partition.degrees import shared_weights

if TYPE_CHECKING:
    from gnnkit.engine.block import InRelation, LayerValues
    from gnnkit.engine.block_edges import BlockEdges


class BlockRelations(EdgesByType):
    """The drawn edges of a block by relation, created on first use.

    Relations do not include the model's self-loops, which have no types.
    """

    def __init__(self, layers: LayerValues, block: Block, block_edges: BlockEdges, *, reweight: bool = True) -> None:
        """Stores the block. The arguments are those of `BlockEdges`, and the result."""
        self._layers, self._block, self._block_edges, self._reweight = layers, block, block_edges, reweight
        self._row_types: dict[int, RowTypes] = {}  # by number of rows
        self._pairs: dict[bool, Pairs] = {}
        self._typed_edges: dict[AddedRelations, TypedEdges] = {}

    def pairs(self, *, inverse: bool) -> Pairs:
        """Returns the (row, relation) pairs of the drawn edges, for unbiased means.

        A mean estimates the mean over all in-edges of its relation. Raises `UserError`
        for inverse edges if the graph does not have them, and for added self-loops.

        Args:
            inverse: Whether to include the graph's inverse edges.
        """
        if inverse not in self._pairs:
            layers, block, in_relation = self._layers, self._block, self._in_relation(inverse=inverse)
            edges = self._edge_list(in_relation)
            weight = np.ones(len(edges.src)) if layers.weight is None else layers.weight[check_edge_ids(block)]
            weight = weight * relation_counts(block, in_relation) if self._reweight else weight
            factor, sizes = shares(weight, in_relation.degree), (block.num_dst, len(block.src_nodes))
            self._pairs[inverse] = Pairs.of_edges(edges, factor, sizes, layers.num_relations, layers.device)
        return self._pairs[inverse]

    def row_types(self, num_rows: int, num_types: int) -> RowTypes:
        row_types = self._row_types.get(num_rows)
        if row_types is None or len(row_types.sizes) != num_types:
            ids, layers = self._block_edges.source_ids[:num_rows], self._layers
            row_types = self._row_types[num_rows] = RowTypes.of(ids, layers.type_sizes, num_types, layers.device)
        return row_types

    def typed_graph(self, schema: Schema, routes: LayerRoutes) -> TypedGraph:
        """Splits the edges by relation, without communication."""
        block_edges, device = self._block_edges, self._layers.device
        sources = block_edges.edges.csc.indices.astype(np.int64)
        edges = TypedEnds(sources, block_edges.targets, self._types)
        own_rows, halo = np.split(block_edges.source_ids, [routes.slicing.rows.stop])
        weight = block_edges.factor("sum", self._layers.dtype)
        weight = None if weight is None else weight[:, 0]
        return TypedGraph.of_block(TypedRows.of(own_rows, schema), halo, edges, weight, routes.sources, device)

    def sum(self, x: Tensor, combine: Combine, routes: LayerRoutes, *, inverse: bool, blocks: bool) -> Tensor:
        pairs, rows = self.pairs(inverse=inverse), routes.with_halo(x)
        means = pairs.block_means(rows) if blocks else pairs.means(rows)
        return combine(means, pairs, slice(0, x.shape[-1]))

    def attend(
        self, x: Tensor, y: Tensor | None, attention: RelationAttention, routes: LayerRoutes, weigh: Weigh
    ) -> Tensor:
        edges, rows = self.edges(attention.added), routes.with_halo(x)
        targets = rows[: self._block.num_dst] if y is None else y
        return attend_locally(attention, rows, targets, edges, weigh(edges.ids))

    def edges(self, added: AddedRelations) -> TypedEdges:
        """Returns the drawn edges with their relations, and the added loops.

        Raises `UserError` like `pairs`.
        """
        if added not in self._typed_edges:
            layers, block = self._layers, self._block
            edges = self._edge_list(self._in_relation(inverse=added.inverse))
            loops, sizes = AddedRelations(loops=added.loops), (layers.num_nodes, layers.num_edges)
            edges = edges.add(loops, layers.num_relations, layers.node_ids(block.src_nodes[: block.num_dst]), sizes)
            num_rows, count = len(block.src_nodes), loops.count(layers.num_relations)
            self._typed_edges[added] = TypedEdges.of(edges, num_rows, block.num_dst, count, layers.device)
        return self._typed_edges[added]

    def _edge_list(self, in_relation: InRelation) -> EdgeList:
        block = self._block
        assert block.edge_ids is not None, "relations are read by edge id"
        rows, types = np.repeat(np.arange(block.num_dst), np.diff(block.indptr)), in_relation.types.astype(np.int64)
        return EdgeList(block.indices.astype(np.int64), rows, types, self._layers.edge_ids(block.edge_ids))

    @cached_property
    def edge_types(self) -> Tensor:  # [num_edges] int64
        return self._block_edges.ids(self._types)

    @cached_property
    def _types(self) -> Ids:  # [num_edges] int64
        """Relation of each drawn edge.

        Raises `UserError` for added self-loops, and for blocks without edge ids.
        """
        self._check_loops()
        types, ids = self._layers.edge_types, check_edge_ids(self._block)
        return np.zeros(len(ids), np.int64) if types is None else types[ids].astype(np.int64)

    def _check_loops(self) -> None:
        if self._layers.self_loops:
            raise UserError("added self-loops have no types: a relational model does not support self_loops")

    def _in_relation(self, *, inverse: bool) -> InRelation:
        layers = self._layers
        self._check_loops()
        if inverse != layers.inverse_edges:
            raise UserError(
                f"a layer reads relations with inverse={inverse}, and batches {'contain' if layers.inverse_edges else 'lack'} "
                "inverse edges: a run adds them if the model has an attribute inverse=True; use inverse=model.inverse in all "
                "layers, or strategy=vertex_centric"
            )
        return layers.in_relation(self._block)


def relation_counts(block: Block, in_relation: InRelation) -> Floats:  # [edges of the block]
    """Returns each edge's count in an estimate of a sum over its relation.

    Args:
        block: The block.
        in_relation: The relations of its edges.
    """
    if block.weight is not None:
        return block.weight
    if in_relation.count is None:
        return np.ones(len(block.indices))
    rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
    return in_relation.count / shared_weights(rows, in_relation.types, max(block.num_dst, 1), np.ones(len(rows)))


def check_edge_ids(block: Block) -> Ids:  # [num_edges]
    """Returns a block's edge ids. Raises `UserError` if these were not sampled."""
    if block.edge_ids is None:
        raise UserError("sampler.edge_ids=false: the model reads edge types or times by edge id; remove the key")
    return block.edge_ids
