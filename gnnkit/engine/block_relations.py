"""The relations of a sampled block's edges."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from gnnkit.engine.relations import Pairs, RelationEdges
from gnnkit.engine.typed_edges import AddedRelations, EdgeList, TypedEdges
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Ids
from gnnkit.partition.relations import shared_weights

if TYPE_CHECKING:
    from gnnkit.engine.block import InRelation, LayerValues


class BlockRelations:
    """The drawn edges of a block by relation, created on first use.

    Relations do not include the model's self-loops, which have no types.
    """

    def __init__(self, layers: LayerValues, block: Block, *, reweight: bool = True) -> None:
        """Stores the block. The arguments are those of `BlockEdges`."""
        self._layers, self._block, self._reweight = layers, block, reweight
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
            self._pairs[inverse] = Pairs.of_edges(self._relation_edges(inverse=inverse), self._layers.device)
        return self._pairs[inverse]

    def typed_edges(self, new_relations: AddedRelations) -> TypedEdges:
        """Returns the drawn edges with their relations, and the added loops.

        Raises `UserError` like `pairs`.
        """
        if new_relations not in self._typed_edges:
            layers, block = self._layers, self._block
            in_relation = self._in_relation(inverse=new_relations.inverse)
            rows = np.repeat(np.arange(block.num_dst), np.diff(block.indptr))
            assert block.edge_ids is not None, "relations are read by edge id"
            ids, types = layers.edge_ids(block.edge_ids), in_relation.types.astype(np.int64)
            edges = EdgeList(block.indices.astype(np.int64), rows, types, ids)
            loops, sizes = AddedRelations(loops=new_relations.loops), (layers.num_nodes, layers.num_edges)
            edges = edges.add(loops, layers.num_relations, layers.node_ids(block.src_nodes[: block.num_dst]), sizes)
            num_rows, count = len(block.src_nodes), loops.count(layers.num_relations)
            self._typed_edges[new_relations] = TypedEdges.of(edges, num_rows, block.num_dst, count, layers.device)
        return self._typed_edges[new_relations]

    def _relation_edges(self, *, inverse: bool) -> RelationEdges:
        layers, block, in_relation = self._layers, self._block, self._in_relation(inverse=inverse)
        assert block.edge_ids is not None, "relations are read by edge id"
        weight = np.ones(len(block.indices)) if layers.weight is None else layers.weight[block.edge_ids]
        counts = relation_counts(block, in_relation) if self._reweight else None
        weight = weight if counts is None else weight * counts
        csc = CSC(block.indptr, block.indices, weight, len(block.src_nodes))
        return RelationEdges.of(
            csc, in_relation.types, (in_relation.degree, in_relation.degree), num_relations=layers.num_relations
        )

    @cached_property
    def edge_types(self) -> Ids:  # [num_edges] int64
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
                f"a layer reads relations with inverse={inverse}: batches contain inverse edges only if the model has an attribute "
                f"inverse=True, and its attribute is {layers.inverse_edges}; use inverse=model.inverse in all layers, "
                "or strategy=vertex_centric"
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
