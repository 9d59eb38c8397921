"""The edges of a sampled block, and their factors in sums."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gnnkit.graph import CSC, Block, Floats, Ids
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import wide
from gnnkit.partition.degrees import AddedLoops

if TYPE_CHECKING:
    from gnnkit.engine.block import LayerValues

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


def _pair_ids(block: Block, dst: Ids, num_nodes: int) -> Ids:  # [edges of the block] int64
    """Creates ids for edges that are not in the graph, one per node pair."""
    pairs = np.repeat(dst.astype(np.uint64), np.diff(block.indptr)) * np.uint64(num_nodes)
    return ((pairs + block.src_nodes[block.indices].astype(np.uint64)) >> np.uint64(1)).astype(np.int64)


def inverse_sqrt(degree: Floats) -> Floats:
    """Returns 1 / sqrt(d) for each degree d, and 0 for degree 0."""
    factor: Floats = 1 / np.sqrt(np.where(degree > 0, degree, np.inf))
    return factor
