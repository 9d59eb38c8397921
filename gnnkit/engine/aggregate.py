"""Sums over the edges that a rank holds, as a differentiable operation."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx

from gnnkit import _core
from gnnkit.graph import CSC


class HeldEdges:
    """The linear map x -> z, `z[v] = sum of weight[e] * x[source of e]` over the in-edges e of v.

    On CPUs it is the native kernel, whose bits do not depend on threads; on GPUs torch's sparse product.
    """

    def __init__(self, csc: CSC) -> None:
        self.csc = csc
        self.num_dst, self.num_src = csc.num_nodes, csc.num_sources
        self._native: Any = None
        self._sparse: dict[tuple[torch.device, torch.dtype], Tensor] = {}
        self._transposed: HeldEdges | None = None

    @property
    def transposed(self) -> HeldEdges:
        """The same edges turned round."""
        if self._transposed is None:
            self._transposed = HeldEdges(self.csc.transpose()[0])
            self._transposed._transposed = self
        return self._transposed

    def sum(self, x: Tensor) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """The map; its backward is the map of the transposed edges."""
        result: Tensor = _Sum.apply(x, self)
        return result

    def apply(self, x: Tensor) -> Tensor:  # [num_src, f] -> [num_dst, f]
        """The map without autograd."""
        if x.device.type != "cpu":
            return self._sparse_matrix(x) @ x
        if self._native is None:
            weight = None if self.csc.weight is None else np.ascontiguousarray(self.csc.weight, np.float64)
            self._native = _core.Aggregator(self.csc.indptr, self.csc.indices, self.num_src, weight)
        out = x.new_empty((self.num_dst, x.shape[1]))
        self._native.sum(x.contiguous().numpy(), out.numpy(), torch.get_num_threads())
        return out

    def _sparse_matrix(self, x: Tensor) -> Tensor:
        key = (x.device, x.dtype)
        if key not in self._sparse:
            weight = np.ones(self.csc.num_edges) if self.csc.weight is None else self.csc.weight
            self._sparse[key] = torch.sparse_csr_tensor(
                torch.tensor(np.asarray(self.csc.indptr)),
                torch.tensor(np.asarray(self.csc.indices, np.int64)),
                torch.tensor(np.asarray(weight)),
                (self.num_dst, self.num_src),
                dtype=x.dtype,
                device=x.device,
            )
        return self._sparse[key]


class _Sum(Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, edges: HeldEdges) -> Tensor:  # type: ignore[override]
        ctx.edges = edges  # type: ignore[attr-defined]
        return edges.apply(x.detach())

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return ctx.edges.transposed.apply(grad.contiguous()), None  # type: ignore[attr-defined]
