"""Quantised rows: all rows are sent with few bits per number."""

from __future__ import annotations

import torch
from torch import Tensor

from gnnkit.exchange.base import RowExchange
from gnnkit.exchange.wire import Codec
from gnnkit.kernels.dropout import uniform
from gnnkit.utils.approximate import approximate
from gnnkit.utils.ranges import one_of

WIDTHS = (32, 16, 8, 4, 2)  # bits per number
_META = 8  # bytes for a row's minimum and scale


class Quantized(RowExchange):
    """Sends rows and gradients with few bits per number. 32 bits are exact.

    With 8 bits or fewer, rounding is stochastic and unbiased. 16 bits round to the
    nearest bfloat16. Unlike in exchanges with stale rows, each step receives the rows
    of this step, so all epochs of a run may be quantised. Prefer it to save bytes.
    """

    def __init__(self, bits: int = 8) -> None:
        """Checks the bit width: 32, 16, 8, 4 or 2."""
        self.bits = one_of("exchange.bits", bits, WIDTHS)
        self.exact = bits == 32

    def costs(self) -> str:
        return "" if self.exact else approximate("exchange=quantized", f"exchanged numbers have {self.bits} bits")

    def codec(self) -> Codec | None:
        return codec(self.bits)


def codec(bits: int) -> Codec | None:
    """Returns the codec for a number of bits.

    16 bits are bfloat16. Fewer bits are rounded stochastically, within each row's
    range, so decoded numbers are unbiased.

    Args:
        bits: 32, 16, 8, 4 or 2 bits per number. 32 returns None, for no codec.
    """
    return None if bits == 32 else Bfloat16() if bits == 16 else Packed(bits)


class Bfloat16(Codec):
    """16 bits per number, in bfloat16 format."""

    def row_bytes(self, width: int) -> int:
        return 2 * width

    def encode(self, rows: Tensor, ids: Tensor, key: int) -> Tensor:
        return rows.to(torch.bfloat16).contiguous().view(torch.uint8)

    def decode(self, data: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        return data.view(torch.bfloat16).to(dtype)


class Packed(Codec):
    """8, 4 or 2 bits per number (AdaQP: Wan, Zhao & Wu, MLSys 2023).

    A row's range is divided into 2^bits - 1 equal steps. Stochastic rounding makes the
    decoded number unbiased, up to 2^-16 of a step.
    """

    def __init__(self, bits: int) -> None:
        self.bits, self.levels, self.per_byte = bits, 2**bits - 1, 8 // bits

    def row_bytes(self, width: int) -> int:
        return -(-self.bits * width // 8) + _META

    def encode(self, rows: Tensor, ids: Tensor, key: int) -> Tensor:
        low = _float32(rows.amin(1, keepdim=True), up=False)
        scale = _float32((rows.amax(1, keepdim=True) - low) / self.levels, up=True)
        places = (rows - low).div_(torch.where(scale > 0, scale, 1))  # in [0, levels]
        steps = places.add_(uniform(ids, rows.shape[1], key)).floor_().clamp_(0, self.levels).to(torch.uint8)
        return torch.cat([torch.cat([low, scale], 1).view(torch.uint8), self._pack(steps)], 1)

    def decode(self, data: Tensor, width: int, dtype: torch.dtype) -> Tensor:
        low, scale = torch.split(_align(data[:, :_META]).view(torch.float32).to(dtype), 1, dim=1)
        steps = (data[:, _META:, None] >> self._shifts(data)) & self.levels
        rows: Tensor = low + steps.flatten(1)[:, :width] * scale
        return rows

    def _pack(self, steps: Tensor) -> Tensor:  # [n, width] -> [n, bytes]
        padded_steps = torch.nn.functional.pad(steps, (0, -steps.shape[1] % self.per_byte))
        bytes_of = padded_steps.view(len(steps), padded_steps.shape[1] // self.per_byte, self.per_byte)
        return (bytes_of << self._shifts(steps)).sum(2, dtype=torch.uint8)

    def _shifts(self, like: Tensor) -> Tensor:  # [per_byte]
        return torch.arange(0, 8, self.bits, dtype=torch.uint8, device=like.device)


def _align(data: Tensor) -> Tensor:
    return data.clone(memory_format=torch.contiguous_format)


def _float32(x: Tensor, *, up: bool) -> Tensor:
    """Rounds to float32, up or down."""
    result = x.float()
    is_short = result < x if up else result > x
    return torch.where(is_short, result.nextafter(torch.full_like(result, torch.inf if up else -torch.inf)), result)
