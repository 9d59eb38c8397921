"""Products with a weight matrix, by the processor's fastest implementation.

On AMD processors with AVX-512, MKL, which torch uses, computes with half of oneDNN's
register width. `fast_products` uses oneDNN there. On processors without AVX-512, torch
multiplies bfloat16 numbers one by one, up to 40 times slower than float32.
`fast_products` computes in float32 there, and rounds once. The choice depends only on
the processor and on shapes, so results are reproducible.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from gnnkit.kernels.sums import wide
from gnnkit.utils.documents import read_or_empty

# Number of rows per oneDNN call. oneDNN compiles a kernel for each number of rows,
# which takes milliseconds and stays in memory, while batches have any number of rows.
# Transposed chunks of this size fit the cache.
CHUNK = 4096
_PROCESSOR = Path("/proc/cpuinfo")


@functools.cache
def library() -> str:
    """Returns the library that computes large float32 products on this processor."""
    return "oneDNN" if _is_wide_amd() and hasattr(torch.ops.mkldnn, "_linear_pointwise") else "torch"


@functools.cache
def lacks_bfloat16() -> bool:
    """Returns whether torch has no fast bfloat16 products on this processor."""
    has_query = hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")  # missing if torch is built without oneDNN
    return has_query and not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def fast_products() -> AbstractContextManager[object]:
    """Uses the fastest products with weights, forward and backward.

    Applies to `F.linear`, `torch.addmm` and `@` in this thread, within the context.
    Enter it within `torch.autocast`.
    """
    if torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16:
        return _FastProducts(_rounds, _Rounded) if lacks_bfloat16() else nullcontext()
    return _FastProducts(_pays, _Product) if library() == "oneDNN" else nullcontext()


def disable_torch_function() -> AbstractContextManager[object]:
    """Stops intercepting torch functions, for code without products."""
    context: AbstractContextManager[object] = torch._C.DisableTorchFunction()
    return context


def _is_wide_amd() -> bool:
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    return "AuthenticAMD" in read_or_empty(_PROCESSOR)


class _FastProducts(TorchFunctionMode):
    """Intercepts the torch functions that multiply rows by a weight."""

    def __init__(self, serves: Callable[..., bool], product: type[Function]) -> None:
        """Stores the condition for replacing a product, and the replacement."""
        super().__init__()
        self._serves, self._product = serves, product

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[object],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        arrange = _ARRANGED.get(function)
        if arrange is not None and not kwargs:
            product = arrange(*args)
            if product is not None and self._serves(*product):
                return self._product.apply(*product)
        return function(*args, **kwargs)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[object, ...]:
    return x, weight.t() if weight.dim() == 2 else weight, bias


def _addmm(bias: Tensor, x: Tensor, weight: Tensor) -> tuple[object, ...] | None:
    return (x, weight, bias) if bias.dim() == 1 else None


def _matmul(x: Tensor, weight: Tensor) -> tuple[object, ...]:
    return x, weight, None


_ARRANGED: dict[Any, Callable[..., tuple[Any, ...] | None]] = {
    F.linear: _linear,
    torch.addmm: _addmm,
    **dict.fromkeys((torch.mm, torch.matmul, Tensor.mm, Tensor.matmul, Tensor.__matmul__), _matmul),
}


def _pays(x: Any, weight: Any, bias: Any, num_rows: int | None = None) -> bool:
    """Returns whether oneDNN supports this product and is faster.

    If x is one piece, `num_rows` counts all pieces' rows.
    """
    # oneDNN is not faster for smaller weights.
    if not _fits(x, weight, bias) or weight.numel() < 2048:
        return False
    if (len(x) if num_rows is None else num_rows) < CHUNK:
        return False
    exact = torch.get_float32_matmul_precision() == "highest" and not torch.is_autocast_enabled("cpu")
    return exact and all(tensor.dtype == torch.float32 for tensor in (x, weight, bias) if tensor is not None)


def _rounds(x: Any, weight: Any, bias: Any) -> bool:
    """Returns whether this product is rounded to bfloat16, under autocast."""
    short = (torch.bfloat16, torch.float32)
    return _fits(x, weight, bias) and all(tensor.dtype in short for tensor in (x, weight, bias) if tensor is not None)


def _fits(x: Any, weight: Any, bias: Any) -> bool:
    """Returns whether these are plain CPU tensors: rows, a weight and a bias."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if not all(type(tensor) in (Tensor, torch.nn.Parameter) and tensor.layout == torch.strided for tensor in tensors):
        return False
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[0]:
        return False
    transforms = torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    return not transforms and all(tensor.device.type == "cpu" for tensor in tensors)


class _Product(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # [n, f], [f, k], [k] -> [n, k]
        ctx.save_for_backward(x, weight)
        return _product(x, weight.t(), bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        by_torch = torch.is_grad_enabled()  # a second derivative is required
        rows = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            rows = grad @ weight.t() if by_torch else _product(grad, weight)
        if ctx.needs_input_grad[1]:
            by_weight = x.t() @ grad if by_torch else outer_of_pieces([(x, grad)], weight, fast=True)
        if ctx.needs_input_grad[2]:
            by_bias = grad.sum(0)
        return rows, by_weight, by_bias


class _Rounded(Function):
    """X W + b in bfloat16, computed in float32 and rounded once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:  # [n, f], [f, k], [k] -> [n, k]
        ctx.kinds = x.dtype, None if bias is None else bias.dtype
        x = x.to(torch.bfloat16)
        ctx.save_for_backward(x, weight)
        return _multiply_bfloat16(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        (x, weight), (kind, of_bias) = ctx.saved_tensors, ctx.kinds
        rows = by_weight = by_bias = None
        if ctx.needs_input_grad[0]:
            rows = _multiply_bfloat16(grad, weight.t()).to(kind)
        if ctx.needs_input_grad[1]:
            by_weight = outer_of_pieces([(x, grad)], weight, fast=False)
        if ctx.needs_input_grad[2]:
            by_bias = grad.sum(0, dtype=torch.float32).to(of_bias)
        return rows, by_weight, by_bias


def _multiply_bfloat16(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes x W + b in float32 from bfloat16 factors, chunk by chunk."""
    out = x.new_empty(len(x), weight.shape[1], dtype=torch.bfloat16)
    with torch.autocast("cpu", enabled=False):
        factor = weight.to(torch.bfloat16).float()
        addend = None if bias is None else bias.to(torch.bfloat16).float()
        for i in range(0, len(x), CHUNK):
            rows = x[i : i + CHUNK].float()
            out[i : i + CHUNK] = rows @ factor if addend is None else torch.addmm(addend, rows, factor)
    return out


def _product(x: Tensor, weight_t: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes x W + b from the transposed weight [k, f], chunk by chunk."""
    out, weight_t, end = x.new_empty(len(x), len(weight_t)), weight_t.contiguous(), len(x) - len(x) % CHUNK
    for i in range(0, end, CHUNK):
        out[i : i + CHUNK] = _by_onednn(x[i : i + CHUNK], weight_t, bias)
    if end < len(x):
        out[end:] = F.linear(x[end:], weight_t, bias)
    return out


def product_of_pieces(pieces: Iterable[Tensor], num_rows: int, weight: Tensor) -> tuple[Tensor, bool]:
    """Computes X W [n, k] from pieces of X [n, f]. Also returns whether oneDNN did.

    The result is bit-identical to `fast_products` if oneDNN computes it, or if X is one
    piece.

    Args:
        pieces: Rows in order, at least one piece. Each but the last has a multiple of
            `CHUNK` rows.
        num_rows: Total number of rows.
        weight: [f, k].
    """
    out, first, fast = weight.new_empty(0), 0, False
    for x in pieces:
        if first == 0:
            fast = library() == "oneDNN" and _pays(x, weight, None, num_rows)
        product = _product(x, weight.t()) if fast else _by_torch(x, weight)
        if first == 0:
            out = product if len(x) == num_rows else product.new_empty(num_rows, weight.shape[1])
        if out is not product:
            out[first : first + len(x)] = product
        first += len(x)
    return out, fast


def _by_torch(x: Tensor, weight: Tensor) -> Tensor:
    return _multiply_bfloat16(x, weight) if _is_slow(x) else x @ weight


def outer_of_pieces(pieces: Iterable[tuple[Tensor, Tensor]], weight: Tensor, *, fast: bool) -> Tensor:
    """Computes X^T G, a weight's gradient [f, k], from pieces of X and G.

    Args:
        pieces: Rows [n, f] and [n, k], in pieces as for `product_of_pieces`.
        weight: [f, k], used for its shape and strides.
        fast: Whether to use oneDNN.
    """
    # torch's own gradient has the weight's memory layout.
    is_transposed = (
        weight.shape[0] > weight.shape[1] if fast else weight.stride(0) == 1 and weight.stride(1) == len(weight)
    )
    add = _add_by_onednn if fast else _add_by_torch
    total: Tensor | None = None
    for x, grad in pieces:
        total = add(total, grad, x) if is_transposed else add(total, x, grad)
    assert total is not None, "at least one piece"
    return (total.t() if is_transposed else total).to(weight.dtype)


def _add_by_torch(total: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """Returns total + x^T y. 16-bit factors are summed in float32."""
    if _is_slow(x):
        total = torch.zeros(x.shape[1], y.shape[1]) if total is None else total
        with torch.autocast("cpu", enabled=False):
            for i in range(0, len(x), CHUNK):
                total += x[i : i + CHUNK].float().t() @ y[i : i + CHUNK].float()
        return total
    product = x.t() @ y
    return product.to(wide(product.dtype)) if total is None else total.add_(product)


def _is_slow(x: Tensor) -> bool:
    return x.dtype == torch.bfloat16 and x.device.type == "cpu" and lacks_bfloat16()


def _add_by_onednn(total: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """Returns total + x^T y, chunk by chunk."""
    total, end = x.new_zeros(x.shape[1], y.shape[1]) if total is None else total, len(x) - len(x) % CHUNK
    for i in range(0, end, CHUNK):
        total += _by_onednn(x[i : i + CHUNK].t(), y[i : i + CHUNK].t())
    if end < len(x):
        total += x[end:].t() @ y[end:]
    return total


def _by_onednn(x: Tensor, weight_t: Tensor, bias: Tensor | None = None) -> Tensor:
    """Computes x W + b from the transposed weight [k, f]."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight_t, bias, "none", [], "")
    return product
