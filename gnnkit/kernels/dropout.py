"""Dropout keyed by global ids, independent of ranks, threads and order.

Computes the same as `rust/core/src/dropout.rs`. GPUs use torch's 64-bit integers.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit import _core
from gnnkit.kernels.product_rows import ProductRows
from gnnkit.kernels.sums import as_array, once_only

R = TypeVar("R", Tensor, ProductRows)

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


def _mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def derive(key: int, *values: int) -> int:
    """Derives a key from a key and numbers, as in `derive(seed, step, layer)`.

    Equals the native core's `rng::derive`.

    Different numbers give unrelated keys, so it replaces random number generators,
    whose state would depend on the order of draws.
    """
    for value in values:
        key = _mix(key ^ _mix((value + _GOLDEN) & _MASK))
    return key


def dropout(x: R, ids: Tensor, p: float, key: int) -> R:
    """Zeroes random entries in `x`, and scales the others to preserve the mean.

    A hash of (key, ids[r], j) decides whether x[r, j] is kept.

    Args:
        x: [n, f] rows.
        ids: [n] int64 global row ids.
        p: Dropout probability, in [0, 1).
    """
    if isinstance(x, ProductRows):
        return x.dropout(ids, p, key)
    result: R = _Dropout.apply(x, ids, p, key)
    return result


def dropout_bits(ids: Tensor, width: int, p: float, key: int) -> Tensor:  # [n, width / 32 rounded up] uint32
    """Returns `dropout`'s mask: bit j % 32 in word [r, j // 32] belongs to x[r, j].

    Available on CPUs only.

    Args:
        ids: [n] int64 global row ids.
        p: Dropout probability, in [0, 1).
    """
    bits = torch.empty(len(ids), _words(width), dtype=torch.uint32)
    _core.dropout_kept(ids.numpy(), width, p, key, bits.numpy(), threads=torch.get_num_threads())
    return bits


def keep(x: Tensor, bits: Tensor, p: float) -> Tensor:  # [n, f] -> [n, f]
    """Applies a dropout mask, without autograd.

    Args:
        x: [n, f] rows.
        bits: [n, f / 32 rounded up] from `kept`.
        p: Probability given to `kept`.
    """
    x = x.contiguous()
    out = torch.empty_like(x)
    _core.rectify_backward(as_array(x), bits.numpy(), p, as_array(out), threads=torch.get_num_threads())
    return out


def _words(width: int) -> int:
    """Counts the 32-bit words that hold one bit per column."""
    return -(-width // 32)


def relu_dropout(x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
    """Computes `dropout(x.relu(), ids, p, key)`, in one pass on CPUs.

    Saves one bit per element for the backward pass.

    Args:
        x: [n, f] rows.
        ids: [n] int64 global row ids.
        p: Dropout probability, in [0, 1).
    """
    if x.device.type != "cpu":
        return dropout(x.relu(), ids, p, key)
    result: Tensor = _ReluDropout.apply(x, ids, p, key)
    return result


class _ReluDropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
        x = x.detach().contiguous()
        out, bits = torch.empty_like(x), torch.empty(len(x), _words(x.shape[1]), dtype=torch.uint32)
        threads = torch.get_num_threads()
        _core.rectify(as_array(x), ids.numpy(), p, key, as_array(out), bits.numpy(), threads=threads)
        ctx.p = p
        ctx.save_for_backward(bits)
        return out

    @staticmethod
    @once_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (bits,) = ctx.saved_tensors
        return keep(grad, bits, ctx.p), None, None, None


class _Dropout(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
        ctx.ids, ctx.p, ctx.key = ids, p, key
        return _drop(x.detach(), ids, p, key)

    @staticmethod
    @once_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return _drop(grad, ctx.ids, ctx.p, ctx.key), None, None, None


def _drop(x: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
    if x.device.type == "cpu":
        x = x.contiguous()
        out = torch.empty_like(x)
        _core.dropout(as_array(x), ids.numpy(), p, key, as_array(out), threads=torch.get_num_threads())
        return out
    threshold = int(65536 * p + 0.5)
    keep_mask = _lanes(ids, math.prod(x.shape[1:]), key).view_as(x) >= threshold
    return torch.where(keep_mask, x * (65536 / (65536 - threshold)), 0)


def edge_streams(source: Tensor, destination: Tensor) -> Tensor:  # [n] int64
    """Hashes both ends' global ids [n] of edges, for random draws keyed by edge."""
    return _mix_tensor(_mix_tensor(source + _as_int64(_GOLDEN)) ^ destination)


def uniform(ids: Tensor, width: int, key: int) -> Tensor:  # [n, width] float32 in [0, 1)
    """Draws multiples of 2^-16, hashed from (key, ids[r], j) for x[r, j].

    Args:
        ids: [n] int64, one random stream each.
    """
    return _draw_words(ids, width, key).view(torch.int16)[:, :width].float() / 65536 + 0.5


def _lanes(ids: Tensor, width: int, key: int) -> Tensor:  # [n, width] 0..65535
    """Draws 16 bits per element: lane j % 4 of word j // 4 of the row's stream.

    Args:
        ids: [n] int64, one random stream each.
    """
    shifts = torch.arange(0, 64, 16, device=ids.device)
    words = _draw_words(ids, width, key)
    return ((words[:, :, None] >> shifts) & 0xFFFF).flatten(1)[:, :width]


def _draw_words(ids: Tensor, width: int, key: int) -> Tensor:  # [n, ceil(width / 4)] int64
    """Draws 64 bits per four row elements."""
    rows = _mix_tensor(_mix_tensor(ids + _as_int64(_GOLDEN)) ^ _as_int64(key))
    counter = torch.arange(1, (width + 3) // 4 + 1, device=ids.device) * _as_int64(_GOLDEN)
    return _mix_tensor(rows[:, None] + counter)


def subset(n: int, size: int, key: int, device: torch.device) -> Tensor:  # [size] int64, ascending
    """Draws a uniformly random subset from the numbers below `n`.

    Args:
        size: Subset size, at most `n`.
    """
    hashes = _mix_tensor(_mix_tensor(torch.arange(n, device=device) + _as_int64(_GOLDEN)) ^ _as_int64(key))
    return hashes.argsort(stable=True)[:size].sort().values


def _mix_tensor(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _as_int64(0xBF58476D1CE4E5B9)
    z = (z ^ _shift(z, 27)) * _as_int64(0x94D049BB133111EB)
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch's shift is arithmetic


def _as_int64(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
