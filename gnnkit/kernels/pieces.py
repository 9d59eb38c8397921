"""Input rows that exceed memory, for models that first multiply them by a weight.

The product reads the rows in order, piece by piece, and so does its gradient. Memory
holds the product, which is narrower, and a few pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from gnnkit.graph import Ids
from gnnkit.kernels.dropout import dropout
from gnnkit.kernels.product_rows import ProductRows, first_rows
from gnnkit.kernels.products import CHUNK, outer_of_pieces, product_of_pieces

PIECE = 32 << 20  # approximate bytes of a piece


class RowTable(ABC):
    """Rows that can be read in order, from any place."""

    width: int
    dtype: torch.dtype
    device: torch.device

    @abstractmethod
    def pieces(self, ids: Ids, size: int, *, count_reads: bool) -> Iterator[Tensor]:
        """Reads rows in the order of `ids`. Yields at least one piece, possibly empty.

        Args:
            ids: [n] distinct nodes.
            size: Number of rows of every piece but the last.
            count_reads: Whether to count the reads as training.
        """


@dataclass(frozen=True, slots=True, eq=False)
class _Drop:
    """Dropout on the rows, recomputed at each read."""

    ids: Tensor  # [n]
    p: float
    key: int


@dataclass(frozen=True, slots=True, eq=False)
class RowsInPieces(ProductRows):
    """A table's rows [n, width], read by each product.

    Each product reads the rows once, and once more for the weight's gradient.
    """

    table: RowTable
    ids: Ids  # [n]
    drops: tuple[_Drop, ...] = ()
    kind: torch.dtype | None = None  # dtype of products. None: the table's

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.ids), self.table.width

    @property
    def dtype(self) -> torch.dtype:
        return self.kind or self.table.dtype

    @property
    def device(self) -> torch.device:
        return self.table.device

    def __matmul__(self, weight: Tensor) -> Tensor:
        result: Tensor = _PieceProduct.apply(weight.to(self.dtype), self, torch.is_grad_enabled())
        return result

    def __getitem__(self, rows: slice) -> RowsInPieces:
        if first_rows(rows, len(self)):
            return self
        drops = tuple(replace(drop, ids=drop.ids[rows]) for drop in self.drops)
        return replace(self, ids=self.ids[rows], drops=drops)

    def take(self, places: Ids) -> RowsInPieces:
        at = torch.from_numpy(places)
        drops = tuple(replace(drop, ids=drop.ids[at.to(drop.ids.device)]) for drop in self.drops)
        return replace(self, ids=self.ids[places], drops=drops)

    def to(self, dtype: torch.dtype) -> RowsInPieces:
        return replace(self, kind=dtype)

    def dropout(self, ids: Tensor, p: float, key: int) -> RowsInPieces:
        return replace(self, drops=(*self.drops, _Drop(ids, p, key)))

    def isfinite(self) -> Tensor:  # [num_pieces]
        return torch.stack([piece.isfinite().all() for piece in self.pieces(count_reads=False)])

    def pieces(self, *, count_reads: bool) -> Iterator[Tensor]:
        """Reads the rows in order. Yields at least one piece, possibly empty.

        Args:
            count_reads: Whether to count the reads as training.
        """
        row_bytes = self.table.width * torch.empty(0, dtype=self.dtype).element_size()
        size, first = CHUNK * max(PIECE // (CHUNK * max(row_bytes, 1)), 1), 0
        for piece in self.table.pieces(self.ids, size, count_reads=count_reads):
            rows, last = piece.to(self.dtype), first + len(piece)
            for drop in self.drops:
                rows = dropout(rows, drop.ids[first:last], drop.p, drop.key)
            yield rows
            first = last


class _PieceProduct(Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, rows: RowsInPieces, count_reads: bool) -> Tensor:
        ctx.rows, ctx.weight = rows, weight.detach()  # only the weight's shape and strides are needed
        out, ctx.fast = product_of_pieces(rows.pieces(count_reads=count_reads), len(rows), weight)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return outer_of_pieces(_beside(ctx.rows, grad), ctx.weight, fast=ctx.fast), None, None


def _beside(rows: RowsInPieces, grad: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields pieces, each with its gradient rows."""
    first = 0
    for piece in rows.pieces(count_reads=True):
        last = first + len(piece)
        yield piece.to(grad.dtype), grad[first:last]
        first = last
