"""Differentiable aggregation over the edges that a rank holds.

Nothing here communicates.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.graph import CSC
from gnnkit.kernels.dropout import keep
from gnnkit.kernels.sums import DropoutMask, EdgeKernels, Factors, linear, linear_once, once_only, wide


class HeldEdges:
    """Edges from `num_src` rows to `num_dst` rows, both numbered from zero."""

    def __init__(self, csc: CSC, device: torch.device) -> None:
        self.csc, self.device = csc, device
        self.num_dst, self.num_src, self.num_edges = csc.num_nodes, csc.num_sources, csc.num_edges
        self._weights: dict[torch.dtype, Tensor] = {}

    @cached_property
    def kernels(self) -> EdgeKernels:
        """The kernels over the edges."""
        return EdgeKernels.of(self.csc, self.device)

    @cached_property
    def transposed(self) -> EdgeKernels:
        """The reversed edges, used by backward passes."""
        return self.kernels.transpose()

    @cached_property
    def by_destination(self) -> HeldEdges:
        """Sums edge rows by destination, [num_edges, ...] -> [num_dst, ...]."""
        return HeldEdges(CSC(self.csc.indptr, np.arange(self.num_edges), num_sources=self.num_edges), self.device)

    @cached_property
    def of_sources(self) -> HeldEdges:
        """Copies source rows to edges, [num_src, ...] -> [num_edges, ...]."""
        return HeldEdges(CSC(np.arange(self.num_edges + 1), self.csc.indices, num_sources=self.num_src), self.device)

    @cached_property
    def source_of_edge(self) -> Tensor:  # [num_edges] int64
        """Each edge's source row."""
        return torch.tensor(np.asarray(self.csc.indices, np.int64), device=self.device)

    def weight(self, dtype: torch.dtype) -> Tensor | None:  # [num_edges, 1]
        """Returns the graph's edge weights, if any, for rows of this dtype."""
        if self.csc.weight is None:
            return None
        dtype = wide(dtype)
        if dtype not in self._weights:
            self._weights[dtype] = torch.tensor(np.asarray(self.csc.weight), dtype=dtype, device=self.device)[:, None]
        return self._weights[dtype]

    def sum(self, x: Tensor) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Sums the sources' rows, multiplied by the graph's weights."""
        return self.constant_sum(x, Factors(self.weight(x.dtype)))

    def constant_sum(self, x: Tensor, factors: Factors) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Sums the sources' rows, multiplied by factors without gradient."""
        return _sum(x, factors, self, reverse=False)

    def sum_beside(self, x: Tensor, factors: Factors, mask: DropoutMask | None = None) -> Tensor:
        """Computes `constant_sum` concatenated with the destination's own row.

        The destinations are the first sources.

        Args:
            x: [num_src, f].
            factors: Factors without gradient.
            mask: Dropout mask of `x`. Default: keeps all.

        Returns:
            [num_dst, 2 f].
        """

        def transpose(grad: Tensor) -> Tensor:
            gradient = self.transposed.sum_beside_backward(grad, factors.transpose)
            return gradient if mask is None else keep(gradient, *mask)

        return linear_once(x, lambda x: self.kernels.sum_beside(x, factors, mask), transpose)

    def spread(self, z: Tensor) -> Tensor:  # [num_dst, ...] -> [num_src, ...]
        """Applies the transposed `sum`."""

        def add_up(grad: Tensor) -> Tensor:
            return self.kernels.sum(grad, Factors(self.weight(grad.dtype)))

        return linear_once(z, lambda z: self.transposed.sum(z, Factors(self.weight(z.dtype))), add_up)

    def weighted_sum(self, x: Tensor, weight: Tensor) -> Tensor:  # -> [num_dst, H, d]
        """Sums the sources' rows `x` [num_src, H, d], times `weight` [num_edges, H]."""
        result: Tensor = _WeightedSum.apply(x, weight, self)
        return result

    def dot(self, x: Tensor, y: Tensor) -> Tensor:  # -> [num_edges, H]
        """Multiplies the sources' rows [num_src, H, d] with rows [num_dst, H, d]."""
        result: Tensor = _Dot.apply(x, y, self)
        return result


def _sum(x: Tensor, factors: Factors, edges: HeldEdges, *, reverse: bool) -> Tensor:
    """Sums over the edges, or over the reversed edges. Gradients have gradients."""
    kernels = edges.transposed if reverse else edges.kernels
    return linear(
        x, lambda x: kernels.sum(x, factors), lambda grad: _sum(grad, factors.transpose, edges, reverse=not reverse)
    )


class _WeightedSum(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, edges: HeldEdges) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.edges = edges
        return edges.kernels.sum(x, Factors(weight))

    @staticmethod
    @once_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        return ctx.edges.transposed.sum(grad, Factors(weight)), ctx.edges.kernels.edge_dot(x, grad), None


class _Dot(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, edges: HeldEdges) -> Tensor:
        ctx.save_for_backward(x, y)
        ctx.edges = edges
        return edges.kernels.edge_dot(x, y).to(x.dtype)

    @staticmethod
    @once_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        x, y = ctx.saved_tensors
        factors = Factors(grad.contiguous())
        return ctx.edges.transposed.sum(y, factors.transpose), ctx.edges.kernels.sum(x, factors), None
