"""A rank without peers, for trial runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from gnnkit.comm import Communicator
from gnnkit.comm.pending import Counts, Pending
from gnnkit.engine.engine import Engine


def set_row_counts(engine: Engine) -> None:
    """Sets the row counts of cell peers, for an engine with an `Alone`."""
    shard, slicing = engine.shard, engine.topology.slicing
    if slicing.num_slices > 1:
        counts = [len(shard.cell_nodes) - len(shard.owned)] + [0] * (shard.grid.slices - 2)
        counts.insert(shard.slice, len(shard.owned))
        slicing.cell = replace(slicing.cell, row_counts=counts)


class _Zeros(Pending):
    """Zeros received from peers.

    A single peer's zeros are borrowed, as from host memory.
    """

    def __init__(self, ranks: Alone, own_rows: Tensor, first: int, num_rows: int, *, lends: bool) -> None:
        """Stores the rows.

        Args:
            ranks: The communicator, which owns the borrowed zeros.
            own_rows: Rows that this rank sends to itself.
            first: Their position among the rows received.
            num_rows: Number of rows received.
            lends: Whether all rows come from one rank.
        """
        self._ranks, self._own, self._first, self._num_rows = ranks, own_rows, first, num_rows
        self._lends = lends and not len(own_rows)

    def wait(self) -> Tensor:
        rows = self._own.new_zeros(self._num_rows, *self._own.shape[1:])
        rows[self._first : self._first + len(self._own)] = self._own
        return rows

    @contextmanager
    def borrow(self) -> Iterator[Tensor]:
        yield self._ranks.zeros(self._own, self._num_rows) if self._lends else self.wait()


class Alone(Communicator):
    """A communicator without peers, which receives zeros and no requests."""

    def __init__(self, rank: int, world_size: int, device: torch.device | None = None) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device or torch.device("cpu")
        self._zeros = torch.empty(0, dtype=torch.uint8)

    @classmethod
    def connect(cls, rank: int, world_size: int, *, device: torch.device, timeout: float) -> Communicator:
        return cls(rank, world_size)

    def split(self, ranks: Sequence[int]) -> Communicator:
        return Alone(list(ranks).index(self.rank), len(ranks), self.device)

    def start(self, rows: Tensor, send_counts: Counts, recv_counts: Counts, *, index: Tensor | None = None) -> Pending:
        """Receives zeros. Rows for peers are not gathered, as runs do in transit."""
        rows = rows.detach()
        goes, comes = sum(send_counts[: self.rank]), sum(recv_counts[: self.rank])
        own_range = slice(goes, goes + send_counts[self.rank])
        own_rows = rows[own_range] if index is None else rows[index[own_range]]
        return _Zeros(self, own_rows, comes, sum(recv_counts), lends=sum(map(bool, recv_counts)) == 1)

    def zeros(self, like: Tensor, num_rows: int) -> Tensor:
        """Returns zeros that later calls share, so they must not be modified."""
        size = num_rows * math.prod(like.shape[1:]) * like.element_size()
        if len(self._zeros) < size:
            self._zeros = torch.zeros(size, dtype=torch.uint8, device=like.device)
        return self._zeros[:size].view(like.dtype).view(num_rows, *like.shape[1:])

    def all_to_all(self, rows: Tensor, send_counts: Counts, recv_counts: Counts) -> Tensor:
        return self.start(rows, send_counts, recv_counts).wait()

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def broadcast(self, x: Tensor, *, src: int) -> Tensor:
        return x
