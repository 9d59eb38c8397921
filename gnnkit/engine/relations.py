"""Sums over in-edges by relation: means of (row, relation) pairs, and products."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.graph import CSC, Floats, Ids
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import Factors, wide
from gnnkit.partition.degrees import by_pair
from gnnkit.partition.shard import Shard

if TYPE_CHECKING:
    from gnnkit.engine.typed_edges import EdgeList

_PIECE_BYTES = 1 << 19  # bytes of gradients processed at a time


def _targets(csc: CSC) -> Ids:  # [num_edges]
    return np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))


def shares(weight: Floats | None, degree: Floats) -> Floats:  # [num_edges]
    """Returns each edge's share in the mean of its relation, over all ranks.

    Args:
        weight: [num_edges] edge weights. If None, 1 each.
        degree: [num_edges] degree of the edge's end within its relation in the complete
            graph. 0 counts as 1.
    """
    return (1 if weight is None else np.asarray(weight, np.float64)) / np.where(degree == 0, 1, degree)


def shares_of_shard(shard: Shard, degrees: Callable[[], tuple[Tensor, Tensor]], *, inverse: bool) -> Floats:
    """Returns the `shares` of the held edges.

    Args:
        shard: The rank's shard.
        degrees: Returns the sources' out-degrees and the targets' in-degrees, for one
            relation's edges.
        inverse: Whether to append the shares of reversed edges.
    """
    csc = shard.csc
    if shard.relation_degrees is None:
        of_sources, of_targets = (degree.cpu().numpy() for degree in degrees())
        into, out_of = of_targets[_targets(csc)], of_sources[csc.indices]
    else:
        into, out_of = np.asarray(shard.relation_degrees).T
    return np.concatenate([shares(csc.weight, degree) for degree in (into, out_of)[: 1 + inverse]])


class RowPairs:
    """(row, relation) pairs, sorted by relation."""

    def __init__(self, sizes: Sequence[int], out: HeldEdges) -> None:
        """Stores the pairs.

        Args:
            sizes: [num_relations] number of pairs per relation.
            out: From pairs into rows, one edge per pair.
        """
        self.sizes, self._out = list(sizes), out

    @classmethod
    def of(cls, rows: Ids, types: Ids, num_rows: int, num_relations: int, device: torch.device) -> RowPairs:
        """Lists pairs that are sorted by relation.

        Args:
            rows: [num_pairs] row of each pair.
            types: [num_pairs] each pair's relation.
            num_rows: Number of rows.
            num_relations: Number of relations.
            device: Device of the result.
        """
        sizes = np.bincount(types, minlength=num_relations).tolist()
        return cls(sizes, HeldEdges(_into_rows(rows, num_rows), device))

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def num_rows(self) -> int:
        return self._out.num_dst

    @cached_property
    def relation(self) -> Tensor:  # [num_pairs] int64
        """Each pair's relation."""
        sizes = torch.tensor(self.sizes, device=self._out.device)
        return torch.repeat_interleave(torch.arange(len(sizes), device=sizes.device), sizes, output_size=len(self))

    @cached_property
    def rows(self) -> Tensor:  # [num_pairs] int64
        """Row of each pair."""
        csc = self._out.csc
        rows = np.empty(len(self), np.int64)
        rows[csc.indices] = np.repeat(np.arange(csc.num_nodes), np.diff(csc.indptr))
        return torch.from_numpy(rows).to(self._out.device)

    def sum(self, z: Tensor) -> Tensor:  # [num_pairs, k] -> [num_rows, k]
        """Sums over the relations of each row."""
        return self._out.sum(z)

    def products(self, x: Tensor, weights: Tensor) -> Tensor:  # [num_rows, f] -> [num_pairs, k]
        """Multiplies each pair's row by the relation's weight.

        Args:
            x: [num_rows, f].
            weights: [num_relations, f, k].
        """
        result: Tensor = _Products.apply(x, weights, self)
        return result

    def head_products(self, x: Tensor, weights: Tensor) -> Tensor:  # [num_rows, H, f] -> [num_pairs, H, k]
        """Multiplies each head of a pair's row by the relation's weight of this head.

        Args:
            x: [num_rows, H, f].
            weights: [num_relations, H, f, k].
        """
        result: Tensor = _HeadProducts.apply(x, weights, self)
        return result

    def pieces(self, rows: Tensor) -> Iterator[tuple[int, slice]]:
        """Yields relations, and ranges of pairs whose rows fit into the cache.

        Args:
            rows: [num_rows, k].
        """
        step = (
            max(_PIECE_BYTES // max(rows.shape[1] * rows.element_size(), 1), 1)
            if rows.device.type == "cpu"
            else len(self)
        )
        ends = np.cumsum(self.sizes)
        for relation, (size, end) in enumerate(zip(self.sizes, ends, strict=True)):
            for start in range(end - size, end, step or 1):
                yield relation, slice(start, min(start + step, end))

    def out_sum(self, z: Tensor) -> Tensor:
        """Computes `sum` outside autograd."""
        return self._out.kernels.sum(z, Factors())


def _into_rows(rows: Ids, num_rows: int) -> CSC:
    """Returns the edges from pairs into their rows."""
    return CSC(np.arange(len(rows) + 1), rows, num_sources=num_rows).transpose()[0]


class Pairs(RowPairs):
    """The (row, relation) pairs for which the row has in-edges of the relation.

    `Adjacency.aggregate_relations` passes them with one mean per pair. The methods
    combine these means into one sum per row, such as by a weight per relation. Every
    pair has an edge.
    """

    def __init__(self, sizes: Sequence[int], into: HeldEdges, factor: Floats, out: HeldEdges) -> None:
        """Stores the pairs and their edges.

        Args:
            sizes: [num_relations] number of pairs per relation.
            into: The edges, from rows into pairs.
            factor: [num_edges] each edge's share in the mean of its pair.
            out: From pairs into rows, one edge per pair.
        """
        super().__init__(sizes, out)
        self._into, self._factor = into, factor
        self._factors: dict[torch.dtype, Factors] = {}
        self._of_blocks: HeldEdges | None = None  # from a row's columns of a relation into pairs

    @classmethod
    def of_edges(
        cls, edges: EdgeList, factor: Floats, sizes: tuple[int, int], num_relations: int, device: torch.device
    ) -> Pairs:
        """Builds the pairs, in time linear in the edges.

        Args:
            edges: The edges between a rank's rows.
            factor: [num_edges] their `shares`.
            sizes: Number of rows that edges lead to, and of rows that they leave.
            num_relations: Number of relations, including inverse ones.
            device: Device of the result.
        """
        num_rows, num_sources = sizes
        order, first = by_pair(edges.dst, edges.types, num_rows)
        heads = np.flatnonzero(first)
        rows, types = edges.dst[order][heads], edges.types[order][heads]
        into = CSC(np.append(heads, len(order)), edges.src[order], num_sources=num_sources)
        counts = np.bincount(types, minlength=num_relations).tolist()
        return cls(counts, HeldEdges(into, device), factor[order], HeldEdges(_into_rows(rows, num_rows), device))

    def sums_first(self, num_bases: int, width: int) -> bool:
        """Returns whether a sum per basis is cheaper than a product per pair.

        Compares the multiplications per input column.

        Args:
            num_bases: Number of bases.
            width: Columns of a product.
        """
        return num_bases * (len(self) + self.num_rows * width) < len(self) * width

    def means(self, x: Tensor) -> Tensor:  # [num_rows, f] -> [num_pairs, f]
        """Computes the mean over each pair's in-edges.

        If several ranks hold a pair's edges, the result is this rank's part of the
        mean.
        """
        return self._into.constant_sum(x, self._by(x))

    def block_means(self, x: Tensor) -> Tensor:  # [num_rows, num_relations * k] -> [num_pairs, k]
        """Computes the mean over each pair's in-edges, in the relation's columns.

        `x` has k columns per relation, in order of relation.
        """
        if self._of_blocks is None:
            csc, num = self._into.csc, len(self.sizes)
            relation = np.repeat(self.relation.cpu().numpy(), np.diff(csc.indptr))
            places = np.asarray(csc.indices, np.int64) * num + relation
            self._of_blocks = HeldEdges(CSC(csc.indptr, places, num_sources=csc.num_sources * num), self._into.device)
        rows = x.reshape(len(x) * len(self.sizes), math.prod(x.shape[1:]) // max(len(self.sizes), 1))
        return self._of_blocks.constant_sum(rows, self._by(x))

    def _by(self, x: Tensor) -> Factors:
        """Returns each edge's share in the mean of its pair."""
        dtype = wide(x.dtype)
        if dtype not in self._factors:
            self._factors[dtype] = Factors(torch.tensor(self._factor, dtype=dtype, device=x.device)[:, None])
        return self._factors[dtype]

    def weighted_sum(self, z: Tensor, weight: Tensor) -> Tensor:  # [num_pairs, k] -> [num_rows, k]
        """Sums over the relations of each row, times the relation's weight.

        Args:
            z: [num_pairs, k].
            weight: [num_relations].
        """
        of_edges = weight[self.relation[self._out.source_of_edge]]
        return self._out.weighted_sum(z[:, None], of_edges[:, None])[:, 0]

    def sum_products(self, z: Tensor, weights: Tensor) -> Tensor:  # [num_pairs, f] -> [num_rows, k]
        """Multiplies by the relation's weights, and sums over each row's relations.

        Args:
            z: [num_pairs, f].
            weights: [num_relations, f, k].
        """
        result: Tensor = _SumProducts.apply(z, weights, self)
        return result


def num_pairs(shard: Shard, *, inverse: bool) -> int:
    """Counts the held edges' pairs, as in `Pairs`.

    Args:
        shard: The rank's shard.
        inverse: Whether to add reversed edges, with separate relations.
    """
    csc = shard.csc
    types = np.zeros(csc.num_edges, np.int16) if shard.edge_types is None else shard.edge_types
    ends = [(_targets(csc), csc.num_nodes), (csc.indices, csc.num_sources)]
    return sum(int(by_pair(rows, types, count)[1].sum()) for rows, count in ends[: 1 + inverse])


# Maps means of pairs [num_pairs, f], with some of the input's columns, to sums
# [num_rows, k]. Linear in the means.
Combine = Callable[[Tensor, Pairs, slice], Tensor]


class _Products(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, pairs: RowPairs) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.pairs = pairs
        result, weights = x.new_empty(len(pairs), weights.shape[2]), weights.to(x.dtype)
        for relation, piece in pairs.pieces(x):
            torch.mm(x.index_select(0, pairs.rows[piece]), weights[relation], out=result[piece])
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        pairs, cast_weights = ctx.pairs, weights.to(x.dtype)
        of_pairs = x.new_empty(len(pairs), x.shape[1]) if ctx.needs_input_grad[0] else None
        of_weights = torch.zeros_like(weights) if ctx.needs_input_grad[1] else None
        for relation, piece in pairs.pieces(x):
            if of_pairs is not None:
                torch.mm(grad[piece], cast_weights[relation].t(), out=of_pairs[piece])
            if of_weights is not None:
                of_weights[relation] += x.index_select(0, pairs.rows[piece]).t() @ grad[piece]
        return None if of_pairs is None else pairs.out_sum(of_pairs), of_weights, None


class _HeadProducts(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: Tensor, pairs: RowPairs) -> Tensor:
        ctx.save_for_backward(x, weights)
        ctx.pairs = pairs
        result, weights = x.new_empty(len(pairs), *weights.shape[1::2]), weights.to(x.dtype)
        for relation, piece in pairs.pieces(x.flatten(1)):
            rows = x.index_select(0, pairs.rows[piece])
            result[piece] = torch.bmm(rows.transpose(0, 1), weights[relation]).transpose(0, 1)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weights = ctx.saved_tensors
        pairs, weights_t = ctx.pairs, weights.to(x.dtype).transpose(2, 3)
        of_pairs = x.new_empty(len(pairs), *x.shape[1:]) if ctx.needs_input_grad[0] else None
        of_weights = torch.zeros_like(weights) if ctx.needs_input_grad[1] else None
        for relation, piece in pairs.pieces(x.flatten(1)):
            of_piece = grad[piece].transpose(0, 1)
            if of_pairs is not None:
                of_pairs[piece] = torch.bmm(of_piece, weights_t[relation]).transpose(0, 1)
            if of_weights is not None:
                of_weights[relation] += torch.bmm(x.index_select(0, pairs.rows[piece]).permute(1, 2, 0), of_piece)
        return None if of_pairs is None else pairs.out_sum(of_pairs), of_weights, None


class _SumProducts(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, weights: Tensor, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(z, weights)
        ctx.pairs = pairs
        result = z.new_empty(len(z), weights.shape[2])
        weights = weights.to(z.dtype)
        for rows, weight, out in zip(
            torch.split(z, pairs.sizes), weights, torch.split(result, pairs.sizes), strict=True
        ):
            torch.mm(rows, weight, out=out)
        return pairs.out_sum(result)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        z, weights = ctx.saved_tensors
        cast_weights = weights.to(z.dtype)
        of_z = torch.empty_like(z) if ctx.needs_input_grad[0] else None
        of_weights = torch.zeros_like(weights) if ctx.needs_input_grad[1] else None
        for relation, pairs in ctx.pairs.pieces(grad):
            rows = grad.index_select(0, ctx.pairs.rows[pairs])  # stays in the cache
            if of_z is not None:
                torch.mm(rows, cast_weights[relation].t(), out=of_z[pairs])
            if of_weights is not None:
                of_weights[relation] += z[pairs].t() @ rows
        return of_z, of_weights, None
