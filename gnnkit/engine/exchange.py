"""Gather and its transpose, reduce: the one pair of exchanges that moves rows between ranks.

Every function here is collective over the run's ranks, in forward and in backward.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.comm import Communicator
from gnnkit.engine.halo import Halo
from gnnkit.engine.kernels import EdgeKernels
from gnnkit.engine.tally import Step, Tally
from gnnkit.graph import CSC, Ids


class Route:
    """The way of rows between their owners and the ranks that hold edges at them; both sides order them by (cell, global id).

    `spread` copies the owners' rows to the holders; `collect` sums the holders' rows at the owners. Each is the other's
    transpose.
    """

    def __init__(
        self,
        rows: Ids,
        row_cell: Ids,
        cell_nodes: Ids,
        plane: Communicator,
        peers: Sequence[int],
        step: Step,
        tally: Tally,
        halo: Halo,
    ) -> None:
        """`rows` [num_rows] are the global ids that this rank holds edges at and `row_cell` their owners' cells; `cell_nodes` the
        ids that its own cell owns, in the order of their rows; `plane` the communicator over cells, `peers` its ranks in the
        numbering of the run."""
        self.plane, self.peers, self.step, self.tally, self.halo = plane, peers, step, tally, halo
        self.num_owned = len(cell_nodes)
        self.held_counts = np.bincount(row_cell, minlength=plane.world_size).tolist()
        counts = plane.all_to_all(
            torch.tensor(self.held_counts, device=plane.device), [1] * plane.world_size, [1] * plane.world_size
        )
        self.owned_counts: list[int] = counts.tolist()
        asked = plane.all_to_all(
            torch.tensor(np.asarray(rows, np.int64), device=plane.device), self.held_counts, self.owned_counts
        )
        order = np.argsort(cell_nodes, kind="stable")
        positions = order[np.searchsorted(cell_nodes, asked.cpu().numpy(), sorter=order)]
        self.sent = torch.from_numpy(positions).to(plane.device)  # [rows asked for] position of each in `cell_nodes`
        senders = CSC(np.arange(len(positions) + 1), positions, num_sources=self.num_owned)
        self.arrivals = EdgeKernels.of(senders, plane.device).transpose()  # from arrived rows to owned rows
        away = sum(self.held_counts) - self.held_counts[plane.rank]
        # Nobody asks anybody: the layout has one column (or row), or one rank. Then nothing needs to be sent at all.
        self.local = plane.all_reduce(torch.tensor([away], device=plane.device)).item() == 0

    def spread(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, f] -> [num_rows, f]
        """Rows of owners, at the holders."""
        result: Tensor = _Spread.apply(x, self, layer)
        return result

    def collect(self, z: Tensor, layer: int) -> Tensor:  # [num_rows, f] -> [num_owned, f]
        """Sums of the holders' rows, at the owners; zero for nodes without a holder."""
        result: Tensor = _Collect.apply(z, self, layer)
        return result

    def spread_rows(self, x: Tensor, layer: int) -> Tensor:
        return self.to_holders(x.index_select(0, self.sent), layer)

    def collect_rows(self, z: Tensor, layer: int) -> Tensor:
        return self.arrivals.sum(self.to_owners(z, layer))

    def to_owners(self, z: Tensor, layer: int) -> Tensor:  # [num_rows, ...] -> [num_arrivals, ...]
        """The holders' rows at the owners, not added up; without autograd."""
        z = z.contiguous()
        return z if self.local else self._move(z, self.held_counts, self.owned_counts, "reduce", layer)

    def to_holders(self, arrivals: Tensor, layer: int) -> Tensor:  # [num_arrivals, ...] -> [num_rows, ...]
        """Sends each arrival back; without autograd."""
        arrivals = arrivals.contiguous()
        return arrivals if self.local else self._move(arrivals, self.owned_counts, self.held_counts, "gather", layer)

    def _move(self, rows: Tensor, send: list[int], recv: list[int], step: Step, layer: int) -> Tensor:
        def move() -> Tensor:
            return self._send(rows, send, recv, step, layer)

        return self.halo.exchange(move, rows, send, recv, self.plane.rank)

    def _send(self, rows: Tensor, send: list[int], recv: list[int], step: Step, layer: int) -> Tensor:
        width = math.prod(rows.shape[1:])
        self.tally.record(
            layer,
            step,
            self.peers[self.plane.rank],
            self.peers,
            [count * width for count in send],
            [count * width for count in recv],
            rows.element_size(),
        )
        with self.tally.timed():
            return self.plane.all_to_all(rows, send, recv)


class _Spread(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, layer: int) -> Tensor:
        ctx.route, ctx.layer = route, layer
        return route.spread_rows(x, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.route.collect_rows(grad, ctx.layer), None, None


class _Collect(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, route: Route, layer: int) -> Tensor:
        ctx.route, ctx.layer = route, layer
        return route.collect_rows(z, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.route.spread_rows(grad.contiguous(), ctx.layer), None, None


class Slicing:
    """Between "my rows, all columns" and "the cell's rows, my share of the columns".

    Columns are the last dimension; of f columns, the first f mod S slices have one more than the others.
    """

    def __init__(self, num_owned: int, cell: Communicator, peers: Sequence[int], tally: Tally, halo: Halo) -> None:
        """`num_owned` is this rank's number of rows, `cell` the communicator over the slice ranks of its cell, `peers` its ranks in
        the numbering of the run."""
        self.cell, self.peers, self.tally, self.halo = cell, peers, tally, halo
        counts = torch.zeros(cell.world_size, dtype=torch.int64, device=cell.device)
        counts[cell.rank] = num_owned
        self.row_counts: list[int] = cell.all_reduce(counts).tolist()  # rows of each slice rank of the cell

    def cut(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, f] -> [num_cell_nodes, f / S]
        """My columns of the whole cell's rows."""
        result: Tensor = _Slice.apply(x, self, layer)
        return result

    def join(self, z: Tensor, width: int, layer: int) -> Tensor:  # [num_cell_nodes, f / S] -> [num_owned, f]
        """All `width` columns of my rows."""
        result: Tensor = _Unslice.apply(z, self, width, layer)
        return result

    def replicate(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, H] -> [num_cell_nodes, H]
        """The cell's rows, all columns. Every slice rank must go on to compute the same with them: the gradient is taken from
        this rank's copy."""
        result: Tensor = _Replicate.apply(x, self, layer)
        return result

    def share(self, values: Tensor, layer: int) -> Tensor:  # [held edges, H]
        """Values that all slice ranks hold, before each uses them with its own columns: gradients are added up over the cell."""
        result: Tensor = _Share.apply(values, self, layer)
        return result

    def once(self, values: Tensor) -> Tensor:
        """Values that every slice rank computes alike from parameters: their gradient is counted once in the sum over ranks."""
        result: Tensor = _Once.apply(values, 1 if self.halo.local else self.cell.world_size)
        return result

    def columns(self, width: int) -> slice:
        """The columns of this rank."""
        counts = self.column_counts(width)
        first = sum(counts[: self.cell.rank])
        return slice(first, first + counts[self.cell.rank])

    def column_counts(self, width: int) -> list[int]:
        """How many of `width` columns each slice rank has."""
        size, rest = divmod(width, self.cell.world_size)
        return [size + (rank < rest) for rank in range(self.cell.world_size)]

    def cut_columns(self, x: Tensor, layer: int) -> Tensor:
        heads, columns = x.shape[1:-1], self.column_counts(x.shape[-1])
        mine = math.prod(heads) * columns[self.cell.rank]
        parts = torch.split(x, columns, dim=-1)
        numbers = torch.cat([part.reshape(-1) for part in parts])
        received = self._move(numbers, [part.numel() for part in parts], [n * mine for n in self.row_counts], layer)
        return received.view(sum(self.row_counts), *heads, columns[self.cell.rank])

    def join_columns(self, z: Tensor, width: int, layer: int) -> Tensor:
        heads, columns = z.shape[1:-1], self.column_counts(width)
        mine, owned = math.prod(z.shape[1:]), self.row_counts[self.cell.rank]
        recv = [owned * math.prod(heads) * c for c in columns]
        received = self._move(z.reshape(-1), [n * mine for n in self.row_counts], recv, layer)
        parts = torch.split(received, recv)
        return torch.cat([part.view(owned, *heads, c) for part, c in zip(parts, columns, strict=True)], dim=-1)

    def replicate_rows(self, x: Tensor, layer: int) -> Tensor:
        width, size = math.prod(x.shape[1:]), self.cell.world_size
        numbers = x.reshape(-1).repeat(size)
        received = self._move(numbers, [x.numel()] * size, [n * width for n in self.row_counts], layer)
        return received.view(sum(self.row_counts), *x.shape[1:])

    def own_rows(self, x: Tensor) -> Tensor:
        return torch.split(x, self.row_counts)[self.cell.rank]

    def add_up(self, values: Tensor, layer: int) -> Tensor:
        """Sum over the cell: each rank adds up its part of the numbers and hands it to the others, to the same bits."""
        size, me = self.cell.world_size, self.cell.rank
        numbers = values.reshape(-1)
        counts = self.column_counts(len(numbers))
        parts = self._move(numbers, counts, [counts[me]] * size, layer).view(size, counts[me])
        received = self._move(parts.sum(0).repeat(size), [counts[me]] * size, counts, layer)
        return received.view_as(values)

    def _move(self, numbers: Tensor, send: list[int], recv: list[int], layer: int) -> Tensor:
        def move() -> Tensor:
            return self._send(numbers, send, recv, layer)

        return self.halo.exchange(move, numbers, send, recv, self.cell.rank)

    def _send(self, numbers: Tensor, send: list[int], recv: list[int], layer: int) -> Tensor:
        me = self.peers[self.cell.rank]
        self.tally.record(layer, "slice", me, self.peers, send, recv, numbers.element_size())
        with self.tally.timed():
            return self.cell.all_to_all(numbers, send, recv)


class _Slice(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slicing: Slicing, layer: int) -> Tensor:
        ctx.slicing, ctx.width, ctx.layer = slicing, x.shape[-1], layer
        return slicing.cut_columns(x, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.slicing.join_columns(grad, ctx.width, ctx.layer), None, None


class _Unslice(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, slicing: Slicing, width: int, layer: int) -> Tensor:
        ctx.slicing, ctx.layer = slicing, layer
        return slicing.join_columns(z, width, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.slicing.cut_columns(grad, ctx.layer), None, None, None


class _Replicate(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slicing: Slicing, layer: int) -> Tensor:
        ctx.slicing = slicing
        return slicing.replicate_rows(x, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return ctx.slicing.own_rows(grad), None, None


class _Share(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, slicing: Slicing, layer: int) -> Tensor:
        ctx.slicing, ctx.layer = slicing, layer
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        alone = ctx.slicing.halo.local  # then nobody else's gradient counts
        return grad if alone else ctx.slicing.add_up(grad, ctx.layer), None, None


class _Once(Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, copies: int) -> Tensor:
        ctx.copies = copies
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad / ctx.copies, None
