"""Kernels in plain torch, with a row in memory for each edge."""

from __future__ import annotations

import torch
from lazyedges import EdgeKernels
from torch import Tensor


class PlainKernels(EdgeKernels):
    """Gathers rows by edge, and reduces them with torch's functions."""

    def __init__(self, indptr: Tensor, indices: Tensor, num_src: int) -> None:
        self._indptr, self._indices, self.device = indptr, indices, indices.device
        self.num_src, self.num_dst = num_src, len(indptr) - 1
        counts = indptr.diff().to(self.device)
        self.destination = torch.repeat_interleave(torch.arange(self.num_dst, device=self.device), counts)

    @property
    def indptr(self) -> Tensor:
        return self._indptr

    @property
    def indices(self) -> Tensor:
        return self._indices

    def sum(
        self,
        rows: Tensor,
        weight: Tensor | None = None,
        source: Tensor | None = None,
        destination: Tensor | None = None,
    ) -> Tensor:
        values = rows[self.indices]
        for factors in (
            weight,
            None if source is None else source[self.indices],
            None if destination is None else destination[self.destination],
        ):
            if factors is not None:
                values = values * factors.reshape(*factors.shape[:2], *[1] * (values.dim() - min(factors.dim(), 2)))
        return rows.new_zeros(self.num_dst, *rows.shape[1:]).index_add(0, self.destination, values)

    def max(self, rows: Tensor) -> Tensor:
        index = self.destination[:, None].expand(-1, rows.shape[1])
        empty = rows.new_full((self.num_dst, rows.shape[1]), -torch.inf)
        return empty.scatter_reduce(0, index, rows[self.indices], "amax")

    def dot(self, rows: Tensor, others: Tensor) -> Tensor:
        return (rows[self.indices] * others[self.destination]).sum(-1)


class PlainBackend:
    """Creates `PlainKernels`."""

    def kernels(self, indptr: Tensor, indices: Tensor, num_src: int) -> PlainKernels:
        return PlainKernels(indptr, indices, num_src)

    def sort(self, source: Tensor, destination: Tensor, num_src: int, num_dst: int) -> tuple[PlainKernels, Tensor]:
        order = destination.argsort(stable=True)
        counts = torch.bincount(destination, minlength=num_dst)
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).cpu()
        return PlainKernels(indptr, source[order], num_src), order

    def dropout(self, values: Tensor, ids: Tensor, p: float, key: int) -> Tensor:
        columns = torch.arange(values.shape[1], device=values.device)
        hashes = torch.sin((ids[:, None] * 12.9898 + columns * 78.233 + key).double()) * 43758.5453
        return values * ((hashes - hashes.floor()) >= p) / (1 - p)

    def edge_ids(self, source: Tensor, destination: Tensor) -> Tensor:
        return source * 1_000_003 + destination
