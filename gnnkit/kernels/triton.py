"""Kernels over in-edges for GPUs, in Triton. No row of an edge is ever stored.

A program computes a tile in the result: some rows, some columns. The program reads the
rows' edges in tiles too, and adds a tile of edges up at the end. So every sum has a
fixed order, without atomic operations. A row with more than `LONG` edges is computed in
pieces, which a second pass joins in order.

16-bit rows are summed in float32, and rounded once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from gnnkit.kernels.sums import ONE, DeviceKernels, DropoutMask, EdgeKernels, Factors, wide

LONG = 512  # edges of a piece
_TILE = 512  # numbers that a program of one warp holds: 16 of each thread
_COLUMNS = 128  # of a tile at most
_EDGES = 16  # of a tile at most
_LAUNCH = {"num_warps": 1, "enable_fp_fusion": False}  # products are rounded before they are added, as on CPUs
_WIDE = {torch.float32: tl.float32, torch.float64: tl.float64}
_VARYING = ["num_rows", "num_own", "num_edges"]  # sizes of sampled blocks, for which nothing is compiled anew


@triton.jit
def _is_nan(x):
    return x != x  # noqa: PLR0124


@triton.jit(do_not_specialize=_VARYING)
def _sum(  # noqa: PLR0912
    out,  # [rows of the result, >= width]
    x,  # [num_src, >= width]
    begin,  # [num_rows] first edge
    end,  # [num_rows]
    rows,  # [num_rows] row of the result. None: in order
    src,  # [num_edges] row of x. None: edge e reads row e
    order,  # [num_edges] place of each edge's factor. None: in order
    weight,  # [num_edges, HEADS] or None
    source,  # [num_src] or None
    destination,  # [rows of the result] or None
    arg,  # [num_src, width] place of the only edge that counts, or None
    own,  # [num_own, >= width] or None
    scale,  # [1] factor of own, or None
    num_rows,
    num_own,
    width,
    x_stride,
    own_stride,
    out_stride,
    HEADS: tl.constexpr,
    BESIDE: tl.constexpr,  # whether own rows are appended to the sums
    ADD: tl.constexpr,  # whether sums are added to the result
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, inside = slot < num_rows, column < width
    first = tl.load(begin + slot, mask=live, other=0)
    last = tl.load(end + slot, mask=live, other=0)
    total = tl.zeros((ROWS, EDGES, COLUMNS), WIDE)
    for at in range(0, tl.max(last - first, 0), EDGES):
        edge = first[:, None] + at + tl.arange(0, EDGES)[None, :]
        is_edge = edge < last[:, None]
        read = is_edge[:, :, None] & inside[None, None, :]
        row = edge.to(tl.int64)
        place = edge.to(tl.int64)
        if src is not None:
            row = tl.load(src + edge, mask=is_edge, other=0).to(tl.int64)
        if order is not None:
            place = tl.load(order + edge, mask=is_edge, other=0).to(tl.int64)
        value = tl.load(x + row[:, :, None] * x_stride + column[None, None, :], mask=read, other=0).to(WIDE)
        if weight is not None:
            if HEADS == 1:
                value *= tl.load(weight + place, mask=is_edge, other=0)[:, :, None]
            else:
                head = column // (width // HEADS)
                value *= tl.load(weight + place[:, :, None] * HEADS + head[None, None, :], mask=read, other=0)
        if source is not None:
            value *= tl.load(source + row, mask=is_edge, other=0)[:, :, None]
        if arg is not None:
            winners = tl.load(arg + row[:, :, None] * width + column[None, None, :], mask=read, other=-1)
            value = tl.where(winners == place[:, :, None], value, 0)
        total += value
    sums = tl.sum(total, 1)
    to = slot
    if rows is not None:
        to = tl.load(rows + slot, mask=live, other=0).to(tl.int64)
    if destination is not None:
        sums *= tl.load(destination + to, mask=live, other=0)[:, None]
    store_mask = live[:, None] & inside[None, :]
    place_out = out + to[:, None] * out_stride + column[None, :]
    if own is not None:
        own_mask = store_mask & (to < num_own)[:, None]
        beside = tl.load(own + to[:, None] * own_stride + column[None, :], mask=own_mask, other=0)
        if BESIDE:
            tl.store(place_out + width, beside, mask=store_mask)
        elif scale is None:
            sums += beside.to(WIDE)
        else:
            sums += tl.load(scale) * beside.to(WIDE)
    if ADD:
        sums += tl.load(place_out, mask=store_mask, other=0).to(WIDE)
    tl.store(place_out, sums.to(out.dtype.element_ty), mask=store_mask)


@triton.jit(do_not_specialize=_VARYING)
def _max(
    best,  # [rows of the result, width]
    arg,  # [rows of the result, width] int64 place of the edge
    x,  # [num_src, width]
    begin,  # [num_rows] first edge
    end,  # [num_rows]
    rows,  # [num_rows] row of the result. None: in order
    src,  # [num_edges] row of x. None: edge e reads row e
    order,  # [num_edges] place of each edge. None: in order
    places,  # [num_edges, width] place of each number, or None
    num_rows,
    width,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    slot = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, inside = slot < num_rows, column < width
    first = tl.load(begin + slot, mask=live, other=0)
    last = tl.load(end + slot, mask=live, other=0)
    top = tl.full((ROWS, EDGES, COLUMNS), float("-inf"), WIDE)
    best_edge = tl.full((ROWS, EDGES, COLUMNS), -1, tl.int64)
    for at in range(0, tl.max(last - first, 0), EDGES):
        edge = first[:, None] + at + tl.arange(0, EDGES)[None, :]
        is_edge = edge < last[:, None]
        read = is_edge[:, :, None] & inside[None, None, :]
        row = edge.to(tl.int64)
        if src is not None:
            row = tl.load(src + edge, mask=is_edge, other=0).to(tl.int64)
        value = tl.load(x + row[:, :, None] * width + column[None, None, :], mask=read, other=0).to(WIDE)
        exceeds = ((value > top) | _is_nan(value)) & ~_is_nan(top)  # NaN is the largest
        takes = read & ((best_edge < 0) | exceeds)
        top = tl.where(takes, value, top)
        best_edge = tl.where(takes, edge.to(tl.int64)[:, :, None], best_edge)
    nan = _is_nan(top)
    has_nan = tl.max(nan.to(tl.int32), 1) > 0
    largest = tl.max(tl.where(nan, float("-inf"), top), 1)
    equal = (nan & has_nan[:, None, :]) | ((top == largest[:, None, :]) & ~has_nan[:, None, :])
    none = last.to(tl.int64)[:, None]
    winner = tl.min(tl.where(equal & (best_edge >= 0), best_edge, none[:, :, None]), 1)
    store_mask = live[:, None] & inside[None, :]
    is_winner = store_mask & (winner < none)
    to = slot
    if rows is not None:
        to = tl.load(rows + slot, mask=live, other=0).to(tl.int64)
    row = winner
    place = winner
    if src is not None:
        row = tl.load(src + winner, mask=is_winner, other=0).to(tl.int64)
    if order is not None:
        place = tl.load(order + winner, mask=is_winner, other=0).to(tl.int64)
    if places is not None:
        place = tl.load(places + winner * width + column[None, :], mask=is_winner, other=-1)
    at_out = to[:, None] * width + column[None, :]
    value = tl.load(x + row * width + column[None, :], mask=is_winner, other=float("-inf"))
    tl.store(best + at_out, value, mask=store_mask)
    tl.store(arg + at_out, tl.where(is_winner, place, -1), mask=store_mask)


@triton.jit(do_not_specialize=_VARYING)
def _dot(
    out,  # [num_edges, HEADS]
    x,  # [num_src, HEADS, of_head]
    grad,  # [num_dst, HEADS, of_head]
    src,  # [num_edges] row of x
    dst,  # [num_edges] row of grad
    order,  # [num_edges] row of the result. None: in order
    num_edges,
    of_head,
    HEADS: tl.constexpr,
    WIDE: tl.constexpr,
    EDGES: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    edge = tl.program_id(0).to(tl.int64) * EDGES + tl.arange(0, EDGES)
    head = tl.program_id(1)
    is_edge = edge < num_edges
    row = tl.load(src + edge, mask=is_edge, other=0).to(tl.int64)
    to = tl.load(dst + edge, mask=is_edge, other=0).to(tl.int64)
    place = edge
    if order is not None:
        place = tl.load(order + edge, mask=is_edge, other=0).to(tl.int64)
    total = tl.zeros((EDGES, COLUMNS), WIDE)
    for start in range(0, of_head, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        read = is_edge[:, None] & (column < of_head)[None, :]
        at = (head * of_head + column)[None, :]
        a = tl.load(x + row[:, None] * HEADS * of_head + at, mask=read, other=0).to(WIDE)
        b = tl.load(grad + to[:, None] * HEADS * of_head + at, mask=read, other=0).to(WIDE)
        total += a * b
    tl.store(out + place * HEADS + head, tl.sum(total, 1), mask=is_edge)


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """A result's rows, with their edges."""

    begin: Tensor  # [n]
    end: Tensor  # [n]
    number: Tensor | None = None  # [n] in the result. None: all rows in order


@dataclass(frozen=True, slots=True, eq=False)
class _Pieces:
    """The rows with more than `LONG` edges."""

    parts: _Rows  # at most LONG edges each
    long: _Rows  # the parts of each row


class TritonKernels(DeviceKernels):
    """The Triton kernels. Results are bit-identical on the same kind of GPU."""

    def __init__(self, indptr: Tensor, src: Tensor, order: Tensor | None, num_src: int) -> None:
        super().__init__(indptr, src, order, num_src)
        self._transpose: EdgeKernels | None = None
        self._short, self._pieces = _divide(self.indptr)

    def transpose(self) -> EdgeKernels:
        if self._transpose is None:  # `max_backward` needs the transpose too
            self._transpose = super().transpose()
        return self._transpose

    def sum(self, x: Tensor, factors: Factors = ONE, *, own: float = 0) -> Tensor:
        rows = x.detach().contiguous()
        out = x.new_empty((self.num_dst, *x.shape[1:]))
        scale = torch.full((1,), own, dtype=wide(x.dtype), device=x.device) if own else None
        self._sums(out, rows, math.prod(x.shape[1:]), factors, own=rows if own else None, scale=scale)
        return out

    def add_sum(self, x: Tensor, factors: Factors, out: Tensor) -> None:
        self._sums(out, x.detach().contiguous(), min(x.shape[1], out.shape[1]), factors, add=True)

    def sum_beside(self, x: Tensor, factors: Factors, mask: DropoutMask | None = None) -> Tensor:
        assert mask is None
        rows, out = x.detach().contiguous(), x.new_empty((self.num_dst, 2 * x.shape[1]))
        self._sums(out, rows, x.shape[1], factors, own=rows, beside=True)
        return out

    def sum_beside_backward(self, grad: Tensor, factors: Factors) -> Tensor:
        width = grad.shape[1] // 2
        rows, out = grad.detach().contiguous(), grad.new_empty((self.num_dst, width))
        self._sums(out, rows, width, factors, own=rows[:, width:])
        return out

    def edge_dot(self, x: Tensor, grad: Tensor) -> Tensor:
        x, grad = x.detach().contiguous(), grad.detach().contiguous()
        heads, of_head = x.shape[1:]
        out = x.new_empty((self.num_edges, heads), dtype=wide(x.dtype))
        if out.numel():
            columns = min(_COLUMNS, triton.next_power_of_2(max(of_head, 1)))
            edges = _TILE // columns
            _dot[(triton.cdiv(self.num_edges, edges), heads)](
                out, x, grad, self.src, self.dst, self.order, self.num_edges, of_head,
                HEADS=heads, WIDE=_WIDE[out.dtype], EDGES=edges, COLUMNS=columns, **_LAUNCH,
            )  # fmt: skip
        return out

    def max(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.detach().contiguous()
        best = x.new_empty((self.num_dst, x.shape[1]))
        arg = torch.empty(best.shape, dtype=torch.int64, device=x.device)
        if self._pieces is not None:
            parts, long = self._pieces.parts, self._pieces.long
            scratch = x.new_empty((len(parts.begin), x.shape[1]))
            places = torch.empty(scratch.shape, dtype=torch.int64, device=x.device)
            self._launch_max(parts, scratch, places, x)
            self._launch_max(long, best, arg, scratch, places)
        self._launch_max(self._short, best, arg, x)
        return best, arg

    def max_backward(self, grad: Tensor, arg: Tensor) -> Tensor:
        kernels = self.transpose()
        assert isinstance(kernels, TritonKernels)
        out = grad.new_empty((self.num_src, grad.shape[1]))
        kernels._sums(out, grad.detach().contiguous(), grad.shape[1], ONE, arg=arg.contiguous())
        return out

    def _sums(
        self,
        out: Tensor,
        x: Tensor,
        width: int,
        factors: Factors,
        *,
        arg: Tensor | None = None,
        own: Tensor | None = None,
        scale: Tensor | None = None,
        beside: bool = False,
        add: bool = False,
    ) -> None:
        """Computes sums, and adds or appends own rows.

        Args:
            out: [num_dst, ...] result.
            x: [num_src, ...] contiguous.
            width: Numbers of a row that are summed.
            arg: [num_src, width] the only edge that counts. Default: all count.
            own: [n, ...] rows added to the first n sums. Default: none.
            scale: [1] factor of `own`. Default: 1.
            beside: Writes `own` next to the sums instead.
        """
        heads = 1 if factors.edge is None else factors.edge.shape[1]
        by = {"weight": factors.edge, "source": factors.source, "destination": factors.destination}
        factor_arrays = {
            name: None if v is None else v.detach().to(wide(x.dtype)).contiguous() for name, v in by.items()
        }
        destination = factor_arrays.pop("destination")
        edges = {"src": self.src, "order": self.order, "arg": arg, "HEADS": heads, **factor_arrays}
        last = {"destination": destination, "own": own, "scale": scale, "BESIDE": beside, "ADD": add}
        if self._pieces is not None:
            parts, long = self._pieces.parts, self._pieces.long
            scratch = x.new_empty((len(parts.begin), width), dtype=wide(x.dtype))
            _launch_sum(parts, scratch, x, width, **edges)
            _launch_sum(long, out, scratch, width, **last)
        _launch_sum(self._short, out, x, width, **edges, **last)

    def _launch_max(self, rows: _Rows, best: Tensor, arg: Tensor, x: Tensor, places: Tensor | None = None) -> None:
        """Computes row maxima of `x`, and their places.

        Args:
            rows: The rows.
            best: [num_dst, f] result, or pieces' results.
            arg: The maxima's edges, of the same shape.
            x: [num_src, f] contiguous, or pieces' maxima.
            places: Edges of pieces' maxima. If None, `x` are source rows.
        """
        src, order = (self.src, self.order) if places is None else (None, None)
        grid, blocks = _tiles(len(rows.begin), x.shape[1], self.num_edges)
        if all(grid):
            kind = _WIDE[wide(x.dtype)]
            _max[grid](
                best, arg, x, rows.begin, rows.end, rows.number, src, order, places,
                len(rows.begin), x.shape[1], WIDE=kind, **blocks, **_LAUNCH,
            )  # fmt: skip


def _launch_sum(rows: _Rows, out: Tensor, x: Tensor, width: int, **pointers: Any) -> None:
    """Sums rows. `pointers` are the arguments that are not None."""
    none = dict.fromkeys(("src", "order", "weight", "source", "destination", "arg", "own", "scale"))
    pointers = {**none, "HEADS": 1, "BESIDE": False, "ADD": False, **pointers}
    num_rows, own, src = len(rows.begin), pointers["own"], pointers["src"]
    grid, blocks = _tiles(num_rows, width, len(x) if src is None else len(src))
    if not all(grid):
        return
    _sum[grid](
        out=out, x=x, begin=rows.begin, end=rows.end, rows=rows.number, num_rows=num_rows,
        num_own=0 if own is None else len(own), width=width, x_stride=x.stride(0),
        own_stride=0 if own is None else own.stride(0), out_stride=out.stride(0),
        WIDE=_WIDE[wide(x.dtype)], **pointers, **blocks, **_LAUNCH,
    )  # fmt: skip


def _tiles(num_rows: int, width: int, num_edges: int) -> tuple[tuple[int, int], dict[str, int]]:
    """Returns the grid of programs, and the rows, edges and columns of a tile.

    A tile has as many edges as a row has in the mean, up to a bound, so that few lanes
    stay idle where edges have one row each.
    """
    columns = min(_COLUMNS, triton.next_power_of_2(max(width, 1)))
    mean = triton.cdiv(max(num_edges, 1), max(num_rows, 1))
    edges = min(_EDGES, _TILE // columns, triton.next_power_of_2(mean))
    rows = _TILE // (columns * edges)
    grid = (triton.cdiv(num_rows, rows), triton.cdiv(width, columns))
    return grid, {"ROWS": rows, "EDGES": edges, "COLUMNS": columns}


def _divide(indptr: Tensor) -> tuple[_Rows, _Pieces | None]:
    """Returns the rows with at most `LONG` edges, and the others' pieces."""
    begin, end = indptr[:-1], indptr[1:]
    is_long = end - begin > LONG
    if not is_long.any():
        return _Rows(begin, end), None
    long, short = is_long.nonzero()[:, 0], (~is_long).nonzero()[:, 0]
    counts = torch.div(end[long] - begin[long] + LONG - 1, LONG, rounding_mode="floor")
    starts = torch.cat([counts.new_zeros(1), counts.cumsum(0, dtype=counts.dtype)])
    of = torch.repeat_interleave(torch.arange(len(long), device=indptr.device), counts)
    number = torch.arange(len(of), device=indptr.device, dtype=indptr.dtype) - starts[of]
    first = begin[long][of] + number * LONG
    parts = _Rows(first, torch.minimum(first + LONG, end[long][of]))
    return _Rows(begin[short], end[short], short), _Pieces(parts, _Rows(starts[:-1], starts[1:], long))
