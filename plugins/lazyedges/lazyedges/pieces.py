"""Functions of edge rows, computed for some edges at a time.

A function of rows at both ends needs a row per edge, but its sums by destination do not
need all of them at once. The edges are divided into pieces of complete destinations.
The backward pass computes each piece's rows again, so no row of an edge is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import Function

from lazyedges.kernels import Backend, EdgeKernels

NUMBERS = 1 << 19  # in the widest array of a piece, unless the rows of nodes have more

Read = Literal["source", "destination", "edge", "all"]
Reduction = Literal["none", "sum", "amax", "amin"]
_FIRST = 5  # position of the first input among the arguments of `_Evaluate`
Compute = Callable[[Sequence[Tensor]], Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class PieceFunction:
    """A function of edges, by its inputs."""

    reads: tuple[Read, ...]  # what each input has a row of; "all": the same for all edges
    compute: Compute  # inputs of some edges -> [num_edges, *shape]
    shape: tuple[int, ...]  # shape of an edge's result
    dtype: torch.dtype  # of the results


class Piece:
    """Edges of consecutive destinations, sorted by destination."""

    def __init__(self, edges: EdgeKernels, backend: Backend, first: int, last: int) -> None:
        """Selects the edges of destinations `first` to `last` - 1.

        Args:
            edges: All edges.
            backend: Creates kernels over the piece.
            first: The first destination.
            last: The destination after the last one.
        """
        indptr, self._backend = edges.indptr[first : last + 1], backend
        self.edges = slice(int(indptr[0]), int(indptr[-1]))
        self.rows, self.num_src = slice(first, last), edges.num_src
        self.source, device = edges.indices[self.edges], edges.device
        counts = indptr.diff().to(device)
        self.destination = torch.repeat_interleave(torch.arange(last - first, device=device), counts)
        # [edges of the piece, ...] -> [last - first, ...]
        self.by_destination = backend.kernels(indptr - indptr[0], self._positions, len(self.source))

    @property
    def _positions(self) -> Tensor:  # [edges of the piece] int64
        return torch.arange(len(self.source), device=self.source.device)

    @cached_property
    def by_source(self) -> EdgeKernels:
        """Sums edge rows by source, [edges of the piece, ...] -> [num_src, ...]."""
        return self._backend.sort(self._positions, self.source, len(self.source), self.num_src)[0]

    def inputs(self, reads: Sequence[Read], values: Sequence[Tensor]) -> list[Tensor]:
        """Selects the inputs of the piece's edges."""
        return [self._input(read, value) for read, value in zip(reads, values, strict=True)]

    def _input(self, read: Read, value: Tensor) -> Tensor:
        if read == "source":
            return value.index_select(0, self.source)
        if read == "destination":
            return value[self.rows].index_select(0, self.destination)
        return value[self.edges] if read == "edge" else value

    def add_gradient(self, read: Read, gradient: Tensor, total: Tensor) -> None:
        """Adds the gradient of an input of the piece to that of the whole input."""
        if read == "source":
            flat = gradient.reshape(len(gradient), math.prod(gradient.shape[1:])).contiguous()
            self.by_source.add_sum(flat.to(total.dtype), total.view(len(total), flat.shape[1]))
        elif read == "destination":
            total[self.rows] = self.by_destination.sum(gradient.contiguous())
        elif read == "edge":
            total[self.edges] = gradient
        else:
            total += gradient

    def reduce(self, values: Tensor, reduction: Reduction) -> Tensor:
        """Reduces values of the piece's edges by destination."""
        if reduction == "none":
            return values
        if reduction == "sum":
            return self.by_destination.sum(values.contiguous())
        flat = values.reshape(len(values), math.prod(values.shape[1:]))
        sign = 1 if reduction == "amax" else -1
        best = self.by_destination.max(sign * flat)
        return (sign * best).view(len(best), *values.shape[1:])

    def gradient(self, values: Tensor, reduction: Reduction, grad: Tensor, result: Tensor | None) -> Tensor:
        """Returns the gradient of the edges' values.

        Equal extremes share the gradient, as in `torch.scatter_reduce`.

        Args:
            values: [edges of the piece, ...].
            reduction: What the values are reduced by.
            grad: Gradient of all results.
            result: All results, for "amax" and "amin".
        """
        if reduction == "none":
            return grad[self.edges]
        grad = grad[self.rows]
        if reduction == "sum":
            return grad.index_select(0, self.destination)
        assert result is not None
        extreme = result[self.rows].index_select(0, self.destination).eq_(values).to(_wide(values.dtype))  # 1 or 0
        count = self.by_destination.sum(extreme).clamp_(min=1)
        return extreme.mul_((grad / count).index_select(0, self.destination))


def pieces_of(edges: EdgeKernels, backend: Backend, width: int) -> list[Piece]:
    """Divides edges into pieces.

    Args:
        edges: The edges.
        backend: Creates kernels over the pieces.
        width: Numbers of an edge in the widest array.
    """
    indptr, first, pieces = edges.indptr, 0, []
    limit = max(NUMBERS // max(width, 1), edges.num_src // 2, 1)
    while first < edges.num_dst:
        last = int(torch.searchsorted(indptr, indptr[first] + limit, right=True)) - 1
        last = min(max(last, first + 1), edges.num_dst)
        pieces.append(Piece(edges, backend, first, last))
        first = last
    return pieces


def evaluate(
    pieces: Callable[[], list[Piece]],
    function: PieceFunction,
    inputs: Sequence[Tensor],
    reduction: Reduction,
    count: int,
    output: Tensor | None = None,
) -> Tensor:  # [count, *shape]
    """Computes a function of edges, or its reduction by destination.

    Args:
        pieces: Returns all edges.
        function: The function.
        inputs: Its inputs. Edge values are in the order of the pieces.
        reduction: "none", "sum", "amax" or "amin". Destinations without edges get -inf
            as "amax" and inf as "amin".
        count: Number of edges, or of destinations.
        output: The result, if kernels have computed it.
    """
    result: Tensor = _Evaluate.apply(pieces, function, reduction, count, output, *inputs)
    return result


class _Evaluate(Function):
    @staticmethod
    def forward(
        ctx: Any,
        pieces: Callable[[], list[Piece]],
        function: PieceFunction,
        reduction: Reduction,
        count: int,
        output: Tensor | None,
        *inputs: Tensor,
    ) -> Tensor:
        out = _results(pieces(), function, reduction, count, inputs) if output is None else output
        ctx.pieces, ctx.function, ctx.reduction = pieces, function, reduction
        ctx.save_for_backward(*inputs, *([out] if reduction in ("amax", "amin") else []))
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            return _recorded_gradients(ctx, grad)
        reads, reduction = ctx.function.reads, ctx.reduction
        inputs, result = ctx.saved_tensors[: len(reads)], (*ctx.saved_tensors[len(reads) :], None)[0]
        places = [place for place in range(len(reads)) if ctx.needs_input_grad[_FIRST + place]]
        totals = {place: _zeros_of(inputs[place]) for place in places}
        for piece in ctx.pieces():
            parts = piece.inputs(reads, inputs)
            for place in places:
                parts[place] = parts[place].detach().requires_grad_()
            with torch.enable_grad():
                values = ctx.function.compute(parts)
            if not values.requires_grad:
                break
            gradient = piece.gradient(values.detach(), reduction, grad, result).to(values.dtype)
            gradients = torch.autograd.grad(values, [parts[place] for place in places], gradient, allow_unused=True)
            for place, gradient in zip(places, gradients, strict=True):
                if gradient is not None:
                    piece.add_gradient(reads[place], gradient, totals[place])
        every = [totals[place].to(inputs[place].dtype) if place in totals else None for place in range(len(reads))]
        return (*[None] * _FIRST, *every)


def _recorded_gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    """Returns the gradients as functions of the inputs, for gradients of gradients."""
    reads, needs_grad = ctx.function.reads, ctx.needs_input_grad[_FIRST:]
    # Views, because a tensor that both ends read would get the gradients of both twice.
    inputs = [value.view_as(value) for value in ctx.saved_tensors[: len(reads)]]
    values = [(piece, ctx.function.compute(piece.inputs(reads, inputs))) for piece in ctx.pieces()]
    total = torch.cat([piece.reduce(rows, ctx.reduction) for piece, rows in values])
    places = [place for place, is_needed in enumerate(needs_grad) if is_needed]
    gradients = torch.autograd.grad(
        total, [inputs[place] for place in places], grad, create_graph=True, allow_unused=True
    )
    by_place = dict(zip(places, gradients, strict=True))
    return (*[None] * _FIRST, *(by_place.get(place) for place in range(len(reads))))


def _results(
    pieces: list[Piece], function: PieceFunction, reduction: Reduction, count: int, inputs: Sequence[Tensor]
) -> Tensor:
    empty = {"amax": -torch.inf, "amin": torch.inf}.get(reduction, 0)
    out = torch.full((count, *function.shape), empty, dtype=function.dtype, device=inputs[0].device)
    for piece in pieces:
        values = function.compute(piece.inputs(function.reads, inputs))
        out[piece.edges if reduction == "none" else piece.rows] = piece.reduce(values, reduction)
    return out


def _zeros_of(x: Tensor) -> Tensor:
    return torch.zeros(x.shape, dtype=_wide(x.dtype), device=x.device)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which gradients are added up."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype
