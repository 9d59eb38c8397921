"""Attention over held edges in one native pass, with autograd.

`rust/core/src/aggregate/attention.rs` documents the formulas. No tensor has a row per
edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit import _core
from gnnkit.kernels.aggregate import HeldEdges
from gnnkit.kernels.sums import NativeKernels, once_only, wide


@dataclass(frozen=True, slots=True, eq=False)
class Weighing:
    """How edge scores become attention weights."""

    slope: float  # negative slope of the leaky ReLU
    p: float = 0  # dropout probability of a weight, in [0, 1)
    key: int = 0  # random key
    ids: Tensor | None = None  # [num_edges] int64 global ids, required if p > 0


def attend(
    edges: HeldEdges, h: Tensor, source: Tensor, destination: Tensor, edge: Tensor | None, weighing: Weighing
) -> Tensor:  # [num_dst, H, d]
    """Sums rows over in-edges with attention.

    The weights are the softmax of leaky_relu(source[u] + destination[v] (+ edge[e])).

    Available on CPUs, for rows accepted by `serves`. 16-bit rows are computed in
    float32, and the sums are rounded once.

    Args:
        edges: All in-edges of each destination.
        h: [num_src, H, d] rows.
        source: [num_src, H].
        destination: [num_dst, H].
        edge: [num_edges, H], added to the scores. If None, no edge term.
        weighing: Slope and dropout.
    """
    dtype, kind = h.dtype, wide(h.dtype)
    h, source, destination = h.to(kind), source.to(kind), destination.to(kind)
    edge = None if edge is None else edge.to(kind)  # edge features may have another dtype
    if torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (h, source, destination, edge)):
        result: Tensor = _Attend.apply(h, source, destination, edge, edges, weighing)
        return result.to(dtype)
    return _forward(h, source, destination, edge, edges, weighing, None)[0].to(dtype)


def serves(edges: HeldEdges, h: Tensor) -> bool:
    """Returns whether `attend` supports this dtype on this device."""
    return isinstance(edges.kernels, NativeKernels) and h.dtype in (torch.float32, torch.float64, torch.bfloat16)


def _forward(
    h: Tensor,
    source: Tensor,
    destination: Tensor,
    edge: Tensor | None,
    edges: HeldEdges,
    weighing: Weighing,
    bent: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Returns the sums, and softmax `stats` [num_dst, 3, H]. Fills `bent`."""
    h = h.detach().contiguous()
    out = h.new_empty(edges.num_dst, *h.shape[1:])
    stats = h.new_empty(edges.num_dst, 3, h.shape[1])
    _core.attend(
        _native(edges.kernels),
        h.numpy(),
        _array(source),
        _array(destination),
        weighing.slope,
        out.numpy(),
        stats.numpy(),
        None if bent is None else bent.numpy(),
        **_common_arguments(edge, weighing),
    )
    return out, stats


def _common_arguments(edge: Tensor | None, weighing: Weighing) -> dict[str, Any]:
    """Returns the arguments common to all passes over the edges."""
    return {
        "edge": None if edge is None else _array(edge),
        "ids": None if weighing.ids is None else weighing.ids.numpy(),
        "p": weighing.p,
        "key": weighing.key,
        "threads": torch.get_num_threads(),
    }


def _array(x: Tensor) -> Any:
    return x.detach().contiguous().numpy()


def _native(kernels: object) -> _core.Aggregator:
    assert isinstance(kernels, NativeKernels)
    return kernels.native


class _Attend(Function):
    @staticmethod
    def forward(
        ctx: Any,
        h: Tensor,
        source: Tensor,
        destination: Tensor,
        edge: Tensor | None,
        edges: HeldEdges,
        weighing: Weighing,
    ) -> Tensor:
        bent = h.new_empty(edges.num_dst, *h.shape[1:])
        out, stats = _forward(h, source, destination, edge, edges, weighing, bent)
        ctx.edges, ctx.weighing = edges, weighing
        ctx.save_for_backward(h, source, destination, edge, out, bent, stats)
        return out

    @staticmethod
    @once_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None, None, None]:
        h, source, destination, edge, out, bent, stats = ctx.saved_tensors
        edges, slope, common = ctx.edges, ctx.weighing.slope, _common_arguments(edge, ctx.weighing)
        h, source, destination, grad = (x.contiguous() for x in (h, source, destination, grad))
        info, to_destination = h.new_empty(edges.num_dst, 4, h.shape[1]), torch.empty_like(destination)
        of_rows = (grad.numpy(), out.numpy(), bent.numpy())
        arrays = (destination.numpy(), *of_rows, stats.numpy(), info.numpy(), to_destination.numpy())
        _core.attend_destinations(*arrays, torch.get_num_threads())
        to_h, to_source = torch.empty_like(h), torch.empty_like(source)
        read = (h.numpy(), source.numpy())
        results = (to_h.numpy(), to_source.numpy())
        _core.attend_backward(_native(edges.transposed), *read, grad.numpy(), info.numpy(), slope, *results, **common)
        to_edge = None
        if ctx.needs_input_grad[3]:
            to_edge = edges.kernels.edge_dot(h, grad)
            _core.attend_edges(_native(edges.kernels), *read, info.numpy(), slope, to_edge.numpy(), **common)
        return to_h, to_source, to_destination, to_edge, None, None
