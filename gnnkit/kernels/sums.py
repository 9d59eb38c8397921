"""Sums, maxima and products over in-edges, without autograd.

CPUs use the native core, and GPUs use Triton, or torch if Triton is unavailable. Rows
are [n, f] or, with heads, [n, heads, f]. Weights are [num_edges, heads], in the order
of the edges from which the kernels were created. A transpose's kernels take weights in
the same order. 16-bit rows are summed in float32, with float32 weights, and rounded
once. At the end: how autograd calls kernels that compute their gradients.
"""

from __future__ import annotations

import functools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NoReturn, TypedDict

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit import _core
from gnnkit.errors import UserError
from gnnkit.graph import CSC

DropoutMask = tuple[Tensor, float]  # [n, f / 32 rounded up] uint32 from `dropout_bits`, and its probability


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which rows are weighted and summed."""
    return torch.float32 if dtype in (torch.bfloat16, torch.float16) else dtype


def as_array(x: Tensor) -> np.ndarray:
    """Returns a contiguous tensor's memory as an array, bfloat16 as uint16."""
    x = x.detach()
    array: np.ndarray = (x.view(torch.uint16) if x.dtype == torch.bfloat16 else x).numpy()
    return array


class FactorArrays(TypedDict, total=False):
    """Arguments for the native core. Factors that are 1 are left out."""

    weight: np.ndarray
    source: np.ndarray
    destination: np.ndarray


@dataclass(frozen=True, eq=False)
class Factors:
    """The rows' factors in a sum. If None, 1."""

    edge: Tensor | None = None  # [num_edges, heads] in the order of the edges that created the kernels
    source: Tensor | None = None  # [num_src], not combined with edge factors
    destination: Tensor | None = None  # [num_dst] factor of each sum
    _arrays: dict[torch.dtype, FactorArrays] = field(init=False, repr=False, default_factory=dict)

    @cached_property
    def transpose(self) -> Factors:
        """The transpose's factors."""
        return Factors(self.edge, self.destination, self.source)

    def arrays(self, dtype: torch.dtype) -> FactorArrays:
        """Returns the native core's arguments for sums of this dtype, cached."""
        if dtype not in self._arrays:
            self._arrays[dtype] = arrays = FactorArrays()
            if self.edge is not None:
                arrays["weight"] = _matrix(self.edge.to(dtype))
            if self.source is not None:
                arrays["source"] = _matrix(self.source.to(dtype))
            if self.destination is not None:
                arrays["destination"] = _matrix(self.destination.to(dtype))
        return self._arrays[dtype]


ONE = Factors()


class EdgeKernels(ABC):
    """In-edges of `num_dst` rows, leaving `num_src` rows."""

    num_dst: int
    num_src: int
    num_edges: int

    @staticmethod
    def of(csc: CSC, device: torch.device) -> EdgeKernels:
        """Creates the kernels for a device. The CSC's weights are not used."""
        if device.type == "cpu":
            return NativeKernels(_core.Aggregator(csc.indptr, csc.indices, csc.num_sources))
        return _of_device(device).of_csc(csc, device)

    @abstractmethod
    def transpose(self) -> EdgeKernels:
        """Reverses the edges."""

    @abstractmethod
    def sum(self, x: Tensor, factors: Factors = ONE, *, own: float = 0) -> Tensor:  # [num_src, ...] -> [num_dst, ...]
        """Computes the sum of factor * x[u, h] over the edges u -> v, plus own * x[v].

        The destinations are the first sources where `own` is not 0.
        """

    @abstractmethod
    def add_sum(self, x: Tensor, factors: Factors, out: Tensor) -> None:
        """Adds the sums to `out`, in the first columns that both have.

        Args:
            x: [num_src, f] contiguous.
            factors: Factors without heads.
            out: [num_dst, g] contiguous.
        """

    @abstractmethod
    def sum_beside(self, x: Tensor, factors: Factors, mask: DropoutMask | None = None) -> Tensor:
        """Computes the sums concatenated with x[v]: [num_src, f] -> [num_dst, 2 f].

        The destinations are the first sources. With `mask`, dropout is first applied
        to `x`. Available on CPUs only.
        """

    @abstractmethod
    def sum_beside_backward(self, grad: Tensor, factors: Factors) -> Tensor:  # [num_src, 2 f] -> [num_dst, f]
        """Computes the gradient for `sum_beside`. Available on transposes only."""

    @abstractmethod
    def edge_dot(self, x: Tensor, grad: Tensor) -> Tensor:  # [num_src, H, d], [num_dst, H, d] -> [num_edges, H]
        """Computes x[u, h] . grad[v, h] for each edge e = u -> v.

        The result is the weights' gradient.
        """

    @abstractmethod
    def max(self, x: Tensor) -> tuple[Tensor, Tensor]:  # [num_src, f] -> [num_dst, f] twice
        """Finds the largest x[u] over the edges u -> v, and the first such edge.

        Gives -inf and -1 without edges.
        """

    @abstractmethod
    def max_backward(self, grad: Tensor, arg: Tensor) -> Tensor:  # [num_dst, f] twice -> [num_src, f]
        """Computes the gradient for `max` from its edges `arg`. Not for a transpose."""


class NativeKernels(EdgeKernels):
    """The Rust core's kernels. Results do not depend on the number of threads."""

    def __init__(self, native: _core.Aggregator) -> None:
        self.native = native
        self.num_dst, self.num_src, self.num_edges = native.num_destinations, native.num_sources, native.num_edges

    def transpose(self) -> EdgeKernels:
        return NativeKernels(self.native.transpose())

    def sum(self, x: Tensor, factors: Factors = ONE, *, own: float = 0) -> Tensor:
        rows, out = _matrix(x), x.new_empty((self.num_dst, *x.shape[1:]))
        flat = as_array(out.view(self.num_dst, rows.shape[1]))
        self.native.sum(rows, flat, torch.get_num_threads(), own=own, **factors.arrays(wide(x.dtype)))
        return out

    def add_sum(self, x: Tensor, factors: Factors, out: Tensor) -> None:
        if self.num_edges == 0:
            return
        rows, sums, threads = _matrix(x), _matrix(out), torch.get_num_threads()
        width = min(rows.shape[1], sums.shape[1])
        self.native.sum(rows, sums, threads, add=True, width=width, **factors.arrays(wide(x.dtype)))

    def sum_beside(self, x: Tensor, factors: Factors, mask: DropoutMask | None = None) -> Tensor:
        out, threads = x.new_empty((self.num_dst, 2 * x.shape[1])), torch.get_num_threads()
        rows, sums, arrays = _matrix(x), as_array(out), factors.arrays(wide(x.dtype))
        if mask is None:
            self.native.sum_beside(rows, sums, threads, **arrays)
        else:
            self.native.sum_beside(rows, sums, threads, **arrays, kept=mask[0].numpy(), p=mask[1])
        return out

    def sum_beside_backward(self, grad: Tensor, factors: Factors) -> Tensor:
        out, threads = grad.new_empty((self.num_dst, grad.shape[1] // 2)), torch.get_num_threads()
        self.native.sum_beside_backward(_matrix(grad), as_array(out), threads, **factors.arrays(wide(grad.dtype)))
        return out

    def edge_dot(self, x: Tensor, grad: Tensor) -> Tensor:
        x, grad = _wide(x), _wide(grad)
        out = x.new_empty((self.num_edges, x.shape[1]))
        self.native.edge_dot(_matrix(x), _matrix(grad), out.numpy(), torch.get_num_threads())
        return out

    def max(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = _wide(x)
        out = rows.new_empty((self.num_dst, x.shape[1]))
        arg = torch.empty(out.shape, dtype=torch.int64)
        self.native.max(_matrix(rows), out.numpy(), arg.numpy(), torch.get_num_threads())
        return out.to(x.dtype), arg

    def max_backward(self, grad: Tensor, arg: Tensor) -> Tensor:
        rows = _wide(grad)
        out = rows.new_empty((self.num_src, grad.shape[1]))
        self.native.max_backward(_matrix(rows), _matrix(arg), out.numpy(), torch.get_num_threads())
        return out.to(grad.dtype)


def _wide(x: Tensor) -> Tensor:
    return x.detach().to(wide(x.dtype))


def _matrix(x: Tensor) -> np.ndarray:
    """Returns contiguous two-dimensional rows. Shares memory where possible."""
    x = x.contiguous()
    return as_array(x if x.dim() == 2 else x.view(x.shape[0], math.prod(x.shape[1:])))


class DeviceKernels(EdgeKernels):
    """Kernels over edges that stand on a device, in compressed rows."""

    def __init__(self, indptr: Tensor, src: Tensor, order: Tensor | None, num_src: int) -> None:
        """Keeps the edges.

        Args:
            indptr: [num_dst + 1] range of each destination's edges.
            src: [num_edges] sources.
            order: [num_edges] place of each edge's weight. If None, in order.
        """
        self.indptr, self.src, self.order = indptr, src, order
        self.num_dst, self.num_src, self.num_edges = len(indptr) - 1, num_src, len(src)

    @classmethod
    def of_csc(cls, csc: CSC, device: torch.device) -> EdgeKernels:
        largest = max(csc.num_nodes, csc.num_sources, csc.num_edges)
        ids = np.int32 if largest < 2**31 else np.int64
        indptr, src = (torch.tensor(np.asarray(array, ids), device=device) for array in (csc.indptr, csc.indices))
        return cls(indptr, src, None, csc.num_sources)

    @cached_property
    def dst(self) -> Tensor:  # [num_edges]
        """Each edge's destination."""
        rows = torch.arange(self.num_dst, device=self.src.device, dtype=self.src.dtype)
        return torch.repeat_interleave(rows, self.indptr.diff(), output_size=self.num_edges)

    def transpose(self) -> EdgeKernels:
        by_source = torch.argsort(self.src, stable=True)
        indptr = self.src.new_zeros(self.num_src + 1)
        torch.cumsum(torch.bincount(self.src, minlength=self.num_src), 0, out=indptr[1:])
        order = by_source.to(self.src.dtype) if self.order is None else self.order[by_source]
        return type(self)(indptr, self.dst[by_source], order, self.num_dst)


class TorchKernels(DeviceKernels):
    """Torch's segment reductions, deterministic on GPUs too.

    Every edge has a row in memory. The reference for the Triton kernels.
    """

    @cached_property
    def _places(self) -> Tensor:  # [num_edges]
        """The place of each edge's weight."""
        return torch.arange(self.num_edges, device=self.src.device) if self.order is None else self.order

    def sum(self, x: Tensor, factors: Factors = ONE, *, own: float = 0) -> Tensor:
        dtype, x = x.dtype, _wide(x)
        rows = (x if factors.source is None else x * _across(factors.source, x))[self.src]
        if factors.edge is not None:
            weight = factors.edge[self._places].to(x.dtype)
            rows = rows * weight.view(-1, *weight.shape[1:], *[1] * (x.dim() - 2))
        out = self._segments(rows, "sum", 0)
        if factors.destination is not None:
            out *= _across(factors.destination, out)
        return (out + own * x[: self.num_dst] if own else out).to(dtype)

    def add_sum(self, x: Tensor, factors: Factors, out: Tensor) -> None:
        width = min(x.shape[1], out.shape[1])
        out[:, :width] += self.sum(x[:, :width], factors)

    def sum_beside(self, x: Tensor, factors: Factors, mask: DropoutMask | None = None) -> Tensor:
        assert mask is None
        return torch.cat([self.sum(x, factors), x[: self.num_dst]], 1)

    def sum_beside_backward(self, grad: Tensor, factors: Factors) -> Tensor:
        sums, own_grad = grad.chunk(2, 1)
        out = self.sum(sums, factors)
        out[: len(own_grad)] += own_grad
        return out

    def edge_dot(self, x: Tensor, grad: Tensor) -> Tensor:
        x, grad = _wide(x), _wide(grad)
        out = x.new_empty((self.num_edges, x.shape[1]))
        out[self._places] = (x[self.src] * grad[self.dst]).sum(-1)
        return out

    def max(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x[self.src]
        best = self._segments(rows, "max", -torch.inf)
        place = self._places[:, None].expand_as(rows).to(torch.float64)
        first = self._segments(torch.where(rows == best[self.dst], place, torch.inf), "min", torch.inf)
        return best, torch.where(first.isfinite(), first, -1).to(torch.int64)

    def max_backward(self, grad: Tensor, arg: Tensor) -> Tensor:
        rows, columns = torch.nonzero(arg >= 0, as_tuple=True)
        out, places = grad.new_zeros(self.num_src, grad.shape[1]), (self.src[arg[rows, columns]], columns)
        return out.index_put_(places, grad[rows, columns], accumulate=True)  # deterministic: on GPUs torch sorts

    def _segments(self, rows: Tensor, reduce: str, empty: float) -> Tensor:
        if not rows.numel():  # segment_reduce refuses them
            return rows.new_full((self.num_dst, *rows.shape[1:]), empty)
        return torch.segment_reduce(rows, reduce, offsets=self.indptr, initial=empty)


def _across(factor: Tensor, rows: Tensor) -> Tensor:
    """Reshapes factors to broadcast over the rows."""
    return factor.to(rows.dtype).view(-1, *[1] * (rows.dim() - 1))


@cache
def _of_device(device: torch.device) -> type[DeviceKernels]:
    """Returns Triton's kernels if a first sum succeeds, else torch's.

    Triton needs a C compiler and a GPU that is not too old. A warning gives the reason
    for using torch's kernels.
    """
    try:
        from gnnkit.kernels.triton import TritonKernels

        loop = CSC(np.array([0, 1]), np.array([0]))
        TritonKernels.of_csc(loop, device).sum(torch.ones(1, 1, device=device))
    except Exception as error:
        warnings.warn(
            f"TorchKernels sum on {device}, with a row in memory for each edge. Triton is unavailable: {error}",
            stacklevel=3,
        )
        return TorchKernels
    return TritonKernels


def refuse_second() -> NoReturn:
    """Raises `UserError` for a gradient of a gradient."""
    raise UserError(
        "the model needs the gradient of a gradient (create_graph=True), which maxima, sums with learned weights, dropout "
        "and rows of other workers do not support: use workers=1 and sums or means without them"
    )


def once_only(backward: Callable[..., object]) -> Callable[..., Any]:
    """Raises `UserError` where autograd would record a gradient as a constant.

    torch's `once_differentiable` does not, if only saved tensors need a gradient.
    """

    @functools.wraps(backward)
    def wrapper(ctx: Any, *grads: object) -> Any:
        if torch.is_grad_enabled():
            refuse_second()
        return backward(ctx, *grads)

    return wrapper


Map = Callable[[Tensor], Tensor]


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Map, transpose: Map) -> Tensor:
        ctx.transpose = transpose
        return function(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.transpose(grad), None, None


class _LinearOnce(_Linear):
    backward = staticmethod(once_only(_Linear.backward))


def linear(x: Tensor, function: Map, transpose: Map) -> Tensor:
    """Applies a linear map, and its transpose to the gradient.

    Args:
        x: [...] the input.
        function: The map, which autograd does not record.
        transpose: Computes the gradient of `x`. Must not hold `x`, to free its memory.
    """
    result: Tensor = _Linear.apply(x, function, transpose)
    return result


def linear_once(x: Tensor, function: Map, transpose: Map) -> Tensor:
    """Like `linear`, for a transpose that autograd cannot record.

    Takes the arguments of `linear`.
    """
    result: Tensor = _LinearOnce.apply(x, function, transpose)
    return result
