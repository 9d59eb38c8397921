"""The edges of a sampled block, and their factors in sums."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.engine.relations import Pairs, RelationEdges
from gnnkit.engine.typed_edges import AddedRelations, EdgeList, TypedEdges
from gnnkit.errors import UserError
from gnnkit.graph import CSC, Block, Floats, Ids
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import wide
from gnnkit.partition.loops import AddedLoops
from gnnkit.partition.relations import shared_weights

if TYPE_CHECKING:
    from gnnkit.engine.block import InRelation, LayerValues

Factor = Literal["sum", "mean", "normal"]


class BlockEdges:
    """The drawn edges of a block, with the model's self-loops.

    Arrays are created on first use. Only `tensor` and `ids` convert arrays to tensors.
    """

    def __init__(self, layers: LayerValues, block: Block, *, reweight: bool = True) -> None:
        """Adds self-loops if the model requires them.

        Args:
            layers: Node and edge values of the block.
            block: The sampled block.
            reweight: Whether sampled edges are weighted by the in-edges they represent.
                Otherwise each edge counts once.
        """
        self._layers, self._block, self._reweight = layers, block, reweight
        self.dst = block.src_nodes[: block.num_dst]  # [num_dst]
        self._loops: AddedLoops | None = None
        indptr, indices = block.indptr, block.indices
        if layers.self_loops:
            rows = np.flatnonzero(layers.gets_loop[self.dst])
            self._loops = AddedLoops.to(rows, np.diff(indptr))
            indptr, indices = self._loops.indptr, self._loops.insert(indices, rows)
        self.edges = HeldEdges(CSC(indptr, indices, None, len(block.src_nodes)), layers.device)
        self._factors: dict[tuple[Factor, torch.dtype], Tensor | None] = {}
        self._pairs: dict[bool, Pairs] = {}
        self._typed_edges: dict[AddedRelations, TypedEdges] = {}

    def factor(self, kind: Factor, dtype: torch.dtype) -> Tensor | None:  # [num_edges, 1]
        """Returns each edge's factor in a sum, without gradient, or None if all are 1.

        - sum: the graph's weight times the count
        - mean: the edge's share in the mean of its row
        - normal: the edge's entry in D_in^-1/2 A D_out^-1/2

        Args:
            kind: The kind of sum.
            dtype: Type of the rows.
        """
        dtype = wide(dtype)
        if (kind, dtype) not in self._factors:
            compute_by_kind = {"mean": self._mean_factors, "normal": self._normal_factors}
            values = compute_by_kind[kind]() if kind in compute_by_kind else self._weight
            self._factors[kind, dtype] = None if values is None else self.tensor(values, dtype)[:, None]
        return self._factors[kind, dtype]

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
            edges = edges.add(loops, layers.num_relations, layers.node_ids(self.dst), sizes)
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

    def with_loops(self, values: npt.NDArray[Any], of_loops: npt.NDArray[Any] | float) -> npt.NDArray[Any]:
        """Merges values of the block's edges with those of added self-loops.

        Args:
            values: [edges of the block, ...].
            of_loops: [added loops, ...], or one value for all.
        """
        return values if self._loops is None else self._loops.insert(values, of_loops)

    @cached_property
    def counts(self) -> Floats | None:  # [edges of the block]
        """Each sampled edge's weight in an estimate of a sum over all in-edges.

        If None, each edge counts once.
        """
        block = self._block
        if not self._reweight:
            return None
        num_draws = np.diff(block.indptr)
        if block.weight is not None:
            if block.edge_ids is not None:
                return block.weight
            # Sources may be nodes that are not neighbours, so weights are shares of the
            # degree.
            return np.repeat(self._layers.graph_in_degree[self.dst], num_draws) * block.weight
        degree = self._layers.num_in_edges[self.dst]
        return None if np.array_equal(num_draws, degree) else np.repeat(degree / np.maximum(num_draws, 1), num_draws)

    @cached_property
    def edge_ids(self) -> Ids:  # [num_edges] int64. The added self-loop of v has id num_edges of the graph + v
        """Global ids. Edges that are not in the graph get ids by node pair."""
        layers, ids = self._layers, self._block.edge_ids
        block_ids = _pair_ids(self._block, self.dst, layers.num_nodes) if ids is None else layers.edge_ids(ids)
        return self.with_loops(block_ids, layers.num_edges + layers.node_ids(self._loop_nodes))

    @cached_property
    def features(self) -> Floats | None:  # [num_edges, edge_width]
        """Edge features. An added self-loop has the mean of its node's in-edges."""
        features, ids = self._layers.edge_features, self._block.edge_ids
        if features is None or ids is None:
            return None
        mean = None if self._loops is None else self._layers.mean_edge_features
        return features[ids] if mean is None else self.with_loops(features[ids], mean[self._loop_nodes])

    @cached_property
    def source_ids(self) -> Ids:  # [rows that edges leave] int64
        """Global ids of all source rows."""
        return self._layers.node_ids(self._block.src_nodes)

    @property
    def targets(self) -> Ids:  # [num_edges]
        """Row of each edge's destination."""
        return np.repeat(np.arange(self._block.num_dst), np.diff(self.edges.csc.indptr))

    @cached_property
    def by_source_id(self) -> HeldEdges:
        """Each row's edges, sorted by source id.

        The first of equal maxima is selected. Parallel edges have the same source, so
        their order does not matter.
        """
        csc = self.edges.csc
        order = np.argsort(self.targets * self._layers.num_nodes + self.source_ids[csc.indices])
        return HeldEdges(CSC(csc.indptr, csc.indices[order], None, csc.num_sources), self._layers.device)

    def tensor(self, values: Floats, dtype: torch.dtype | None = None) -> Tensor:
        """Converts numbers to a tensor, in `dtype` or the layers' type."""
        return torch.from_numpy(values).to(self._layers.device, dtype or self._layers.dtype)

    def ids(self, values: Ids) -> Tensor:
        """Converts ids to int64 on the device. On a CPU, int64 memory is shared."""
        return torch.from_numpy(values.astype(np.int64, copy=False)).to(self._layers.device)

    @property
    def _loop_nodes(self) -> Ids:  # [added loops] nodes
        return self.dst[[]] if self._loops is None else self.dst[self._loops.rows]

    @cached_property
    def _weight(self) -> Floats | None:  # [num_edges]
        """The graph's weights times the counts. If None, 1 each."""
        weight, ids, counts = self._layers.weight, self._block.edge_ids, self.counts
        if weight is None or ids is None:
            return None if counts is None else self.with_loops(counts, 1)
        return self.with_loops(weight[ids] if counts is None else weight[ids] * counts, 1)

    def _mean_factors(self) -> Floats:
        """Computes the mean factors, without counts if a row's edges count equally."""
        indptr = self.edges.csc.indptr
        degree = np.diff(indptr)
        even = self._loops is None and self._block.weight is None and self._layers.weight is None
        if even or self._weight is None:
            return np.repeat(1 / np.maximum(degree, 1), degree)
        sums = np.ones(len(degree))
        rows = np.flatnonzero(degree)
        sums[rows] = np.add.reduceat(self._weight, indptr[rows], dtype=np.float64)
        shares: Floats = self._weight / np.repeat(np.where(sums == 0, 1, sums), degree)
        return shares

    def _normal_factors(self) -> Floats:
        csc, layers = self.edges.csc, self._layers
        at_destination = np.repeat(inverse_sqrt(layers.in_degree[self.dst]), np.diff(csc.indptr))
        factor: Floats = inverse_sqrt(layers.out_degree[self._block.src_nodes])[csc.indices] * at_destination
        return factor if self._weight is None else factor * self._weight


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


def _pair_ids(block: Block, dst: Ids, num_nodes: int) -> Ids:  # [edges of the block] int64
    """Creates ids for edges that are not in the graph, one per node pair."""
    pairs = np.repeat(dst.astype(np.uint64), np.diff(block.indptr)) * np.uint64(num_nodes)
    return ((pairs + block.src_nodes[block.indices].astype(np.uint64)) >> np.uint64(1)).astype(np.int64)


def inverse_sqrt(degree: Floats) -> Floats:
    """Returns 1 / sqrt(d) for each degree d, and 0 for degree 0."""
    factor: Floats = 1 / np.sqrt(np.where(degree > 0, degree, np.inf))
    return factor
