"""The bytes of encoded rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from gnnkit.exchange.codecs import Codec
from gnnkit.exchange.tally import Exchange
from gnnkit.partition.traffic import column_shares

Block = tuple[int, int]  # number of rows, numbers per row


@dataclass(frozen=True, slots=True, eq=False)
class BlockEncoding:
    """Encodes the blocks of rows that a rank exchanges with each rank.

    A block that would not shrink is sent unencoded.
    """

    codec: Codec
    exchange: Exchange
    rank: int  # in the exchange
    key: int  # random key of this rank's rows
    dtype: torch.dtype  # of the rows
    width: int  # numbers per row, except in cuts and joins

    def blocks(self, counts: Sequence[int], *, arriving: bool) -> list[Block]:
        """Returns the shapes of the blocks for, or from, each rank.

        In cuts and joins, `counts` count numbers, and widths are shares of the columns.
        """
        if self.exchange.kind not in ("cut", "join"):
            return [(count, self.width) for count in counts]
        shares = (self.exchange.heads * column_shares(self.exchange.width, len(counts))).tolist()
        alike = (self.exchange.kind == "cut") == arriving  # whether all blocks have this rank's columns
        widths = [shares[self.rank]] * len(counts) if alike else shares
        return [(count // max(width, 1), width) for count, width in zip(counts, widths, strict=True)]

    def sizes(self, blocks: Sequence[Block]) -> list[int]:
        """Returns the size of each block in bytes."""
        return [num_rows * self._row_bytes(width) for num_rows, width in blocks]

    def encode(self, rows: Tensor, ids: Tensor | None, blocks: Sequence[Block]) -> Tensor:  # [num_bytes] uint8
        """Encodes rows.

        Args:
            rows: [num_rows, ...], or [numbers] in cuts and joins.
            ids: [num_rows] int64 global node ids. If None, `rows` are not node rows.
            blocks: Shapes of the blocks for each rank.
        """
        merged_blocks = _merge_blocks(blocks)
        ids = ids if ids is not None else torch.arange(sum(n for n, _ in merged_blocks), device=rows.device)
        data, row, number, flat = [], 0, 0, rows.reshape(-1)
        for n, width in merged_blocks:
            block = flat[number : number + n * width].view(n, width)
            is_encoded = self._is_shorter(width)
            encoded = self.codec.encode(block, ids[row : row + n], self.key) if is_encoded else _bytes(block)
            data.append(encoded.reshape(-1))
            row, number = row + n, number + n * width
        return torch.cat(data)

    def decode(self, data: Tensor, blocks: Sequence[Block]) -> Tensor:  # [num_bytes] uint8 -> [numbers]
        """Decodes the bytes of blocks."""
        numbers, byte = [], 0
        for n, width in _merge_blocks(blocks):
            size = self._row_bytes(width)
            rows = data[byte : byte + n * size].view(n, size)
            is_encoded = self._is_shorter(width)
            decoded = self.codec.decode(rows, width, self.dtype) if is_encoded else rows.clone().view(self.dtype)
            numbers.append(decoded.reshape(-1))
            byte += n * size
        return torch.cat(numbers)

    def _row_bytes(self, width: int) -> int:
        return min(self.codec.row_bytes(width), width * self.dtype.itemsize)

    def _is_shorter(self, width: int) -> bool:
        return self.codec.row_bytes(width) < width * self.dtype.itemsize


def _bytes(rows: Tensor) -> Tensor:  # [n, width] -> [n, num_bytes] uint8
    return rows.contiguous().view(torch.uint8)


def _merge_blocks(blocks: Sequence[Block]) -> list[Block]:
    """Merges consecutive blocks of equal width."""
    return [(sum(n for n, _ in group), width) for width, group in groupby(blocks, key=lambda block: block[1])]
