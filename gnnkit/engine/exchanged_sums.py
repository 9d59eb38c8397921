"""Sums and maxima over in-edges that several ranks hold, as autograd functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.engine.quarters import Kind
from gnnkit.engine.topology import Topology
from gnnkit.kernels.products import disable_torch_function
from gnnkit.kernels.sums import ONE, EdgeKernels


class ExchangedSum(Function):
    """Sums over in-edges, during the exchange of the halo and of partial sums."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor | None, topology: Topology, layer: int, kind: Kind, beside: bool
    ) -> Tensor:  # [num_cell_nodes, f] -> [num_cell_nodes, f or 2 f]
        with disable_torch_function():
            return ExchangedSum._forward(ctx, x, scale, topology, layer, kind, beside)

    @staticmethod
    def _forward(
        ctx: Any, x: Tensor, scale: Tensor | None, topology: Topology, layer: int, kind: Kind, beside: bool
    ) -> Tensor:
        quarters, x = topology.quarters, x.contiguous()
        near, far = quarters.near.edges, quarters.far.edges
        near_by, far_by, near_partial_by, far_partial_by = quarters.factors(kind, topology.degrees, x.dtype)
        ctx.topology, ctx.layer, ctx.kind, ctx.beside = topology, layer, kind, beside
        ctx.own = 0.0 if scale is None else float(scale)
        if scale is not None:
            ctx.save_for_backward(x)
        coming = topology.sources.start_spread(x, layer)
        z = near.kernels.sum_beside(x, near_by) if beside else near.kernels.sum(x, near_by, own=ctx.own)
        if topology.targets.idle:
            with coming.borrow() as halo:
                far.kernels.add_sum(halo, far_by, z)
            return z
        partial, halo = quarters.near_partial.edges.kernels.sum(x, near_partial_by), coming.wait()
        quarters.far_partial.edges.kernels.add_sum(halo, far_partial_by, partial)
        arriving = topology.targets.start_to_owners(partial, layer)
        far.kernels.add_sum(halo, far_by, z)
        with arriving.borrow() as sums:
            topology.targets.arrivals.add_sum(sums, ONE, z)
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        topology, layer, grad = ctx.topology, ctx.layer, grad.contiguous()
        quarters = topology.quarters
        near, far = quarters.near.edges, quarters.far.edges
        factors = quarters.factors(ctx.kind, topology.degrees, grad.dtype)
        near_by, far_by, near_partial_by, far_partial_by = (factor.transpose for factor in factors)
        width = grad.shape[1] // 2 if ctx.beside else grad.shape[1]

        scale_grad = None
        if ctx.needs_input_grad[1]:
            (x,) = ctx.saved_tensors
            scale_grad = torch.dot(grad.view(-1), x.view(-1))
        if not ctx.needs_input_grad[0]:
            return None, scale_grad, None, None, None, None

        def back() -> Tensor:
            transpose: EdgeKernels = near.transposed
            return (
                transpose.sum_beside_backward(grad, near_by)
                if ctx.beside
                else transpose.sum(grad, near_by, own=ctx.own)
            )

        halo = grad.new_zeros(far.num_src, width)
        far.transposed.add_sum(grad, far_by, halo)
        if topology.targets.idle:
            arriving = topology.sources.start_to_owners(halo, layer)
            out = back()
        else:
            coming = topology.targets.start_spread(grad[:, :width], layer)
            out, partial = back(), coming.wait()
            quarters.far_partial.edges.transposed.add_sum(partial, far_partial_by, halo)
            arriving = topology.sources.start_to_owners(halo, layer)
            quarters.near_partial.edges.transposed.add_sum(partial, near_partial_by, out)
        with arriving.borrow() as gradients:
            topology.sources.arrivals.add_sum(gradients, ONE, out)
        return out, scale_grad, None, None, None, None


class ExchangedMax(Function):
    """Maxima over in-edges. Ties are resolved to the lowest global source id."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, topology: Topology, layer: int
    ) -> Tensor:  # [num_sources, f] -> [num_cell_nodes, f]
        edges, targets = topology.edges, topology.targets
        best, edge = edges.kernels.max(x)
        place = edge
        if not targets.idle:
            source = topology.source_ids[edges.source_of_edge][edge] if edges.num_edges else edge
            partial_maxima, source = topology.partials.collect(best, layer), topology.partials.collect(source, layer)
            best = topology.partials.kernels.max(partial_maxima)[0]
            # Among equal values, the lowest source id is selected. Among parallel edges
            # in two cells, the first received one is selected.
            candidates = torch.where(
                partial_maxima == best[topology.partials.rows], -source.to(torch.float64), -torch.inf
            )
            place = topology.partials.kernels.max(candidates)[1]
        ctx.topology, ctx.layer = topology, layer
        ctx.save_for_backward(edge, place)
        return torch.where((place >= 0) & best.isfinite(), best, 0)  # a holder may have dropped its edges

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        edge, place = ctx.saved_tensors
        topology, num_local = ctx.topology, len(grad)
        if not topology.targets.idle:
            to = topology.partials.rows
            won = place[to] == torch.arange(len(to), device=grad.device)[:, None]
            grad = torch.where(won, grad[to], 0)
            grad = torch.cat([grad[:num_local], topology.targets.to_holders(grad[num_local:], ctx.layer)])
        return topology.edges.kernels.max_backward(grad.contiguous(), edge), None, None
