"""Gather and its transpose, reduce: the one pair of exchanges that moves rows between ranks.

Every function here is collective over the run's ranks, in forward and in backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import Function

from gnnkit.comm import Communicator
from gnnkit.engine.aggregate import HeldEdges
from gnnkit.engine.traffic import Step, Traffic
from gnnkit.graph import CSC, Ids


class Route:
    """The way of rows between their owners and the ranks that hold edges at them; both sides order them by (cell, global id).

    `spread` copies the owners' rows to the holders; `collect` sums the holders' rows at the owners. Each is the other's
    transpose.
    """

    def __init__(
        self, rows: Ids, row_cell: Ids, cell_nodes: Ids, plane: Communicator, peers: Sequence[int], step: Step, traffic: Traffic
    ) -> None:
        """`rows` [num_rows] are the global ids that this rank holds edges at and `row_cell` their owners' cells; `cell_nodes` the
        ids that its own cell owns, in the order of their rows; `plane` the communicator over cells, `peers` its ranks in the
        numbering of the run."""
        self.plane, self.peers, self.step, self.traffic = plane, peers, step, traffic
        self.num_owned = len(cell_nodes)
        self.held_counts = np.bincount(row_cell, minlength=plane.world_size).tolist()
        counts = plane.all_to_all(
            torch.tensor(self.held_counts, device=plane.device), [1] * plane.world_size, [1] * plane.world_size
        )
        self.owned_counts: list[int] = counts.tolist()
        asked = plane.all_to_all(
            torch.from_numpy(np.asarray(rows, np.int64)).to(plane.device), self.held_counts, self.owned_counts
        )
        order = np.argsort(cell_nodes, kind="stable")
        positions = order[np.searchsorted(cell_nodes, asked.cpu().numpy(), sorter=order)]
        self.sent = torch.from_numpy(positions).to(plane.device)  # [rows asked for] position of each in `cell_nodes`
        self._arrivals = HeldEdges(CSC(np.arange(len(positions) + 1), positions, num_sources=self.num_owned)).transposed
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
        rows = x.index_select(0, self.sent)
        return rows if self.local else self._move(rows, self.owned_counts, self.held_counts, "gather", layer)

    def collect_rows(self, z: Tensor, layer: int) -> Tensor:
        arrived = z.contiguous()
        if not self.local:
            arrived = self._move(arrived, self.held_counts, self.owned_counts, "reduce", layer)
        return self._arrivals.apply(arrived)

    def _move(self, rows: Tensor, send: list[int], recv: list[int], step: Step, layer: int) -> Tensor:
        width = rows.shape[1]
        self.traffic.record(
            layer,
            step,
            self.peers[self.plane.rank],
            self.peers,
            [count * width for count in send],
            [count * width for count in recv],
            rows.element_size(),
        )
        with self.traffic.timed():
            return self.plane.all_to_all(rows, send, recv)


class _Spread(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, route: Route, layer: int) -> Tensor:  # type: ignore[override]
        ctx.route, ctx.layer = route, layer
        return route.spread_rows(x, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return ctx.route.collect_rows(grad, ctx.layer), None, None


class _Collect(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, route: Route, layer: int) -> Tensor:  # type: ignore[override]
        ctx.route, ctx.layer = route, layer
        return route.collect_rows(z, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return ctx.route.spread_rows(grad.contiguous(), ctx.layer), None, None


class Slicing:
    """Between "my rows, all columns" and "the cell's rows, my share of the columns".

    Columns are cut as `torch.tensor_split` cuts them: the first f mod S slices have one more.
    """

    def __init__(self, num_owned: int, cell: Communicator, peers: Sequence[int], traffic: Traffic) -> None:
        """`num_owned` is this rank's number of rows, `cell` the communicator over the slice ranks of its cell, `peers` its ranks in
        the numbering of the run."""
        self.cell, self.peers, self.traffic = cell, peers, traffic
        counts = torch.zeros(cell.world_size, dtype=torch.int64, device=cell.device)
        counts[cell.rank] = num_owned
        self.row_counts: list[int] = cell.all_reduce(counts).tolist()  # rows of each slice rank of the cell

    def slice(self, x: Tensor, layer: int) -> Tensor:  # [num_owned, f] -> [num_cell_nodes, f / S]
        """My columns of the whole cell's rows."""
        result: Tensor = _Slice.apply(x, self, layer) if self.cell.world_size > 1 else x
        return result

    def unslice(self, z: Tensor, width: int, layer: int) -> Tensor:  # [num_cell_nodes, f / S] -> [num_owned, f]
        """All `width` columns of my rows."""
        result: Tensor = _Unslice.apply(z, self, width, layer) if self.cell.world_size > 1 else z
        return result

    def column_counts(self, width: int) -> list[int]:
        """How many of `width` columns each slice rank has."""
        size, rest = divmod(width, self.cell.world_size)
        return [size + (rank < rest) for rank in range(self.cell.world_size)]

    def slice_columns(self, x: Tensor, layer: int) -> Tensor:
        columns = self.column_counts(x.shape[1])
        mine = columns[self.cell.rank]
        numbers = torch.cat([part.reshape(-1) for part in x.split(columns, dim=1)])
        received = self._move(numbers, [len(x) * c for c in columns], [n * mine for n in self.row_counts], layer)
        return received.view(sum(self.row_counts), mine)

    def join_columns(self, z: Tensor, width: int, layer: int) -> Tensor:
        columns = self.column_counts(width)
        mine, owned = columns[self.cell.rank], self.row_counts[self.cell.rank]
        recv = [owned * c for c in columns]
        received = self._move(z.reshape(-1), [n * mine for n in self.row_counts], recv, layer)
        parts = received.split(recv)
        return torch.cat([part.view(owned, c) for part, c in zip(parts, columns, strict=True)], dim=1)

    def _move(self, numbers: Tensor, send: list[int], recv: list[int], layer: int) -> Tensor:
        me = self.peers[self.cell.rank]
        self.traffic.record(layer, "slice", me, self.peers, send, recv, numbers.element_size())
        with self.traffic.timed():
            return self.cell.all_to_all(numbers, send, recv)


class _Slice(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, slicing: Slicing, layer: int) -> Tensor:  # type: ignore[override]
        ctx.slicing, ctx.width, ctx.layer = slicing, x.shape[1], layer
        return slicing.slice_columns(x, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        return ctx.slicing.join_columns(grad, ctx.width, ctx.layer), None, None


class _Unslice(Function):
    @staticmethod
    def forward(ctx: Any, z: Tensor, slicing: Slicing, width: int, layer: int) -> Tensor:  # type: ignore[override]
        ctx.slicing, ctx.layer = slicing, layer
        return slicing.join_columns(z, width, layer)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        return ctx.slicing.slice_columns(grad, ctx.layer), None, None, None
